package nsexec

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/replay"
	"yoi.dev/yoi-runtime/policy"
)

// Process is a running sandbox. It is reaped in the background, whether or not
// anybody calls Wait.
type Process struct {
	// Pid is PID 1 of the sandbox as the caller sees it, for messages and for
	// systemd. Only Pidfd is safe to act on. It stays open when the sandbox has
	// ended, which may be before Launch returns; Close closes it.
	Pid   int
	Pidfd *os.File
	// Terminal is the pty's master if the Spec asked for one; the caller closes it.
	Terminal *os.File
	// Notifications is the filter's listener if the Spec asked for one,
	// seccomp_unotify(2); the caller closes it.
	Notifications *os.File

	started time.Time
	outcome *os.File
	done    chan struct{}
	result  Outcome
	err     error
}

func (p *Process) own(c *replay.Child) {
	p.Pid = c.Pid
	// Non-blocking, so that waiting for it is the runtime poller's work and needs no
	// thread (pidfd_open(2)).
	_ = unix.SetNonblock(c.Pidfd, true)
	p.Pidfd = os.NewFile(uintptr(c.Pidfd), "pidfd")
}

// openOutcome makes a descriptor of our own on the outcome file.
func (p *Process) openOutcome(f *os.File) error {
	if f == nil {
		fd, err := unix.MemfdCreate("yoi-outcome", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
		if errors.Is(err, unix.EINVAL) { // before Linux 6.3
			fd, err = unix.MemfdCreate("yoi-outcome", unix.MFD_CLOEXEC)
		}
		if err != nil {
			return failed("memfd_create", err)
		}
		p.outcome = os.NewFile(uintptr(fd), "outcome")
		return nil
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return failed("fcntl", err)
	}
	p.outcome = os.NewFile(uintptr(fd), "outcome")
	// Room for the record is taken now: at the end the disk may be full.
	if _, err := p.outcome.WriteAt(make([]byte, OutcomeSize), 0); err != nil {
		code := policy.CodeLaunchFailed
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			code = policy.CodeDiskFull
		}
		return policy.Errorf(code, opLaunch, "the outcome file cannot be written").Because(err)
	}
	return nil
}

// abandon closes everything of a launch that failed.
func (p *Process) abandon() {
	for _, f := range []*os.File{p.Pidfd, p.Terminal, p.Notifications, p.outcome} {
		if f != nil {
			f.Close()
		}
	}
}

// waitid waits for PID 1 and returns its exit code, or 128+n.
func (p *Process) waitid() (code int, err error) {
	info, err := waitPidfd(p.Pidfd, unix.WEXITED, nil)
	if err != nil {
		return 0, err
	}
	if info.code == 1 { // CLD_EXITED
		return info.status, nil
	}
	return 128 + info.status, nil
}

// ended is what waitid(2) says of a child: si_code and si_status.
type ended struct{ code, status int }

// waitPidfd waits for a child of ours, by the runtime poller.
func waitPidfd(pidfd *os.File, options int, usage *unix.Rusage) (ended, error) {
	conn, err := pidfd.SyscallConn()
	if err != nil {
		return ended{}, err
	}
	var info unix.Siginfo
	readErr := conn.Read(func(fd uintptr) bool {
		for {
			err = unix.Waitid(unix.P_PIDFD, int(fd), &info, options|unix.WNOHANG|unix.WALL, usage)
			if err != unix.EINTR {
				break
			}
		}
		return err != unix.EAGAIN && (err != nil || info.Signo != 0)
	})
	if readErr != nil {
		return ended{}, readErr
	}
	if err != nil {
		return ended{}, os.NewSyscallError("waitid", err)
	}
	// siginfo_t of SIGCHLD: si_status lies behind si_pid and si_uid.
	return ended{int(info.Code), int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), 24)))}, nil
}

// reap waits for the sandbox's end and keeps the result for Wait.
func (p *Process) reap() {
	defer close(p.done)
	defer p.outcome.Close()
	code, err := p.waitid()
	if err != nil {
		p.err = policy.Errorf(policy.CodeInternal, "nsexec.wait", "the sandbox's end cannot be waited for").Because(err)
		return
	}
	out, ok, err := ReadOutcome(p.outcome)
	if err != nil || !ok {
		out = Outcome{ExitCode: code, Lost: true, StartedAt: p.started, EndedAt: time.Now()}
		if code > 128 {
			out.Signal = code - 128
		}
	}
	p.result = out
}

// Wait waits for the sandbox's end and returns the Worker's outcome. Any number
// of callers may wait.
func (p *Process) Wait(ctx context.Context) (Outcome, error) {
	select {
	case <-p.done:
		return p.result, p.err
	default:
	}
	select {
	case <-p.done:
		return p.result, p.err
	case <-ctx.Done():
		return Outcome{}, policy.Errorf(policy.CodeCanceled, "nsexec.wait", "waiting for the Worker was canceled").Because(ctx.Err())
	}
}

// Done is closed when the sandbox has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Signal sends sig to the Worker's process group, by way of PID 1. SIGSTOP and
// SIGKILL too reach the Worker only, since the signal travels as the value of
// another one.
func (p *Process) Signal(sig syscall.Signal) error { return SignalPidfd(p.Pidfd, sig) }

// carrier is SIGRTMAX: see init_amd64.s.
const carrier = 64

// SignalPidfd is Process.Signal for a sandbox that another process launched,
// by a pidfd of its PID 1.
func SignalPidfd(pidfd *os.File, sig syscall.Signal) error {
	if sig < 1 || sig > 64 {
		return policy.Errorf(policy.CodeSignalInvalid, "nsexec.signal", "%d is no signal", int(sig))
	}
	var info [128]byte // siginfo_t
	*(*int32)(unsafe.Pointer(&info[0])) = carrier
	*(*int32)(unsafe.Pointer(&info[8])) = -1 // SI_QUEUE
	*(*int32)(unsafe.Pointer(&info[16])) = int32(os.Getpid())
	*(*int32)(unsafe.Pointer(&info[20])) = int32(os.Getuid())
	*(*int32)(unsafe.Pointer(&info[24])) = int32(sig)
	return sendSignal(pidfd, carrier, unsafe.Pointer(&info))
}

// PidOf is the process of a pidfd, by its fdinfo (pidfd_open(2)); ESRCH when it has
// ended, or the pidfd is closed.
func PidOf(pidfd *os.File) (int, error) {
	conn, err := pidfd.SyscallConn()
	if err != nil {
		return 0, unix.ESRCH
	}
	var text []byte
	var rerr error
	if err := conn.Control(func(fd uintptr) { text, rerr = os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(int(fd))) }); err != nil {
		return 0, unix.ESRCH
	}
	if rerr != nil {
		return 0, rerr
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "Pid:"); ok {
			if pid, err := strconv.Atoi(strings.TrimSpace(v)); err == nil && pid > 0 {
				return pid, nil
			}
		}
	}
	return 0, unix.ESRCH
}

// Kill ends the whole sandbox at once: with PID 1 the kernel kills all in its
// pid namespace. No outcome record is written.
func (p *Process) Kill() error { return sendSignal(p.Pidfd, int(unix.SIGKILL), nil) }

func sendSignal(pidfd *os.File, sig int, info unsafe.Pointer) error {
	const op = "nsexec.signal"
	conn, err := pidfd.SyscallConn()
	var errno syscall.Errno
	if err == nil {
		err = conn.Control(func(fd uintptr) {
			_, _, errno = unix.Syscall6(unix.SYS_PIDFD_SEND_SIGNAL, fd, uintptr(sig), uintptr(info), 0, 0, 0)
		})
	}
	switch {
	case err != nil, errno == unix.ESRCH:
		return policy.Errorf(policy.CodeWorkerNotRunning, op, "the Worker has ended").Because(err)
	case errno == unix.ENOSYS:
		return policy.Errorf(policy.CodeKernelFeatureMissing, op, "the kernel lacks pidfd_send_signal").With("feature", "pidfd_send_signal").Because(errno)
	case errno != 0:
		return policy.Errorf(policy.CodeInternal, op, "the signal could not be sent: %v", errno).Because(os.NewSyscallError("pidfd_send_signal", errno))
	}
	return nil
}

// Close closes Terminal and, once the sandbox has ended, Pidfd. A sandbox that
// has not goes on.
func (p *Process) Close() error {
	var errs []error
	select {
	case <-p.done:
		errs = append(errs, p.Pidfd.Close())
	default:
	}
	if p.Terminal != nil {
		errs = append(errs, p.Terminal.Close())
	}
	return errors.Join(errs...)
}
