package helper

import (
	"context"
	"encoding/json"
	"os"
	"regexp"
	"time"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/internal/toolroot"
	"yoi.dev/yoi-runtime/nsexec"
	"yoi.dev/yoi-runtime/policy"
)

// ProtocolVersion is the first field of every message. A peer of another
// version is refused with CodeUnsupportedVersion.
const ProtocolVersion = 1

// Helper is what the orchestrator asks of the privileged side. Every error is
// a *policy.Diagnostic. Methods may be called from any goroutine.
type Helper interface {
	// Probe says what the Runtime root's file system and this kernel can do.
	Probe(ctx context.Context) (ProbeResult, error)
	// Materialize makes the directories of an allocation and fills its
	// repositories from the cache's pristine trees.
	Materialize(ctx context.Context, req MaterializeRequest) (MaterializeResult, error)
	// Adopt compares what an external command made of the allocation's one
	// repository with the pristine tree, and puts it in its place.
	Adopt(ctx context.Context, req MaterializeRequest) (MaterializeResult, error)
	// Keep records durably that an allocation is complete and wanted: recovery
	// will not take it away. Forget undoes that.
	Keep(ctx context.Context, id policy.AllocationID) error
	// Launch starts a Worker. The files are duplicated, never closed.
	Launch(ctx context.Context, req LaunchRequest, files LaunchFiles) (*Launched, error)
	// Wait returns the outcome of a Worker once it has ended. It works for a
	// Worker that an earlier helper started.
	Wait(ctx context.Context, id policy.WorkerID) (nsexec.Outcome, error)
	// Signal sends a signal number to a Worker's main process.
	Signal(ctx context.Context, id policy.WorkerID, signal int) error
	// Kill ends a Worker's whole process tree.
	Kill(ctx context.Context, id policy.WorkerID) error
	// Enter starts a command in a live Worker's sandbox. The files are duplicated,
	// never closed.
	Enter(ctx context.Context, req EnterRequest, files EnterFiles) (*Entered, error)
	// WaitSession returns the outcome of a session once it has ended, once.
	WaitSession(ctx context.Context, id policy.SessionID) (SessionOutcome, error)
	// SignalSession sends a signal number to a session's process group.
	SignalSession(ctx context.Context, id policy.SessionID, signal int) error
	// Terminal is the master of a live Worker's resident terminal, to type at and to
	// resize; its output is in the log, and reading it here would take it from there.
	Terminal(ctx context.Context, id policy.WorkerID) (*os.File, error)
	// Live lists the Workers that run now.
	Live(ctx context.Context) ([]policy.WorkerID, error)
	// HasNewObjects reports whether an allocation's private git directories hold
	// objects of their own: without any, no commit can be lost.
	HasNewObjects(ctx context.Context, req MaterializeRequest) (bool, error)
	// Usage says what an allocation's own directories occupy.
	Usage(ctx context.Context, id policy.AllocationID) (UsageResult, error)
	// Processes lists what runs in a live Worker's sandbox.
	Processes(ctx context.Context, id policy.WorkerID) ([]Process, error)
	// Pause stops a live Worker, or lets it go on.
	Pause(ctx context.Context, req PauseRequest) error
	// ProcessUsage says what a live Worker uses of CPU and memory.
	ProcessUsage(ctx context.Context, id policy.WorkerID) (ProcessUsage, error)
	// Publish makes shared caches of what a trusted Worker left in an allocation.
	Publish(ctx context.Context, req PublishRequest) (PublishResult, error)
	// EvictCaches frees shared caches that no allocation uses.
	EvictCaches(ctx context.Context, req EvictRequest) (EvictResult, error)
	// Changed lists where a workspace can differ from the tree it was made of.
	Changed(ctx context.Context, req ChangedRequest) (ChangedResult, error)
	// Exchange gives each of two allocations the other's files.
	Exchange(ctx context.Context, req ExchangeRequest) error
	// Remove takes an allocation and its Workers' records away.
	Remove(ctx context.Context, req RemoveRequest) error
	// ImportImage unpacks an image of the archive, a regular file, into the store.
	// The image is a leftover until Keep is called with its id.
	ImportImage(ctx context.Context, req ImportImageRequest, archive *os.File) (ImportImageResult, error)
	// RemoveImage takes an image away that no allocation stands on.
	RemoveImage(ctx context.Context, id policy.AllocationID) error
	// Recover removes what dead writers left behind, and adopts live Workers.
	Recover(ctx context.Context) (RecoverResult, error)
	Close() error
}

// RepositoryTree names one repository of an allocation and the pristine tree
// it comes from.
type RepositoryTree struct {
	RepositoryID policy.RepositoryID `json:"repository_id"`
	// TreeKey is the tree id, with ".<scope key>" for a scoped tree. It is empty
	// for direct_legacy_mount.
	TreeKey  string              `json:"tree_key,omitempty"`
	Strategy policy.StrategyName `json:"strategy"`
	// Files is how many the tree has, 0 if that is not known: auto goes by what was
	// measured for trees of that size.
	Files int64 `json:"files,omitempty"`
	// Caches are the directories to fill from shared caches; only Materialize
	// looks at them.
	Caches []policy.DependencyCache `json:"caches,omitempty"`
}

var treeKeyPattern = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})(\.[0-9a-f]{16})?$`)

// validate checks the ids of a request's repositories.
func validateTrees(trees []RepositoryTree) error {
	if len(trees) == 0 || len(trees) > 32 {
		return policy.Errorf(policy.CodeBadRequest, "helper.request", "an allocation has 1 to 32 repositories, not %d", len(trees))
	}
	seen := make(map[policy.RepositoryID]bool, len(trees))
	for _, t := range trees {
		if err := policy.CheckID("repository", string(t.RepositoryID)); err != nil {
			return err
		}
		if seen[t.RepositoryID] {
			return policy.Errorf(policy.CodeBadRequest, "helper.request", "repository %s is named twice", t.RepositoryID)
		}
		seen[t.RepositoryID] = true
		if err := policy.ValidateCaches(t.Caches); err != nil {
			return err
		}
		if t.Strategy == policy.StrategyDirect {
			if t.TreeKey != "" {
				return policy.Errorf(policy.CodeBadRequest, "helper.request", "direct_legacy_mount has no tree")
			}
			continue
		}
		if !treeKeyPattern.MatchString(t.TreeKey) {
			return policy.Errorf(policy.CodeBadRequest, "helper.request", "%q is not a tree key", policy.Printable(t.TreeKey))
		}
	}
	return nil
}

// MaterializeRequest asks for an allocation. A strategy of "auto" lets the
// probe choose, the same for all repositories.
type MaterializeRequest struct {
	AllocationID policy.AllocationID `json:"allocation_id"`
	Repositories []RepositoryTree    `json:"repositories"`
	// From is the allocation to fork: Repositories are its own, by the strategies
	// that made them. "" takes the pristine trees.
	From policy.AllocationID `json:"from,omitempty"`
	// BuildCache is the project whose build cache the allocation gets; "" for none.
	BuildCache policy.WorkspaceID `json:"build_cache,omitempty"`
	// Image is what the allocation's Workers will have as their root, nil for none.
	Image *ImageRoot `json:"image,omitempty"`
	// Quota bounds the allocation's disk.
	Quota policy.Quota `json:"quota,omitzero"`
}

func (r MaterializeRequest) validate() error {
	if err := policy.CheckID("allocation", string(r.AllocationID)); err != nil {
		return err
	}
	if err := r.Quota.Validate(); err != nil {
		return err
	}
	if r.From != "" {
		if err := policy.CheckID("allocation", string(r.From)); err != nil {
			return err
		}
	}
	if r.BuildCache != "" {
		if err := policy.CheckID("workspace", string(r.BuildCache)); err != nil {
			return err
		}
	}
	if err := r.Image.validate(); err != nil {
		return err
	}
	return validateTrees(r.Repositories)
}

// MaterializeResult says what was made. Repositories carry the strategy that
// was used.
type MaterializeResult struct {
	Repositories []RepositoryTree    `json:"repositories"`
	Reason       string              `json:"reason"`
	Files        int64               `json:"files"`
	Bytes        int64               `json:"bytes"`
	Warnings     []policy.Diagnostic `json:"warnings,omitempty"`
	// Quota says how the quota is held.
	Quota policy.QuotaEvidence `json:"quota,omitzero"`
	// Caches are the shared caches that the allocation uses.
	Caches []policy.CacheUse `json:"caches,omitempty"`
}

// LaunchRequest starts a command on a materialized allocation.
type LaunchRequest struct {
	WorkerID     policy.WorkerID     `json:"worker_id"`
	AllocationID policy.AllocationID `json:"allocation_id"`
	Repositories []RepositoryTree    `json:"repositories"`
	// Command is argv; Env is the Worker's whole environment as NAME=VALUE.
	Command []string `json:"command"`
	Env     []string `json:"env"`
	// RepositoryID is the repository whose root RelativeCwd starts from.
	RepositoryID policy.RepositoryID `json:"repository_id"`
	RelativeCwd  string              `json:"relative_cwd"`
	Root         policy.RootProfile  `json:"root"`
	HostNetwork  bool                `json:"host_network,omitempty"`
	// Egress is set for a network by an allowlist.
	Egress *EgressRequest `json:"egress,omitempty"`
	Limits policy.Limits  `json:"limits,omitzero"`
	// WorkspaceLimits are the workspace's own, which its slice keeps.
	WorkspaceLimits policy.Limits `json:"workspace_limits,omitzero"`
	NoExec          bool          `json:"scratch_noexec,omitempty"`
	// Mounts says that the Worker may mount in namespaces of its own, which
	// Landlock's restriction of files would take away.
	Mounts bool `json:"mounts,omitempty"`
	// Audit has the filter's refusals counted and told in the outcome.
	Audit bool `json:"audit,omitempty"`
	// Require are the protections without which there is no launch.
	Require []policy.Protection `json:"require,omitempty"`
	// IDs asks an ordinary user's helper for a range of ids.
	IDs policy.IDs `json:"ids,omitempty"`
	// Image is the root of the profile image:NAME.
	Image *ImageRoot `json:"image,omitempty"`
	// Tools are the programs that the root has in place of the host's system
	// directories; none are all of them.
	Tools []string `json:"tools,omitempty"`
	// ConfigBundle is the bundle that the sandbox has, "" for none.
	ConfigBundle policy.BundleDigest `json:"config_bundle,omitempty"`
	// Secrets go into the sandbox, as files or variables; their values come beside
	// the request, in LaunchFiles.
	Secrets []policy.Secret `json:"secrets,omitempty"`
	// Terminal gives the Worker a terminal of its own in place of the stdio
	// entries that are not given; Launched.Terminal is the other end. Rows and
	// Columns are its first size.
	Terminal bool   `json:"terminal,omitempty"`
	Rows     uint16 `json:"rows,omitempty"`
	Columns  uint16 `json:"columns,omitempty"`
	// Resident leaves the terminal with the Worker, for Helper.Terminal; what it shows
	// goes to the log. It takes Terminal and Logs.
	Resident bool `json:"resident,omitempty"`
	// Logs sends output to workers/<id>/logs/ instead of the given files.
	Logs bool `json:"logs,omitempty"`
	// DieWithParent ends the Worker with the helper's process.
	DieWithParent bool `json:"die_with_parent,omitempty"`
	// Transient Workers are the runtime's own: their directory goes with them, and
	// Wait answers once.
	Transient bool `json:"transient,omitempty"`
	// External runs the operator's materialization command: in place of the
	// repository the sandbox has the pristine tree and the directory for the
	// result. It takes one repository, of the strategy external.
	External bool `json:"external,omitempty"`
	// ReadOnly is a look at a workspace: every repository is mounted read-only,
	// with the index that it began with, beside a live Worker if there is one, and
	// scratch is empty.
	ReadOnly bool `json:"read_only,omitempty"`
	// Volatile says that the workspace need not survive a power failure: its
	// files are not synced, neither at the Worker's wish nor at its end.
	Volatile bool `json:"volatile,omitempty"`

	// tools is what Tools come to on this host.
	tools *toolroot.Closure
	// caches is what the allocation's caches.json says.
	caches *cacheUses
}

func (r LaunchRequest) validate() error {
	if err := policy.CheckID("worker", string(r.WorkerID)); err != nil {
		return err
	}
	if err := policy.CheckID("allocation", string(r.AllocationID)); err != nil {
		return err
	}
	if err := validateTrees(r.Repositories); err != nil {
		return err
	}
	if err := policy.ValidateCommand(r.Command); err != nil {
		return err
	}
	if _, err := policy.CheckRelativeCwd(r.RelativeCwd); err != nil {
		return err
	}
	found := false
	for _, t := range r.Repositories {
		found = found || t.RepositoryID == r.RepositoryID
	}
	if r.External && (len(r.Repositories) != 1 || r.Repositories[0].Strategy != policy.StrategyExternal || !r.Transient || r.RelativeCwd != "") {
		return policy.Errorf(policy.CodeBadRequest, "helper.launch", "an external command is transient, for one repository of that strategy, in its own directory")
	}
	if !found {
		return policy.Errorf(policy.CodeBadRequest, "helper.launch", "repository %q is not in the allocation", policy.Printable(string(r.RepositoryID)))
	}
	if err := r.validateRoot(); err != nil {
		return err
	}
	if r.ConfigBundle != "" {
		if _, err := r.ConfigBundle.Hex(); err != nil {
			return err
		}
	}
	if err := r.validateSecrets(); err != nil {
		return err
	}
	if r.Resident && (!r.Terminal || !r.Logs) {
		return policy.Errorf(policy.CodeBadRequest, "helper.launch", "a resident terminal is a terminal with a log")
	}
	if len(r.Env) > 2048 {
		return policy.Errorf(policy.CodeEnvironmentInvalid, "helper.launch", "more than 2048 variables")
	}
	if err := policy.ValidateRequired(r.Require); err != nil {
		return err
	}
	if r.IDs != policy.IDsSingle && r.IDs != policy.IDsRange {
		return policy.Errorf(policy.CodeBadRequest, "helper.launch", "no such choice of ids")
	}
	if r.Egress != nil && r.HostNetwork {
		return policy.Errorf(policy.CodeBadRequest, "helper.launch", "the host's network takes no allowlist")
	}
	if err := r.Egress.validate(); err != nil {
		return err
	}
	return r.Limits.Validate()
}

// LaunchFiles are the descriptors of a launch. A Stdio entry that is nil is the
// terminal, the log file, or /dev/null, whichever the request has. Direct holds the directory of each direct_legacy_mount
// repository, in order: holding the descriptor is the caller's authority.
type LaunchFiles struct {
	Stdio  [3]*os.File
	Filter []byte // raw BPF
	Direct []*os.File
	// Secrets is what secret.Set.Pack made for the request's Secrets.
	Secrets *os.File
	// Headers is the same for the request's Egress.Secrets.
	Headers *os.File
	// Outside is the network namespace that the modes host and allowlist lead into,
	// nil for the helper's own. Remote sets it: a service's helper has no network. One
	// that is not privileged cannot enter it, and has its own.
	Outside *os.File
}

// Launched is a running Worker. The caller owns and closes the files.
type Launched struct {
	Pidfd    *os.File
	Terminal *os.File // nil without a terminal
	// StartedAt is when the Worker's exec succeeded.
	StartedAt time.Time
	// ToolsDigest is of the programs and what they load, "" without Tools.
	ToolsDigest string
	// IDBase is the first host uid of the Worker's range, 0 without a range.
	IDBase      uint32
	Protections policy.Protections
	// Warnings are of limits that are not kept.
	Warnings []policy.Diagnostic
}

// RemoveRequest takes an allocation away. Background returns once nothing of it
// is reachable by its id any more; the helper reclaims the space behind.
type RemoveRequest struct {
	AllocationID policy.AllocationID `json:"allocation_id"`
	Background   bool                `json:"background,omitempty"`
}

// RecoverResult counts what a recovery found and did.
type RecoverResult struct {
	Leftovers   int                   `json:"leftovers"`
	Removed     int                   `json:"removed"`
	Kept        int                   `json:"kept"`
	Adopted     []policy.WorkerID     `json:"adopted,omitempty"`
	Rescued     []policy.AllocationID `json:"rescued,omitempty"` // kept since they hold uncollected commits
	Diagnostics []policy.Diagnostic   `json:"diagnostics,omitempty"`
}

// ProbeResult is the strategy table and the sandbox's capabilities.
type ProbeResult struct {
	Privileged bool              `json:"privileged"`
	FileSystem string            `json:"file_system"`
	Strategies []StrategySupport `json:"strategies"`
	Checks     []Check           `json:"checks"`
}

// StrategySupport is one row of the strategy table.
type StrategySupport struct {
	Name   policy.StrategyName `json:"name"`
	OK     bool                `json:"ok"`
	Chosen bool                `json:"chosen"`
	Reason string              `json:"reason"`
	Fix    string              `json:"fix,omitempty"`
	// Costs is what was measured here, ascending by size.
	Costs []cow.Cost `json:"costs,omitempty"`
}

// Check is one capability of the host: state is ok, degraded or missing.
type Check struct {
	Name    string `json:"name"`
	State   string `json:"state"`
	Message string `json:"message"`
	Fix     string `json:"fix,omitempty"`
}

// The operations on the wire, append only.
const (
	opProbe       = "probe"
	opMaterialize = "materialize"
	opAdopt       = "adopt"
	opKeep        = "keep"
	opLaunch      = "launch"
	opWait        = "wait"
	opSignal      = "signal"
	opKill        = "kill"
	opLive        = "live"
	opObjects     = "has_new_objects"
	opRemove      = "remove"
	opRecover     = "recover"
	opExchange    = "exchange"
	opChanged     = "changed"
	opCancel      = "cancel"
	opImageImport = "image_import"
	opImageRemove = "image_remove"
	opUsage       = "usage"
	opProcesses   = "process_usage"
	opPublish     = "publish"
	opEvict       = "evict_caches"

	opEnter         = "enter"
	opSessionWait   = "session_wait"
	opSessionSignal = "session_signal"
	opTerminal      = "terminal"
	opMembers       = "processes"
	opPause         = "pause"
)

// request is one message to the helper. Its descriptors travel beside it.
type request struct {
	Version int             `json:"v"`
	ID      uint64          `json:"id"`
	Op      string          `json:"op"`
	Body    json.RawMessage `json:"body,omitempty"`
	// Spill says that the body is in the first descriptor, a sealed memfd.
	Spill bool `json:"spill,omitempty"`
}

// response answers the request of the same id: Error, or Body.
type response struct {
	Version int                `json:"v"`
	ID      uint64             `json:"id"`
	Body    json.RawMessage    `json:"body,omitempty"`
	Error   *policy.Diagnostic `json:"error,omitempty"`
	Spill   bool               `json:"spill,omitempty"`
}

type (
	allocationBody struct {
		AllocationID policy.AllocationID `json:"allocation_id"`
	}
	workerBody struct {
		WorkerID policy.WorkerID `json:"worker_id"`
		Signal   int             `json:"signal,omitempty"`
	}
	processesBody struct {
		Processes []Process `json:"processes"`
	}
	sessionBody struct {
		SessionID policy.SessionID `json:"session_id"`
		Signal    int              `json:"signal,omitempty"`
	}
	enterBody struct {
		EnterRequest
		// Stdio says which descriptors follow, before the filter.
		Stdio [3]bool `json:"stdio"`
	}
	enteredBody struct {
		StartedAt time.Time `json:"started_at"`
		Terminal  bool      `json:"terminal,omitempty"`
	}
	cancelBody struct {
		ID uint64 `json:"id"`
	}
	liveBody struct {
		Workers []policy.WorkerID `json:"workers"`
	}
	objectsBody struct {
		New bool `json:"new"`
	}
	launchBody struct {
		LaunchRequest
		// Files says which descriptors follow, in order: stdio 0 to 2, then the
		// filter as a sealed memfd, the secrets likewise if there are any, then Direct.
		Stdio  [3]bool `json:"stdio"`
		Direct int     `json:"direct,omitempty"`
	}
	launchedBody struct {
		StartedAt time.Time `json:"started_at"`
		IDBase    uint32    `json:"id_base,omitempty"`
		// ToolsDigest is Launched's.
		ToolsDigest string `json:"tools_digest,omitempty"`

		Protections policy.Protections  `json:"protections"`
		Warnings    []policy.Diagnostic `json:"warnings,omitempty"`
		Terminal    bool                `json:"terminal,omitempty"`
	}
)
