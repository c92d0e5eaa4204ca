package api

import (
	"bytes"
	"context"
	"net/url"
	"strconv"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// get and post make the two common requests.
func get[T any](ctx context.Context, c *Client, path string, query url.Values) (T, error) {
	var out T
	err := c.call(ctx, request{method: "GET", path: path, query: query}, &out)
	return out, err
}

func post[T any](ctx context.Context, c *Client, path, key string, in any) (T, error) {
	var out T
	err := c.call(ctx, request{method: "POST", path: path, key: key, in: in}, &out)
	return out, err
}

// item is the path of a resource. The id is checked here, since a malformed
// one would name another path.
func item[ID ~string](kind, collection string, id ID, action string) (string, error) {
	if err := policy.CheckID(kind, string(id)); err != nil {
		return "", err
	}
	return collection + string(id) + action, nil
}

const (
	repositories = "/v1/repositories/"
	workspaces   = "/v1/execution-workspaces/"
	workers      = "/v1/workers/"
)

func (c *Client) Info(ctx context.Context) (runtime.Info, error) {
	return get[runtime.Info](ctx, c, "/v1/info", nil)
}

func (c *Client) Doctor(ctx context.Context) (runtime.DoctorReport, error) {
	return get[runtime.DoctorReport](ctx, c, "/v1/doctor", nil)
}

func (c *Client) Metrics(ctx context.Context) ([]byte, error) {
	var b bytes.Buffer
	resp, err := c.send(ctx, request{method: "GET", path: "/metrics", accept: "text/plain"})
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	_, err = copyBody(ctx, resp, &b)
	return b.Bytes(), err
}

func (c *Client) Status(ctx context.Context) (runtime.RuntimeStatus, error) {
	return get[runtime.RuntimeStatus](ctx, c, "/v1/status", nil)
}

func (c *Client) GC(ctx context.Context, req runtime.GCRequest) (runtime.GCReport, error) {
	return post[runtime.GCReport](ctx, c, "/v1/gc", "", req)
}

func (c *Client) AddRepository(ctx context.Context, req runtime.AddRepositoryRequest) (runtime.Repository, error) {
	return post[runtime.Repository](ctx, c, "/v1/repositories", "", req)
}

func (c *Client) ListRepositories(ctx context.Context) ([]runtime.Repository, error) {
	list, err := get[repositoryList](ctx, c, "/v1/repositories", nil)
	return list.Items, err
}

func (c *Client) GetRepository(ctx context.Context, id policy.RepositoryID) (runtime.Repository, error) {
	path, err := item("repository", repositories, id, "")
	if err != nil {
		return runtime.Repository{}, err
	}
	return get[runtime.Repository](ctx, c, path, nil)
}

func (c *Client) FetchRepository(ctx context.Context, id policy.RepositoryID) (runtime.FetchResult, error) {
	path, err := item("repository", repositories, id, "/fetch")
	if err != nil {
		return runtime.FetchResult{}, err
	}
	return post[runtime.FetchResult](ctx, c, path, "", nil)
}

func (c *Client) RemoveRepository(ctx context.Context, id policy.RepositoryID) error {
	path, err := item("repository", repositories, id, "")
	if err != nil {
		return err
	}
	return c.call(ctx, request{method: "DELETE", path: path}, nil)
}

func (c *Client) Resolve(ctx context.Context, req runtime.ResolveRequest) (runtime.ResolveResult, error) {
	return post[runtime.ResolveResult](ctx, c, "/v1/resolve", "", req)
}

func (c *Client) AddPatch(ctx context.Context, req runtime.AddPatchRequest) (runtime.Patch, error) {
	return post[runtime.Patch](ctx, c, "/v1/patches", "", req)
}

func (c *Client) ListPatches(ctx context.Context) ([]runtime.Patch, error) {
	list, err := get[patchList](ctx, c, "/v1/patches", nil)
	return list.Items, err
}

func (c *Client) RemovePatch(ctx context.Context, digest policy.PatchDigest) error {
	digits, err := digest.Hex()
	if err != nil {
		return err
	}
	return c.call(ctx, request{method: "DELETE", path: "/v1/patches/" + digits}, nil)
}

func (c *Client) CreateWorkspace(ctx context.Context, req runtime.CreateWorkspaceRequest) (runtime.Workspace, error) {
	return post[runtime.Workspace](ctx, c, "/v1/execution-workspaces", req.IdempotencyKey, req)
}

func (c *Client) ListWorkspaces(ctx context.Context, f runtime.ListFilter) (runtime.WorkspaceList, error) {
	return get[runtime.WorkspaceList](ctx, c, "/v1/execution-workspaces", filterQuery(f))
}

func (c *Client) GetWorkspace(ctx context.Context, id policy.AllocationID) (runtime.Workspace, error) {
	path, err := item("allocation", workspaces, id, "")
	if err != nil {
		return runtime.Workspace{}, err
	}
	return get[runtime.Workspace](ctx, c, path, nil)
}

func (c *Client) WorkspaceEvidence(ctx context.Context, id policy.AllocationID) (runtime.Evidence, error) {
	path, err := item("allocation", workspaces, id, "/evidence")
	if err != nil {
		return runtime.Evidence{}, err
	}
	return get[runtime.Evidence](ctx, c, path, nil)
}

func (c *Client) WorkspaceDisk(ctx context.Context, id policy.AllocationID) (runtime.DiskUsage, error) {
	path, err := item("allocation", workspaces, id, "/disk")
	if err != nil {
		return runtime.DiskUsage{}, err
	}
	return get[runtime.DiskUsage](ctx, c, path, nil)
}

func (c *Client) WorkerEgress(ctx context.Context, id policy.WorkerID, req runtime.EgressRequest) (runtime.EgressReport, error) {
	path, err := item("worker", workers, id, "/egress")
	if err != nil {
		return runtime.EgressReport{}, err
	}
	q := url.Values{}
	if req.Limit != 0 {
		q.Set("limit", strconv.Itoa(req.Limit))
	}
	return get[runtime.EgressReport](ctx, c, path, q)
}

func (c *Client) RemoveWorkspace(ctx context.Context, id policy.AllocationID, req runtime.RemoveWorkspaceRequest) (runtime.Workspace, error) {
	path, err := item("allocation", workspaces, id, "/cleanup")
	if err != nil {
		return runtime.Workspace{}, err
	}
	return post[runtime.Workspace](ctx, c, path, "", req)
}

func (c *Client) DiffWorkspace(ctx context.Context, id policy.AllocationID, req runtime.ResultRequest) (runtime.DiffReport, error) {
	return result[runtime.DiffReport](ctx, c, id, "/diff", req.RepositoryID, 0)
}

func (c *Client) StatusWorkspace(ctx context.Context, id policy.AllocationID, req runtime.ResultRequest) (runtime.StatusReport, error) {
	return result[runtime.StatusReport](ctx, c, id, "/status", req.RepositoryID, 0)
}

func (c *Client) WorkspaceCommits(ctx context.Context, id policy.AllocationID, req runtime.CommitsRequest) (runtime.CommitsReport, error) {
	return result[runtime.CommitsReport](ctx, c, id, "/commits", req.RepositoryID, req.Limit)
}

func (c *Client) CollectWorkspace(ctx context.Context, id policy.AllocationID, req runtime.CollectRequest) (runtime.Collected, error) {
	path, err := item("allocation", workspaces, id, "/collect")
	if err != nil {
		return runtime.Collected{}, err
	}
	return post[runtime.Collected](ctx, c, path, "", req)
}

func (c *Client) ListCollected(ctx context.Context, id policy.RepositoryID) ([]runtime.Collected, error) {
	path, err := item("repository", repositories, id, "/collected")
	if err != nil {
		return nil, err
	}
	list, err := get[collectedList](ctx, c, path, nil)
	return list.Items, err
}

func (c *Client) DropCollected(ctx context.Context, id policy.RepositoryID, req runtime.CollectedRequest) error {
	path, err := item("repository", repositories, id, "/collected/drop")
	if err != nil {
		return err
	}
	return c.call(ctx, request{method: "POST", path: path, in: req}, nil)
}

func (c *Client) ForkWorkspace(ctx context.Context, id policy.AllocationID, req runtime.ForkRequest) (runtime.Workspace, error) {
	path, err := item("allocation", workspaces, id, "/fork")
	if err != nil {
		return runtime.Workspace{}, err
	}
	return post[runtime.Workspace](ctx, c, path, req.IdempotencyKey, req)
}

func (c *Client) SnapshotWorkspace(ctx context.Context, id policy.AllocationID, req runtime.SnapshotRequest) (runtime.Snapshot, error) {
	return snapshotCall(ctx, c, id, "/snapshots", req)
}

func (c *Client) RollbackWorkspace(ctx context.Context, id policy.AllocationID, req runtime.SnapshotID) (runtime.Snapshot, error) {
	return snapshotCall(ctx, c, id, "/rollback", req)
}

func snapshotCall(ctx context.Context, c *Client, id policy.AllocationID, action string, req any) (runtime.Snapshot, error) {
	path, err := item("allocation", workspaces, id, action)
	if err != nil {
		return runtime.Snapshot{}, err
	}
	return post[runtime.Snapshot](ctx, c, path, "", req)
}

func (c *Client) ListSnapshots(ctx context.Context, id policy.AllocationID) ([]runtime.Snapshot, error) {
	list, err := result[snapshotList](ctx, c, id, "/snapshots", "", 0)
	return list.Items, err
}

func (c *Client) RemoveSnapshot(ctx context.Context, id policy.AllocationID, req runtime.SnapshotID) error {
	path, err := item("allocation", workspaces, id, "/snapshots/remove")
	if err != nil {
		return err
	}
	return c.call(ctx, request{method: "POST", path: path, in: req}, nil)
}

// result gets one of the reports about what a workspace holds.
func result[T any](ctx context.Context, c *Client, id policy.AllocationID, action string, repo policy.RepositoryID, limit int) (T, error) {
	path, err := item("allocation", workspaces, id, action)
	if err != nil {
		return *new(T), err
	}
	q := url.Values{}
	setText(q, "repository_id", string(repo))
	setNumber(q, "limit", int64(limit))
	return get[T](ctx, c, path, q)
}

func (c *Client) SpawnWorker(ctx context.Context, req runtime.SpawnWorkerRequest) (runtime.Worker, error) {
	return post[runtime.Worker](ctx, c, "/v1/workers", req.IdempotencyKey, req)
}

func (c *Client) ListWorkers(ctx context.Context, f runtime.ListFilter) (runtime.WorkerList, error) {
	return get[runtime.WorkerList](ctx, c, "/v1/workers", filterQuery(f))
}

func (c *Client) GetWorker(ctx context.Context, id policy.WorkerID) (runtime.Worker, error) {
	path, err := item("worker", workers, id, "")
	if err != nil {
		return runtime.Worker{}, err
	}
	return get[runtime.Worker](ctx, c, path, nil)
}

func (c *Client) SignalWorker(ctx context.Context, id policy.WorkerID, req runtime.SignalRequest) error {
	path, err := item("worker", workers, id, "/signal")
	if err != nil {
		return err
	}
	return c.call(ctx, request{method: "POST", path: path, in: req}, nil)
}

func (c *Client) StopWorker(ctx context.Context, id policy.WorkerID, req runtime.StopRequest) (runtime.Worker, error) {
	path, err := item("worker", workers, id, "/stop")
	if err != nil {
		return runtime.Worker{}, err
	}
	return post[runtime.Worker](ctx, c, path, "", req)
}

func (c *Client) WaitWorker(ctx context.Context, id policy.WorkerID) (runtime.Worker, error) {
	path, err := item("worker", workers, id, "/wait")
	if err != nil {
		return runtime.Worker{}, err
	}
	return get[runtime.Worker](ctx, c, path, nil)
}

func (c *Client) LedgerVerify(ctx context.Context) (runtime.LedgerReport, error) {
	return get[runtime.LedgerReport](ctx, c, "/v1/ledger/verify", nil)
}

func (c *Client) LedgerReplay(ctx context.Context) (runtime.RecoveryReport, error) {
	return post[runtime.RecoveryReport](ctx, c, "/v1/ledger/replay", "", nil)
}

func filterQuery(f runtime.ListFilter) url.Values {
	q := url.Values{}
	setText(q, "workspace_id", string(f.WorkspaceID))
	setText(q, "allocation_id", string(f.AllocationID))
	setText(q, "repository_id", string(f.RepositoryID))
	setText(q, "status", f.Status)
	setNumber(q, "limit", int64(f.Limit))
	setText(q, "after", f.After)
	return q
}

func setText(q url.Values, name, value string) {
	if value != "" {
		q.Set(name, value)
	}
}

func setNumber(q url.Values, name string, n int64) {
	if n != 0 {
		q.Set(name, strconv.FormatInt(n, 10))
	}
}

func setFlag(q url.Values, name string, on bool) {
	if on {
		q.Set(name, "true")
	}
}
