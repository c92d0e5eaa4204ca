package runtime

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// A snapshot is a fork that nobody works in and that goes with its workspace.
// A rollback forks the snapshot and exchanges the fork's files with the
// workspace's, in one rename(2): what the workspace was until then stays, as a
// snapshot too.

// SnapshotRequest asks for a point in time of a workspace.
type SnapshotRequest struct {
	Label string `json:"label,omitempty"` // for people, at most 200 bytes
}

// SnapshotID names one of a workspace's snapshots.
type SnapshotID struct {
	ID policy.AllocationID `json:"id"`
}

// Snapshot is a point in time of a workspace.
type Snapshot struct {
	ID           policy.AllocationID `json:"id"`
	AllocationID policy.AllocationID `json:"allocation_id"`
	Label        string              `json:"label,omitempty"`
	Strategy     policy.StrategyName `json:"materializer_kind"`
	CreatedAt    time.Time           `json:"created_at"`
}

func snapshotView(a registry.Allocation) Snapshot {
	return Snapshot{ID: a.ID, AllocationID: a.SnapshotOf, Label: a.Label, Strategy: a.MaterializerKind, CreatedAt: a.CreatedAt}
}

// SnapshotWorkspace keeps a workspace as it is now: see ForkWorkspace for what
// that means beside a live Worker.
func (r *Runtime) SnapshotWorkspace(ctx context.Context, id policy.AllocationID, req SnapshotRequest) (Snapshot, error) {
	if len(req.Label) > 200 || !utf8.ValidString(req.Label) || policy.Printable(req.Label) != req.Label {
		return Snapshot{}, policy.Errorf(policy.CodeBadRequest, "runtime.snapshot", "the label is not printable text of at most 200 bytes")
	}
	a, err := r.snapshotted(ctx, id)
	if err != nil {
		return Snapshot{}, err
	}
	s, err := r.snapshotOf(ctx, a, a, req.Label)
	return snapshotView(s), err
}

// snapshotOf forks from, which is the allocation itself or one of its snapshots.
func (r *Runtime) snapshotOf(ctx context.Context, a, from registry.Allocation, label string) (registry.Allocation, error) {
	f := fork{r: r, from: from, workspace: a.WorkspaceID, cleanup: policy.CleanupPolicy{Mode: policy.KeepUntil}, snapshotOf: a.ID, label: label}
	return f.make(ctx)
}

// snapshotted returns an allocation that can have snapshots.
func (r *Runtime) snapshotted(ctx context.Context, id policy.AllocationID) (registry.Allocation, error) {
	a, _, err := r.looked(ctx, id, "")
	if err == nil && a.SnapshotOf != "" {
		err = policy.Errorf(policy.CodeConflict, "runtime.snapshot", "%s is a snapshot itself", id)
	}
	return a, err
}

// ListSnapshots lists a workspace's snapshots, oldest first.
func (r *Runtime) ListSnapshots(ctx context.Context, id policy.AllocationID) ([]Snapshot, error) {
	if err := policy.CheckID("allocation", string(id)); err != nil {
		return nil, err
	}
	a, err := r.registry.GetAllocation(ctx, id)
	if err != nil {
		return nil, err
	}
	list, err := r.snapshots(ctx, a)
	if err != nil {
		return nil, err
	}
	out := make([]Snapshot, 0, len(list))
	for _, s := range list {
		out = append(out, snapshotView(s))
	}
	return out, nil
}

// snapshots are those that are not removed, oldest first.
func (r *Runtime) snapshots(ctx context.Context, a registry.Allocation) ([]registry.Allocation, error) {
	var out []registry.Allocation
	err := r.eachAllocation(ctx, registry.Filter{
		WorkspaceID: a.WorkspaceID,
		Status:      []string{string(registry.AllocationStopped), string(registry.AllocationFailed), string(registry.AllocationCleanupPending)},
	}, func(s registry.Allocation) error {
		if s.SnapshotOf == a.ID {
			out = append(out, s)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b registry.Allocation) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return out, nil
}

func (r *Runtime) snapshot(ctx context.Context, a registry.Allocation, id policy.AllocationID) (registry.Allocation, error) {
	unknown := policy.Errorf(policy.CodeSnapshotUnknown, "runtime.snapshot", "%s has no snapshot %q", a.ID, policy.Printable(string(id)))
	if !policy.ValidID(string(id)) {
		return registry.Allocation{}, unknown
	}
	s, err := r.registry.GetAllocation(ctx, id)
	if err != nil || s.SnapshotOf != a.ID || s.Status != registry.AllocationStopped {
		return s, unknown.Because(err)
	}
	return s, nil
}

// RemoveSnapshot removes one of a workspace's snapshots.
func (r *Runtime) RemoveSnapshot(ctx context.Context, id policy.AllocationID, req SnapshotID) error {
	a, err := r.snapshotted(ctx, id)
	if err != nil {
		return err
	}
	s, err := r.snapshot(ctx, a, req.ID)
	if err != nil {
		return err
	}
	return r.remove(ctx, s)
}

// removeSnapshots takes all snapshots of an allocation away.
func (r *Runtime) removeSnapshots(ctx context.Context, a registry.Allocation) error {
	if a.SnapshotOf != "" {
		return nil
	}
	list, err := r.snapshots(ctx, a)
	for _, s := range list {
		if err == nil {
			err = r.remove(ctx, s)
		}
	}
	return err
}

// RollbackWorkspace makes a workspace what it was at one of its snapshots, and
// returns the snapshot of what it was until now. No Worker may be live on it.
func (r *Runtime) RollbackWorkspace(ctx context.Context, id policy.AllocationID, req SnapshotID) (Snapshot, error) {
	a, err := r.snapshotted(ctx, id)
	if err != nil {
		return Snapshot{}, err
	}
	s, err := r.snapshot(ctx, a, req.ID)
	if err != nil {
		return Snapshot{}, err
	}
	live, err := r.liveWorkers(ctx, id)
	if err != nil {
		return Snapshot{}, err
	}
	if len(live) > 0 {
		return Snapshot{}, policy.Errorf(policy.CodeAllocationInUse, "runtime.rollback", "the worker %s runs on %s", live[0].ID, id).With("worker", string(live[0].ID))
	}
	before, err := r.snapshotOf(ctx, a, s, fmt.Sprintf("again %s", s.ID))
	if err != nil {
		return Snapshot{}, err
	}
	if err := r.helper.Exchange(ctx, helper.ExchangeRequest{AllocationID: a.ID, With: before.ID, Strategy: before.Mounts[0].Strategy}); err != nil {
		if rerr := r.remove(context.WithoutCancel(ctx), before); rerr != nil {
			r.log.Warn("an unused snapshot is left", "allocation", before.ID, "error", rerr)
		}
		return Snapshot{}, err
	}
	r.workspaceEvent(policy.EventWorkspaceRolledBack, a, map[string]string{"snapshot": string(s.ID), "before": string(before.ID)})
	before, err = r.registry.UpdateAllocation(context.WithoutCancel(ctx), before.ID, func(v *registry.Allocation) error {
		v.Label = fmt.Sprintf("before the rollback to %s", s.ID)
		return nil
	})
	return snapshotView(before), err
}
