package runtime

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"time"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/gitcache"
	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// keysKeptFor is how long a repeated request gets the first one's answer.
const keysKeptFor = 7 * 24 * time.Hour

// GC removes leftovers and expired workspaces, evicts pristine trees that
// nobody uses down to the quota, least recently used first, and patches that nobody
// has used for long, and lets git repack the mirrors.
func (r *Runtime) GC(ctx context.Context, req GCRequest) (GCReport, error) {
	rep := GCReport{DryRun: req.DryRun, RemovedTrees: []string{}, ExpiredRemoved: []policy.AllocationID{}, Items: []GCItem{}}
	if req.KeepCacheBytes < 0 {
		return rep, policy.Errorf(policy.CodeBadRequest, "runtime.gc", "keep_cache_bytes is negative")
	}
	keep := req.KeepCacheBytes
	if keep == 0 {
		keep = r.config().Cache.MaxBytes
	}
	if err := r.gcLeftovers(ctx, req.DryRun, &rep); err != nil {
		return rep, err
	}
	expired, err := r.registry.ExpiredAllocations(ctx, r.now())
	if err != nil {
		return rep, err
	}
	for _, a := range expired {
		gone, bytes, err := r.gcExpired(ctx, a, req.DryRun)
		if err != nil {
			rep.Diagnostics = append(rep.Diagnostics, *policy.AsDiagnostic(err))
			continue
		}
		if gone {
			rep.ExpiredRemoved = append(rep.ExpiredRemoved, a.ID)
			rep.add("workspace", string(a.ID), bytes)
		}
	}
	if err := r.evictUnused(ctx, keep, req.DryRun, &rep); err != nil {
		return rep, err
	}
	if err := r.evictPatches(ctx, req.DryRun, &rep); err != nil {
		return rep, err
	}
	if err := r.evictBundles(ctx, req.DryRun, &rep); err != nil {
		return rep, err
	}
	if req.DryRun {
		return rep, nil
	}
	if _, err := r.registry.ForgetKeysBefore(ctx, r.now().Add(-keysKeptFor)); err != nil {
		return rep, err
	}
	err = r.gcMirrors(ctx, &rep)
	r.note(rep.Diagnostics)
	if err != nil {
		return rep, err
	}
	r.events.wake() // the cache is another size
	return rep, r.noteCleanup(ctx, rep)
}

// add counts one thing.
func (rep *GCReport) add(kind, name string, bytes int64) {
	rep.Items = append(rep.Items, GCItem{Kind: kind, Name: name, Bytes: bytes})
	rep.FreedBytes += bytes
}

// gcExpired removes a workspace whose time is over, unless it holds work that
// nobody has collected, and says what it occupied.
func (r *Runtime) gcExpired(ctx context.Context, a registry.Allocation, dry bool) (gone bool, bytes int64, err error) {
	u, err := r.helper.Usage(ctx, a.ID)
	if err != nil && !errors.Is(err, policy.CodeAllocationUnknown) {
		return false, 0, err
	}
	if dry {
		if a.CleanupPolicy.DiscardUncollected {
			return true, u.Exclusive, nil
		}
		d, err := r.uncollected(ctx, a)
		return d == nil && err == nil, u.Exclusive, err
	}
	if err := r.removeUnlessWork(ctx, a, a.CleanupPolicy.DiscardUncollected); err != nil {
		return false, 0, err
	}
	now, err := r.registry.GetAllocation(ctx, a.ID)
	return now.Status == registry.AllocationRemoved, u.Exclusive, err
}

// evictUnused removes pristine trees, then shared caches, that nothing stands on.
func (r *Runtime) evictUnused(ctx context.Context, keep int64, dry bool, rep *GCReport) error {
	ev, err := r.cache.Evict(ctx, keep, dry)
	for i, rel := range ev.Removed {
		rep.RemovedTrees = append(rep.RemovedTrees, rel)
		rep.add("pristine_tree", rel, ev.Freed[i])
	}
	rep.InUse += ev.InUseSkipped
	if err != nil {
		return err
	}
	shared, err := r.helper.EvictCaches(ctx, helper.EvictRequest{KeepBytes: r.config().Cache.SharedMaxBytes, DryRun: dry})
	for _, c := range shared.Removed {
		rep.add("shared_cache", c.Name, c.Bytes)
	}
	rep.InUse += shared.InUse
	return err
}

// exclusive is what a directory of the Runtime root has to itself.
func (r *Runtime) exclusive(ctx context.Context, rel string) (int64, error) {
	parent, err := r.root.OpenDir(path.Dir(rel))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, policy.Errorf(policy.CodeInternal, "runtime.gc", "a directory of the Runtime root cannot be opened").Because(err)
	}
	defer parent.Close()
	m := cow.NewMeter()
	err = m.Add(ctx, parent, path.Base(rel))
	return m.Usage().Exclusive, err
}

// gcLeftovers removes what dead writers left. What that frees is measured before,
// whether it is removed or not, so that both reports say the same.
func (r *Runtime) gcLeftovers(ctx context.Context, dry bool, rep *GCReport) error {
	if err := r.ledger.Sync(ctx); err != nil { // or our own buffered releases look like leftovers
		return err
	}
	state, err := ledger.Scan(ctx, r.ledgerDir)
	if err != nil {
		return err
	}
	left := state.Leftovers()
	for _, h := range left {
		if h.Resource.Kind != ledger.KindDirectory && h.Resource.Kind != ledger.KindPristineTree {
			continue // no disk of its own, or it lies in a directory of the same owner
		}
		bytes, err := r.exclusive(ctx, h.Resource.Path)
		if ctx.Err() != nil {
			return err
		}
		if err != nil { // what cannot be measured is removed all the same
			rep.Diagnostics = append(rep.Diagnostics, *policy.AsDiagnostic(err))
		}
		rep.add("leftover", h.Resource.Path, bytes)
	}
	if dry {
		rep.LeftoversFound = len(left)
		return nil
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
