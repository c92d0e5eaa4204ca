package nsexec

import (
	"context"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// Session is a command that was started in a running sandbox by Enter. It is
// reaped in the background, whether or not anybody calls Wait.
type Session struct {
	// Pid is the session's process as the caller sees it, and the number of its
	// process group, to which Signal sends.
	Pid   int
	Pidfd *os.File
	// Terminal is the pty's master if the Spec asked for one; the caller closes it.
	Terminal *os.File
	// Notifications is the filter's listener if the Spec asked for one; the caller
	// closes it, and answers until then.
	Notifications *os.File

	init    *os.File
	started time.Time
	done    chan struct{}
	result  Outcome
	err     error

	mu     sync.Mutex
	reaped bool
}

// reap waits for the session's end and keeps the result for Wait. Until the last
// call the process is a zombie, whose number nobody else has.
func (s *Session) reap() {
	defer close(s.done)
	_, err := waitPidfd(s.Pidfd, unix.WEXITED|unix.WNOWAIT, nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reaped = true
	var end ended
	var usage unix.Rusage
	if err == nil {
		end, err = waitPidfd(s.Pidfd, unix.WEXITED, &usage)
	}
	if err != nil {
		s.err = policy.Errorf(policy.CodeInternal, "nsexec.wait", "the session's end cannot be waited for").Because(err)
		return
	}
	s.result = Outcome{
		ExitCode: end.status, StartedAt: s.started, EndedAt: time.Now(), MaxRSS: usage.Maxrss << 10,
		UserTime: time.Duration(usage.Utime.Nano()), SystemTime: time.Duration(usage.Stime.Nano()),
	}
	if end.code != 1 { // CLD_KILLED, CLD_DUMPED
		s.result.Signal, s.result.ExitCode, s.result.CoreDump = end.status, 128+end.status, end.code == 3
	}
}

// Wait waits for the session's end. Any number of callers may wait.
func (s *Session) Wait(ctx context.Context) (Outcome, error) {
	select {
	case <-s.done:
		return s.result, s.err
	case <-ctx.Done():
		return Outcome{}, policy.Errorf(policy.CodeCanceled, "nsexec.wait", "waiting for the session was canceled").Because(ctx.Err())
	}
}

// Done is closed when the session has ended.
func (s *Session) Done() <-chan struct{} { return s.done }

// Signal sends sig to the session's process group. Processes that it has put into
// groups of their own, as a shell does with its jobs, are not of it.
func (s *Session) Signal(sig syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := error(unix.ESRCH)
	if !s.reaped {
		if err = unix.Kill(-s.Pid, sig); err == unix.ESRCH {
			err = unix.Kill(s.Pid, sig) // it has not come to make its group
		}
	}
	switch err {
	case nil:
		return nil
	case unix.ESRCH:
		return policy.Errorf(policy.CodeWorkerNotRunning, "nsexec.signal", "the session has ended")
	}
	return policy.Errorf(policy.CodeInternal, "nsexec.signal", "the signal could not be sent").Because(os.NewSyscallError("kill", err))
}

// Close waits for the session's end and closes Pidfd. Terminal is the caller's.
func (s *Session) Close() error {
	<-s.done
	return s.Pidfd.Close()
}
