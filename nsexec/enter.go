package nsexec

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/replay"
	"yoi.dev/yoi-runtime/policy"
)

const opEnter = "nsexec.enter"

// enterTime is how long a process may take from clone to exec. It takes a
// millisecond, but from the moment on in which it has the Worker's uid in the
// Worker's pid namespace, the Worker may stop it.
const enterTime = 10 * time.Second

// dyingTime is how long the end of a sandbox may take once it has begun.
const dyingTime = time.Second

// Enter runs a command in a running sandbox, under the restrictions that s says it
// was launched with. init is a pidfd of its PID 1, of which the caller is sure. Of
// the Spec that concerns a process: Plan is asked only where its Proc and its Dev
// are, Cgroup, Parked and Tasks put the joining process into the sandbox's control groups,
// and UIDMap says whether it has a range of ids. What makes namespaces and mounts,
// Logs, Hold, WallClock and Outcome are not looked at.
//
// The session ends with the sandbox, by the kernel, and with the calling process.
func Enter(ctx context.Context, init *os.File, s *Spec) (*Session, error) {
	if !replay.Supported {
		return nil, policy.Errorf(policy.CodeUnsupported, opEnter, "sandboxes are not possible on %s", runtime.GOARCH)
	}
	if err := s.validate(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, policy.Errorf(policy.CodeCanceled, opEnter, "the operation was canceled").Because(err)
	}
	type result struct {
		s   *Session
		err error
	}
	started := make(chan result)
	go func() {
		// The parent-death signal is about this thread: see Launch.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		session, err := enter(ctx, init, s)
		started <- result{session, err}
		if err == nil {
			session.reap()
		}
	}()
	r := <-started
	return r.s, r.err
}

// entering is an Enter under way, on the caller's side.
type entering struct {
	script // the detached program
	ctx    context.Context
	init   *os.File
	sync   *os.File // our end of the socket
	joiner *os.File // pidfd of the process that joins the namespaces
	child  replay.Arg
	owner  int // the operation that becomes the user namespace's owner
	setns  int // the operation
	fresh  int // the operation that makes a control group namespace
}

// The stage's descriptors.
const (
	stageProgram = 0 // replay.Program.Detach
	stageSync    = 3 // 0 to 2 become the command's
	stageInit    = 4
	stageParent  = 5
	stageStdio   = 6 // three
	stageTasks   = 9 // maxTasks
	stageFDs     = stageTasks + maxTasks
)

func enter(ctx context.Context, init *os.File, s *Spec) (session *Session, err error) {
	e := &entering{ctx: ctx, init: init}
	program, err := replay.NewDetached()
	if err != nil {
		return nil, enterFailed("preparing the program", err)
	}
	e.script = script{Program: program, spec: s, syncFD: stageSync, parentFD: stageParent}
	e.stdioFD = func(i int) int { return stageStdio + i }
	defer func() {
		for _, f := range []*os.File{e.sync, e.joiner} {
			if f != nil {
				f.Close()
			}
		}
		e.Release()
	}()
	if err := e.build(); err != nil {
		return nil, err
	}
	deadline, cancel := context.WithTimeout(ctx, enterTime)
	defer cancel()
	if err := e.start(); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(deadline, func() {
		_ = sendSignal(e.joiner, int(unix.SIGKILL), nil) // it may have ended
		_ = e.sync.SetDeadline(time.Unix(1, 0))
	})
	defer stop()
	return e.attend(deadline)
}

// build writes the program, in the order in which it runs.
func (e *entering) build() error {
	b, s := &e.script, e.spec
	b.empty, b.dot, b.slash = b.Str(""), b.Str("."), b.Str("/")
	b.setupUID, b.setupGID = s.uid(), s.gid()
	caps, err := allEffective()
	if err != nil {
		return err
	}
	e.join(caps)
	b.confine()
	b.terminal()
	b.step("starting the process", policy.CodeLaunchFailed, "")
	e.child = b.Space(4)
	// CLONE_PARENT: the caller reaps it. The kernel writes the pid before the child
	// can run, whatever becomes of us.
	fork := b.Fork(unix.SYS_CLONE, num(unix.CLONE_VM|unix.CLONE_PARENT|unix.CLONE_PARENT_SETTID|int(unix.SIGCHLD)),
		num(0), e.child, num(0), num(0))
	b.Add(unix.SYS_EXIT_GROUP, num(0))
	b.Child(fork)
	b.step("preparing the process", policy.CodeLaunchFailed, "")
	b.dieWithParent()
	fds := replay.Struct(b.Program, unix.PollFd{Fd: int32(b.parentFD), Events: unix.POLLIN})
	b.Add(unix.SYS_PPOLL, fds, num(1), replay.Struct(b.Program, unix.Timespec{}), num(0), num(8)).Expect(0)
	return b.command(stageSync)
}

// join enters the sandbox's namespaces, all at once: each is checked with the
// caller's own credentials, the user namespace comes first, and the pid namespace
// is that of the next child (setns(2), Linux 5.8). The owner of the user namespace may,
// and with the caller's capabilities what is not that namespace's.
func (e *entering) join(caps [2]unix.CapUserData) {
	b := &e.script
	b.step("setting the OOM score", policy.CodeLimitsInvalid, "")
	if v := strconv.Itoa(b.spec.OOMScoreAdj); b.spec.OOMScoreAdj != 0 {
		b.Add(unix.SYS_OPENAT, atCwd, b.Str("/proc/self/oom_score_adj"), num(unix.O_WRONLY|unix.O_CLOEXEC), num(0)).Save(slotFD)
		b.Add(unix.SYS_WRITE, slotFD.Arg(), b.Str(v), num(len(v))).Expect(uint64(len(v)))
		b.Add(unix.SYS_CLOSE, slotFD.Arg())
	}
	if b.spec.Parked != nil || b.spec.Cgroup != nil {
		b.step("waiting for the control group", policy.CodeLaunchFailed, "")
		b.waitForLauncher()
	}
	tasks := make([]int, len(b.spec.Tasks))
	for i := range tasks {
		tasks[i] = stageTasks + i
	}
	b.enterGroups(tasks)
	b.step("entering the sandbox's namespaces", policy.CodeNamespacesUnavailable, "")
	e.owner = b.Next()
	b.Add(unix.SYS_SETRESUID, num(-1), num(-1), num(-1))
	b.Add(unix.SYS_CAPSET, replay.Struct(b.Program, capHeader), replay.Struct(b.Program, caps))
	e.setns = b.Next()
	b.Add(unix.SYS_SETNS, num(stageInit), num(0))
	e.fresh = b.Next()
	b.Add(unix.SYS_UNSHARE, num(0))
	b.Add(unix.SYS_CLOSE, num(stageInit))
	b.step("changing to the sandbox's ids", policy.CodeLaunchFailed, "")
	if b.spec.UIDMap != nil {
		b.Add(unix.SYS_SETGROUPS, num(0), num(0))
	}
}

// decide says which namespaces differ from those of the process that joins, who
// keeps what it shares with PID 1. The control group namespace is PID 1's only for
// who is in its group, too: any other would see the way out of it in
// /proc/self/cgroup, and gets one of its own.
func (e *entering) decide(joiner string) error {
	pid, err := PidOf(e.init)
	if err == unix.ESRCH {
		return notRunning()
	}
	if err != nil {
		return enterFailed("reading the pidfd", err)
	}
	init := "/proc/" + strconv.Itoa(pid)
	owner, err := ownerOf(init)
	if err != nil {
		return e.gone(err)
	}
	flags := uint64(unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS)
	fresh := uint64(0)
	theirs, err := os.Readlink(init + "/ns/net")
	if err != nil {
		return e.gone(err)
	}
	ours, err := os.Readlink("/proc/" + joiner + "/ns/net")
	if err != nil {
		return enterFailed("reading the network namespace", err)
	}
	if theirs != ours {
		flags |= unix.CLONE_NEWNET
	}
	groups, err := os.ReadFile(init + "/cgroup")
	if err != nil {
		return e.gone(err)
	}
	own, err := os.ReadFile("/proc/" + joiner + "/cgroup")
	if err != nil {
		return enterFailed("reading the control group", err)
	}
	if bytes.Equal(groups, own) {
		flags |= unix.CLONE_NEWCGROUP
	} else {
		fresh = unix.CLONE_NEWCGROUP
	}
	e.SetArg(e.owner, 1, num(owner))
	e.SetArg(e.setns, 1, num(flags))
	e.SetArg(e.fresh, 0, num(fresh))
	return e.alive() // whose they were, then
}

func notRunning() error {
	return policy.Errorf(policy.CodeWorkerNotRunning, opEnter, "the Worker has ended")
}

// alive is an error when PID 1 has ended.
func (e *entering) alive() error {
	if hasEnded(e.init, 0) {
		return notRunning()
	}
	return nil
}

// hasEnded polls a pidfd for a time, pidfd_open(2).
func hasEnded(pidfd *os.File, wait time.Duration) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, int(wait.Milliseconds()))
	return err == nil && n > 0
}

// gone says why something of PID 1 could not be read.
func (e *entering) gone(err error) error {
	if hasEnded(e.init, dyingTime) {
		return notRunning()
	}
	return enterFailed("looking at the sandbox's first process", err)
}

func enterFailed(what string, err error) error {
	return policy.Errorf(policy.CodeLaunchFailed, opEnter, "%s failed", what).Because(err)
}

// start clones the process that joins, in the caller's own namespaces, and lets it
// execute the stage.
func (e *entering) start() error {
	stage, err := stageExecutable()
	if err != nil {
		return err
	}
	self, err := selfPidfd()
	if err != nil {
		return enterFailed("pidfd_open", err)
	}
	memory, err := e.Detach()
	if err != nil {
		return policy.Errorf(policy.CodeCommandInvalid, opEnter, "the arguments and the environment are too large together").Because(err)
	}
	if e.spec.Parked == nil && e.spec.Cgroup == nil {
		if err := e.decide("thread-self"); err != nil {
			return err
		}
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return enterFailed("socketpair", err)
	}
	defer unix.Close(pair[1])
	_ = unix.SetNonblock(pair[1], false) // the stage's end waits in its reads
	e.sync = os.NewFile(uintptr(pair[0]), "enter")
	first := script{Program: replay.New(), spec: e.spec}
	defer first.Release()
	first.toStage(int(stage.Fd()), map[int]int{
		stageProgram: int(memory.Fd()), stageSync: pair[1], stageInit: int(e.init.Fd()), stageParent: int(self.Fd()),
	})
	flags, group := uint64(0), -1
	if e.spec.Cgroup != nil {
		// Born in the Worker's group, it shares our memory until it executes the
		// stage. The out-of-memory killer takes all who share a victim's memory; it
		// takes no victim out of a vfork (in_vfork in mm/oom_kill.c).
		flags, group = unix.CLONE_VFORK, int(e.spec.Cgroup.Fd())
	}
	child, err := first.Start(flags, group)
	if err != nil {
		return cloneFailed(err)
	}
	_ = unix.SetNonblock(child.Pidfd, true)
	e.joiner = os.NewFile(uintptr(child.Pidfd), "pidfd")
	child.Wait()
	if f := child.Failure(); f != nil {
		_, _ = waitPidfd(e.joiner, unix.WEXITED, nil) // it has ended; there is nothing else to know
		return first.diagnose(f)
	}
	if e.spec.Parked != nil || e.spec.Cgroup != nil {
		return e.place(child.Pid)
	}
	return nil
}

// place has the caller move the joining process into the Worker's control groups.
func (e *entering) place(pid int) (err error) {
	defer func() {
		if err != nil {
			_ = sendSignal(e.joiner, int(unix.SIGKILL), nil)
			_, _ = waitPidfd(e.joiner, unix.WEXITED, nil)
		}
	}()
	if f := e.spec.Parked; f != nil {
		if err := f(pid, e.joiner); err != nil {
			return err
		}
	}
	if err := e.decide(strconv.Itoa(pid)); err != nil {
		return err
	}
	_, err = e.sync.Write([]byte{'g'})
	return err
}

// toStage is the way from the clone to the stage: nothing of ours is open in it but
// what it is given, at the numbers it expects.
func (b *script) toStage(stage int, at map[int]int) {
	b.empty = b.Str("")
	b.step("preparing the process that enters", policy.CodeLaunchFailed, "")
	for i, f := range b.spec.Stdio {
		if f != nil {
			at[stageStdio+i] = int(f.Fd())
		}
	}
	for i, f := range b.spec.Tasks {
		at[stageTasks+i] = int(f.Fd())
	}
	b.onlyOpen(append(slices.Collect(maps.Values(at)), stage))
	b.defaultSignals()
	// First all away from the final numbers, then to them.
	slot := replay.Slot(1)
	dup := func(fd int) replay.Slot {
		b.Add(unix.SYS_FCNTL, num(fd), num(unix.F_DUPFD_CLOEXEC), num(stageFDs)).Save(slot)
		slot++
		return slot - 1
	}
	exe := dup(stage)
	away := make(map[int]replay.Slot, len(at))
	for to, fd := range at {
		away[to] = dup(fd)
	}
	for to, from := range away {
		b.Add(unix.SYS_DUP3, from.Arg(), num(to), num(0))
	}
	b.Add(unix.SYS_CLOSE_RANGE, num(stageFDs), num(^uint32(0)), num(unix.CLOSE_RANGE_CLOEXEC))
	b.step("executing the stage", policy.CodeLaunchFailed, "")
	b.Add(unix.SYS_EXECVEAT, exe.Arg(), b.empty, b.Strs([]string{"yoi-enter"}), b.Strs(nil), num(unix.AT_EMPTY_PATH))
}

// attend waits until the command runs, or says why it does not.
func (e *entering) attend(deadline context.Context) (*Session, error) {
	session := &Session{init: e.init, started: time.Now(), done: make(chan struct{})}
	if e.spec.Terminal {
		master, err := e.receive()
		if err == nil && master == nil {
			err = e.unborn()
		}
		if err != nil {
			return nil, e.abandon(deadline, session, err)
		}
		session.Terminal = master
	}
	end, err := waitPidfd(e.joiner, unix.WEXITED, nil)
	if err != nil {
		return nil, e.abandon(deadline, session, enterFailed("waitid", err))
	}
	pid := int(e.Get32(e.child))
	if pid == 0 {
		return nil, e.abandon(deadline, session, e.verdict(end))
	}
	session.Pid = pid
	// It is our child and not reaped: the number is its own.
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, e.abandon(deadline, session, enterFailed("pidfd_open", err))
	}
	session.Pidfd = os.NewFile(uintptr(fd), "pidfd")
	if e.spec.Notify {
		// Nothing comes of one that fails before, which Failure tells.
		if session.Notifications, err = e.receive(); err != nil {
			return nil, e.abandon(deadline, session, err)
		}
	}
	e.awaitExec()
	if deadline.Err() != nil {
		return nil, e.abandon(deadline, session, nil)
	}
	if f := e.Failure(); f != nil {
		return nil, e.abandon(deadline, session, e.diagnose(f))
	}
	return session, nil
}

// awaitExec waits until nobody holds the other end of the socket: exec closes it.
func (e *entering) awaitExec() {
	var b [1]byte
	for {
		if _, err := e.sync.Read(b[:]); err != nil {
			return
		}
	}
}

// verdict is why there is no process.
func (e *entering) verdict(end ended) error {
	f := e.Failure()
	// A pid namespace that is being taken down has no namespaces left to enter
	// (ESRCH) and no room for a process (ENOMEM), and its PID 1, which has no memory any
	// more, is nobody's but root's to look at (EPERM). It is about to end.
	dying := f != nil && (f.NR == unix.SYS_SETNS && (f.Errno == unix.ESRCH || f.Errno == unix.EPERM) || f.NR == unix.SYS_CLONE && f.Errno == unix.ENOMEM)
	if dying && hasEnded(e.init, dyingTime) {
		return notRunning()
	}
	if err := e.alive(); err != nil {
		return err
	}
	if f != nil {
		return e.diagnose(f)
	}
	return policy.Errorf(policy.CodeLaunchFailed, opEnter, "the process that enters the sandbox was ended, status %d", end.status)
}

// abandon kills and reaps what there is of a session, and returns the reason.
func (e *entering) abandon(deadline context.Context, s *Session, err error) error {
	if s.Pidfd != nil {
		_ = sendSignal(s.Pidfd, int(unix.SIGKILL), nil)
		_, _ = waitPidfd(s.Pidfd, unix.WEXITED, nil)
		s.Pidfd.Close()
	}
	for _, f := range []*os.File{s.Terminal, s.Notifications} {
		if f != nil {
			f.Close()
		}
	}
	switch {
	case e.ctx.Err() != nil:
		return policy.Errorf(policy.CodeCanceled, opEnter, "the operation was canceled").Because(e.ctx.Err())
	case deadline.Err() != nil:
		return policy.Errorf(policy.CodeLaunchFailed, opEnter, "the process did not come to execute its command: the Worker may have stopped it").
			WithHint("Look at what the Worker does with yoi worker top, and try again.")
	case e.alive() != nil:
		return notRunning()
	}
	return err
}

// receive takes a descriptor that the process sends; nil is its end before that.
func (e *entering) receive() (f *os.File, err error) {
	conn, err := e.sync.SyscallConn()
	if err != nil {
		return nil, enterFailed("recvmsg", err)
	}
	rerr := conn.Read(func(fd uintptr) bool {
		f, err = receiveFile(int(fd))
		return !errors.Is(err, unix.EAGAIN)
	})
	if err == nil && rerr != nil {
		err = enterFailed("recvmsg", rerr)
	}
	return f, err
}

// unborn is why there is no process of the session's.
func (e *entering) unborn() error {
	end, err := waitPidfd(e.joiner, unix.WEXITED, nil)
	if err != nil {
		return enterFailed("waitid", err)
	}
	return e.verdict(end)
}

// onlyOpen closes all descriptors but the given.
func (b *script) onlyOpen(fds []int) {
	fds = slices.Clone(fds)
	slices.Sort(fds)
	next := 0
	for _, fd := range slices.Compact(fds) {
		if fd > next {
			b.Add(unix.SYS_CLOSE_RANGE, num(next), num(fd-1), num(0))
		}
		next = fd + 1
	}
	b.Add(unix.SYS_CLOSE_RANGE, num(next), num(^uint32(0)), num(0))
}
