package registry

import (
	"encoding/json"
	"time"

	"yoi.dev/yoi-runtime/policy"
)

// Repository is a registered repository.
type Repository struct {
	ID        policy.RepositoryID `json:"id"`
	Source    string              `json:"source"`
	CreatedAt time.Time           `json:"created_at"`
	FetchedAt time.Time           `json:"fetched_at,omitzero"`
	// Options are the repository's settings, whatever the caller's version knows.
	Options json.RawMessage `json:"options,omitempty"`
}

// AllocationStatus is an allocation's state. It moves active → stopped →
// cleanup_pending → removed, and may pass over stopped and, for an ephemeral
// allocation, cleanup_pending; active and stopped may
// also become failed, and failed goes on to cleanup_pending.
type AllocationStatus string

const (
	AllocationActive         AllocationStatus = "active"
	AllocationStopped        AllocationStatus = "stopped"
	AllocationCleanupPending AllocationStatus = "cleanup_pending"
	AllocationRemoved        AllocationStatus = "removed"
	AllocationFailed         AllocationStatus = "failed"
)

// Mount is what a repository looks like from inside.
type Mount struct {
	RepositoryID policy.RepositoryID `json:"repository_id"`
	// Target is the path in the sandbox.
	Target   string              `json:"target"`
	Strategy policy.StrategyName `json:"strategy"`
	// Tree is the pristine tree's key, "" for a direct mount.
	Tree string `json:"tree,omitempty"`
	// BaseTree is the tree id of what the workspace was made with where that is
	// more than the point: the point and uncommitted changes.
	BaseTree string `json:"base_tree,omitempty"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// Image is a base image as an allocation stands on it.
type Image struct {
	ID     policy.AllocationID `json:"id"` // "im-…", owner of the image in the ledger
	Name   policy.ImageName    `json:"name"`
	Digest string              `json:"digest"`
	Driver policy.ImageDriver  `json:"driver"`
	Layers []string            `json:"layers"` // lowest first
	Owned  bool                `json:"owned,omitempty"`
	// Env are the image's variables, as NAME=VALUE.
	Env []string `json:"env,omitempty"`
}

// Allocation is the registry record of one Execution Workspace. Root and
// Scratch are relative to the Runtime root.
type Allocation struct {
	ID               policy.AllocationID      `json:"id"`
	RuntimeID        policy.RuntimeID         `json:"runtime_id"`
	WorkerID         policy.WorkerID          `json:"worker_id,omitempty"` // the last Worker
	WorkspaceID      policy.WorkspaceID       `json:"workspace_id"`
	RepositoryPoints []policy.RepositoryPoint `json:"repository_points"`
	MaterializerKind policy.StrategyName      `json:"materializer_kind"`
	StrategyReason   string                   `json:"strategy_reason,omitempty"`
	Root             string                   `json:"root"`
	Mounts           []Mount                  `json:"mounts"`
	Scratch          string                   `json:"scratch"`
	SourceCacheRefs  []string                 `json:"source_cache_refs"`
	SandboxPolicy    policy.SandboxPolicy     `json:"sandbox_policy"`
	// Image is what the sandbox policy's root named when this was made.
	Image            *Image                  `json:"image,omitempty"`
	DirtyStatePolicy policy.DirtyStatePolicy `json:"dirty_state_policy"`
	CleanupPolicy    policy.CleanupPolicy    `json:"cleanup_policy"`
	// CleanupDeadline is when keep_for ends; zero without one.
	CleanupDeadline time.Time           `json:"cleanup_deadline,omitzero"`
	Status          AllocationStatus    `json:"status"`
	CreatedAt       time.Time           `json:"created_at"`
	StoppedAt       time.Time           `json:"stopped_at,omitzero"`
	RemovedAt       time.Time           `json:"removed_at,omitzero"`
	Diagnostics     []policy.Diagnostic `json:"diagnostics,omitempty"`
	Ancestor        policy.AllocationID `json:"ancestor,omitempty"`
	// SnapshotOf is set for a point in time of another allocation, which goes with
	// it; Label is its maker's.
	SnapshotOf policy.AllocationID `json:"snapshot_of,omitempty"`
	Label      string              `json:"label,omitempty"`
	// Evidence is the content of materialization.json.
	Evidence json.RawMessage `json:"evidence,omitempty"`
}

// WorkerStatus is a Worker's state: starting → running → exited or lost (where
// running may have gone unseen), or starting → failed.
type WorkerStatus string

const (
	WorkerStarting WorkerStatus = "starting"
	WorkerRunning  WorkerStatus = "running"
	WorkerExited   WorkerStatus = "exited"
	WorkerFailed   WorkerStatus = "failed" // never started
	WorkerLost     WorkerStatus = "lost"   // ended without an outcome record
)

// Outcome is how a Worker ended. ExitCode is 128+number for a signal.
type Outcome struct {
	ExitCode   int    `json:"exit_code"`
	Signal     string `json:"signal,omitempty"` // "SIGKILL"
	CoreDumped bool   `json:"core_dumped,omitempty"`
	TimedOut   bool   `json:"timed_out,omitempty"`
	OOMKilled  bool   `json:"oom_killed,omitempty"`
	// TasksDenied: it asked for more processes and threads than the limit tasks.
	TasksDenied bool `json:"tasks_denied,omitempty"`
	// Stopped: the host's service manager was told to stop it (systemctl stop, a shutdown).
	Stopped bool `json:"stopped_by_service_manager,omitempty"`
	Lost    bool `json:"lost,omitempty"`
	// Exceeded is the bound of the workspace's quota that ended the Worker:
	// disk_bytes, inodes, or unmeasurable for a tree that hid what it holds.
	Exceeded   string        `json:"quota_exceeded,omitempty"`
	UserTime   time.Duration `json:"user_time_ns"`
	SystemTime time.Duration `json:"system_time_ns"`
	// MaxRSS is never below the launcher's own resident size: exec(2) keeps the
	// high-water mark of the address space that the child was born in.
	MaxRSS   int64         `json:"max_rss_bytes"`
	WallTime time.Duration `json:"wall_time_ns"`
	// Denied are the system calls that it was refused, under the seccomp profile audit.
	Denied []DeniedCall `json:"denied,omitempty"`
	// Work is what it left in each repository.
	Work []Work `json:"work,omitempty"`
}

// DeniedCall is a system call that the filter refused. Program is the name that the
// process gave itself.
type DeniedCall struct {
	Call    string `json:"call"`
	Answer  string `json:"answer"` // "EPERM"
	Program string `json:"program"`
	Count   uint64 `json:"count"`
}

// Work is what a Worker left in a repository, as git says that looks at it inside
// a sandbox: a claim of the workspace about itself.
type Work struct {
	RepositoryID policy.RepositoryID `json:"repository_id"`
	// Head is the commit that HEAD names, "" for none.
	Head string `json:"head,omitempty"`
	// CommitCount counts the commits that are neither ancestors of what the
	// workspace was given nor collected; Commits are the newest of them, at most 1000.
	CommitCount int      `json:"commit_count"`
	Commits     []string `json:"commits,omitempty"`
	// Tree is the tree id of all files that are not ignored, whether committed or
	// not. ChangedPaths counts those that differ from the point's.
	Tree         string `json:"tree,omitempty"`
	ChangedPaths int    `json:"changed_paths"`
	// CollectedAs is a collected commit whose tree is Tree, "" for none.
	CollectedAs string `json:"collected_as,omitempty"`
	// Partial says that some files could not be read and are not in Tree.
	Partial bool `json:"partial,omitempty"`
	// DiffDigest is "sha256:…" of git diff-tree --binary from the point to Tree.
	DiffDigest string `json:"diff_digest,omitempty"`
}

// Worker is the record of one process tree in one sandbox. It has no process
// id on purpose: a number read back after a restart may be somebody else's.
type Worker struct {
	ID           policy.WorkerID     `json:"id"`
	AllocationID policy.AllocationID `json:"allocation_id"`
	WorkspaceID  policy.WorkspaceID  `json:"workspace_id"`
	RepositoryID policy.RepositoryID `json:"repository_id,omitempty"`
	Status       WorkerStatus        `json:"status"`
	Command      []string            `json:"command"`
	RelativeCwd  string              `json:"relative_cwd,omitempty"`
	CreatedAt    time.Time           `json:"created_at"`
	StartedAt    time.Time           `json:"started_at,omitzero"`
	EndedAt      time.Time           `json:"ended_at,omitzero"`
	Outcome      *Outcome            `json:"outcome,omitempty"`
	// Protections are those that its kernel had for it; nil before the start.
	Protections *policy.Protections `json:"protections,omitempty"`
	// Network is what it used of an allowlist, once it has ended.
	Network *policy.NetworkUsage `json:"network,omitempty"`
	// Allow are its network rules beside those of its sandbox policy.
	Allow []string `json:"allow,omitempty"`
	// Secrets are those that it was given; never their values.
	Secrets []policy.SecretUse `json:"secrets,omitempty"`
	// Env and Limits are what it was given beyond its sandbox policy.
	Env    map[string]string `json:"env,omitempty"`
	Limits policy.Limits     `json:"limits,omitzero"`
	// Terminal says that it has a terminal that stays with it.
	Terminal bool `json:"terminal,omitempty"`
	// Paused says that somebody stopped it who has not let it go on.
	Paused bool `json:"paused,omitempty"`
	// Sessions are the last times that somebody entered it; SessionsBefore counts
	// those that are not listed any more.
	Sessions       []Session `json:"sessions,omitempty"`
	SessionsBefore int       `json:"sessions_before,omitempty"`
	// ToolsDigest is of the programs that its policy names and what they load.
	ToolsDigest string `json:"tools_digest,omitempty"`
	// Logs are the names of the log files in the Worker's directory.
	Logs        []string            `json:"logs,omitempty"`
	Diagnostics []policy.Diagnostic `json:"diagnostics,omitempty"`
}

// Filter narrows and pages a listing, newest first. Zero fields match all;
// Limit 0 is 100, at most 1000.
type Filter struct {
	WorkspaceID  policy.WorkspaceID
	AllocationID policy.AllocationID
	RepositoryID policy.RepositoryID
	// Status is any of the given.
	Status []string
	Limit  int
	// After is the Next of the page before.
	After string
}

// Page is one page of a listing; Next is "" on the last.
type Page[T any] struct {
	Items []T
	Next  string
}

// IdempotencyKey remembers the answer to a request, so that a repeated request
// gets it again instead of doing the work twice.
type IdempotencyKey struct {
	Key string
	// Digest is of the request: the same key with another request is a conflict.
	Digest    string
	Response  json.RawMessage // nil while the first request is under way
	CreatedAt time.Time
}
