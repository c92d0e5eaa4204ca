package helper

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/cgroup"
	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/nsexec"
	"yoi.dev/yoi-runtime/policy"
)

// Scopes puts Workers under the host's service manager. It is package systemd's,
// behind an interface because the programs that have none need not link D-Bus.
type Scopes interface {
	// Start puts a process into a new scope, and has the manager keep the limits.
	Start(ctx context.Context, w policy.WorkerID, a policy.AllocationID, s cgroup.Scope, pid int) error
	// Join puts a process into a scope that there is.
	Join(ctx context.Context, w policy.WorkerID, pid int) error
	// Watch has End know what happens from now on.
	Watch(w policy.WorkerID) error
	// End tells of a scope whose processes are gone what was done to it.
	End(ctx context.Context, w policy.WorkerID) (cgroup.ScopeEnd, error)
	// Clear takes away what is left of a workspace without Workers.
	Clear(ctx context.Context, a policy.AllocationID) error
}

const (
	// scopeAttr marks the process' record of a Worker that has a scope.
	scopeAttr = "scope"
	// managerPatience is how long a launch waits for the service manager.
	managerPatience = 10 * time.Second
	// wallClockGrace is how much longer than the Worker's own PID 1, which keeps the
	// time, the manager waits. It is there for a PID 1 that does not run.
	wallClockGrace = 5 * time.Second
)

// scoped reports whether the launch gets a scope: what lives as long as a request
// does needs none.
func (a *attempt) scoped() bool {
	return a.l.scopes != nil && !a.req.Transient && !a.req.DieWithParent
}

// intoScope puts the parked process into its scope. A limit that only the manager
// would keep makes that a condition; without, the Worker is one more process of this
// service, and its diagnostics say so.
func (a *attempt) intoScope(pid int) error {
	ctx, cancel := context.WithTimeout(context.Background(), managerPatience)
	defer cancel()
	if w := a.req.Limits.WallClock; w > 0 {
		a.scope.RuntimeMax = w + wallClockGrace
	}
	err := a.l.scopes.Start(ctx, a.req.WorkerID, a.req.AllocationID, a.scope, pid)
	if err == nil && a.counters != nil {
		_, a.counters.Group, err = cgroup.Place(pid)
	}
	if err == nil || len(a.scope.Limits.Controllers()) > 0 {
		return err
	}
	w := *policy.AsDiagnostic(err)
	w.Severity = policy.SeverityWarning
	a.warnings = append(a.warnings, w)
	a.l.log.Warn("a worker has no scope", "worker", a.req.WorkerID, "error", err)
	return nil
}

// countScope has the sandbox's PID 1 look at what its scope has counted: the manager
// takes the group away with the last process, and tells of neither kind: to go on is
// what a scope with Delegate= does when the kernel kills for memory (systemd.scope(5),
// "OOMPolicy="; before systemd 253 any scope does).
func (a *attempt) countScope(s *nsexec.Spec) error {
	limited := func(l cgroup.Limits) bool { return l.MemoryMax != 0 || l.MemoryHigh != 0 || l.Tasks != 0 }
	if !limited(a.scope.Limits) && !limited(a.scope.Workspace) {
		return nil
	}
	mount, _, err := cgroup.Place(os.Getpid())
	if err != nil {
		return policy.Errorf(policy.CodeLimitsUnavailable, "helper.scope", "the unified control groups are out of sight").Because(err)
	}
	f, err := os.OpenFile(mount, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return policy.Errorf(policy.CodeLimitsUnavailable, "helper.scope", "the unified control groups cannot be opened").Because(err)
	}
	a.counters = &nsexec.Counters{Mount: a.keep(f)}
	s.Counters = a.counters
	return nil
}

// withScope adds Parked's first step to a launch.
func (a *attempt) withScope(s *nsexec.Spec) error {
	if !a.scoped() {
		return nil
	}
	if err := a.countScope(s); err != nil {
		return err
	}
	next := s.Parked
	s.Parked = func(pid int, pidfd *os.File) error {
		if err := a.intoScope(pid); err != nil || next == nil {
			return err
		}
		return next(pid, pidfd)
	}
	return nil
}

// joinScope has a session be in the Worker's scope, if that has one.
func (l *Local) joinScope(ctx context.Context, id policy.WorkerID, process ledger.Resource, s *nsexec.Spec) {
	if l.scopes == nil || process.Attrs[scopeAttr] == "" {
		return
	}
	next := s.Parked
	s.Parked = func(pid int, pidfd *os.File) error {
		if err := l.scopes.Join(ctx, id, pid); err != nil || next == nil {
			return err
		}
		return next(pid, pidfd)
	}
}

// endScope writes down what the manager did to an ended Worker.
func (l *Local) endScope(r ledger.Resource) {
	if l.scopes == nil || r.Attrs[scopeAttr] == "" {
		return
	}
	id := policy.WorkerID(r.Attrs["worker"])
	ctx, cancel := context.WithTimeout(context.Background(), managerPatience)
	defer cancel()
	end, err := l.scopes.End(ctx, id)
	if err != nil {
		l.log.Warn("what became of a worker's scope is not known", "worker", id, "error", err)
		return
	}
	for name, is := range map[string]bool{stoppedFile: end.Stopped, timeoutFile: end.TimedOut, oomFile: end.OOM} {
		if !is {
			continue
		}
		if err := l.writeCount(id, name, 1); err != nil && !errors.Is(err, fs.ErrExist) {
			l.log.Warn("what the service manager did to a worker is not recorded", "worker", id, "error", err)
		}
	}
}

// watchScope has an adopted Worker's scope watched.
func (l *Local) watchScope(id policy.WorkerID, process ledger.Resource) {
	if l.scopes == nil || process.Attrs[scopeAttr] == "" {
		return
	}
	if err := l.scopes.Watch(id); err != nil {
		l.log.Warn("that a worker's scope is stopped will not be known", "worker", id, "error", err)
	}
}

// clearSlice has no live Worker's workspace forgotten by the manager, which keeps an
// empty slice until it is told.
func (l *Local) clearSlice(ctx context.Context, id policy.AllocationID) {
	if l.scopes == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, managerPatience)
	defer cancel()
	if err := l.scopes.Clear(ctx, id); err != nil {
		l.log.Warn("a workspace's slice is left", "allocation", id, "error", err)
	}
}
