package runtime

import (
	"context"
	"errors"
	"time"

	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// applyCleanup does what an allocation's policy says for the end of a Worker.
// unknown is why what the Worker left is not known, nil if w says it.
func (r *Runtime) applyCleanup(ctx context.Context, a registry.Allocation, w registry.Worker, unknown error) error {
	if a.Status != registry.AllocationActive {
		return nil
	}
	succeeded := w.Outcome != nil && w.Outcome.ExitCode == 0 && !w.Outcome.Lost
	switch a.CleanupPolicy.Mode {
	case policy.KeepUntil:
		return nil
	case policy.KeepFor:
		return r.stopAllocation(ctx, a, func(v *registry.Allocation) { v.CleanupDeadline = r.now().Add(v.CleanupPolicy.For) })
	case policy.KeepOnFailure:
		if !succeeded {
			return r.stopAllocation(ctx, a, nil)
		}
	}
	if err := r.stopAllocation(ctx, a, nil); err != nil {
		return err
	}
	if a.CleanupPolicy.DiscardUncollected {
		return r.remove(ctx, a)
	}
	if unknown != nil {
		return r.keepWith(ctx, a, policy.AsDiagnostic(unknown))
	}
	if w.Outcome != nil {
		if d := uncollectedWork(a, w.Outcome.Work); d != nil {
			return r.keepWith(ctx, a, d)
		}
	}
	return r.remove(ctx, a)
}

// keepWith leaves an allocation as it is, with a diagnostic that says why.
func (r *Runtime) keepWith(ctx context.Context, a registry.Allocation, d *policy.Diagnostic) error {
	r.note([]policy.Diagnostic{*d}, allocationAttrs(a)...)
	_, err := r.registry.UpdateAllocation(ctx, a.ID, func(v *registry.Allocation) error {
		v.Diagnostics = append(v.Diagnostics, *d)
		return nil
	})
	return err
}

func (r *Runtime) stopAllocation(ctx context.Context, a registry.Allocation, change func(*registry.Allocation)) error {
	_, err := r.registry.UpdateAllocation(ctx, a.ID, func(v *registry.Allocation) error {
		v.Status, v.StoppedAt = registry.AllocationStopped, r.now()
		if change != nil {
			change(v)
		}
		return nil
	})
	return err
}

// removeUnlessWork removes an allocation, or leaves it stopped with a
// diagnostic when it holds work that nobody has collected.
func (r *Runtime) removeUnlessWork(ctx context.Context, a registry.Allocation, discard bool) error {
	if !discard {
		d, err := r.uncollected(ctx, a)
		if err != nil {
			return err
		}
		if d != nil {
			return r.keepWith(ctx, a, d)
		}
	}
	return r.remove(ctx, a)
}

// remove takes an allocation away: recorded first, then the tree, then what the
// cache keeps for it.
func (r *Runtime) remove(ctx context.Context, a registry.Allocation) error {
	if a.Status != registry.AllocationCleanupPending {
		if _, err := r.registry.UpdateAllocation(ctx, a.ID, func(v *registry.Allocation) error {
			if v.StoppedAt.IsZero() {
				v.StoppedAt = r.now()
			}
			v.Status = registry.AllocationCleanupPending
			return nil
		}); err != nil {
			return err
		}
	}
	if err := r.removeSnapshots(ctx, a); err != nil {
		return err
	}
	return r.takeAway(ctx, a)
}

// takeAway does the removal. For an ephemeral allocation, which recovery would
// take away anyway, nothing has to be recorded first.
func (r *Runtime) takeAway(ctx context.Context, a registry.Allocation) error {
	if err := r.helper.Remove(ctx, helper.RemoveRequest{AllocationID: a.ID, Background: r.daemon}); err != nil {
		return err
	}
	r.untouched.forget(a)
	if err := r.releaseCache(ctx, a); err != nil {
		return err
	}
	_, err := r.registry.UpdateAllocation(ctx, a.ID, func(v *registry.Allocation) error {
		v.Status, v.RemovedAt = registry.AllocationRemoved, r.now()
		if v.StoppedAt.IsZero() {
			v.StoppedAt = v.RemovedAt
		}
		return nil
	})
	if err == nil {
		r.workspaceEvent(policy.EventWorkspaceRemoved, a, nil)
	}
	return err
}

// releaseCache gives back the pins, pristine trees and worktree entries of an
// allocation. Idempotent.
func (r *Runtime) releaseCache(ctx context.Context, a registry.Allocation) error {
	var errs []error
	for i, m := range a.Mounts {
		if m.Strategy == policy.StrategyDirect {
			continue
		}
		if m.Strategy == policy.StrategyGitWorktree {
			errs = append(errs, r.cache.RemoveWorktree(ctx, m.RepositoryID, a.ID))
		}
		errs = append(errs,
			r.cache.ReleasePristine(ctx, m.RepositoryID, m.Tree, string(a.ID)),
			r.cache.Unpin(ctx, m.RepositoryID, a.RepositoryPoints[i].CommitID, string(a.ID)))
	}
	return errors.Join(errs...)
}

// RemoveWorkspace removes a workspace on request.
func (r *Runtime) RemoveWorkspace(ctx context.Context, id policy.AllocationID, req RemoveWorkspaceRequest) (Workspace, error) {
	if err := policy.CheckID("allocation", string(id)); err != nil {
		return Workspace{}, err
	}
	a, err := r.registry.GetAllocation(ctx, id)
	if err != nil {
		return Workspace{}, err
	}
	if a.Status == registry.AllocationRemoved {
		return workspaceView(a), nil
	}
	live, err := r.liveWorkers(ctx, id)
	if err != nil {
		return Workspace{}, err
	}
	for _, w := range live {
		if !req.Stop {
			return Workspace{}, policy.Errorf(policy.CodeAllocationInUse, "runtime.remove", "the worker %s runs on %s", w.ID, id).With("worker", string(w.ID))
		}
		if _, err := r.StopWorker(ctx, w.ID, StopRequest{}); err != nil {
			return Workspace{}, err
		}
	}
	if a, err = r.registry.GetAllocation(ctx, id); err != nil {
		return Workspace{}, err
	}
	if a.Status != registry.AllocationRemoved {
		if !req.Discard {
			d, err := r.uncollected(ctx, a)
			if err != nil {
				return Workspace{}, err
			}
			if d != nil {
				return Workspace{}, d
			}
		}
		if err := r.remove(ctx, a); err != nil {
			return Workspace{}, err
		}
	}
	a, err = r.registry.GetAllocation(ctx, id)
	return workspaceView(a), err
}

func (r *Runtime) liveWorkers(ctx context.Context, id policy.AllocationID) ([]registry.Worker, error) {
	page, err := r.registry.ListWorkers(ctx, registry.Filter{
		AllocationID: id, Status: []string{string(registry.WorkerStarting), string(registry.WorkerRunning)}, Limit: 1000,
	})
	if err != nil {
		return nil, err
	}
	var live []registry.Worker
	for _, w := range page.Items {
		w, err := r.refresh(ctx, w)
		if err != nil {
			return nil, err
		}
		if w.Status == registry.WorkerStarting || w.Status == registry.WorkerRunning {
			live = append(live, w)
		}
	}
	return live, nil
}

// refresh brings a Worker's record up to date when no process followed it: an
// embedded caller that spawned it may have ended first.
func (r *Runtime) refresh(ctx context.Context, w registry.Worker) (registry.Worker, error) {
	if r.daemon || (w.Status != registry.WorkerRunning && w.Status != registry.WorkerStarting) {
		return w, nil
	}
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	o, err := r.helper.Wait(short, w.ID)
	switch {
	case errors.Is(err, policy.CodeCanceled):
		return w, ctx.Err() // it runs
	case errors.Is(err, policy.CodeWorkerUnknown):
		o.Lost = true
	case err != nil:
		return w, err
	}
	r.settle(ctx, w, o)
	return r.registry.GetWorker(ctx, w.ID)
}
