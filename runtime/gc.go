package runtime

import (
	"context"
	"time"

	"yoi.dev/yoi-runtime/gitcache"
	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/policy"
)

// keysKeptFor is how long a repeated request gets the first one's answer.
const keysKeptFor = 7 * 24 * time.Hour

// GC removes leftovers and expired workspaces, evicts pristine trees that
// nobody uses down to the quota, least recently used first, and lets git repack
// the mirrors.
func (r *Runtime) GC(ctx context.Context, req GCRequest) (GCReport, error) {
	rep := GCReport{DryRun: req.DryRun, RemovedTrees: []string{}, ExpiredRemoved: []policy.AllocationID{}}
	if req.KeepCacheBytes < 0 {
		return rep, policy.Errorf(policy.CodeBadRequest, "runtime.gc", "keep_cache_bytes is negative")
	}
	keep := req.KeepCacheBytes
	if keep == 0 {
		keep = r.config.Cache.MaxBytes
	}
	if err := r.gcLeftovers(ctx, req.DryRun, &rep); err != nil {
		return rep, err
	}
	expired, err := r.registry.ExpiredAllocations(ctx, r.now())
	if err != nil {
		return rep, err
	}
	for _, a := range expired {
		if !req.DryRun {
			if err := r.removeUnlessWork(ctx, a, a.CleanupPolicy.DiscardUncollected); err != nil {
				rep.Diagnostics = append(rep.Diagnostics, *policy.AsDiagnostic(err))
				continue
			}
		}
		rep.ExpiredRemoved = append(rep.ExpiredRemoved, a.ID)
	}
	ev, err := r.cache.Evict(ctx, keep, req.DryRun)
	if err != nil {
		return rep, err
	}
	rep.RemovedTrees = append(rep.RemovedTrees, ev.Removed...)
	rep.FreedBytes += ev.BytesFreed
	if req.DryRun {
		return rep, nil
	}
	if _, err := r.registry.ForgetKeysBefore(ctx, r.now().Add(-keysKeptFor)); err != nil {
		return rep, err
	}
	return rep, r.gcMirrors(ctx, &rep)
}

func (r *Runtime) gcLeftovers(ctx context.Context, dry bool, rep *GCReport) error {
	if dry {
		state, err := ledger.Scan(ctx, r.ledgerDir)
		if err == nil {
			rep.LeftoversFound = len(state.Leftovers())
		}
		return err
	}
	rec, err := r.Recover(ctx)
	rep.LeftoversFound, rep.LeftoversGone = rec.Leftovers, rec.Removed
	rep.Diagnostics = append(rep.Diagnostics, rec.Diagnostics...)
	return err
}

func (r *Runtime) gcMirrors(ctx context.Context, rep *GCReport) error {
	recs, err := r.registry.ListRepositories(ctx)
	if err != nil {
		return err
	}
	infos, err := r.cacheInfos(ctx)
	if err != nil {
		return err
	}
	for _, rec := range recs {
		if _, cached := infos[rec.ID]; !cached {
			continue // registered, and never used yet
		}
		g, err := r.cache.GC(ctx, rec.ID, gitcache.GCOptions{})
		if err != nil {
			rep.Diagnostics = append(rep.Diagnostics, *policy.AsDiagnostic(err))
			continue
		}
		rep.FreedBytes += max(0, g.BytesBefore-g.BytesAfter)
	}
	return nil
}
