package backend

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"yoi.dev/yoi-runtime/backend/store"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// SpawnRequest starts a Worker in an Execution Workspace that there is.
type SpawnRequest struct {
	AllocationID string            `json:"allocation_id"`
	RelativeCwd  string            `json:"relative_cwd,omitempty"`
	Command      []string          `json:"command"`
	Env          map[string]string `json:"env,omitempty"`
	Limits       LimitsRequest     `json:"limits,omitzero"`
}

// LimitsRequest bounds a Worker. "" and 0 take the workspace's greatest.
type LimitsRequest struct {
	WallClock  string `json:"wall_clock,omitempty"` // "10m"
	Memory     string `json:"memory,omitempty"`     // "2G"
	CPUPercent uint64 `json:"cpu_percent,omitempty"`
	Tasks      uint64 `json:"tasks,omitempty"`
}

// limits checks what a Worker may have.
func (w WorkspaceConfig) limits(req LimitsRequest) (policy.Limits, error) {
	most, err := w.bounds()
	if err != nil {
		return most, err
	}
	l := most
	if req.WallClock != "" {
		if l.WallClock, err = time.ParseDuration(req.WallClock); err != nil {
			return l, refuse(policy.CodeLimitsInvalid, "wall_clock %q is no duration", policy.Printable(limitText(req.WallClock, 32))).With("limit", "wall_clock")
		}
	}
	if req.Memory != "" {
		if l.MemoryMax, err = parseSize(req.Memory); err != nil {
			return l, refuse(policy.CodeLimitsInvalid, "memory %q is no size", policy.Printable(limitText(req.Memory, 32))).With("limit", "memory")
		}
	}
	if req.CPUPercent != 0 {
		l.CPUPercent = req.CPUPercent
	}
	l.Tasks = req.Tasks
	above := func(name string) error {
		return refuse(CodeLimitsNotAllowed, "%s is more than the workspace allows", name).With("limit", name)
	}
	switch {
	case most.WallClock != 0 && (l.WallClock > most.WallClock || l.WallClock == 0):
		return l, above("wall_clock")
	case most.MemoryMax != 0 && (l.MemoryMax > most.MemoryMax || l.MemoryMax == 0):
		return l, above("memory")
	case most.CPUPercent != 0 && l.CPUPercent > most.CPUPercent:
		return l, above("cpu_percent")
	}
	return l, l.Validate()
}

// spawning keeps two requests from both finding an allocation free.
var spawning struct {
	mu   sync.Mutex
	busy map[policy.AllocationID]bool
}

func claim(id policy.AllocationID) (release func(), ok bool) {
	spawning.mu.Lock()
	defer spawning.mu.Unlock()
	if spawning.busy[id] {
		return nil, false
	}
	if spawning.busy == nil {
		spawning.busy = make(map[policy.AllocationID]bool)
	}
	spawning.busy[id] = true
	return func() {
		spawning.mu.Lock()
		defer spawning.mu.Unlock()
		delete(spawning.busy, id)
	}, true
}

// spawn starts a Worker: what can be refused without the Runtime first.
func (c *call) spawn(req SpawnRequest) (Worker, error) {
	w, err := c.spawnChecked(req)
	c.audited("launch", limitText(req.AllocationID, 64), err)
	return w, err
}

func (c *call) spawnChecked(req SpawnRequest) (Worker, error) {
	if req.AllocationID == "" {
		return Worker{}, refuse(CodeAllocationRequired, "a Worker is launched in an Execution Workspace, and none is named")
	}
	if err := policy.ValidateCommand(req.Command); err != nil {
		return Worker{}, err
	}
	cwd, err := policy.CheckRelativeCwd(req.RelativeCwd)
	if err != nil {
		return Worker{}, err
	}
	limits, err := c.ws.limits(req.Limits)
	if err != nil {
		return Worker{}, err
	}
	v, err := c.present(req.AllocationID)
	if err != nil {
		return Worker{}, err
	}
	inUse := refuse(policy.CodeAllocationInUse, "a Worker runs in the Execution Workspace %s", v.ID)
	release, ok := claim(v.ID)
	if !ok {
		return Worker{}, inUse
	}
	defer release()
	for _, s := range []runtime.WorkerStatus{runtime.WorkerRunning, runtime.WorkerStarting} {
		live, err := c.rt().ListWorkers(c.ctx, runtime.ListFilter{AllocationID: v.ID, Status: string(s), Limit: 1})
		if err != nil {
			return Worker{}, err
		}
		if len(live.Items) > 0 {
			return Worker{}, inUse.With("worker", string(live.Items[0].ID))
		}
	}
	key := c.key
	if key != "" {
		key = "backend:" + c.wsID + ":" + store.Hash(c.who.name + "\x00" + key)[:32]
	}
	got, err := c.rt().SpawnWorker(c.ctx, runtime.SpawnWorkerRequest{
		AllocationID: v.ID, Command: req.Command, RelativeCwd: cwd, Env: req.Env, Limits: limits, IdempotencyKey: key,
	})
	if err != nil {
		return Worker{}, err
	}
	// The Worker runs: that its launcher's name could not be kept is no reason to say otherwise.
	l := store.Launch{Worker: string(got.ID), Workspace: c.wsID, Allocation: req.AllocationID, Actor: c.who.name, CreatedAt: time.Now()}
	if err := c.b.store.AddLaunch(context.WithoutCancel(c.ctx), l); err != nil {
		c.b.log.Error("a launch is not recorded", "worker", got.ID, "error", err)
	}
	if got.Workspace == nil {
		got.Workspace = &v
	}
	return c.b.workerOf(c.ctx, c.wsID, got), nil
}

// worker returns a Worker of the call's workspace, with the summary of what it runs
// in. Another workspace's is as unknown as one that never was.
func (c *call) worker(id string) (Worker, error) {
	unknown := refuse(policy.CodeWorkerUnknown, "there is no Worker %q in this workspace", policy.Printable(limitText(id, 64)))
	v, err := c.rt().GetWorker(c.ctx, policy.WorkerID(id))
	if errors.Is(err, policy.CodeWorkerUnknown) || (err == nil && string(v.WorkspaceID) != c.wsID) {
		return Worker{}, unknown
	}
	if err != nil {
		return Worker{}, err
	}
	if v.Workspace == nil {
		ws, err := c.rt().GetWorkspace(c.ctx, v.AllocationID)
		if err == nil {
			v.Workspace = &ws
		} else if !errors.Is(err, policy.CodeAllocationUnknown) {
			return Worker{}, err
		}
	}
	return c.b.workerOf(c.ctx, c.wsID, v), nil
}

// workers returns a page of the workspace's Workers.
func (c *call) workers(f workspaceFilter, allocation string) (WorkerList, error) {
	req := runtime.ListFilter{WorkspaceID: policy.WorkspaceID(c.wsID), Status: f.Status, Limit: f.Limit, After: f.After}
	if allocation != "" {
		v, err := c.allocation(allocation)
		if err != nil {
			return WorkerList{}, err
		}
		req.AllocationID = v.ID
	}
	got, err := c.rt().ListWorkers(c.ctx, req)
	if err != nil {
		return WorkerList{}, err
	}
	out := WorkerList{Items: make([]Worker, 0, len(got.Items)), Next: got.Next}
	workspaces := make(map[policy.AllocationID]*runtime.Workspace)
	for _, v := range got.Items {
		if string(v.WorkspaceID) != c.wsID {
			continue
		}
		if v.Workspace == nil {
			if _, asked := workspaces[v.AllocationID]; !asked {
				if ws, err := c.rt().GetWorkspace(c.ctx, v.AllocationID); err == nil {
					workspaces[v.AllocationID] = &ws
				} else if workspaces[v.AllocationID] = nil; !errors.Is(err, policy.CodeAllocationUnknown) {
					return WorkerList{}, err
				}
			}
			v.Workspace = workspaces[v.AllocationID]
		}
		out.Items = append(out.Items, c.b.workerOf(c.ctx, c.wsID, v))
	}
	return out, nil
}

// shownDecisions is how many of the last decisions about a Worker's connections are told.
const shownDecisions = 200

// egress tells what a Worker's allowlist let through and refused, so far.
func (c *call) egress(id string) (Egress, error) {
	w, err := c.worker(id)
	if err != nil {
		return Egress{}, err
	}
	got, err := c.rt().WorkerEgress(c.ctx, policy.WorkerID(w.ID), runtime.EgressRequest{Limit: shownDecisions})
	return c.b.egressOf(got), err
}

// StopRequest gives the time between TERM and KILL; "" is ten seconds.
type StopRequest struct {
	Grace string `json:"grace,omitempty"` // "30s"
}

func (c *call) stop(id string, req StopRequest) (Worker, error) {
	w, err := c.stopChecked(id, req)
	c.audited("stop", limitText(id, 64), err)
	return w, err
}

func (c *call) stopChecked(id string, req StopRequest) (Worker, error) {
	var grace time.Duration
	if req.Grace != "" {
		var err error
		if grace, err = time.ParseDuration(req.Grace); err != nil || grace < 0 || grace > 5*time.Minute {
			return Worker{}, refuse(policy.CodeBadRequest, "grace is not between 0s and 5m")
		}
	}
	w, err := c.worker(id)
	if err != nil {
		return Worker{}, err
	}
	if _, err := c.rt().StopWorker(c.ctx, policy.WorkerID(w.ID), runtime.StopRequest{Grace: grace}); err != nil {
		return Worker{}, err
	}
	return c.worker(id)
}

// logRequest is a part of a Worker's output.
type logRequest struct {
	Stream        string
	Offset, Limit int64
	// Tail begins that many bytes before the end; it goes before Offset.
	Tail   int64
	Follow bool
}

const maxLogPart = 4 << 20

// logs copies output to w and returns where it began and where it ended.
func (c *call) logs(id policy.WorkerID, req logRequest, w io.Writer) (from, next int64, err error) {
	if req.Tail > 0 {
		// An offset past the end is moved to the end.
		end, err := c.rt().WorkerLogs(c.ctx, id, runtime.LogsRequest{Stream: req.Stream, Offset: 1 << 62, Limit: 1}, io.Discard)
		if err != nil {
			return 0, 0, err
		}
		req.Offset = max(0, end-req.Tail)
	}
	next, err = c.rt().WorkerLogs(c.ctx, id, runtime.LogsRequest{Stream: req.Stream, Offset: req.Offset, Limit: req.Limit, Follow: req.Follow}, w)
	return req.Offset, next, err
}

// Work is what a cleanup would lose.
type Work struct {
	AllocationID string       `json:"allocation_id"`
	Commits      []Commit     `json:"commits"` // that nobody has collected; the newest
	CommitCount  int          `json:"commit_count"`
	Branch       string       `json:"branch,omitempty"`
	Files        []StatusFile `json:"files"` // that are not committed
	Staged       int          `json:"staged"`
	Unstaged     int          `json:"unstaged"`
	Untracked    int          `json:"untracked"`
}

// Clean says that nothing would be lost.
func (w Work) Clean() bool { return w.CommitCount == 0 && w.Staged+w.Unstaged+w.Untracked == 0 }

// Commit is one that was made in an Execution Workspace. Names and Subject are
// untrusted text.
type Commit struct {
	ID          string    `json:"id"`
	Subject     string    `json:"subject"`
	AuthorName  string    `json:"author_name"`
	CommittedAt time.Time `json:"committed_at"`
}

// Short is the commit's id for people.
func (c Commit) Short() string { return limitText(c.ID, 10) }

// StatusFile is a path with git's two letters.
type StatusFile struct {
	Path   string `json:"path"`
	Status string `json:"status"` // of the index and of the file: "M.", "??"
}

const maxShownFiles = 500

// work asks what a workspace holds that would be lost.
func (c *call) work(id string) (Work, error) {
	v, err := c.present(id)
	if err != nil {
		return Work{}, err
	}
	out := Work{AllocationID: string(v.ID), Commits: []Commit{}, Files: []StatusFile{}}
	commits, err := c.rt().WorkspaceCommits(c.ctx, v.ID, runtime.CommitsRequest{Limit: 100})
	if err != nil {
		return Work{}, err
	}
	for _, r := range commits.Repositories {
		out.CommitCount += r.CommitCount
		for _, k := range r.Commits {
			out.Commits = append(out.Commits, Commit{ID: k.ID, Subject: k.Subject, AuthorName: k.AuthorName, CommittedAt: k.CommittedAt})
		}
	}
	status, err := c.rt().StatusWorkspace(c.ctx, v.ID, runtime.ResultRequest{})
	if err != nil {
		return Work{}, err
	}
	for _, r := range status.Repositories {
		out.Branch = r.Branch
		out.Staged, out.Unstaged, out.Untracked = out.Staged+r.Staged, out.Unstaged+r.Unstaged, out.Untracked+r.Untracked
		for _, e := range r.Entries {
			if len(out.Files) < maxShownFiles {
				s := e.Index + e.Worktree
				if e.Index == "?" || e.Worktree == "?" {
					s = "??"
				}
				out.Files = append(out.Files, StatusFile{Path: e.Path, Status: s})
			}
		}
	}
	return out, nil
}

// parseEnv reads NAME=VALUE lines of a form.
func parseEnv(text string) (map[string]string, error) {
	env := make(map[string]string)
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if strings.TrimSpace(line) == "" {
			continue
		}
		k, v, ok := strings.Cut(line, "=")
		if !ok || k == "" {
			return nil, refuse(policy.CodeEnvironmentInvalid, "%q is not NAME=VALUE", policy.Printable(limitText(k, 64)))
		}
		env[k] = v
	}
	if len(env) == 0 {
		return nil, nil
	}
	return env, nil
}

// splitCommand takes a form's command line apart as a shell would its words: blanks
// part them, quotes and backslashes hold them together. Nothing is expanded.
func splitCommand(s string) ([]string, error) {
	var out []string
	var word strings.Builder
	in, quote := false, byte(0)
	for i := 0; i < len(s); i++ {
		ch := s[i]
		switch {
		case quote == 0 && (ch == ' ' || ch == '\t' || ch == '\n' || ch == '\r'):
			if in {
				out = append(out, word.String())
				word.Reset()
			}
			in = false
		case quote == 0 && (ch == '\'' || ch == '"'):
			quote, in = ch, true
		case quote != 0 && ch == quote:
			quote = 0
		case ch == '\\' && quote != '\'' && i+1 < len(s):
			i++
			if quote == '"' && !strings.ContainsRune("\"\\$`", rune(s[i])) {
				word.WriteByte('\\')
			}
			word.WriteByte(s[i])
			in = true
		default:
			word.WriteByte(ch)
			in = true
		}
	}
	if quote != 0 {
		return nil, refuse(policy.CodeCommandInvalid, "a quote of the command is not closed")
	}
	if in {
		out = append(out, word.String())
	}
	return out, nil
}
