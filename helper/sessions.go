package helper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/nsexec"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/policy/seccomp"
)

// EnterRequest runs a command in a live Worker's sandbox.
type EnterRequest struct {
	SessionID policy.SessionID `json:"session_id"`
	// Worker is what the Worker was launched with, but for what is the session's:
	// Command, Env, RelativeCwd, Terminal, Rows and Columns.
	Worker LaunchRequest `json:"worker"`
}

func (r EnterRequest) validate() error {
	if err := policy.CheckID("session", string(r.SessionID)); err != nil {
		return err
	}
	return r.Worker.validate()
}

// EnterFiles are the descriptors of a session; nil entries of Stdio are the
// terminal, or /dev/null.
type EnterFiles struct {
	Stdio  [3]*os.File
	Filter []byte // raw BPF, the Worker's own
}

// Entered is a running session. The caller owns and closes the terminal.
type Entered struct {
	Terminal  *os.File // nil without a terminal
	StartedAt time.Time
}

// SessionOutcome is how a session ended.
type SessionOutcome struct {
	nsexec.Outcome
	// WorkerEnded says that the kernel ended the session with the Worker.
	WorkerEnded bool `json:"worker_ended,omitempty"`
}

// session is one that this process started and that nobody has waited for.
type session struct {
	worker policy.WorkerID
	s      *nsexec.Session
	init   *os.File
	audit  *audit // nil unless its refusals are told
}

// hangupGrace is what a session's processes have between HUP and KILL.
const hangupGrace = 2 * time.Second

// Enter starts a session. It is this process' child, and ends with it.
func (l *Local) Enter(ctx context.Context, req EnterRequest, files EnterFiles) (*Entered, error) {
	if err := req.validate(); err != nil {
		return nil, err
	}
	id := req.Worker.WorkerID
	init, err := l.initOf(ctx, id)
	if err != nil {
		return nil, err
	}
	spec, err := l.sessionSpec(ctx, init, req.Worker, files)
	if spec != nil {
		defer func() { closeAll(append(spec.Tasks, spec.Cgroup)) }()
	}
	if err != nil {
		init.Close()
		return nil, err
	}
	s, err := nsexec.Enter(ctx, init, spec)
	if err != nil {
		init.Close()
		return nil, err
	}
	entered := &session{worker: id, s: s, init: init}
	if s.Notifications != nil {
		entered.audit = startAudit(s.Notifications, files.Filter)
	}
	l.mu.Lock()
	_, taken := l.sessions[req.SessionID]
	if !taken {
		l.sessions[req.SessionID] = entered
	}
	l.mu.Unlock()
	if taken {
		_ = s.Signal(unix.SIGKILL)
		closeAll([]*os.File{s.Terminal, init})
		return nil, policy.Errorf(policy.CodeConflict, "helper.enter", "the session %s exists already", req.SessionID)
	}
	return &Entered{Terminal: s.Terminal, StartedAt: time.Now()}, nil
}

// sessionSpec is attempt.spec for a process in a sandbox that there is already.
func (l *Local) sessionSpec(ctx context.Context, init *os.File, req LaunchRequest, files EnterFiles) (*nsexec.Spec, error) {
	uses, err := l.cacheUsesOf(req.AllocationID)
	if err != nil {
		return nil, err
	}
	req.caches = uses
	s := &nsexec.Spec{
		Argv: req.Command, Env: req.Env, CwdRoot: cwdRoot(req), RelativeCwd: req.RelativeCwd,
		Stdio: files.Stdio, Filter: files.Filter, UID: workerID, GID: workerID,
		Plan:    mounts.Plan{Ops: []mounts.Op{mounts.Proc{Target: "/proc"}, mounts.Dev{Target: "/dev"}}},
		Rlimits: rlimits(req.Limits), Nice: req.Limits.Nice, OOMScoreAdj: req.Limits.OOMScoreAdj, Umask: 0o022,
		Terminal: req.Terminal,
	}
	if req.Audit {
		s.Filter, s.Notify = seccomp.Notifying(files.Filter), true
	}
	s.Winsize.Rows, s.Winsize.Cols = req.Rows, req.Columns
	if s.Landlock, _, err = landlockFor(req, nsexec.LandlockABI()); err != nil {
		return nil, err
	}
	if l.privileged {
		// Which range it is the user namespace knows.
		m := []nsexec.IDMap{{Inside: 0, Outside: 0, Count: rangeSize}}
		s.UIDMap, s.GIDMap = m, m
	} else if s.UIDMap, s.GIDMap, err = l.userMaps(init); err != nil {
		return nil, err
	}
	return s, l.joinGroup(ctx, req.WorkerID, s)
}

// joinGroup has the session be in the Worker's control group, if that has one.
func (l *Local) joinGroup(ctx context.Context, id policy.WorkerID, s *nsexec.Spec) error {
	rs, err := l.workerRecords(ctx, id)
	if err != nil {
		return err
	}
	for _, r := range rs {
		if isWorker(r) {
			defer l.joinScope(ctx, id, r, s) // before the group below it
		}
		if r.Kind != ledger.KindCgroup {
			continue
		}
		g := groupOf(r)
		dir, err := g.Dir()
		if err != nil {
			return policy.Errorf(policy.CodeLimitsUnavailable, "helper.cgroup", "the worker's control group cannot be opened").Because(err)
		}
		if dir != nil {
			s.Cgroup = dir
			continue
		}
		tasks, err := g.Tasks()
		if err != nil {
			return policy.Errorf(policy.CodeLimitsUnavailable, "helper.cgroup", "the worker's control group cannot be opened").Because(err)
		}
		s.Tasks = append(s.Tasks, tasks...) // there may be a group for the limits and one for pausing
	}
	return nil
}

// workerRecords are a live Worker's resources in the ledger.
func (l *Local) workerRecords(ctx context.Context, id policy.WorkerID) ([]ledger.Resource, error) {
	l.mu.Lock()
	w := l.workers[id]
	l.mu.Unlock()
	if w != nil {
		return w.records(), nil
	}
	if err := l.ledger.Sync(ctx); err != nil {
		return nil, err
	}
	state, err := ledger.Scan(ctx, l.ledgerDir, l.roles...)
	if err != nil {
		return nil, err
	}
	var rs []ledger.Resource
	for _, h := range state.Held {
		if h.Resource.Attrs["worker"] == string(id) {
			rs = append(rs, h.Resource)
		}
	}
	return rs, nil
}

// initDescriptors bounds the numbers that the descriptors of a sandbox's PID 1 have, of
// this version and of any other.
const initDescriptors = 64

// initDescriptor is the descriptor of a PID 1 that is what is looked for. A Worker lives
// on under an upgrade, and its PID 1 has its descriptors where the version that started
// it put them; so a number is where the search begins, and proves nothing.
// What it is not is left as it is: nothing may wait on it or make it block.
func initDescriptor(pidfd *os.File, likely int, is func(fd int) bool) (*os.File, error) {
	try := func(n int) (*os.File, error) {
		fd, err := unix.PidfdGetfd(int(pidfd.Fd()), n, 0)
		if errors.Is(err, unix.EBADF) {
			return nil, nil
		}
		if err != nil {
			return nil, os.NewSyscallError("pidfd_getfd", err)
		}
		if !is(fd) {
			return nil, unix.Close(fd)
		}
		return os.NewFile(uintptr(fd), "descriptor of PID 1"), nil
	}
	f, err := try(likely)
	for n := 0; n < initDescriptors && f == nil && err == nil; n++ {
		f, err = try(n)
	}
	if f == nil && err == nil {
		err = fs.ErrNotExist
	}
	return f, err
}

// initOf returns a pidfd of a live Worker's PID 1, for entering its namespaces. What
// records say is not enough for that, nor is a number: the process must hold the
// Worker's lock, which only a PID 1 of ours has. A Worker that dies with another
// process has no record of its process; it is looked for.
func (l *Local) initOf(ctx context.Context, id policy.WorkerID) (*os.File, error) {
	const op = "helper.enter"
	if err := policy.CheckID("worker", string(id)); err != nil {
		return nil, err
	}
	lock, err := l.root.OpenFile(rootdir.Worker(id)+"/metadata/lock", unix.O_PATH, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, policy.Errorf(policy.CodeWorkerUnknown, op, "there is no worker %s", id)
	}
	if err != nil {
		return nil, policy.Errorf(policy.CodeInternal, op, "the worker's lock cannot be opened").Because(err)
	}
	defer lock.Close()
	want := identify(lock)
	f, err := l.openWorker(ctx, id)
	if err != nil && !errors.Is(err, policy.CodeWorkerNotRunning) {
		return nil, err
	}
	if err == nil {
		proof := heldLock(f, want)
		if proof == nil {
			return f, nil
		}
		ended := hasEnded(f)
		f.Close()
		if live, lerr := l.lockHeld(id); ended || lerr == nil && !live {
			return nil, policy.Errorf(policy.CodeWorkerNotRunning, op, "the worker %s has ended", id)
		}
		return nil, policy.Errorf(policy.CodeInternal, op, "the process of worker %s cannot be proved to be its own", id).Because(proof).
			WithHint("The Worker goes on and its outcome will be known; start another to look inside.")
	}
	if live, lerr := l.lockHeld(id); lerr != nil || !live {
		return nil, err
	}
	if f := findInit(want); f != nil {
		return f, nil
	}
	return nil, err
}

// heldLock is an error unless the process has the lock file open.
func heldLock(pidfd *os.File, want ledger.Identity) error {
	if want.Ino == 0 {
		return errors.New("there is no lock")
	}
	f, err := initDescriptor(pidfd, nsexec.FirstHold, func(fd int) bool {
		var st unix.Stat_t
		return unix.Fstat(fd, &st) == nil && ledger.Identity{Dev: st.Dev, Ino: st.Ino} == want
	})
	if err != nil {
		return fmt.Errorf("looking for its lock: %w", err)
	}
	return f.Close()
}

// findInit looks through the processes for the PID 1 that holds a lock.
func findInit(want ledger.Identity) *os.File {
	proc, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range proc {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if args, err := os.ReadFile("/proc/" + e.Name() + "/cmdline"); err != nil || string(args) != nsexec.InitName+"\x00" {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		f := os.NewFile(uintptr(fd), "pidfd")
		if heldLock(f, want) == nil {
			return f
		}
		f.Close()
	}
	return nil
}

func (l *Local) session(id policy.SessionID) (*session, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.sessions[id]; s != nil {
		return s, nil
	}
	return nil, policy.Errorf(policy.CodeSessionUnknown, "helper.session", "there is no session %q", policy.Printable(string(id)))
}

// WaitSession returns a session's outcome, once.
func (l *Local) WaitSession(ctx context.Context, id policy.SessionID) (SessionOutcome, error) {
	s, err := l.session(id)
	if err != nil {
		return SessionOutcome{}, err
	}
	o, err := s.s.Wait(ctx)
	if err != nil {
		return SessionOutcome{}, err
	}
	out := SessionOutcome{Outcome: o}
	if s.audit != nil {
		// Processes that it leaves behind have the filter too; they are answered as
		// before, and not told of any more.
		out.Denied = s.audit.denials()
	}
	if o.Signal == int(unix.SIGKILL) {
		out.WorkerEnded = workerEnds(s.init)
	}
	l.forget(id)
	return out, nil
}

// workerEnds tells whether a Worker has ended or is about to, given its PID 1: who
// kills all of a sandbox has reaped its second process before, or kills that as well.
func workerEnds(init *os.File) bool {
	pid, err := nsexec.PidOf(init)
	if err != nil {
		return hasEnded(init)
	}
	p := strconv.Itoa(pid)
	b, err := os.ReadFile("/proc/" + p + "/task/" + p + "/children")
	if err != nil {
		return hasEnded(init)
	}
	for c := range strings.FieldsSeq(string(b)) {
		if n := nsPids(c); len(n) > 1 && n[len(n)-1] == 2 {
			return dying(c)
		}
	}
	return true
}

// dying tells whether a process has begun to exit or will before it does anything
// else (proc_pid_status(5), proc_pid_stat(5)).
func dying(pid string) bool {
	const exiting = 0x4 // PF_EXITING
	if flags, err := strconv.ParseUint(string(statField(pid, 9)), 10, 64); err != nil || flags&exiting != 0 {
		return true // or there is no such process
	}
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(status)) {
		name, set, _ := strings.Cut(line, ":")
		if name == "SigPnd" || name == "ShdPnd" {
			if set, err := strconv.ParseUint(strings.TrimSpace(set), 16, 64); err == nil && set&(1<<(unix.SIGKILL-1)) != 0 {
				return true
			}
		}
	}
	return false
}

func (l *Local) forget(id policy.SessionID) {
	l.mu.Lock()
	s := l.sessions[id]
	delete(l.sessions, id)
	l.mu.Unlock()
	if s != nil {
		_ = s.s.Close()
		s.init.Close()
	}
}

// SignalSession sends a signal to a session's process group.
func (l *Local) SignalSession(_ context.Context, id policy.SessionID, signal int) error {
	s, err := l.session(id)
	if err != nil {
		return err
	}
	if signal < 1 || signal > 64 {
		return policy.Errorf(policy.CodeSignalInvalid, "helper.session", "%d is no signal", signal)
	}
	return s.s.Signal(unix.Signal(signal))
}

// hangUp ends a session whose caller has gone, as a terminal does that is closed,
// and a moment later for good.
func (l *Local) hangUp(id policy.SessionID) {
	s, err := l.session(id)
	if err != nil {
		return
	}
	_ = s.s.Signal(unix.SIGHUP) // it may just have ended
	_ = s.s.Signal(unix.SIGCONT)
	select {
	case <-s.s.Done():
	case <-time.After(hangupGrace):
		_ = s.s.Signal(unix.SIGKILL)
		<-s.s.Done()
	}
	l.forget(id)
}

// Terminal takes the master from the Worker's PID 1, which keeps it, too.
func (l *Local) Terminal(ctx context.Context, id policy.WorkerID) (*os.File, error) {
	const op = "helper.terminal"
	init, err := l.initOf(ctx, id)
	if err != nil {
		return nil, err
	}
	defer init.Close()
	f, err := initDescriptor(init, nsexec.TerminalFD, func(fd int) bool {
		_, err := unix.IoctlGetInt(fd, unix.TIOCGPTN) // of a master only
		return err == nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, policy.Errorf(policy.CodeWorkerNoTerminal, op, "the worker %s has no terminal", id)
	}
	if err != nil {
		return nil, policy.Errorf(policy.CodeInternal, op, "the worker's terminal cannot be taken").Because(err)
	}
	return f, nil
}
