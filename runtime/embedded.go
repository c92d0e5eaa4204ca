package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/gitcache"
	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/nsexec"
	"yoi.dev/yoi-runtime/policy"
)

// RunEmbedded is `yoi run`: the whole main path in one process, from the source
// to the command's exit, and back to nothing.
func RunEmbedded(ctx context.Context, req RunRequest) (res RunResult, err error) {
	ctx, stopSignals := untilStarted(ctx, req.Signals)
	defer stopSignals()
	src, err := sourceOf(req.Repo, req.Dir)
	if err != nil {
		return res, err
	}
	r, err := Open(ctx, Options{Root: req.RuntimeRoot, Ephemeral: !req.Keep, Log: req.Log, Progress: progressOf(req.Progress)})
	if err != nil {
		return res, err
	}
	defer func() {
		if cerr := r.Close(); err == nil && cerr != nil {
			err = cerr
		}
	}()
	r.callerSecrets = req.Secrets
	recovered := r.recoverBeside(ctx)
	probed := r.probeBeside(ctx)
	res, err = r.run(ctx, req, src, stopSignals)
	<-probed
	res.Warnings = append(res.Warnings, <-recovered...)
	return res, err
}

// sourceOf reads a source as the caller wrote it, relative to dir or the working
// directory.
func sourceOf(s, dir string) (gitcache.Source, error) {
	if dir == "" {
		wd, err := os.Getwd()
		if err != nil {
			return gitcache.Source{}, policy.Errorf(policy.CodeSourceUnreadable, "runtime.source", "there is no working directory").Because(err)
		}
		dir = wd
	}
	return gitcache.ParseSource(s, dir)
}

// recoverBeside is RecoverLeftovers while git works.
func (r *Runtime) recoverBeside(ctx context.Context) <-chan []policy.Diagnostic {
	done := make(chan []policy.Diagnostic, 1)
	go func() { done <- r.RecoverLeftovers(ctx) }()
	return done
}

// probeBeside finds out what a new Runtime root's file system can do while git
// works; the materialization waits for it, and says what failed.
func (r *Runtime) probeBeside(ctx context.Context) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if l, ok := r.helper.(*helper.Local); ok {
			l.ProbeStrategies(ctx)
		}
	}()
	return done
}

// RecoverLeftovers removes what dead processes left behind, if there is anything:
// for whoever has no daemon and is about to make, list or remove something. Another
// process that is at it already is left to it. The result is what there is to say of
// it: which workspaces are gone that nobody removed, and what failed.
func (r *Runtime) RecoverLeftovers(ctx context.Context) []policy.Diagnostic {
	var rep RecoveryReport
	need, err := r.needsRecovery(ctx)
	if err == nil && need {
		rep, err = r.Recover(ctx)
	}
	if err != nil && !errors.Is(err, policy.CodeLedgerBusy) && !errors.Is(err, policy.CodeCanceled) && ctx.Err() == nil {
		rep.Diagnostics = append(rep.Diagnostics, *policy.AsDiagnostic(err))
	}
	return rep.Diagnostics
}

func progressOf(f func(RunProgress)) func(gitcache.Progress) {
	if f == nil {
		return nil
	}
	return func(p gitcache.Progress) { f(RunProgress{Phase: p.Phase, Done: p.Done, Total: p.Total}) }
}

// run does the main path on an open Runtime.
func (r *Runtime) run(ctx context.Context, req RunRequest, src gitcache.Source, started func()) (res RunResult, err error) {
	c, err := r.runCreation(ctx, req, src)
	if err != nil {
		return res, err
	}
	a, err := r.create(ctx, c)
	if req.Progress != nil {
		req.Progress(RunProgress{Finished: true})
	}
	res.Warnings = append(res.Warnings, c.warnings...)
	if err != nil {
		return res, err
	}
	w, o, err := r.runWorker(ctx, req, a, started)
	if err == nil {
		res.ExitCode, res.Evidence = o.ExitCode, c.evidence
		res.Evidence.Workers = []Worker{r.safeWorker(w)}
		res.Summary = summary(a, w, o)
	}
	if req.Keep {
		if err == nil && o.ExitCode == 0 {
			res.Warnings = append(res.Warnings, r.publish(context.WithoutCancel(ctx), a)...)
		}
		return res, err
	}
	// The caller has said that the workspace lives as long as the command: work
	// in it is thrown away, but not in silence.
	after := context.WithoutCancel(ctx)
	if lost, lerr := r.helper.HasNewObjects(after, helper.MaterializeRequest{AllocationID: a.ID, Repositories: treesOf(a)}); lerr == nil && lost {
		res.Warnings = append(res.Warnings, *policy.Warnf(policy.CodeUncollectedWork, "runtime.run", "the command added objects to git, which are removed with its workspace").
			WithHint("Use --keep to keep the workspace."))
	}
	if err == nil && o.ExitCode == 0 {
		res.Warnings = append(res.Warnings, r.publish(after, a)...)
	}
	if rerr := r.takeAway(after, a); err == nil {
		err = rerr
	}
	return res, err
}

// runCreation turns the command line's request into a creation.
func (r *Runtime) runCreation(ctx context.Context, req RunRequest, src gitcache.Source) (*creation, error) {
	if err := policy.ValidateCommand(req.Command); err != nil {
		return nil, err
	}
	if _, err := policy.CheckRelativeCwd(req.RelativeCwd); err != nil {
		return nil, err
	}
	sel := req.Selector.Normalize()
	if err := sel.Validate(); err != nil {
		return nil, err
	}
	if err := r.checkSource(src); err != nil {
		return nil, err
	}
	c := &creation{id: policy.NewAllocationID(), workspace: "default", sandbox: r.sandboxDefaults(req.Sandbox), ephemeral: !req.Keep}
	c.cleanup = policy.CleanupPolicy{Mode: policy.RemoveOnStop, DiscardUncollected: true}
	if req.Keep {
		c.cleanup = policy.CleanupPolicy{Mode: policy.KeepUntil}
	}
	if err := r.choose(c, req.Strategy, req.DirtyState); err != nil {
		return nil, err
	}
	scope, err := policy.ParseScope(req.Scope)
	if err != nil {
		return nil, err
	}
	if err := c.sandbox.Validate(); err != nil {
		return nil, err
	}
	if src, err = r.adoptSource(ctx, src); err != nil {
		return nil, err
	}
	rec, err := r.registry.GetRepository(ctx, src.ID)
	if err != nil {
		return nil, err
	}
	caches, err := cachesFor(rec, req.Caches)
	if err != nil {
		return nil, err
	}
	c.repos = []creationRepo{{source: src, selector: sel, scope: scope, branch: req.Branch, caches: caches}}
	switch {
	case req.PatchContent != nil:
		c.repos[0].patch, err = checkedPatch(req.PatchContent)
	case req.Patch != "":
		c.repos[0].patch, err = r.readPatch(req.Patch)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// runWorker starts the command with the caller's streams and waits for it.
func (r *Runtime) runWorker(ctx context.Context, req RunRequest, a registry.Allocation, started func()) (w registry.Worker, o nsexec.Outcome, err error) {
	streams, err := newStreams(req.Stdin, req.Stdout, req.Stderr)
	if err != nil {
		return w, o, err
	}
	defer streams.close()
	l := launch{
		id: policy.NewWorkerID(), command: req.Command, cwd: req.RelativeCwd,
		stdio: streams.worker, terminal: streams.terminal, rows: streams.rows, columns: streams.columns,
		dieWithParent: true, volatile: !req.Keep,
	}
	if streams.terminal {
		l.env = map[string]string{"TERM": termOf(os.Getenv("TERM"))}
		for k := range a.SandboxPolicy.Env {
			delete(l.env, k) // the caller's --env goes first
		}
	}
	if err := ctx.Err(); err != nil {
		return w, o, policy.Errorf(policy.CodeCanceled, "runtime.run", "the run was canceled before the command started").Because(context.Cause(ctx))
	}
	// From here on a signal is the command's: one that comes while it is being
	// started waits in the channel until it can be forwarded.
	started()
	w, launched, err := r.start(ctx, a, l)
	if err != nil {
		return w, o, err
	}
	launched.Pidfd.Close()
	streams.start(launched.Terminal)
	done := make(chan struct{})
	forwarded := make(chan struct{})
	go func() {
		defer close(forwarded)
		r.forward(ctx, w.ID, req.Signals, streams, done)
	}()
	o, err = r.helper.Wait(context.WithoutCancel(ctx), w.ID)
	close(done)
	<-forwarded
	streams.drain()
	if err != nil {
		return w, o, err
	}
	after := context.WithoutCancel(ctx)
	var work []Work
	if req.Results {
		if work, err = r.work(after, a, w.ID); err != nil {
			return w, o, err
		}
	}
	w, err = r.finish(after, w.ID, w.StartedAt, o, work)
	return w, o, err
}

// termOf passes a terminal's type on if it is a plain name.
func termOf(s string) string {
	if policy.Printable(s) != s || len(s) > 64 || s == "" {
		return "dumb"
	}
	return s
}

// forward passes the caller's signals to the command until done; a cancelled
// context is a TERM, then a KILL.
func (r *Runtime) forward(ctx context.Context, id policy.WorkerID, signals <-chan os.Signal, s *streams, done <-chan struct{}) {
	bg := context.WithoutCancel(ctx)
	canceled := ctx.Done()
	var kill <-chan time.Time
	for {
		select {
		case sig, ok := <-signals:
			n, isSys := sig.(unix.Signal)
			switch {
			case !ok:
				signals = nil
			case !isSys:
			case n == unix.SIGWINCH:
				s.resize()
			default:
				if err := r.helper.Signal(bg, id, int(n)); err != nil {
					r.log.Debug("signal not forwarded", "signal", n, "error", err)
				}
			}
		case <-canceled:
			canceled = nil
			_ = r.helper.Signal(bg, id, int(unix.SIGTERM)) // it may just have ended
			kill = time.After(defaultGrace)
		case <-kill:
			_ = r.helper.Kill(bg, id)
		case <-done:
			return
		}
	}
}

// untilStarted cancels the context at a signal that comes before the command is
// about to be started; the returned function ends that, and is safe to call twice.
func untilStarted(ctx context.Context, signals <-chan os.Signal) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	started, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case sig, ok := <-signals:
				if !ok {
					return
				}
				if sig != unix.SIGWINCH {
					cancel(fmt.Errorf("signal %v before the command started", sig))
				}
			case <-started:
				return
			}
		}
	}()
	once := false
	return ctx, func() {
		if !once {
			once = true
			close(started)
			<-ended
		}
	}
}

// safeWorker is a Worker's view without its workspace, for evidence.
func (r *Runtime) safeWorker(w registry.Worker) Worker {
	v := r.workerView(context.Background(), w, &registry.Allocation{})
	v.Workspace = nil
	return v
}

// summary is the one line of -v.
func summary(a registry.Allocation, w registry.Worker, o nsexec.Outcome) string {
	p := a.RepositoryPoints[0]
	how := fmt.Sprintf("exit %d", o.ExitCode)
	if o.Signal != 0 {
		how = unix.SignalName(unix.Signal(o.Signal))
	}
	if o.TimedOut {
		how = "time limit"
	}
	wall := time.Duration(0)
	if w.Outcome != nil {
		wall = w.Outcome.WallTime
	}
	return fmt.Sprintf("%s@%.12s by %s, %s after %s", p.RepositoryID, p.CommitID, a.MaterializerKind, how, wall.Round(time.Millisecond))
}
