package backend

import (
	"context"
	"sync"
	"time"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// What may be seen. Every answer is built from these types, field by field: a field
// that a Runtime's answer gains stays here until somebody has thought about it.

// Notice is a warning that goes along with a summary.
type Notice struct {
	Code     string `json:"code"`
	Severity string `json:"severity"`
	Message  string `json:"message"`
	Hint     string `json:"hint,omitempty"`
}

// Point is what a selector resolved to.
type Point struct {
	RepositoryID string    `json:"repository_id"` // the configured id
	CommitID     string    `json:"commit_id"`
	TreeID       string    `json:"tree_id"`
	Selector     string    `json:"selector"`
	Subject      string    `json:"subject,omitempty"` // untrusted text
	CommittedAt  time.Time `json:"committed_at,omitzero"`
	ResolvedAt   time.Time `json:"resolved_at"`
	Scope        []string  `json:"scope,omitempty"`
}

// Short is a commit id for people.
func (p Point) Short() string { return limitText(p.CommitID, 10) }

// Disk is what an Execution Workspace occupies.
type Disk struct {
	ExclusiveBytes  int64     `json:"exclusive_bytes"`  // that nothing else shares
	ReferencedBytes int64     `json:"referenced_bytes"` // with what it shares
	Partial         bool      `json:"partial,omitempty"`
	MeasuredAt      time.Time `json:"measured_at"`
}

// ExecutionWorkspace is the safe summary of an allocation.
type ExecutionWorkspace struct {
	ID                 string    `json:"id"` // the allocation id
	WorkspaceID        string    `json:"workspace_id"`
	Status             string    `json:"status"`
	Points             []Point   `json:"repository_points"`
	Strategy           string    `json:"strategy"`
	StrategyReason     string    `json:"strategy_reason,omitempty"`
	DirtyState         string    `json:"dirty_state_policy"`
	Cleanup            string    `json:"cleanup_policy"` // "keep_for:2h0m0s"
	DiscardUncollected bool      `json:"discard_uncollected,omitempty"`
	Roots              []string  `json:"roots"` // where a Worker sees its repositories
	CreatedAt          time.Time `json:"created_at"`
	CreatedBy          string    `json:"created_by,omitempty"`
	StoppedAt          time.Time `json:"stopped_at,omitzero"`
	RemovedAt          time.Time `json:"removed_at,omitzero"`
	Ancestor           string    `json:"ancestor,omitempty"`
	WorkerID           string    `json:"worker_id,omitempty"` // the last Worker
	// Disk is the last measurement, absent before the first.
	Disk    *Disk    `json:"disk,omitempty"`
	Notices []Notice `json:"notices,omitempty"`
}

// Gone says that nothing can be done with it any more.
func (e ExecutionWorkspace) Gone() bool {
	return e.Status == string(runtime.WorkspaceRemoved) || e.Status == string(runtime.WorkspaceCleanupPending)
}

// ExecutionWorkspaceList is a page, newest first.
type ExecutionWorkspaceList struct {
	Items []ExecutionWorkspace `json:"items"`
	Next  string               `json:"next,omitempty"`
}

// Outcome is how a Worker ended.
type Outcome struct {
	ExitCode     int           `json:"exit_code"` // 128+number for a signal
	Signal       string        `json:"signal,omitempty"`
	TimedOut     bool          `json:"timed_out,omitempty"`
	OOMKilled    bool          `json:"oom_killed,omitempty"`
	Lost         bool          `json:"lost,omitempty"`
	Exceeded     string        `json:"quota_exceeded,omitempty"`
	UserTime     time.Duration `json:"user_time_ns"`
	SystemTime   time.Duration `json:"system_time_ns"`
	WallTime     time.Duration `json:"wall_time_ns"`
	MaxRSS       int64         `json:"max_rss_bytes"`
	Commits      int           `json:"commits"`
	ChangedPaths int           `json:"changed_paths"`
	DiffDigest   string        `json:"diff_digest,omitempty"`
}

// Worker is the safe summary of a Worker.
type Worker struct {
	ID           string    `json:"id"`
	AllocationID string    `json:"allocation_id"`
	WorkspaceID  string    `json:"workspace_id"`
	Status       string    `json:"status"`
	Command      []string  `json:"command"`
	RelativeCwd  string    `json:"relative_cwd"`
	CreatedAt    time.Time `json:"created_at"`
	StartedAt    time.Time `json:"started_at,omitzero"`
	EndedAt      time.Time `json:"ended_at,omitzero"`
	StartedBy    string    `json:"started_by,omitempty"`
	Outcome      *Outcome  `json:"outcome,omitempty"`
	// ExecutionWorkspace is the summary of what it runs in.
	ExecutionWorkspace *ExecutionWorkspace `json:"execution_workspace,omitempty"`
	Notices            []Notice            `json:"notices,omitempty"`
}

// Live says that it has not ended.
func (w Worker) Live() bool {
	return w.Status == string(runtime.WorkerRunning) || w.Status == string(runtime.WorkerStarting)
}

// WorkerList is a page, newest first.
type WorkerList struct {
	Items []Worker `json:"items"`
	Next  string   `json:"next,omitempty"`
}

// Evidence is proof of what an Execution Workspace is made of.
type Evidence struct {
	AllocationID  string                   `json:"allocation_id"`
	Points        []Point                  `json:"repository_points"`
	Strategy      string                   `json:"strategy"`
	Reason        string                   `json:"strategy_reason"`
	DirtyState    string                   `json:"dirty_state_policy"`
	Changes       []Change                 `json:"dirty_state,omitempty"`
	SandboxDigest string                   `json:"sandbox_policy_digest"`
	SeccompDigest string                   `json:"seccomp_digest"`
	Seccomp       string                   `json:"seccomp_profile"`
	Network       string                   `json:"network"`
	NetworkRules  []string                 `json:"network_rules,omitempty"`
	Root          string                   `json:"root"`
	Files         int64                    `json:"files"`
	Bytes         int64                    `json:"bytes"`
	CreatedAt     time.Time                `json:"created_at"`
	Timings       map[string]time.Duration `json:"timings_ns"`
	Notices       []Notice                 `json:"notices,omitempty"`
}

// Egress is what a Worker's allowlist let through and refused.
type Egress struct {
	WorkerID string       `json:"worker_id"`
	Network  string       `json:"network"` // the mode; the rest is of an allowlist
	Allowed  uint64       `json:"allowed"` // connections, and requests of plain HTTP
	Refused  uint64       `json:"refused"`
	BytesOut uint64       `json:"bytes_out"`
	BytesIn  uint64       `json:"bytes_in"`
	Rules    []EgressRule `json:"rules"`
	// Decisions are the last ones. Hosts are what the Worker asked for: untrusted text.
	Decisions []EgressDecision `json:"decisions"`
}

// EgressRule is what one rule was used for.
type EgressRule struct {
	Rule     string `json:"rule"`
	Allowed  uint64 `json:"allowed"`
	BytesOut uint64 `json:"bytes_out"`
	BytesIn  uint64 `json:"bytes_in"`
}

// EgressDecision is about one connection or request. Which address a name led to is the
// Runtime's affair.
type EgressDecision struct {
	At      time.Time `json:"at"`
	Host    string    `json:"host,omitempty"`
	Port    int       `json:"port,omitempty"`
	Allowed bool      `json:"allowed"`
	Rule    string    `json:"rule,omitempty"`
	Reason  string    `json:"reason,omitempty"` // of docs/network.md
}

// Change is what came along uncommitted.
type Change struct {
	RepositoryID string `json:"repository_id"`
	Kind         string `json:"kind"`
	Digest       string `json:"digest"`
	Files        int    `json:"files"`
	Bytes        int64  `json:"bytes"`
}

// pointsOf leaves a snapshot's digest and what else a Runtime knows behind.
func (b *Backend) pointsOf(ws string, points []policy.RepositoryPoint) []Point {
	out := make([]Point, 0, len(points))
	for _, p := range points {
		out = append(out, Point{
			RepositoryID: b.settings().names.configured(ws, p.RepositoryID), CommitID: p.CommitID, TreeID: p.TreeID,
			Selector: p.Selector.String(), Subject: p.Subject, CommittedAt: p.CommittedAt, ResolvedAt: p.ResolvedAt, Scope: p.Scope,
		})
	}
	return out
}

// summary is what may be seen of a Runtime's workspace.
func (b *Backend) summary(ctx context.Context, ws string, v runtime.Workspace) ExecutionWorkspace {
	e := ExecutionWorkspace{
		ID: string(v.ID), WorkspaceID: ws, Status: string(v.Status), Points: b.pointsOf(ws, v.Points),
		Strategy: string(v.Strategy), StrategyReason: b.scrub(v.StrategyReason), DirtyState: string(v.DirtyState),
		Cleanup: cleanupText(v.Cleanup), DiscardUncollected: v.Cleanup.DiscardUncollected, Roots: v.Roots,
		CreatedAt: v.CreatedAt, StoppedAt: v.StoppedAt, RemovedAt: v.RemovedAt,
		Ancestor: string(v.Ancestor), WorkerID: string(v.WorkerID), Notices: b.scrubbed(v.Diagnostics),
		Disk: b.disks.last(v.ID),
	}
	e.CreatedBy = b.actors.of(ws+" "+e.ID, func() (string, error) {
		c, err := b.store.CreationOf(ctx, ws, e.ID)
		return c.Actor, err
	})
	return e
}

func cleanupText(p policy.CleanupPolicy) string {
	if p.Mode == policy.KeepFor {
		return string(p.Mode) + ":" + p.For.String()
	}
	return string(p.Mode)
}

func (b *Backend) workerOf(ctx context.Context, ws string, v runtime.Worker) Worker {
	w := Worker{
		ID: string(v.ID), AllocationID: string(v.AllocationID), WorkspaceID: ws, Status: string(v.Status),
		Command: v.Command, RelativeCwd: v.RelativeCwd, CreatedAt: v.CreatedAt, StartedAt: v.StartedAt, EndedAt: v.EndedAt,
		Notices: b.scrubbed(v.Diagnostics),
	}
	if w.RelativeCwd == "" {
		w.RelativeCwd = "."
	}
	if o := v.Outcome; o != nil {
		w.Outcome = &Outcome{
			ExitCode: o.ExitCode, Signal: o.Signal, TimedOut: o.TimedOut, OOMKilled: o.OOMKilled, Lost: o.Lost, Exceeded: o.Exceeded,
			UserTime: o.UserTime, SystemTime: o.SystemTime, WallTime: o.WallTime, MaxRSS: o.MaxRSS,
		}
		for _, k := range o.Work {
			w.Outcome.Commits += k.CommitCount
			w.Outcome.ChangedPaths += k.ChangedPaths
			w.Outcome.DiffDigest = k.DiffDigest
		}
	}
	if v.Workspace != nil {
		e := b.summary(ctx, ws, *v.Workspace)
		w.ExecutionWorkspace = &e
	}
	w.StartedBy = b.actors.of(ws+" "+w.ID, func() (string, error) { return b.store.LaunchedBy(ctx, ws, w.ID) })
	return w
}

func (b *Backend) evidenceOf(ws string, v runtime.Evidence) Evidence {
	s := v.SandboxPolicy.Normalize()
	e := Evidence{
		AllocationID: string(v.AllocationID), Points: b.pointsOf(ws, v.Points), Strategy: string(v.Strategy), Reason: b.scrub(v.StrategyReason),
		DirtyState: string(v.DirtyState), SandboxDigest: v.SandboxDigest, SeccompDigest: v.SeccompDigest,
		Seccomp: string(s.Seccomp), Network: string(s.Network.Mode), NetworkRules: s.Network.Rules, Root: string(s.Root),
		Files: v.Files, Bytes: v.Bytes, CreatedAt: v.CreatedAt, Timings: v.Timings, Notices: b.scrubbed(v.Diagnostics),
	}
	for _, c := range v.Changes {
		e.Changes = append(e.Changes, Change{RepositoryID: b.settings().names.configured(ws, c.RepositoryID), Kind: string(c.Kind), Digest: c.Digest, Files: c.Files, Bytes: c.Bytes})
	}
	return e
}

func (b *Backend) egressOf(v runtime.EgressReport) Egress {
	mode := v.Policy.Mode
	if mode == "" {
		mode = policy.NetworkNone
	}
	e := Egress{
		WorkerID: string(v.WorkerID), Network: string(mode), Allowed: v.Usage.Allowed, Refused: v.Usage.Refused,
		BytesOut: v.Usage.BytesOut, BytesIn: v.Usage.BytesIn, Rules: []EgressRule{}, Decisions: []EgressDecision{},
	}
	for _, r := range v.Usage.Rules {
		e.Rules = append(e.Rules, EgressRule{r.Rule, r.Allowed, r.BytesOut, r.BytesIn})
	}
	for _, d := range v.Decisions {
		if !d.Closed { // about a connection that was told of when it began
			e.Decisions = append(e.Decisions, EgressDecision{
				At: d.Time, Host: policy.Printable(limitText(b.scrub(d.Host), 300)), Port: int(d.Port), Allowed: d.Allowed, Rule: d.Rule, Reason: string(d.Reason),
			})
		}
	}
	return e
}

// actorBook remembers who made what, which never changes: a listing would ask the store
// for each of its lines. That it is not known is worth no failure.
type actorBook struct {
	mu    sync.Mutex
	known map[string]string
}

const maxActors = 10000

func (a *actorBook) of(what string, ask func() (string, error)) string {
	a.mu.Lock()
	who, ok := a.known[what]
	a.mu.Unlock()
	if ok {
		return who
	}
	who, err := ask()
	if err != nil || who == "" {
		return "" // perhaps not yet
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known == nil || len(a.known) >= maxActors {
		a.known = make(map[string]string)
	}
	a.known[what] = who
	return who
}
