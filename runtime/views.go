package runtime

import (
	"context"
	"encoding/json"

	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// workspaceView is the safe summary of a record: no path of the host.
func workspaceView(a registry.Allocation) Workspace {
	w := Workspace{
		ID: a.ID, WorkspaceID: a.WorkspaceID, WorkerID: a.WorkerID, Status: WorkspaceStatus(a.Status),
		Points: a.RepositoryPoints, Strategy: a.MaterializerKind, StrategyReason: a.StrategyReason,
		DirtyState: a.DirtyStatePolicy, Cleanup: a.CleanupPolicy, SandboxDigest: a.SandboxPolicy.Digest(),
		CreatedAt: a.CreatedAt, StoppedAt: a.StoppedAt, RemovedAt: a.RemovedAt, Ancestor: a.Ancestor,
		Diagnostics: a.Diagnostics, RootImage: rootImage(a),
	}
	for _, m := range a.Mounts {
		w.Roots = append(w.Roots, m.Target)
	}
	return w
}

// workerView is a Worker's safe summary, with its workspace's if given.
func (r *Runtime) workerView(ctx context.Context, w registry.Worker, a *registry.Allocation) Worker {
	v := Worker{
		ID: w.ID, AllocationID: w.AllocationID, WorkspaceID: w.WorkspaceID, Status: WorkerStatus(w.Status),
		Command: w.Command, RelativeCwd: w.RelativeCwd, CreatedAt: w.CreatedAt, StartedAt: w.StartedAt,
		EndedAt: w.EndedAt, Outcome: w.Outcome, Protections: w.Protections, Network: w.Network, Allow: w.Allow, ToolsDigest: w.ToolsDigest, Secrets: w.Secrets, Diagnostics: w.Diagnostics,
		Terminal: w.Terminal, Paused: w.Paused && w.Status == registry.WorkerRunning, Sessions: w.Sessions, SessionsBefore: w.SessionsBefore,
	}
	if a == nil {
		if rec, err := r.registry.GetAllocation(ctx, w.AllocationID); err == nil {
			a = &rec
		}
	}
	if a != nil {
		ws := workspaceView(*a)
		v.Workspace = &ws
	}
	return v
}

// GetWorkspace returns one workspace.
func (r *Runtime) GetWorkspace(ctx context.Context, id policy.AllocationID) (Workspace, error) {
	if err := policy.CheckID("allocation", string(id)); err != nil {
		return Workspace{}, err
	}
	a, err := r.registry.GetAllocation(ctx, id)
	if err != nil {
		return Workspace{}, err
	}
	return workspaceView(a), nil
}

// ListWorkspaces returns a page, newest first.
func (r *Runtime) ListWorkspaces(ctx context.Context, f ListFilter) (WorkspaceList, error) {
	page, err := r.registry.ListAllocations(ctx, filterOf(f))
	if err != nil {
		return WorkspaceList{}, err
	}
	out := WorkspaceList{Items: make([]Workspace, 0, len(page.Items)), Next: page.Next}
	for _, a := range page.Items {
		if a.SnapshotOf == "" { // its workspace lists it
			out.Items = append(out.Items, workspaceView(a))
		}
	}
	return out, nil
}

func filterOf(f ListFilter) registry.Filter {
	q := registry.Filter{WorkspaceID: f.WorkspaceID, AllocationID: f.AllocationID, RepositoryID: f.RepositoryID, Limit: f.Limit, After: f.After}
	if f.Status != "" {
		q.Status = []string{f.Status}
	}
	return q
}

// WorkspaceEvidence is materialization.json with what its Workers did since.
func (r *Runtime) WorkspaceEvidence(ctx context.Context, id policy.AllocationID) (Evidence, error) {
	if err := policy.CheckID("allocation", string(id)); err != nil {
		return Evidence{}, err
	}
	a, err := r.registry.GetAllocation(ctx, id)
	if err != nil {
		return Evidence{}, err
	}
	return r.evidenceOf(ctx, a)
}

func (r *Runtime) evidenceOf(ctx context.Context, a registry.Allocation) (Evidence, error) {
	var ev Evidence
	if err := json.Unmarshal(a.Evidence, &ev); err != nil {
		return ev, policy.Errorf(policy.CodeRegistryFailed, "runtime.evidence", "the evidence of %s cannot be read", a.ID).Because(err)
	}
	for after := ""; ; {
		page, err := r.registry.ListWorkers(ctx, registry.Filter{AllocationID: a.ID, Limit: 1000, After: after})
		if err != nil {
			return ev, err
		}
		for _, w := range page.Items {
			if w, err = r.refresh(ctx, w); err != nil {
				return ev, err
			}
			v := r.workerView(ctx, w, &a)
			v.Workspace = nil
			ev.Workers = append(ev.Workers, v)
		}
		if after = page.Next; after == "" {
			return ev, nil
		}
	}
}

// eachAllocation calls do for each record of a list, page by page.
func (r *Runtime) eachAllocation(ctx context.Context, f registry.Filter, do func(registry.Allocation) error) error {
	for f.Limit = 1000; ; {
		page, err := r.registry.ListAllocations(ctx, f)
		if err != nil {
			return err
		}
		for _, a := range page.Items {
			if err := do(a); err != nil {
				return err
			}
		}
		if f.After = page.Next; f.After == "" {
			return nil
		}
	}
}

// GetWorker returns one Worker with its workspace's summary.
func (r *Runtime) GetWorker(ctx context.Context, id policy.WorkerID) (Worker, error) {
	w, err := r.workerRecord(ctx, id)
	if err != nil {
		return Worker{}, err
	}
	return r.workerView(ctx, w, nil), nil
}

func (r *Runtime) workerRecord(ctx context.Context, id policy.WorkerID) (registry.Worker, error) {
	if err := policy.CheckID("worker", string(id)); err != nil {
		return registry.Worker{}, err
	}
	w, err := r.registry.GetWorker(ctx, id)
	if err != nil {
		return w, err
	}
	return r.refresh(ctx, w)
}

// ListWorkers returns a page, newest first, each with its workspace's summary.
func (r *Runtime) ListWorkers(ctx context.Context, f ListFilter) (WorkerList, error) {
	page, err := r.registry.ListWorkers(ctx, filterOf(f))
	if err != nil {
		return WorkerList{}, err
	}
	out := WorkerList{Items: make([]Worker, 0, len(page.Items)), Next: page.Next}
	for _, w := range page.Items {
		if w, err = r.refresh(ctx, w); err != nil {
			return WorkerList{}, err
		}
		out.Items = append(out.Items, r.workerView(ctx, w, nil))
	}
	return out, nil
}
