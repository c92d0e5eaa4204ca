package runtime

import (
	"context"
	"encoding/json"

	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// ForkRequest asks for a copy of a workspace as it is now, git state included.
// What is left out is the original's; its scratch does not come along.
type ForkRequest struct {
	WorkspaceID policy.WorkspaceID    `json:"workspace_id,omitempty"`
	Cleanup     *policy.CleanupPolicy `json:"cleanup_policy,omitempty"`
	// IdempotencyKey makes a repeated request return the first one's workspace.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
}

// ForkWorkspace makes a workspace out of another, live or not. Beside a live
// Worker a btrfs snapshot is of one instant; the other strategies take each file
// at a moment of its own.
func (r *Runtime) ForkWorkspace(ctx context.Context, id policy.AllocationID, req ForkRequest) (Workspace, error) {
	key := struct {
		ID policy.AllocationID
		ForkRequest
	}{id, req}
	return idempotent(ctx, r, "fork", req.IdempotencyKey, key, func() (Workspace, error) {
		a, _, err := r.looked(ctx, id, "")
		if err != nil {
			return Workspace{}, err
		}
		f := fork{r: r, from: a, workspace: a.WorkspaceID, cleanup: a.CleanupPolicy}
		if req.WorkspaceID != "" {
			f.workspace = req.WorkspaceID
		}
		if req.Cleanup != nil {
			f.cleanup = *req.Cleanup
		}
		made, err := f.make(ctx)
		if err != nil {
			return Workspace{}, err
		}
		return workspaceView(made), nil
	})
}

// fork is one workspace in the making out of another.
type fork struct {
	r         *Runtime
	from      registry.Allocation
	workspace policy.WorkspaceID
	cleanup   policy.CleanupPolicy
	// snapshotOf is set for a point in time of that allocation, which is no
	// workspace to work in.
	snapshotOf policy.AllocationID
	label      string
}

// mark says in a new record what it is a fork of.
func (f *fork) mark(a *registry.Allocation) {
	a.Ancestor = f.from.ID
	if f.snapshotOf != "" {
		a.SnapshotOf, a.Label, a.Status, a.StoppedAt = f.snapshotOf, f.label, registry.AllocationStopped, a.CreatedAt
	}
}

// make takes the same steps as create, with another workspace in place of the
// cache's trees.
func (f *fork) make(ctx context.Context) (registry.Allocation, error) {
	c := &creation{
		r: f.r, id: policy.NewAllocationID(), workspace: f.workspace, dirty: f.from.DirtyStatePolicy,
		cleanup: f.cleanup, sandbox: f.from.SandboxPolicy, image: f.from.Image, fork: f,
	}
	if err := c.cleanup.Validate(); err != nil {
		return registry.Allocation{}, err
	}
	if err := policy.CheckID("workspace", string(c.workspace)); err != nil {
		return registry.Allocation{}, err
	}
	if err := c.inherit(); err != nil {
		return registry.Allocation{}, err
	}
	a, err := c.run(ctx, []step{{"materialize", c.forkTrees}})
	if err == nil {
		f.r.workspaceEvent(policy.EventWorkspaceForked, a, map[string]string{"from": string(f.from.ID), "strategy": string(a.MaterializerKind)})
	}
	return a, err
}

// inherit takes over what the original's evidence says of uncommitted changes.
func (c *creation) inherit() error {
	var ev Evidence
	if err := json.Unmarshal(c.fork.from.Evidence, &ev); err != nil {
		return policy.Errorf(policy.CodeRegistryFailed, "runtime.fork", "the evidence of %s cannot be read", c.fork.from.ID).Because(err)
	}
	c.dirtyStates = ev.Changes
	for _, p := range c.fork.from.RepositoryPoints {
		c.repos = append(c.repos, creationRepo{point: p, selector: p.Selector, scope: p.Scope})
	}
	return nil
}

// forkTrees has the helper make the workspace, and the fork hold in the cache what
// the original does. The ledger hears of both in one commit. Until the fork holds
// its trees the original does; should that end meanwhile, there is no fork.
func (c *creation) forkTrees(ctx context.Context) error {
	var holds []func(context.Context) error
	var err error
	for i, m := range c.fork.from.Mounts {
		var hold func(context.Context) error
		if hold, err = c.r.cache.HoldLike(ctx, c.repos[i].point, m.Tree, string(c.id), string(c.fork.from.ID)); err != nil {
			break
		}
		holds = append(holds, hold)
	}
	if err == nil {
		err = c.forkFiles(ctx)
	}
	for i, hold := range holds { // of a failed fork too: the ledger knows of it
		if herr := hold(context.WithoutCancel(ctx)); herr != nil {
			if err == nil {
				err = herr
			}
			continue
		}
		m, commit := c.fork.from.Mounts[i], c.repos[i].point.CommitID
		c.undo = append(c.undo,
			func(ctx context.Context) error { return c.r.cache.Unpin(ctx, m.RepositoryID, commit, string(c.id)) },
			func(ctx context.Context) error {
				return c.r.cache.ReleasePristine(ctx, m.RepositoryID, m.Tree, string(c.id))
			})
	}
	return err
}

func (c *creation) forkFiles(ctx context.Context) (err error) {
	c.made, err = c.r.helper.Materialize(ctx, helper.MaterializeRequest{
		AllocationID: c.id, From: c.fork.from.ID, Repositories: treesOf(c.fork.from), Image: helperImage(c.image), Quota: c.sandbox.Quota,
	})
	if err != nil {
		return err
	}
	c.undo = append(c.undo, func(ctx context.Context) error {
		return c.r.helper.Remove(ctx, helper.RemoveRequest{AllocationID: c.id})
	})
	c.warnings = append(c.warnings, c.made.Warnings...)
	if c.made.Files == 0 {
		var ev Evidence
		if json.Unmarshal(c.fork.from.Evidence, &ev) == nil {
			c.made.Files, c.made.Bytes = ev.Files, ev.Bytes
		}
	}
	return nil
}
