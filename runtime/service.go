package runtime

import (
	"context"
	"io"
	"time"

	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// Service is what a Backend, the CLI and the API handlers use. *Runtime is the
// implementation; api.Client is the same over a unix socket. Every error is a
// *policy.Diagnostic. No value here holds a host path, an environment value or
// a secret, except Repository.Source, which its registrar gave.
type Service interface {
	Info(ctx context.Context) (Info, error)
	Doctor(ctx context.Context) (DoctorReport, error)
	// Metrics is what a daemon counts, in the text format of Prometheus.
	Metrics(ctx context.Context) ([]byte, error)
	Status(ctx context.Context) (RuntimeStatus, error)
	GC(ctx context.Context, req GCRequest) (GCReport, error)

	AddRepository(ctx context.Context, req AddRepositoryRequest) (Repository, error)
	ListRepositories(ctx context.Context) ([]Repository, error)
	GetRepository(ctx context.Context, id policy.RepositoryID) (Repository, error)
	FetchRepository(ctx context.Context, id policy.RepositoryID) (FetchResult, error)
	RemoveRepository(ctx context.Context, id policy.RepositoryID) error
	Resolve(ctx context.Context, req ResolveRequest) (ResolveResult, error)
	// ListRefs lists branches and tags: what a selector can name.
	ListRefs(ctx context.Context, id policy.RepositoryID, req RefsRequest) (RefList, error)
	ListCollected(ctx context.Context, id policy.RepositoryID) ([]Collected, error)
	// ExportCollected writes a git bundle of a name's commits to w and returns its
	// size; with an error what is written is not whole.
	ExportCollected(ctx context.Context, id policy.RepositoryID, req CollectedRequest, w io.Writer) (int64, error)
	DropCollected(ctx context.Context, id policy.RepositoryID, req CollectedRequest) error

	// AddPatch stores a git diff for the dirty-state policy patch_artifact.
	AddPatch(ctx context.Context, req AddPatchRequest) (Patch, error)
	ListPatches(ctx context.Context) ([]Patch, error)
	RemovePatch(ctx context.Context, digest policy.PatchDigest) error

	// AddBundle stores the directory that a tar archive holds, for the sandbox policy's
	// config_bundle.
	AddBundle(ctx context.Context, archive io.Reader) (Bundle, error)
	ListBundles(ctx context.Context) ([]Bundle, error)
	RemoveBundle(ctx context.Context, digest policy.BundleDigest) error

	// ImportImage reads an archive to its end, or to what it takes to refuse it.
	ImportImage(ctx context.Context, req ImportImageRequest, archive io.Reader) (Image, error)
	ListImages(ctx context.Context) ([]Image, error)
	GetImage(ctx context.Context, name policy.ImageName) (Image, error)
	RemoveImage(ctx context.Context, name policy.ImageName) error
	// ExportSnapshot writes an archive to a store, ImportSnapshot takes one into
	// the cache.
	ExportSnapshot(ctx context.Context, req ExportSnapshotRequest) (StoredSnapshot, error)
	ImportSnapshot(ctx context.Context, req ImportSnapshotRequest) (ResolveResult, error)
	ListStoredSnapshots(ctx context.Context, store string) (StoredSnapshotList, error)
	RemoveStoredSnapshot(ctx context.Context, store string, digest policy.SnapshotDigest) error

	CreateWorkspace(ctx context.Context, req CreateWorkspaceRequest) (Workspace, error)
	// CreationProgress is of a CreateWorkspace under way, by its idempotency key.
	CreationProgress(ctx context.Context, key string) (CreationProgress, error)
	ListWorkspaces(ctx context.Context, f ListFilter) (WorkspaceList, error)
	GetWorkspace(ctx context.Context, id policy.AllocationID) (Workspace, error)
	WorkspaceEvidence(ctx context.Context, id policy.AllocationID) (Evidence, error)
	// WorkspaceDisk measures what a workspace occupies now: it looks at each file.
	WorkspaceDisk(ctx context.Context, id policy.AllocationID) (DiskUsage, error)
	RemoveWorkspace(ctx context.Context, id policy.AllocationID, req RemoveWorkspaceRequest) (Workspace, error)
	DiffWorkspace(ctx context.Context, id policy.AllocationID, req ResultRequest) (DiffReport, error)
	StatusWorkspace(ctx context.Context, id policy.AllocationID, req ResultRequest) (StatusReport, error)
	// ListDirectories lists where in a workspace a Worker can be started.
	ListDirectories(ctx context.Context, id policy.AllocationID, req DirectoriesRequest) (DirectoryList, error)
	WorkspaceCommits(ctx context.Context, id policy.AllocationID, req CommitsRequest) (CommitsReport, error)
	// ExportWorkspace writes a workspace's results to w and returns how many bytes
	// it wrote; with an error what is written is not whole.
	ExportWorkspace(ctx context.Context, id policy.AllocationID, req ExportRequest, w io.Writer) (int64, error)
	CollectWorkspace(ctx context.Context, id policy.AllocationID, req CollectRequest) (Collected, error)
	ForkWorkspace(ctx context.Context, id policy.AllocationID, req ForkRequest) (Workspace, error)
	SnapshotWorkspace(ctx context.Context, id policy.AllocationID, req SnapshotRequest) (Snapshot, error)
	ListSnapshots(ctx context.Context, id policy.AllocationID) ([]Snapshot, error)
	// RollbackWorkspace returns the snapshot of what the workspace was until then.
	RollbackWorkspace(ctx context.Context, id policy.AllocationID, req SnapshotID) (Snapshot, error)
	RemoveSnapshot(ctx context.Context, id policy.AllocationID, req SnapshotID) error

	SpawnWorker(ctx context.Context, req SpawnWorkerRequest) (Worker, error)
	ListWorkers(ctx context.Context, f ListFilter) (WorkerList, error)
	GetWorker(ctx context.Context, id policy.WorkerID) (Worker, error)
	// WorkerEgress says what a Worker's network policy let through and refused.
	WorkerEgress(ctx context.Context, id policy.WorkerID, req EgressRequest) (EgressReport, error)
	// WorkerLogs copies the stream ("stdout" or "stderr") from offset to w, and
	// with follow goes on until the Worker ends. It returns the next offset.
	WorkerLogs(ctx context.Context, id policy.WorkerID, req LogsRequest, w io.Writer) (int64, error)
	// WorkerUsage says what a running Worker uses now.
	WorkerUsage(ctx context.Context, id policy.WorkerID) (WorkerUsage, error)
	SignalWorker(ctx context.Context, id policy.WorkerID, req SignalRequest) error
	// StopWorker sends TERM, then KILL after the grace, and returns once the
	// Worker has ended and its outcome is recorded.
	StopWorker(ctx context.Context, id policy.WorkerID, req StopRequest) (Worker, error)
	// WaitWorker returns once the Worker has ended.
	WaitWorker(ctx context.Context, id policy.WorkerID) (Worker, error)

	// ExecWorker runs a command in a live Worker's sandbox, under what holds the
	// Worker, and returns how it ended. A context that ends hangs it up.
	ExecWorker(ctx context.Context, id policy.WorkerID, req ExecRequest, s SessionStreams) (Session, error)

	// WorkerProcesses lists what runs in a live Worker's sandbox.
	WorkerProcesses(ctx context.Context, id policy.WorkerID) (ProcessList, error)
	// PauseWorker stops a live Worker's processes where they are, ResumeWorker lets
	// them go on. Both may be repeated.
	PauseWorker(ctx context.Context, id policy.WorkerID) (Worker, error)
	ResumeWorker(ctx context.Context, id policy.WorkerID) (Worker, error)
	// AttachWorker connects the caller with a live Worker's terminal, beside whoever
	// is connected already, until the Worker, the context or Stdin ends.
	AttachWorker(ctx context.Context, id policy.WorkerID, req AttachRequest, s SessionStreams) (Session, error)

	// Events calls yield for each event after the given sequence number, oldest
	// first; with follow it goes on until ctx ends or yield returns false.
	Events(ctx context.Context, req EventsRequest, yield func(Event) bool) error
	LedgerRecords(ctx context.Context, req LedgerRequest, yield func(LedgerRecord) bool) error
	LedgerVerify(ctx context.Context) (LedgerReport, error)
	// LedgerReplay runs recovery: every leftover of a dead writer is removed.
	LedgerReplay(ctx context.Context) (RecoveryReport, error)
}

// Info identifies a Runtime.
type Info struct {
	RuntimeID policy.RuntimeID `json:"runtime_id"`
	Version   string           `json:"version"`
	API       string           `json:"api"` // "v1"
	StartedAt time.Time        `json:"started_at"`
	// Privileged says whether the helper acts as root.
	Privileged bool `json:"privileged"`
}

// AddRepositoryRequest registers a source. ID "" takes the source's base name.
type AddRepositoryRequest struct {
	ID      policy.RepositoryID      `json:"id,omitempty"`
	Source  string                   `json:"source"`
	Options policy.RepositoryOptions `json:"options,omitzero"`
}

// Repository is a registered repository. Source has its credentials removed.
type Repository struct {
	ID        policy.RepositoryID      `json:"id"`
	Source    string                   `json:"source"`
	Options   policy.RepositoryOptions `json:"options,omitzero"`
	CreatedAt time.Time                `json:"created_at"`
	FetchedAt time.Time                `json:"fetched_at,omitzero"`
	// CacheBytes is the disk used by the mirror; Trees counts pristine trees.
	CacheBytes int64 `json:"cache_bytes"`
	Trees      int   `json:"trees"`
}

// FetchResult says what a fetch did.
type FetchResult struct {
	RepositoryID policy.RepositoryID `json:"repository_id"`
	FetchedAt    time.Time           `json:"fetched_at"`
	Refs         int                 `json:"refs"`
	// Shared is true when another caller's fetch served this one.
	Shared bool `json:"shared"`
}

// ResolveRequest asks for the point that a selector names now.
type ResolveRequest struct {
	RepositoryID policy.RepositoryID `json:"repository_id"`
	Selector     policy.Selector     `json:"selector"`
	Scope        []string            `json:"scope,omitempty"`
}

// ResolveResult is the point and what is worth knowing about it.
type ResolveResult struct {
	Point    policy.RepositoryPoint `json:"point"`
	Warnings []policy.Diagnostic    `json:"warnings,omitempty"`
}

// RepositoryRequest is one repository of a workspace.
type RepositoryRequest struct {
	RepositoryID policy.RepositoryID `json:"repository_id"`
	Selector     policy.Selector     `json:"selector"`
	Scope        []string            `json:"scope,omitempty"`
	// Branch makes HEAD a synthetic branch of that name; "" detaches HEAD.
	Branch string `json:"branch,omitempty"`
	// Patch is the digest of a stored patch, for patch_artifact.
	Patch policy.PatchDigest `json:"patch,omitempty"`
	// Caches are directories to share by the digest of their key files; none takes
	// the repository's own.
	Caches []policy.DependencyCache `json:"caches,omitempty"`
}

// AddPatchRequest holds the output of git diff --binary; base64 in JSON.
type AddPatchRequest struct {
	Content []byte `json:"content"`
}

// Patch is a stored patch. Its digest is its name.
type Patch struct {
	Digest  policy.PatchDigest `json:"digest"`
	Bytes   int64              `json:"bytes"`
	Files   int                `json:"files,omitempty"` // said when it is added
	AddedAt time.Time          `json:"added_at"`
	// UsedAt is when a workspace was last made with it, or it was last stored.
	UsedAt time.Time `json:"used_at"`
}

// DirtyState is evidence of the uncommitted changes that came along in one
// repository.
type DirtyState struct {
	RepositoryID policy.RepositoryID     `json:"repository_id"`
	Kind         policy.DirtyStatePolicy `json:"kind"`
	// Digest is "sha256:…" of the patch, or of the tree that was taken.
	Digest string `json:"digest"`
	Files  int    `json:"files"` // that the patch touches, or that were taken
	Bytes  int64  `json:"bytes"` // of the patch, or of the files
	// TreeID is what git makes of the point and the changes, and ChangedPaths how
	// many of its paths differ from the point's; a workspace that lives only as
	// long as its command is not asked.
	TreeID       string    `json:"tree_id,omitempty"`
	ChangedPaths int       `json:"changed_paths,omitempty"`
	CreatedAt    time.Time `json:"created_at"`
	// Source is the source's git state when a snapshot was taken; Rounds is how
	// often its tree was walked until it stood still. Excluded are the first paths
	// that the artifact policy left out, of ExcludedCount.
	Source        *SourceState `json:"source,omitempty"`
	Rounds        int          `json:"rounds,omitempty"`
	Excluded      []string     `json:"excluded,omitempty"`
	ExcludedCount int          `json:"excluded_count,omitempty"`
}

// SourceState is a source's git state as evidence; none of it comes along.
type SourceState struct {
	Head string `json:"head,omitempty"` // the ref, absent when detached
	// IndexDigest is "sha256:…" of what git ls-files --stage -z says.
	IndexDigest string   `json:"index_digest"`
	Operations  []string `json:"operations,omitempty"` // in progress: merge, rebase …
	Staged      int      `json:"staged"`
	Unstaged    int      `json:"unstaged"`
	Untracked   int      `json:"untracked"`
	Conflicted  int      `json:"conflicted"`
}

// CreateWorkspaceRequest asks for an Execution Workspace.
type CreateWorkspaceRequest struct {
	WorkspaceID  policy.WorkspaceID      `json:"workspace_id,omitempty"` // "" is "default"
	Repositories []RepositoryRequest     `json:"repositories"`
	Strategy     policy.StrategyName     `json:"strategy,omitempty"`
	DirtyState   policy.DirtyStatePolicy `json:"dirty_state_policy,omitempty"`
	Cleanup      policy.CleanupPolicy    `json:"cleanup_policy,omitzero"` // zero: keep_until_asked
	Sandbox      policy.SandboxPolicy    `json:"sandbox_policy,omitzero"`
	// IdempotencyKey makes a repeated request return the first one's workspace.
	IdempotencyKey string `json:"idempotency_key,omitempty"`
}

// WorkspaceStatus is an allocation's state.
type WorkspaceStatus string

const (
	WorkspaceActive         WorkspaceStatus = "active"
	WorkspaceStopped        WorkspaceStatus = "stopped"
	WorkspaceCleanupPending WorkspaceStatus = "cleanup_pending"
	WorkspaceRemoved        WorkspaceStatus = "removed"
	WorkspaceFailed         WorkspaceStatus = "failed"
)

// Workspace is the safe summary of an Execution Workspace.
type Workspace struct {
	ID             policy.AllocationID      `json:"id"`
	WorkspaceID    policy.WorkspaceID       `json:"workspace_id"`
	WorkerID       policy.WorkerID          `json:"worker_id,omitempty"` // the last Worker
	Status         WorkspaceStatus          `json:"status"`
	Points         []policy.RepositoryPoint `json:"repository_points"`
	Strategy       policy.StrategyName      `json:"materializer_kind"`
	StrategyReason string                   `json:"strategy_reason,omitempty"`
	DirtyState     policy.DirtyStatePolicy  `json:"dirty_state_policy"`
	Cleanup        policy.CleanupPolicy     `json:"cleanup_policy"`
	SandboxDigest  string                   `json:"sandbox_policy_digest"`
	RootImage      *RootImage               `json:"root_image,omitempty"`
	// Roots are the paths at which the Worker sees its repositories.
	Roots       []string            `json:"roots"`
	CreatedAt   time.Time           `json:"created_at"`
	StoppedAt   time.Time           `json:"stopped_at,omitzero"`
	RemovedAt   time.Time           `json:"removed_at,omitzero"`
	Ancestor    policy.AllocationID `json:"ancestor,omitempty"`
	Diagnostics []policy.Diagnostic `json:"diagnostics,omitempty"`
}

// ListFilter narrows and pages a listing. Limit 0 is 100; at most 1000.
type ListFilter struct {
	WorkspaceID  policy.WorkspaceID  `json:"workspace_id,omitempty"`
	AllocationID policy.AllocationID `json:"allocation_id,omitempty"` // Workers of one workspace
	RepositoryID policy.RepositoryID `json:"repository_id,omitempty"`
	Status       string              `json:"status,omitempty"`
	Limit        int                 `json:"limit,omitempty"`
	// After is the Next of the page before.
	After string `json:"after,omitempty"`
}

// WorkspaceList and WorkerList are pages, newest first.
type WorkspaceList struct {
	Items []Workspace `json:"items"`
	Next  string      `json:"next,omitempty"`
}

type WorkerList struct {
	Items []Worker `json:"items"`
	Next  string   `json:"next,omitempty"`
}

// Evidence is what materialization.json holds and the Backend is given: proof
// of what the Worker ran on.
type Evidence struct {
	Version        int                      `json:"version"` // 1
	RuntimeID      policy.RuntimeID         `json:"runtime_id"`
	AllocationID   policy.AllocationID      `json:"allocation_id"`
	WorkspaceID    policy.WorkspaceID       `json:"workspace_id"`
	Points         []policy.RepositoryPoint `json:"repository_points"`
	Strategy       policy.StrategyName      `json:"materializer_kind"`
	StrategyReason string                   `json:"strategy_reason"`
	DirtyState     policy.DirtyStatePolicy  `json:"dirty_state_policy"`
	Changes        []DirtyState             `json:"dirty_state,omitempty"`
	SandboxPolicy  policy.SandboxPolicy     `json:"sandbox_policy"` // without environment values
	SandboxDigest  string                   `json:"sandbox_policy_digest"`
	SeccompDigest  string                   `json:"seccomp_digest"`
	RootImage      *RootImage               `json:"root_image,omitempty"`
	Cleanup        policy.CleanupPolicy     `json:"cleanup_policy"`
	Ancestor       policy.AllocationID      `json:"ancestor,omitempty"`
	CreatedAt      time.Time                `json:"created_at"`
	Files          int64                    `json:"files"`
	Bytes          int64                    `json:"bytes"`
	Timings        map[string]time.Duration `json:"timings_ns"`
	Workers        []Worker                 `json:"workers,omitempty"`
	Diagnostics    []policy.Diagnostic      `json:"diagnostics,omitempty"`
	// Quota says how the policy's quota is held.
	Quota policy.QuotaEvidence `json:"quota,omitzero"`
	// Caches are the shared caches that the workspace began with, or would have.
	Caches []policy.CacheUse `json:"caches,omitempty"`
}

// RemoveWorkspaceRequest removes a workspace. Discard throws uncollected
// commits and changes away; without it they are refused (uncollected_work).
type RemoveWorkspaceRequest struct {
	Discard bool `json:"discard,omitempty"`
	// Stop ends live Workers first; without it they are refused (allocation_in_use).
	Stop bool `json:"stop,omitempty"`
}

// SpawnWorkerRequest starts a Worker on an existing workspace.
type SpawnWorkerRequest struct {
	AllocationID policy.AllocationID `json:"allocation_id"`
	Command      []string            `json:"command"`
	// RepositoryID is the repository whose root is the base of RelativeCwd; ""
	// is the workspace's first.
	RepositoryID policy.RepositoryID `json:"repository_id,omitempty"`
	RelativeCwd  string              `json:"relative_cwd,omitempty"`
	Env          map[string]string   `json:"env,omitempty"` // added to the policy's
	Limits       policy.Limits       `json:"limits,omitzero"`
	// Allow are rules of a network allowlist beside those of the workspace's policy,
	// for this Worker.
	Allow []string `json:"allow,omitempty"`
	// Terminal gives it a terminal, of that size, which AttachWorker connects with;
	// what it shows is its standard output.
	Terminal       bool   `json:"terminal,omitempty"`
	Rows           uint16 `json:"rows,omitempty"`
	Columns        uint16 `json:"columns,omitempty"`
	IdempotencyKey string `json:"idempotency_key,omitempty"`
}

// WorkerStatus is a Worker's state.
type WorkerStatus string

const (
	WorkerStarting WorkerStatus = "starting"
	WorkerRunning  WorkerStatus = "running"
	WorkerExited   WorkerStatus = "exited"
	WorkerFailed   WorkerStatus = "failed" // never started
	WorkerLost     WorkerStatus = "lost"   // ended without an outcome record (power loss)
)

// Worker is a Worker's safe summary.
type Worker struct {
	ID           policy.WorkerID     `json:"id"`
	AllocationID policy.AllocationID `json:"allocation_id"`
	WorkspaceID  policy.WorkspaceID  `json:"workspace_id"`
	Status       WorkerStatus        `json:"status"`
	Command      []string            `json:"command"`
	RelativeCwd  string              `json:"relative_cwd,omitempty"`
	CreatedAt    time.Time           `json:"created_at"`
	StartedAt    time.Time           `json:"started_at,omitzero"`
	EndedAt      time.Time           `json:"ended_at,omitzero"`
	Outcome      *Outcome            `json:"outcome,omitempty"`
	// Protections are those of policy.Protection that held it; absent before its start.
	Protections *policy.Protections `json:"protections,omitempty"`
	// Network is what it used of an allowlist, once it has ended; Allow are the rules
	// that it has beside its workspace's.
	Network *policy.NetworkUsage `json:"network,omitempty"`
	Allow   []string             `json:"allow,omitempty"`
	// ToolsDigest is of the policy's tools as the host had them: the paths, sizes and
	// modification times of the programs and what they load.
	ToolsDigest string `json:"tools_digest,omitempty"`
	// Secrets are those that it was given, by handle; never their values.
	Secrets   []policy.SecretUse `json:"secrets,omitempty"`
	Workspace *Workspace         `json:"workspace,omitempty"` // in detail and list
	Terminal  bool               `json:"terminal,omitempty"`
	Paused    bool               `json:"paused,omitempty"`
	// Sessions are the last times that somebody entered its sandbox; SessionsBefore
	// counts those that are not listed any more.
	Sessions       []Session           `json:"sessions,omitempty"`
	SessionsBefore int                 `json:"sessions_before,omitempty"`
	Diagnostics    []policy.Diagnostic `json:"diagnostics,omitempty"`
}

// Outcome is how a Worker ended: the registry's record, which is safe to show.
type Outcome = registry.Outcome

// Work is what a Worker left in a repository: commits, and a digest of the diff.
type Work = registry.Work

// DeniedCall is a system call that a Worker's filter refused.
type DeniedCall = registry.DeniedCall

// LogsRequest asks for a Worker's output. Limit 0 is everything there is. An offset
// past the end is the end; a log that is gone, or never was, ends at 0.
type LogsRequest struct {
	Stream string `json:"stream,omitempty"` // "stdout" (default) or "stderr"
	Offset int64  `json:"offset,omitempty"`
	Limit  int64  `json:"limit,omitempty"`
	Follow bool   `json:"follow,omitempty"`
}

// SignalRequest names a signal: "TERM", "SIGTERM" or a number.
type SignalRequest struct {
	Signal string `json:"signal"`
}

// StopRequest gives the time between TERM and KILL; zero is ten seconds.
type StopRequest struct {
	Grace time.Duration `json:"grace_ns,omitempty"`
}

// DoctorReport says what this host can do.
type DoctorReport struct {
	// Severity is the worst of the checks: ok, degraded or missing.
	Severity   string          `json:"severity"`
	Checks     []DoctorCheck   `json:"checks"`
	Strategies []StrategyCheck `json:"strategies"`
}

type DoctorCheck struct {
	Name    string `json:"name"`
	State   string `json:"state"` // ok, degraded, missing
	Message string `json:"message"`
	Fix     string `json:"fix,omitempty"`
}

type StrategyCheck struct {
	Name     policy.StrategyName `json:"name"`
	Possible bool                `json:"possible"`
	Chosen   bool                `json:"chosen"`
	Reason   string              `json:"reason"`
	Fix      string              `json:"fix,omitempty"`
	// Costs is what the strategy was measured to cost here, ascending by size.
	Costs []StrategyCost `json:"costs,omitempty"`
}

// StrategyCost is measured: medians of the last runs for trees of one size.
type StrategyCost struct {
	// Files is the size, down to a power of ten.
	Files  int64         `json:"files"`
	Create time.Duration `json:"create_ns"`
	Remove time.Duration `json:"remove_ns,omitempty"` // as the caller waits for it
	Runs   int           `json:"runs"`
	// Taken says that auto takes this strategy for that size, against its order,
	// for what it was measured to cost.
	Taken bool `json:"taken,omitempty"`
}

// GCRequest bounds what gc frees. KeepCacheBytes 0 takes the configured quota.
type GCRequest struct {
	DryRun         bool  `json:"dry_run,omitempty"`
	KeepCacheBytes int64 `json:"keep_cache_bytes,omitempty"`
}

// GCReport says what was, or with DryRun would be, freed.
type GCReport struct {
	DryRun       bool     `json:"dry_run"`
	RemovedTrees []string `json:"removed_trees"`
	// Items is everything that was, or would be, removed; FreedBytes is their sum
	// and what repacking the mirrors saved, which a dry run cannot foretell.
	Items []GCItem `json:"items"`
	// InUse counts trees and caches that were passed over since a workspace stands
	// on them.
	InUse          int                   `json:"in_use"`
	FreedBytes     int64                 `json:"freed_bytes"`
	ExpiredRemoved []policy.AllocationID `json:"expired_workspaces"`
	LeftoversFound int                   `json:"leftovers_found"`
	LeftoversGone  int                   `json:"leftovers_removed"`
	Diagnostics    []policy.Diagnostic   `json:"diagnostics,omitempty"`
}

// GCItem is one thing that gc removes. Name is an id or a name in the cache.
type GCItem struct {
	Kind  string `json:"kind"` // pristine_tree, shared_cache, patch, config_bundle, workspace or leftover
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"` // of the disk that nothing else shares
}

// RecoveryReport says what a ledger replay found and did.
type RecoveryReport struct {
	Streams     int                 `json:"streams"`
	Records     int                 `json:"records"`
	Leftovers   int                 `json:"leftovers"`
	Removed     int                 `json:"removed"`
	Adopted     int                 `json:"adopted"` // live Workers taken over
	Kept        int                 `json:"kept"`
	Diagnostics []policy.Diagnostic `json:"diagnostics,omitempty"`
}

// EventsRequest pages through the timeline.
type EventsRequest struct {
	After int64  `json:"after,omitempty"`
	Owner string `json:"owner,omitempty"` // an allocation or Worker id
	// AllocationID selects an allocation's events and its Workers'.
	AllocationID policy.AllocationID `json:"allocation_id,omitempty"`
	Follow       bool                `json:"follow,omitempty"`
}

// Event is a safe line of a timeline.
type Event struct {
	Seq    int64             `json:"seq"`
	Time   time.Time         `json:"time"`
	Kind   string            `json:"kind"`
	Owner  string            `json:"owner"`
	Fields map[string]string `json:"fields,omitempty"`
}

// LedgerRequest narrows `ledger show`.
type LedgerRequest struct {
	Owner string `json:"owner,omitempty"`
	Held  bool   `json:"held,omitempty"` // only resources still held
}

// LedgerRecord is one record for people; Path is relative to the Runtime root.
type LedgerRecord struct {
	Stream   string    `json:"stream"`
	Seq      uint64    `json:"seq"`
	Time     time.Time `json:"time"`
	Kind     string    `json:"kind"` // intent, done, released, keep …
	Resource string    `json:"resource,omitempty"`
	Type     string    `json:"type,omitempty"` // directory, process …
	Owner    string    `json:"owner,omitempty"`
	Path     string    `json:"path,omitempty"`
}

// LedgerReport is the result of verifying every stream's chain.
type LedgerReport struct {
	OK      bool               `json:"ok"`
	Streams []LedgerStreamInfo `json:"streams"`
}

type LedgerStreamInfo struct {
	Stream   string `json:"stream"`
	Segments int    `json:"segments"`
	Records  int    `json:"records"`
	Live     bool   `json:"live"`
	// Break says where and why the chain is broken: "segment 3, line 17: …".
	Break string `json:"break,omitempty"`
}
