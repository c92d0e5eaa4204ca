package runtime

import (
	"context"
	"errors"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/nsexec"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/policy/seccomp/compile"
)

// launch is one Worker to be started on a recorded allocation: the main path's
// second half.
type launch struct {
	id      policy.WorkerID
	command []string
	repo    policy.RepositoryID
	cwd     string
	env     map[string]string
	limits  policy.Limits
	stdio   [3]*os.File
	// terminal replaces the stdio entries that are nil.
	terminal      bool
	rows, columns uint16
	// resident leaves the terminal with the Worker.
	resident      bool
	logs          bool
	dieWithParent bool
	// volatile workspaces are thrown away after a crash: nothing is synced.
	volatile bool
	readOnly bool
	// secrets are those that go into the sandbox: see giveSecrets.
	secrets []policy.Secret
	// egress is the way out by an allowlist, nil for none.
	egress *helper.EgressRequest
	// allow are network rules of its own.
	allow []string
	// unrecorded Workers are the Runtime's own: they look at a workspace.
	unrecorded bool
}

// check is the part of a launch that needs no I/O.
func (l *launch) check(a registry.Allocation) error {
	const op = "runtime.spawn"
	if err := policy.ValidateCommand(l.command); err != nil {
		return err
	}
	cwd, err := policy.CheckRelativeCwd(l.cwd)
	if err != nil {
		return err
	}
	l.cwd = cwd
	if l.repo == "" {
		l.repo = a.Mounts[0].RepositoryID
	}
	for _, m := range a.Mounts {
		if m.RepositoryID == l.repo {
			p := a.SandboxPolicy
			p.Env, p.Limits = l.env, l.limits
			return p.Validate()
		}
	}
	return policy.Errorf(policy.CodeRepositoryUnknown, op, "the workspace has no repository %q", policy.Printable(string(l.repo)))
}

// start launches a Worker: checked, compiled, recorded, started.
func (r *Runtime) start(ctx context.Context, a registry.Allocation, l launch) (w registry.Worker, launched *helper.Launched, err error) {
	w = registry.Worker{
		ID: l.id, AllocationID: a.ID, WorkspaceID: a.WorkspaceID, Status: registry.WorkerStarting,
		Command: l.command, RelativeCwd: l.cwd, CreatedAt: r.now(),
	}
	if err := l.check(a); err != nil {
		return w, nil, err
	}
	if a, err = r.allowed(a, l.allow); err != nil {
		return w, nil, err
	}
	w.Allow = l.allow
	w.RepositoryID, w.RelativeCwd = l.repo, l.cwd
	w.Env, w.Limits, w.Terminal = l.env, l.limits, l.resident
	filter, err := compile.Filter(a.SandboxPolicy)
	if err != nil {
		return w, nil, err
	}
	files := helper.LaunchFiles{Stdio: l.stdio, Filter: filter}
	if a.MaterializerKind == policy.StrategyDirect {
		dir, err := r.openDirect(ctx, a, l.id)
		if err != nil {
			return w, nil, err
		}
		files.Direct = []*os.File{dir}
		defer func() {
			if err != nil {
				r.closeDirect(l.id)
			}
		}()
	}
	if err := r.useBundle(a.SandboxPolicy.ConfigBundle); err != nil {
		return w, nil, err
	}
	uses, err := r.giveSecrets(ctx, a, &l, &files)
	defer files.Secrets.Close() // nil is an error nobody needs
	defer files.Headers.Close()
	if err != nil {
		return w, nil, err
	}
	if a.SandboxPolicy.Network.Mode == policy.NetworkAllowlist && !l.unrecorded {
		if l.egress, err = r.egressRequest(a.SandboxPolicy); err != nil {
			return w, nil, err
		}
	}
	if l.logs {
		w.Logs = []string{"stdout", "stderr"}
	}
	if l.outlives() {
		if err := r.registry.PutWorker(ctx, w); err != nil {
			return w, nil, err
		}
	}
	began := time.Now()
	if launched, err = r.helper.Launch(ctx, r.launchRequest(a, l), files); err != nil {
		return r.launchFailed(ctx, l, w, err)
	}
	if !l.unrecorded {
		r.count().Launched(a.MaterializerKind, time.Since(began))
	}
	w.Diagnostics = append(w.Diagnostics, launched.Warnings...)
	r.note(launched.Warnings, workerAttrs(w)...)
	w.Status, w.StartedAt, w.Protections, w.Secrets = registry.WorkerRunning, launched.StartedAt, &launched.Protections, uses
	w.ToolsDigest = launched.ToolsDigest
	if err := r.recordStart(ctx, l, w); err != nil {
		kerr := r.helper.Kill(context.WithoutCancel(ctx), w.ID)
		launched.Pidfd.Close()
		return w, nil, errors.Join(err, kerr)
	}
	return w, launched, nil
}

// outlives says that the Worker may be there after this process, so that its
// record has to be there before it. The record of one that dies with us may
// come after: a crash between the two leaves nothing to record.
func (l *launch) outlives() bool { return !l.dieWithParent && !l.unrecorded }

func (r *Runtime) recordStart(ctx context.Context, l launch, w registry.Worker) error {
	if l.unrecorded {
		return nil
	}
	r.workerEvent(policy.EventWorkerStarted, w, map[string]string{"workspace": string(w.AllocationID)})
	if !l.outlives() {
		return r.registry.PutWorker(ctx, w)
	}
	_, err := r.registry.UpdateWorker(ctx, w.ID, func(v *registry.Worker) error {
		v.Status, v.StartedAt, v.Protections, v.Diagnostics = w.Status, w.StartedAt, w.Protections, w.Diagnostics
		v.Secrets, v.ToolsDigest = w.Secrets, w.ToolsDigest
		return nil
	})
	return err
}

func (r *Runtime) launchRequest(a registry.Allocation, l launch) helper.LaunchRequest {
	limits := a.SandboxPolicy.Limits
	if l.limits != (policy.Limits{}) {
		limits = l.limits
	}
	req := helper.LaunchRequest{
		WorkerID: l.id, AllocationID: a.ID, Repositories: treesOf(a),
		Command: l.command, Env: environment(l.repo, imageEnv(a), networkEnvironment(a.SandboxPolicy), cacheEnvironment(a.SandboxPolicy), bundleEnvironment(a.SandboxPolicy), a.SandboxPolicy.Env, l.env),
		RepositoryID: l.repo, RelativeCwd: l.cwd,
		Root: a.SandboxPolicy.Root, HostNetwork: a.SandboxPolicy.Network.Mode == policy.NetworkHost,
		Limits: limits, WorkspaceLimits: a.SandboxPolicy.Limits, NoExec: a.SandboxPolicy.ScratchNoExec,
		Audit:  a.SandboxPolicy.Seccomp == policy.SeccompAudit,
		Mounts: a.SandboxPolicy.Seccomp == policy.SeccompNested, Require: a.SandboxPolicy.Require, IDs: a.SandboxPolicy.IDs,
		Terminal: l.terminal, Resident: l.resident, Rows: l.rows, Columns: l.columns,
		Tools: a.SandboxPolicy.Tools, ConfigBundle: a.SandboxPolicy.ConfigBundle, Secrets: l.secrets, Logs: l.logs, DieWithParent: l.dieWithParent, ReadOnly: l.readOnly, Transient: l.unrecorded, Volatile: l.volatile,
	}
	req.Egress = l.egress
	if _, named := req.Root.Image(); named {
		req.Image = helperImage(a.Image)
	}
	return req
}

// launchFailed records a Worker that never started.
func (r *Runtime) launchFailed(ctx context.Context, l launch, w registry.Worker, err error) (registry.Worker, *helper.Launched, error) {
	w.Status = registry.WorkerFailed
	if !l.outlives() {
		return w, nil, err
	}
	if !errors.Is(err, policy.CodeUnavailable) {
		r.recordUnbegun(ctx, w, err)
		return w, nil, err
	}
	// The helper went away before it answered: the Worker may be there, and nobody
	// would know of it. It stays "starting" until it is known to be gone, and who asks
	// again at once shall not find its workspace taken.
	gone := make(chan struct{})
	r.wg.Go(func() {
		defer close(gone)
		defer r.unclaim(w.ID) // in the caller's place
		if r.endUnanswered(r.background, w.ID) {
			r.recordUnbegun(r.background, w, err)
		}
	})
	select {
	case <-gone:
	case <-time.After(unansweredWait):
	case <-ctx.Done():
	}
	return w, nil, err
}

// unansweredWait is longer than a helper's restart takes.
const unansweredWait = 3 * time.Second

// endUnanswered ends what a launch without an answer may have started, and reports
// whether it is gone; if not, whoever recovers next follows it as any other.
func (r *Runtime) endUnanswered(ctx context.Context, id policy.WorkerID) bool {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second/2) {
		err := r.helper.Kill(ctx, id)
		if err == nil {
			_, err = r.helper.Wait(ctx, id)
		}
		switch {
		case err == nil, notThere(err):
			return true
		case !errors.Is(err, policy.CodeUnavailable) && !errors.Is(err, policy.CodeCanceled):
			r.log.Error("a worker whose launch was cut off cannot be ended", "worker", id, "error", err)
			return false
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return false
		}
	}
}

// recordUnbegun records a Worker that never was.
func (r *Runtime) recordUnbegun(ctx context.Context, w registry.Worker, err error) {
	d := policy.AsDiagnostic(err)
	r.count().Ended(EndUnbegun)
	r.workerEvent(policy.EventWorkerFailed, w, map[string]string{"diagnostic": string(d.Code)})
	r.note([]policy.Diagnostic{*d}, workerAttrs(w)...)
	_, uerr := r.registry.UpdateWorker(context.WithoutCancel(ctx), w.ID, func(v *registry.Worker) error {
		v.Status, v.EndedAt = registry.WorkerFailed, r.now()
		v.Diagnostics = append(v.Diagnostics, *d)
		return nil
	})
	if uerr != nil {
		r.log.Warn("failed launch not recorded", "worker", w.ID, "error", uerr)
	}
}

// treesOf is an allocation's repositories in the helper's words.
func treesOf(a registry.Allocation) []helper.RepositoryTree {
	out := make([]helper.RepositoryTree, len(a.Mounts))
	for i, m := range a.Mounts {
		out[i] = helper.RepositoryTree{RepositoryID: m.RepositoryID, TreeKey: m.Tree, Strategy: m.Strategy}
	}
	return out
}

// openDirect opens and locks the source directory of a direct mount: two
// Workers on one directory are refused (flock(2) on the directory itself).
func (r *Runtime) openDirect(ctx context.Context, a registry.Allocation, id policy.WorkerID) (*os.File, error) {
	const op = "runtime.direct"
	rec, err := r.registry.GetRepository(ctx, a.Mounts[0].RepositoryID)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(rec.Source, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, policy.Errorf(policy.CodeSourceUnreadable, op, "the source directory cannot be opened").Because(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, policy.Errorf(policy.CodeDirectMountInUse, op, "another worker has the source directory mounted").Because(err)
	}
	r.directMu.Lock()
	defer r.directMu.Unlock()
	r.direct[id] = append(r.direct[id], f)
	return f, nil
}

func (r *Runtime) closeDirect(id policy.WorkerID) {
	r.directMu.Lock()
	defer r.directMu.Unlock()
	for _, f := range r.direct[id] {
		f.Close()
	}
	delete(r.direct, id)
}

// finish records how a Worker ended, and what it left.
func (r *Runtime) finish(ctx context.Context, id policy.WorkerID, started time.Time, o nsexec.Outcome, work []Work) (registry.Worker, error) {
	r.closeDirect(id)
	out := outcomeOf(o, started, r.now())
	out.Work = work
	network, warnings := r.usedNetwork(ctx, id)
	w, err := r.registry.UpdateWorker(ctx, id, func(v *registry.Worker) error {
		v.Status, v.EndedAt, v.Outcome = registry.WorkerExited, r.now(), &out
		v.LoseSessions(r.now()) // whoever holds one knows better, and says so
		if !o.EndedAt.IsZero() {
			v.EndedAt = o.EndedAt
		}
		if o.Lost {
			v.Status = registry.WorkerLost
		}
		v.Network = network
		v.Diagnostics = append(v.Diagnostics, warnings...)
		return nil
	})
	r.outputs.finish(id)
	w.ID = id // also where it could not be recorded
	r.workerEvent(policy.EventWorkerEnded, w, howEnded(w))
	r.count().Ended(endOf(out))
	if network != nil {
		r.count().Egress(network.Allowed, network.Refused)
	}
	if len(warnings) > 0 {
		r.note(warnings, workerAttrs(w)...)
	}
	return w, err
}

// howEnded is an outcome for one line of a timeline.
func howEnded(w registry.Worker) map[string]string {
	f := map[string]string{"status": string(w.Status)}
	o := w.Outcome
	if o == nil {
		return f
	}
	f["exit_code"] = strconv.Itoa(o.ExitCode)
	for name, v := range map[string]string{"signal": o.Signal, "quota_exceeded": o.Exceeded} {
		if v != "" {
			f[name] = v
		}
	}
	for name, v := range map[string]bool{
		"timed_out": o.TimedOut, "oom_killed": o.OOMKilled, "tasks_denied": o.TasksDenied, "stopped_by_service_manager": o.Stopped, "core_dumped": o.CoreDumped,
	} {
		if v {
			f[name] = "true"
		}
	}
	return f
}

func outcomeOf(o nsexec.Outcome, started, now time.Time) registry.Outcome {
	end := o.EndedAt
	if end.IsZero() {
		end = now
	}
	out := registry.Outcome{
		ExitCode: o.ExitCode, CoreDumped: o.CoreDump, TimedOut: o.TimedOut, Lost: o.Lost, Exceeded: o.Exceeded,
		OOMKilled: o.OOM, TasksDenied: o.TasksDenied, Stopped: o.Stopped, UserTime: o.UserTime, SystemTime: o.SystemTime, MaxRSS: o.MaxRSS,
	}
	out.Denied = deniedCalls(o.Denied)
	if !started.IsZero() && end.After(started) {
		out.WallTime = end.Sub(started)
	}
	if o.Signal != 0 {
		out.Signal = unix.SignalName(unix.Signal(o.Signal))
	}
	return out
}

func deniedCalls(ds []nsexec.Denial) (out []registry.DeniedCall) {
	for _, d := range ds {
		out = append(out, registry.DeniedCall{
			Call: compile.Name(d.Call), Answer: unix.ErrnoName(unix.Errno(d.Errno)), Program: d.Program, Count: d.Count,
		})
	}
	return out
}

// SpawnWorker starts a Worker that goes on without this process. Its output
// goes to the log files.
func (r *Runtime) SpawnWorker(ctx context.Context, req SpawnWorkerRequest) (Worker, error) {
	return idempotent(ctx, r, "worker", req.IdempotencyKey, req, func() (Worker, error) {
		if err := policy.CheckID("allocation", string(req.AllocationID)); err != nil {
			return Worker{}, err
		}
		a, err := r.registry.GetAllocation(ctx, req.AllocationID)
		if err != nil {
			return Worker{}, err
		}
		if a.Status != registry.AllocationActive {
			return Worker{}, policy.Errorf(policy.CodeAllocationNotActive, "runtime.spawn", "the execution workspace %s is %s", a.ID, a.Status)
		}
		l := launch{
			id: policy.NewWorkerID(), command: req.Command, repo: req.RepositoryID, cwd: req.RelativeCwd,
			env: req.Env, limits: req.Limits, allow: req.Allow, logs: true,
			terminal: req.Terminal, resident: req.Terminal, rows: req.Rows, columns: req.Columns,
		}
		if l.terminal {
			l.env = terminalEnv(a, req.Env)
		}
		// Before anybody else could take the record for one that nobody follows.
		r.claim(l.id, a.ID)
		followed := false
		defer func() {
			if !followed {
				r.unclaim(l.id)
			}
		}()
		w, launched, err := r.start(ctx, a, l)
		followed = w.Status == registry.WorkerFailed && errors.Is(err, policy.CodeUnavailable) // see launchFailed
		if err != nil {
			return Worker{}, err
		}
		launched.Pidfd.Close()
		if a, err = r.registry.UpdateAllocation(ctx, a.ID, func(v *registry.Allocation) error {
			v.WorkerID = w.ID
			return nil
		}); err != nil {
			return Worker{}, err
		}
		r.outputs.refuse(w)
		followed = true
		r.follow(w)
		return r.workerView(ctx, w, &a), nil
	})
}

// claim makes a Worker this process' to follow, unless it is that already: a second
// follower would look at the workspace, apply its cleanup policy and tell of the end
// once more.
func (r *Runtime) claim(id policy.WorkerID, on policy.AllocationID) bool {
	_, taken := r.followed.LoadOrStore(id, &following{on: on, recorded: make(chan struct{})})
	return !taken
}

func (r *Runtime) unclaim(id policy.WorkerID) {
	r.recorded(id)
	r.followed.Delete(id)
}

// following is one Worker that this process follows.
type following struct {
	on       policy.AllocationID
	once     sync.Once
	recorded chan struct{} // closed when its end is, or nobody is at it any more
}

// recorded tells who waits for a Worker that its end is recorded.
func (r *Runtime) recorded(id policy.WorkerID) {
	if f, ok := r.followed.Load(id); ok {
		f := f.(*following)
		f.once.Do(func() { close(f.recorded) })
	}
}

// alone reports whether no Worker of an allocation is followed but one. Only a daemon
// follows all that there are.
func (r *Runtime) alone(on policy.AllocationID, but policy.WorkerID) bool {
	alone := r.daemon
	r.followed.Range(func(id, f any) bool {
		alone = alone && (id.(policy.WorkerID) == but || f.(*following).on != on)
		return alone
	})
	return alone
}

// follows reports whether this process is at a Worker, and will record its end.
func (r *Runtime) follows(id policy.WorkerID) bool {
	_, ok := r.followed.Load(id)
	return ok
}

// awaitRecord waits until the record of a Worker that has ended may say so: for whoever
// follows it in this process, or else a while.
func (r *Runtime) awaitRecord(ctx context.Context, id policy.WorkerID, while time.Duration) error {
	var recorded <-chan struct{}
	var timer <-chan time.Time
	if f, ok := r.followed.Load(id); ok {
		recorded = f.(*following).recorded
	} else {
		timer = time.After(while)
	}
	select {
	case <-recorded:
	case <-timer:
	case <-ctx.Done():
		return policy.Errorf(policy.CodeCanceled, "runtime.wait", "waiting for %s was canceled", id).Because(ctx.Err())
	}
	return nil
}

// follow waits for the end of a Worker that was claimed in the background, records it,
// and lets the allocation's cleanup policy act. A helper that restarts meanwhile adopts
// the Worker; the outcome is on the disk either way.
func (r *Runtime) follow(w registry.Worker) {
	r.outputs.follow(w)
	r.wg.Go(func() {
		defer r.unclaim(w.ID)
		ctx := r.background
		for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
			o, err := r.helper.Wait(ctx, w.ID)
			if err == nil {
				r.settle(context.WithoutCancel(ctx), w, o)
				return
			}
			if ctx.Err() != nil {
				return // the next process to open this root follows it
			}
			if errors.Is(err, policy.CodeWorkerUnknown) && w.Status == registry.WorkerStarting {
				r.recordUnbegun(context.WithoutCancel(ctx), w, err) // a launch that was cut off
				return
			}
			if !errors.Is(err, policy.CodeUnavailable) && !errors.Is(err, policy.CodeCanceled) {
				r.log.Error("worker cannot be followed", "worker", w.ID, "error", err)
				r.settle(context.WithoutCancel(ctx), w, nsexec.Outcome{Lost: true})
				return
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
		}
	})
}

// settle records an outcome and applies the cleanup policy.
func (r *Runtime) settle(ctx context.Context, w registry.Worker, o nsexec.Outcome) {
	a, err := r.registry.GetAllocation(ctx, w.AllocationID)
	if err != nil {
		r.log.Error("a worker ended whose workspace is not known", "worker", w.ID, "error", err)
		return
	}
	work, werr := r.work(ctx, a, w.ID)
	if werr != nil {
		r.log.Warn("what the worker left is not known", "worker", w.ID, "error", werr)
	}
	if w, err = r.finish(ctx, w.ID, w.StartedAt, o, work); err != nil {
		r.log.Error("outcome not recorded", "worker", w.ID, "error", err)
		return
	}
	r.recorded(w.ID)
	r.measureQuota(ctx, a)
	if w.Outcome != nil && w.Outcome.ExitCode == 0 && !w.Outcome.Lost {
		for _, d := range r.publish(ctx, a) {
			r.log.Warn("caches not published", "allocation", a.ID, "error", &d)
		}
	}
	if err := r.applyCleanup(ctx, a, w, werr); err != nil {
		r.log.Warn("cleanup policy not applied", "allocation", w.AllocationID, "error", err)
	}
}
