package nsexec

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/replay"
	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/policy"
)

// Launch starts the sandbox and returns when the Worker's program runs in it.
// On an error nothing is left of it. Canceling ctx ends a launch, not the
// sandbox once it runs.
func Launch(ctx context.Context, s *Spec) (*Process, error) {
	if !replay.Supported {
		return nil, policy.Errorf(policy.CodeUnsupported, opLaunch, "sandboxes are not possible on %s", runtime.GOARCH)
	}
	if err := s.validate(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, policy.Errorf(policy.CodeCanceled, opLaunch, "the launch was canceled").Because(err)
	}
	if !s.DieWithParent {
		p, err := launch(ctx, s)
		if err == nil {
			go p.reap()
		}
		return p, err
	}
	// The parent-death signal is about the thread that cloned (prctl(2)), so that
	// thread must live, and do nothing else, until the sandbox has ended.
	type result struct {
		p   *Process
		err error
	}
	started := make(chan result)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		p, err := launch(ctx, s)
		started <- result{p, err}
		if err == nil {
			p.reap()
		}
	}()
	r := <-started
	return r.p, r.err
}

// launching is a launch under way, on the launcher's side.
type launching struct {
	script
	ctx     context.Context
	sync    int // our end of the socket
	child   *replay.Child
	process *Process
	sockets []*os.File // of Spec.Listen
}

func launch(ctx context.Context, s *Spec) (p *Process, err error) {
	s = weakenSpec(s)
	l := &launching{ctx: ctx, sync: -1, process: &Process{started: time.Now(), done: make(chan struct{})}}
	l.script = script{Program: replay.New(), spec: s, syncFD: -1, parentFD: -1}
	defer func() {
		l.closeSync()
		l.closePipes()
		l.Release()
		if err != nil {
			l.process.abandon()
		}
	}()
	if err := l.prepare(); err != nil {
		return nil, err
	}
	cgroup := -1
	if s.Cgroup != nil {
		cgroup = int(s.Cgroup.Fd())
	}
	leave, err := enterNetwork(s.Network)
	if err != nil {
		return nil, err
	}
	defer l.closeSockets()
	if s.Network != nil {
		// The child has no capability over that network: ports below 1024 are for who
		// made it.
		err = l.openSockets()
	}
	if err == nil {
		err = l.start(cgroup)
	}
	leave()
	unix.Close(l.syncFD)
	l.syncFD = -1
	l.closePipes()
	if err != nil {
		return nil, err
	}
	l.process.own(l.child)
	stop := context.AfterFunc(ctx, func() { _ = l.process.Kill() })
	err = l.attend()
	if err != nil {
		_ = l.process.Kill()
	}
	l.awaitExec()
	l.child.Wait()
	if !stop() && err == nil {
		// It is killed, though the Worker may have begun: nobody is told of one that
		// somebody kills.
		err = ctx.Err()
	}
	if err = l.verdict(err); err != nil {
		return nil, err
	}
	return l.process, nil
}

func (l *launching) start(cgroup int) error {
	back, err := ownedBy(l.spec.owner())
	if err != nil {
		return err
	}
	defer back()
	if l.child, err = l.Start(cloneFlags, cgroup); err != nil {
		return cloneFailed(err)
	}
	return nil
}

// prepare opens what both sides need and writes the program.
func (l *launching) prepare() error {
	s := l.spec
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return failed("socketpair", err)
	}
	l.sync, l.syncFD = pair[0], pair[1]
	initFile, err := initExecutable()
	if err != nil {
		return err
	}
	l.initFD = int(initFile.Fd())
	if s.DieWithParent {
		self, err := selfPidfd()
		if err != nil {
			return failed("pidfd_open", err)
		}
		l.parentFD = int(self.Fd())
	}
	if s.DieWith != nil {
		l.parentFD = int(s.DieWith.Fd())
	}
	if err := l.process.openOutcome(s.Outcome); err != nil {
		return err
	}
	l.outcome = int(l.process.outcome.Fd())
	if s.UIDMap != nil {
		// Files of the sandbox's root belong to its uid 0 if there is one.
		l.setupUID, l.setupGID = s.uid(), s.gid()
		if !s.ownID() && mapped(s.UIDMap, 0) && mapped(s.GIDMap, 0) {
			l.setupUID, l.setupGID = 0, 0
		}
	}
	if err := l.openPipes(); err != nil {
		return err
	}
	if err := l.build(); err != nil {
		return err
	}
	l.weaken()
	return nil
}

// selfPidfd is a pidfd of this process for its sandboxes to watch.
var selfPidfd = sync.OnceValues(func() (*os.File, error) {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
})

// attend does the launcher's part while the child runs, in the order in which
// the child waits for it.
func (l *launching) attend() error {
	if err := l.writeMaps(); err != nil {
		return err
	}
	l.release()
	if f := l.spec.Listening; f != nil {
		if err := l.receiveSockets(); err != nil {
			return err
		}
		if l.sockets != nil {
			if err := f(l.sockets, l.process.Pidfd); err != nil {
				return err
			}
		}
		l.release()
	}
	if f := l.spec.Parked; f != nil {
		if err := f(l.child.Pid, l.process.Pidfd); err != nil {
			return err
		}
		l.nameCounters()
		l.release()
	}
	if l.spec.Terminal && !l.spec.Resident {
		if err := l.receiveTerminal(); err != nil {
			return err
		}
	}
	if l.spec.OOMScoreAdj != 0 && !l.spec.ownID() {
		if err := l.writeOOMScore(); err != nil {
			return err
		}
	}
	if l.spec.Notify {
		listener, err := receiveFile(l.sync)
		l.process.Notifications = listener
		return err
	}
	return nil
}

// release lets the child go on. If it is dead, that shows elsewhere.
func (l *launching) release() {
	_ = unix.Sendto(l.sync, []byte{'g'}, unix.MSG_NOSIGNAL, nil)
}

// awaitExec waits until the child's end of the socket is closed, which its exec
// or its end does. That alone proves nothing (child.Wait does, at once then), but
// it is the runtime poller's wait: one in a system call would keep a processor
// from other launches until the scheduler notices.
func (l *launching) awaitExec() {
	if unix.SetNonblock(l.sync, true) != nil {
		return
	}
	f := os.NewFile(uintptr(l.sync), "launch")
	l.sync = -1
	defer f.Close()
	conn, err := f.SyscallConn()
	if err != nil {
		return
	}
	var b [1]byte
	_ = conn.Read(func(fd uintptr) bool {
		n, _, err := unix.Recvfrom(int(fd), b[:], 0)
		return err != unix.EINTR && err != unix.EAGAIN && n <= 0
	})
}

func (l *launching) closeSync() {
	for _, fd := range []int{l.sync, l.syncFD} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// receiveTerminal takes the pty's master. Nothing comes if the child failed
// before, which verdict tells.
func (l *launching) receiveTerminal() error {
	master, err := receiveFile(l.sync)
	l.process.Terminal = master
	return err
}

// receiveFile takes one descriptor off a socket; nil is the socket's end.
func receiveFile(socket int) (*os.File, error) {
	fds, err := receiveFDs(socket, 1)
	if err != nil || fds == nil {
		return nil, err
	}
	// Non-blocking, so that reads of it are the runtime poller's.
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		return nil, failed("fcntl", err)
	}
	return os.NewFile(uintptr(fds[0]), "terminal"), nil
}

// receiveFDs takes n descriptors, which script.message sends, off a socket; nil is the
// socket's end.
func receiveFDs(socket, n int) ([]int, error) {
	var data [1]byte
	control := make([]byte, unix.CmsgSpace(4*n))
	got, cn, _, _, err := recvmsg(socket, data[:], control)
	if err != nil {
		return nil, failed("recvmsg", err)
	}
	if got == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(control[:cn])
	if err != nil || len(messages) != 1 {
		return nil, failed("recvmsg", unix.EBADMSG)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err == nil && len(fds) == n {
		return fds, nil
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
	return nil, failed("recvmsg", unix.EBADMSG)
}

func recvmsg(fd int, data, control []byte) (n, cn, flags int, from unix.Sockaddr, err error) {
	for {
		n, cn, flags, from, err = unix.Recvmsg(fd, data, control, unix.MSG_CMSG_CLOEXEC)
		if err != unix.EINTR {
			return n, cn, flags, from, err
		}
	}
}

// writeOOMScore writes the Worker's oom_score_adj when it asks for it: its
// process is PID 1's only child then, and waits.
func (l *launching) writeOOMScore() error {
	var data [1]byte
	if n, _, _, _, err := recvmsg(l.sync, data[:], nil); err != nil || n == 0 {
		return nil // the child failed before: verdict tells
	}
	pid := strconv.Itoa(l.child.Pid)
	worker, err := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
	if err != nil {
		return policy.Errorf(policy.CodeKernelFeatureMissing, opLaunch, "the kernel does not list a process's children").
			With("feature", "CONFIG_PROC_CHILDREN").Because(err)
	}
	for len(worker) > 0 && worker[len(worker)-1] == ' ' {
		worker = worker[:len(worker)-1]
	}
	if err := mounts.WriteProc("/proc/"+string(worker)+"/oom_score_adj", strconv.Itoa(l.spec.OOMScoreAdj)); err != nil {
		return policy.Errorf(policy.CodeLimitsInvalid, opLaunch, "the OOM score adjustment was refused").Because(err)
	}
	l.release()
	return nil
}
