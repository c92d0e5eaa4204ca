package servicetest

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// Call is one method call that the service got.
type Call struct {
	Method string
	ID     string
	Arg    any
}

// Service answers with the canned values. The zero value is ready.
type Service struct {
	// Err, when set, fails every call.
	Err error
	// Panic makes every call panic with it.
	Panic any
	// Hang makes calls wait for their context's end, and report it on Released.
	Hang     bool
	Released chan string
	// Empty answers listings and reports with zero values.
	Empty bool
	// Logs is a Worker's stdout; LogsErr fails the copy after it.
	Logs    []byte
	LogsErr error
	// EventsErr fails Events and LedgerRecords after the last one.
	EventsErr error

	mu    sync.Mutex
	calls []Call
}

var _ runtime.Service = (*Service)(nil)

// Calls returns what was called so far.
func (s *Service) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Call(nil), s.calls...)
}

// Drain returns what was called since the last Drain, and forgets it.
func (s *Service) Drain() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.calls
	s.calls = nil
	return out
}

// Last returns the latest call.
func (s *Service) Last() Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.calls) == 0 {
		return Call{}
	}
	return s.calls[len(s.calls)-1]
}

func (s *Service) enter(ctx context.Context, method, id string, arg any) error {
	s.mu.Lock()
	s.calls = append(s.calls, Call{method, id, arg})
	s.mu.Unlock()
	if s.Panic != nil {
		panic(s.Panic)
	}
	if s.Hang {
		<-ctx.Done()
		if s.Released != nil {
			s.Released <- method
		}
		return ctx.Err()
	}
	return s.Err
}

// answer returns v, or the zero value for an Empty service.
func answer[T any](s *Service, v T, err error) (T, error) {
	if s.Empty || err != nil {
		v = *new(T)
	}
	return v, err
}

func (s *Service) Info(ctx context.Context) (runtime.Info, error) {
	return runtime.Info{RuntimeID: "rt-0123456789abcdef", Version: "1.2.3", API: "v1", StartedAt: Then, Privileged: true}, s.enter(ctx, "Info", "", nil)
}

func (s *Service) Doctor(ctx context.Context) (runtime.DoctorReport, error) {
	return Doctor(), s.enter(ctx, "Doctor", "", nil)
}

func (s *Service) Metrics(ctx context.Context) ([]byte, error) {
	return answer(s, []byte("# TYPE yoi_up gauge\nyoi_up 1\n"), s.enter(ctx, "Metrics", "", nil))
}

func (s *Service) Status(ctx context.Context) (runtime.RuntimeStatus, error) {
	return RuntimeStatus(), s.enter(ctx, "Status", "", nil)
}

func (s *Service) GC(ctx context.Context, req runtime.GCRequest) (runtime.GCReport, error) {
	return answer(s, runtime.GCReport{
		DryRun: req.DryRun, RemovedTrees: []string{"hello/" + Tree}, FreedBytes: 1 << 20,
		Items: []runtime.GCItem{{Kind: "pristine_tree", Name: "hello/" + Tree, Bytes: 1 << 20}}, InUse: 3,
		ExpiredRemoved: []policy.AllocationID{Allocation}, LeftoversFound: 2, LeftoversGone: 1,
		Diagnostics: []policy.Diagnostic{warning()},
	}, s.enter(ctx, "GC", "", req))
}

func (s *Service) AddRepository(ctx context.Context, req runtime.AddRepositoryRequest) (runtime.Repository, error) {
	return Repositories()[0], s.enter(ctx, "AddRepository", "", req)
}

func (s *Service) ListRepositories(ctx context.Context) ([]runtime.Repository, error) {
	return answer(s, Repositories(), s.enter(ctx, "ListRepositories", "", nil))
}

func (s *Service) GetRepository(ctx context.Context, id policy.RepositoryID) (runtime.Repository, error) {
	return Repositories()[0], s.enter(ctx, "GetRepository", string(id), nil)
}

func (s *Service) FetchRepository(ctx context.Context, id policy.RepositoryID) (runtime.FetchResult, error) {
	return runtime.FetchResult{RepositoryID: Repository, FetchedAt: Then, Refs: 7, Shared: true}, s.enter(ctx, "FetchRepository", string(id), nil)
}

func (s *Service) RemoveRepository(ctx context.Context, id policy.RepositoryID) error {
	return s.enter(ctx, "RemoveRepository", string(id), nil)
}

func (s *Service) Resolve(ctx context.Context, req runtime.ResolveRequest) (runtime.ResolveResult, error) {
	return runtime.ResolveResult{Point: Point(), Warnings: []policy.Diagnostic{warning()}}, s.enter(ctx, "Resolve", "", req)
}

func (s *Service) ExportSnapshot(ctx context.Context, req runtime.ExportSnapshotRequest) (runtime.StoredSnapshot, error) {
	return StoredSnapshot(), s.enter(ctx, "ExportSnapshot", "", req)
}

func (s *Service) ImportSnapshot(ctx context.Context, req runtime.ImportSnapshotRequest) (runtime.ResolveResult, error) {
	return runtime.ResolveResult{Point: Point()}, s.enter(ctx, "ImportSnapshot", "", req)
}

func (s *Service) ListStoredSnapshots(ctx context.Context, store string) (runtime.StoredSnapshotList, error) {
	return answer(s, runtime.StoredSnapshotList{Items: []runtime.StoredSnapshotItem{{Digest: StoredSnapshot().Digest, Bytes: 4096, StoredAt: Then}}},
		s.enter(ctx, "ListStoredSnapshots", store, nil))
}

func (s *Service) RemoveStoredSnapshot(ctx context.Context, store string, digest policy.SnapshotDigest) error {
	return s.enter(ctx, "RemoveStoredSnapshot", store, digest)
}

func (s *Service) AddBundle(ctx context.Context, archive io.Reader) (runtime.Bundle, error) {
	b, err := io.ReadAll(archive)
	if err != nil {
		return runtime.Bundle{}, err
	}
	return Bundles()[0], s.enter(ctx, "AddBundle", "", string(b))
}

func (s *Service) ListBundles(ctx context.Context) ([]runtime.Bundle, error) {
	return answer(s, Bundles(), s.enter(ctx, "ListBundles", "", nil))
}

func (s *Service) RemoveBundle(ctx context.Context, digest policy.BundleDigest) error {
	return s.enter(ctx, "RemoveBundle", string(digest), nil)
}

func (s *Service) AddPatch(ctx context.Context, req runtime.AddPatchRequest) (runtime.Patch, error) {
	return Patches()[0], s.enter(ctx, "AddPatch", "", req)
}

func (s *Service) ListPatches(ctx context.Context) ([]runtime.Patch, error) {
	return answer(s, Patches(), s.enter(ctx, "ListPatches", "", nil))
}

func (s *Service) RemovePatch(ctx context.Context, digest policy.PatchDigest) error {
	return s.enter(ctx, "RemovePatch", string(digest), nil)
}

// ImportImage reads the archive whole, as the ID of its call.
func (s *Service) ImportImage(ctx context.Context, req runtime.ImportImageRequest, archive io.Reader) (runtime.Image, error) {
	b, err := io.ReadAll(archive)
	if err := errors.Join(err, s.enter(ctx, "ImportImage", string(b), req)); err != nil {
		return runtime.Image{}, err
	}
	return Images()[0], nil
}

func (s *Service) ListImages(ctx context.Context) ([]runtime.Image, error) {
	return answer(s, Images(), s.enter(ctx, "ListImages", "", nil))
}

func (s *Service) GetImage(ctx context.Context, name policy.ImageName) (runtime.Image, error) {
	return Images()[0], s.enter(ctx, "GetImage", string(name), nil)
}

func (s *Service) RemoveImage(ctx context.Context, name policy.ImageName) error {
	return s.enter(ctx, "RemoveImage", string(name), nil)
}

func (s *Service) CreateWorkspace(ctx context.Context, req runtime.CreateWorkspaceRequest) (runtime.Workspace, error) {
	return Workspace(), s.enter(ctx, "CreateWorkspace", "", req)
}

func (s *Service) ListWorkspaces(ctx context.Context, f runtime.ListFilter) (runtime.WorkspaceList, error) {
	return answer(s, runtime.WorkspaceList{Items: []runtime.Workspace{Workspace()}, Next: "page2"}, s.enter(ctx, "ListWorkspaces", "", f))
}

func (s *Service) GetWorkspace(ctx context.Context, id policy.AllocationID) (runtime.Workspace, error) {
	return Workspace(), s.enter(ctx, "GetWorkspace", string(id), nil)
}

func (s *Service) WorkspaceEvidence(ctx context.Context, id policy.AllocationID) (runtime.Evidence, error) {
	return Evidence(), s.enter(ctx, "WorkspaceEvidence", string(id), nil)
}

func (s *Service) WorkspaceDisk(ctx context.Context, id policy.AllocationID) (runtime.DiskUsage, error) {
	return runtime.DiskUsage{AllocationID: Allocation, ReferencedBytes: 5 << 20, ExclusiveBytes: 1 << 20, Inodes: 42, Partial: true, MeasuredAt: Then}, s.enter(ctx, "WorkspaceDisk", string(id), nil)
}

func (s *Service) WorkerEgress(ctx context.Context, id policy.WorkerID, req runtime.EgressRequest) (runtime.EgressReport, error) {
	return Egress(), s.enter(ctx, "WorkerEgress", string(id), req)
}

func (s *Service) RemoveWorkspace(ctx context.Context, id policy.AllocationID, req runtime.RemoveWorkspaceRequest) (runtime.Workspace, error) {
	ws := Workspace()
	ws.Status = runtime.WorkspaceRemoved
	return ws, s.enter(ctx, "RemoveWorkspace", string(id), req)
}

func (s *Service) DiffWorkspace(ctx context.Context, id policy.AllocationID, req runtime.ResultRequest) (runtime.DiffReport, error) {
	return answer(s, Diff(), s.enter(ctx, "DiffWorkspace", string(id), req))
}

func (s *Service) StatusWorkspace(ctx context.Context, id policy.AllocationID, req runtime.ResultRequest) (runtime.StatusReport, error) {
	return answer(s, Status(), s.enter(ctx, "StatusWorkspace", string(id), req))
}

func (s *Service) WorkspaceCommits(ctx context.Context, id policy.AllocationID, req runtime.CommitsRequest) (runtime.CommitsReport, error) {
	return answer(s, Commits(), s.enter(ctx, "WorkspaceCommits", string(id), req))
}

func (s *Service) ForkWorkspace(ctx context.Context, id policy.AllocationID, req runtime.ForkRequest) (runtime.Workspace, error) {
	return Workspace(), s.enter(ctx, "ForkWorkspace", string(id), req)
}

func (s *Service) SnapshotWorkspace(ctx context.Context, id policy.AllocationID, req runtime.SnapshotRequest) (runtime.Snapshot, error) {
	return Snapshots()[0], s.enter(ctx, "SnapshotWorkspace", string(id), req)
}

func (s *Service) ListSnapshots(ctx context.Context, id policy.AllocationID) ([]runtime.Snapshot, error) {
	return answer(s, Snapshots(), s.enter(ctx, "ListSnapshots", string(id), nil))
}

func (s *Service) RollbackWorkspace(ctx context.Context, id policy.AllocationID, req runtime.SnapshotID) (runtime.Snapshot, error) {
	return Snapshots()[0], s.enter(ctx, "RollbackWorkspace", string(id), req)
}

func (s *Service) RemoveSnapshot(ctx context.Context, id policy.AllocationID, req runtime.SnapshotID) error {
	return s.enter(ctx, "RemoveSnapshot", string(id), req)
}

func (s *Service) CollectWorkspace(ctx context.Context, id policy.AllocationID, req runtime.CollectRequest) (runtime.Collected, error) {
	return Collected()[0], s.enter(ctx, "CollectWorkspace", string(id), req)
}

func (s *Service) ListRefs(ctx context.Context, id policy.RepositoryID, req runtime.RefsRequest) (runtime.RefList, error) {
	return answer(s, Refs(), s.enter(ctx, "ListRefs", string(id), req))
}

func (s *Service) ListDirectories(ctx context.Context, id policy.AllocationID, req runtime.DirectoriesRequest) (runtime.DirectoryList, error) {
	return answer(s, runtime.DirectoryList{Path: "src", Names: []string{"lib"}, More: true}, s.enter(ctx, "ListDirectories", string(id), req))
}

func (s *Service) CreationProgress(ctx context.Context, key string) (runtime.CreationProgress, error) {
	return runtime.CreationProgress{Step: 4, Steps: 9, Name: "tree"}, s.enter(ctx, "CreationProgress", key, nil)
}

func (s *Service) ListCollected(ctx context.Context, id policy.RepositoryID) ([]runtime.Collected, error) {
	return answer(s, Collected(), s.enter(ctx, "ListCollected", string(id), nil))
}

func (s *Service) DropCollected(ctx context.Context, id policy.RepositoryID, req runtime.CollectedRequest) error {
	return s.enter(ctx, "DropCollected", string(id), req)
}

// ExportCollected serves Logs.
func (s *Service) ExportCollected(ctx context.Context, id policy.RepositoryID, req runtime.CollectedRequest, w io.Writer) (int64, error) {
	if err := s.enter(ctx, "ExportCollected", string(id), req); err != nil {
		return 0, err
	}
	n, err := w.Write(s.Logs)
	return int64(n), err
}

// ExportWorkspace serves Logs.
func (s *Service) ExportWorkspace(ctx context.Context, id policy.AllocationID, req runtime.ExportRequest, w io.Writer) (int64, error) {
	if err := s.enter(ctx, "ExportWorkspace", string(id), req); err != nil {
		return 0, err
	}
	n, err := w.Write(s.Logs)
	if err == nil {
		err = s.LogsErr
	}
	return int64(n), err
}

func (s *Service) SpawnWorker(ctx context.Context, req runtime.SpawnWorkerRequest) (runtime.Worker, error) {
	return WorkerRecord(), s.enter(ctx, "SpawnWorker", "", req)
}

func (s *Service) ListWorkers(ctx context.Context, f runtime.ListFilter) (runtime.WorkerList, error) {
	return answer(s, runtime.WorkerList{Items: []runtime.Worker{WorkerRecord()}, Next: "page2"}, s.enter(ctx, "ListWorkers", "", f))
}

func (s *Service) GetWorker(ctx context.Context, id policy.WorkerID) (runtime.Worker, error) {
	return WorkerRecord(), s.enter(ctx, "GetWorker", string(id), nil)
}

// WorkerLogs serves Logs. With follow it sends one byte at a time.
func (s *Service) WorkerLogs(ctx context.Context, id policy.WorkerID, req runtime.LogsRequest, w io.Writer) (int64, error) {
	if err := s.enter(ctx, "WorkerLogs", string(id), req); err != nil {
		return 0, err
	}
	b := s.Logs[min(req.Offset, int64(len(s.Logs))):]
	if req.Limit > 0 {
		b = b[:min(req.Limit, int64(len(b)))]
	}
	step := len(b)
	if req.Follow {
		step = 1
	}
	next := req.Offset
	for ; len(b) > 0; b = b[min(step, len(b)):] {
		n, err := w.Write(b[:min(step, len(b))])
		next += int64(n)
		if err != nil {
			return next, err
		}
		if req.Follow {
			time.Sleep(time.Millisecond)
		}
	}
	return next, s.LogsErr
}

func (s *Service) WorkerUsage(ctx context.Context, id policy.WorkerID) (runtime.WorkerUsage, error) {
	return runtime.WorkerUsage{WorkerID: Worker, CPUTime: time.Second, MemoryBytes: 5 << 20, Processes: 2, Tasks: 3, MeasuredAt: Then},
		s.enter(ctx, "WorkerUsage", string(id), nil)
}

func (s *Service) SignalWorker(ctx context.Context, id policy.WorkerID, req runtime.SignalRequest) error {
	return s.enter(ctx, "SignalWorker", string(id), req)
}

func (s *Service) ExecWorker(ctx context.Context, id policy.WorkerID, req runtime.ExecRequest, st runtime.SessionStreams) (runtime.Session, error) {
	return s.inSession(ctx, "ExecWorker", id, req, st)
}

func (s *Service) WorkerProcesses(ctx context.Context, id policy.WorkerID) (runtime.ProcessList, error) {
	return answer(s, runtime.ProcessList{Items: []runtime.Process{{
		PID: 7, Parent: 2, State: "S", StartedAt: Then, CPUTime: time.Second, MemoryBytes: 1 << 20, Threads: 3, Command: "make -j2",
	}}}, s.enter(ctx, "WorkerProcesses", string(id), nil))
}

func (s *Service) PauseWorker(ctx context.Context, id policy.WorkerID) (runtime.Worker, error) {
	return WorkerRecord(), s.enter(ctx, "PauseWorker", string(id), nil)
}

func (s *Service) ResumeWorker(ctx context.Context, id policy.WorkerID) (runtime.Worker, error) {
	return WorkerRecord(), s.enter(ctx, "ResumeWorker", string(id), nil)
}

func (s *Service) AttachWorker(ctx context.Context, id policy.WorkerID, req runtime.AttachRequest, st runtime.SessionStreams) (runtime.Session, error) {
	return s.inSession(ctx, "AttachWorker", id, req, st)
}

// inSession echoes the input, if there is any, and says the same on stderr.
func (s *Service) inSession(ctx context.Context, method string, id policy.WorkerID, req any, st runtime.SessionStreams) (runtime.Session, error) {
	if err := s.enter(ctx, method, string(id), req); err != nil {
		return runtime.Session{}, err
	}
	if st.Started != nil {
		st.Started()
	}
	if st.Stdin != nil {
		if _, err := io.Copy(io.MultiWriter(st.Stdout, st.Stderr), st.Stdin); err != nil {
			return runtime.Session{}, err
		}
	}
	return answer(s, session(), s.LogsErr)
}

func (s *Service) StopWorker(ctx context.Context, id policy.WorkerID, req runtime.StopRequest) (runtime.Worker, error) {
	return WorkerRecord(), s.enter(ctx, "StopWorker", string(id), req)
}

func (s *Service) WaitWorker(ctx context.Context, id policy.WorkerID) (runtime.Worker, error) {
	return WorkerRecord(), s.enter(ctx, "WaitWorker", string(id), nil)
}

func (s *Service) Events(ctx context.Context, req runtime.EventsRequest, yield func(runtime.Event) bool) error {
	if err := s.enter(ctx, "Events", "", req); err != nil || s.Empty {
		return err
	}
	for _, e := range Events() {
		if e.Seq > req.After && !yield(e) {
			return nil
		}
	}
	return s.EventsErr
}

func (s *Service) LedgerRecords(ctx context.Context, req runtime.LedgerRequest, yield func(runtime.LedgerRecord) bool) error {
	if err := s.enter(ctx, "LedgerRecords", "", req); err != nil || s.Empty {
		return err
	}
	for _, r := range Ledger() {
		if !yield(r) {
			return nil
		}
	}
	return s.EventsErr
}

func (s *Service) LedgerVerify(ctx context.Context) (runtime.LedgerReport, error) {
	// Every field is set, though no real report holds both OK and a Break.
	return answer(s, runtime.LedgerReport{OK: true, Streams: []runtime.LedgerStreamInfo{
		{Stream: "runtime/s001", Segments: 3, Records: 40, Live: true, Break: "segment 3, line 17: the hash does not follow"},
	}}, s.enter(ctx, "LedgerVerify", "", nil))
}

func (s *Service) LedgerReplay(ctx context.Context) (runtime.RecoveryReport, error) {
	return answer(s, runtime.RecoveryReport{Streams: 2, Records: 40, Leftovers: 3, Removed: 2, Adopted: 1, Kept: 1,
		Diagnostics: []policy.Diagnostic{warning()}}, s.enter(ctx, "LedgerReplay", "", nil))
}
