package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"yoi.dev/yoi-runtime/gitcache"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// Recover brings the Runtime root to what the ledger and the registry agree on,
// after whatever happened: leftovers of dead writers are removed, live Workers
// followed, interrupted removals finished.
func (r *Runtime) Recover(ctx context.Context) (RecoveryReport, error) {
	var rep RecoveryReport
	if err := r.ledger.Sync(ctx); err != nil { // or our own buffered releases look like leftovers
		return rep, err
	}
	state, err := ledger.Scan(ctx, r.ledgerDir)
	if err != nil {
		return rep, err
	}
	rep.Streams = len(state.Streams)
	for _, s := range state.Streams {
		rep.Records += s.Records
	}
	h, err := r.helper.Recover(ctx)
	if err != nil {
		return rep, err
	}
	rep.Leftovers, rep.Removed, rep.Kept, rep.Adopted = h.Leftovers, h.Removed, h.Kept, len(h.Adopted)
	rep.Diagnostics = h.Diagnostics
	died := make(map[policy.AllocationID]bool)
	for _, l := range state.Leftovers() {
		died[policy.AllocationID(l.Resource.Owner)] = true
	}
	if err := r.reconcile(ctx, h.Rescued, died, &rep); err != nil {
		return rep, err
	}
	if err := r.reconcileImages(ctx, &rep); err != nil {
		return rep, err
	}
	if err := r.recoverBundles(ctx, state, &rep); err != nil {
		return rep, err
	}
	err = r.recoverCache(ctx, state, &rep)
	r.note(rep.Diagnostics)
	if rep.Removed > 0 || rep.Adopted > 0 {
		r.event(policy.EventRuntimeRecovered, string(r.id), map[string]string{
			"leftovers": fmt.Sprint(rep.Leftovers), "removed": fmt.Sprint(rep.Removed), "adopted": fmt.Sprint(rep.Adopted),
		})
	}
	return rep, err
}

// LedgerReplay is Recover by command.
func (r *Runtime) LedgerReplay(ctx context.Context) (RecoveryReport, error) { return r.Recover(ctx) }

// reconcile makes the registry agree with what is there. died are the owners of what
// dead processes left.
func (r *Runtime) reconcile(ctx context.Context, rescued []policy.AllocationID, died map[policy.AllocationID]bool, rep *RecoveryReport) error {
	for _, id := range rescued {
		d := policy.Warnf(policy.CodeUncollectedWork, "runtime.recover", "its process died; it is kept since the worker had made git objects")
		_, err := r.registry.UpdateAllocation(ctx, id, func(v *registry.Allocation) error {
			v.Status, v.StoppedAt = registry.AllocationStopped, r.now()
			v.CleanupPolicy = policy.CleanupPolicy{Mode: policy.KeepUntil}
			v.Diagnostics = append(v.Diagnostics, *d)
			return nil
		})
		if err != nil && !errors.Is(err, policy.CodeAllocationUnknown) {
			return err
		}
		rep.Diagnostics = append(rep.Diagnostics, *d.With("allocation", string(id)))
	}
	for _, status := range []registry.AllocationStatus{registry.AllocationActive, registry.AllocationStopped, registry.AllocationCleanupPending, registry.AllocationFailed} {
		err := r.eachAllocation(ctx, registry.Filter{Status: []string{string(status)}}, func(a registry.Allocation) error {
			if err := r.reconcileOne(ctx, a, died[a.ID], rep); err != nil {
				d := policy.AsDiagnostic(err)
				r.log.Warn("allocation not reconciled", "allocation", a.ID, "error", err)
				rep.Diagnostics = append(rep.Diagnostics, *d)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *Runtime) reconcileOne(ctx context.Context, a registry.Allocation, died bool, rep *RecoveryReport) error {
	if r.inFlight(a) {
		return nil
	}
	exists, err := r.root.Exists(rootdir.Workspace(a.ID))
	if err != nil {
		return err
	}
	if !exists && died && a.Status == registry.AllocationActive {
		if err := r.mourn(ctx, a, rep); err != nil {
			return err
		}
	}
	if !exists || a.Status == registry.AllocationCleanupPending {
		return r.remove(ctx, a)
	}
	workers, err := r.liveWorkers(ctx, a.ID)
	if err != nil || !r.daemon {
		return err
	}
	for _, w := range workers {
		if !r.claim(w.ID, w.AllocationID) {
			continue // this process launched it, or adopted it before
		}
		// No other process has this root: who held a session is dead, and with it that.
		if _, err := r.registry.UpdateWorker(ctx, w.ID, func(v *registry.Worker) error {
			v.LoseSessions(r.now())
			return nil
		}); err != nil {
			r.unclaim(w.ID)
			return err
		}
		r.follow(w)
	}
	return nil
}

// mourn says in the record of a workspace, and to whoever had it recovered, why it is
// gone: nobody asked for that.
func (r *Runtime) mourn(ctx context.Context, a registry.Allocation, rep *RecoveryReport) error {
	d := policy.Warnf(policy.CodeProcessDied, "runtime.recover", "the process of the execution workspace %s died; what it left has been removed", a.ID).With("allocation", string(a.ID))
	_, err := r.registry.UpdateAllocation(ctx, a.ID, func(v *registry.Allocation) error {
		v.Diagnostics = append(v.Diagnostics, *d)
		return nil
	})
	rep.Diagnostics = append(rep.Diagnostics, *d)
	return err
}

// inFlight reports whether another live process of this root owns an
// allocation: an embedded run's, whose stream is live.
func (r *Runtime) inFlight(a registry.Allocation) bool {
	if r.daemon {
		return false
	}
	state, err := ledger.Scan(context.Background(), r.ledgerDir)
	if err != nil {
		return true
	}
	for _, h := range state.Held {
		if h.Live && h.Resource.Owner == string(a.ID) {
			return true
		}
	}
	return false
}

// recoverCache releases what dead writers held in the repository cache: pins
// and marks of allocations that are gone, worktree entries, half-made mirrors
// and trees.
func (r *Runtime) recoverCache(ctx context.Context, state *ledger.State, rep *RecoveryReport) error {
	for _, h := range state.Leftovers() {
		if !strings.HasPrefix(h.Resource.Path, rootdir.Cache+"/") {
			continue
		}
		rep.Leftovers++
		if err := r.recoverCacheResource(ctx, h.Resource); err != nil {
			r.log.Warn("cache leftover not removed", "path", h.Resource.Path, "error", err)
			rep.Diagnostics = append(rep.Diagnostics, *policy.AsDiagnostic(err))
			continue
		}
		rep.Removed++
	}
	return r.ledger.Sync(ctx)
}

func (r *Runtime) recoverCacheResource(ctx context.Context, res ledger.Resource) error {
	repo := policy.RepositoryID(res.Attrs["repository"])
	(*journal)(r).adopt(res)
	switch res.Kind {
	case ledger.KindCacheReference:
		if key := res.Attrs["tree"]; key != "" {
			return r.cache.ReleasePristine(ctx, repo, key, res.Owner)
		}
		if name := res.Attrs["collected"]; name != "" {
			return r.cache.RecoverCollected(ctx, repo, name, res.Attrs["commit"])
		}
		return r.cache.Unpin(ctx, repo, res.Attrs["commit"], res.Owner)
	case ledger.KindWorktreeAdmin:
		return r.cache.RemoveWorktree(ctx, repo, policy.AllocationID(res.Owner))
	case ledger.KindDirectory, ledger.KindPristineTree:
		return r.cache.RemoveLeftover(ctx, gitcache.Resource{Kind: string(res.Kind), Owner: res.Owner, Path: res.Path, Attrs: res.Attrs})
	}
	return policy.Errorf(policy.CodeLeftoverForeign, "runtime.recover", "the ledger holds a %s in the cache, which this version does not know", res.Kind)
}

func verifyLedger(ctx context.Context, dir *os.File) (LedgerReport, error) {
	rep, err := ledger.Verify(ctx, dir)
	if err != nil {
		return LedgerReport{}, err
	}
	out := LedgerReport{OK: rep.OK}
	for _, s := range rep.Streams {
		info := LedgerStreamInfo{Stream: s.Name, Segments: s.Segments, Records: s.Records, Live: s.Live}
		if b := s.Break; b != nil {
			info.Break = fmt.Sprintf("segment %s, line %d: %s", b.Segment, b.Line, b.Reason)
		}
		out.Streams = append(out.Streams, info)
	}
	return out, nil
}

// VerifyLedger checks the ledger of a Runtime root without opening the Runtime:
// a broken ledger must not keep its own diagnosis from working.
func VerifyLedger(ctx context.Context, root string) (LedgerReport, error) {
	abs, err := absoluteRoot(root)
	if err != nil {
		return LedgerReport{}, err
	}
	d, err := ledger.OpenDir(abs+"/"+rootdir.Ledger, false)
	if err != nil {
		return LedgerReport{}, err
	}
	defer d.Close()
	return verifyLedger(ctx, d)
}

// needsRecovery reports whether a dead writer holds anything that is not kept.
func (r *Runtime) needsRecovery(ctx context.Context) (bool, error) {
	state, err := ledger.Scan(ctx, r.ledgerDir)
	if err != nil {
		return false, err
	}
	return len(state.Leftovers()) > 0, nil
}
