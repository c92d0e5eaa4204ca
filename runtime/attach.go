package runtime

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// A Worker's terminal stays with the PID 1 of its sandbox, which copies what it shows
// to the Worker's log. So it needs neither this process nor the helper, and a viewer
// is somebody who follows the log and types at the terminal; any number may.

// AttachRequest connects with a Worker's terminal, and gives it that size unless it is
// zero.
type AttachRequest struct {
	Rows    uint16 `json:"rows,omitempty"`
	Columns uint16 `json:"columns,omitempty"`
}

// terminalEnv is a spawned terminal's environment: programs need to know its kind.
func terminalEnv(a registry.Allocation, env map[string]string) map[string]string {
	out := map[string]string{"TERM": "xterm"}
	if _, set := a.SandboxPolicy.Env["TERM"]; set {
		delete(out, "TERM")
	}
	maps.Copy(out, env)
	return out
}

// AttachWorker connects the caller with a live Worker's terminal.
func (r *Runtime) AttachWorker(ctx context.Context, id policy.WorkerID, req AttachRequest, s SessionStreams) (Session, error) {
	w, _, err := r.enterable(ctx, id)
	if err != nil {
		return Session{}, err
	}
	if !w.Terminal {
		return Session{}, policy.Errorf(policy.CodeWorkerNoTerminal, "runtime.attach", "the worker %s has no terminal", id)
	}
	master, err := r.helper.Terminal(ctx, id)
	if err != nil {
		return Session{}, err
	}
	if master, err = pollable(master); err != nil {
		return Session{}, policy.Errorf(policy.CodeInternal, "runtime.attach", "the worker's terminal cannot be used").Because(err)
	}
	defer master.Close()
	log, err := r.followLog(id)
	if err != nil {
		return Session{}, policy.Errorf(policy.CodeInternal, "runtime.attach", "the worker's log cannot be followed").Because(err)
	}
	defer log.close()
	v := Session{ID: policy.NewSessionID(), Kind: registry.SessionAttach, UID: callerOf(ctx), Terminal: true, StartedAt: r.now()}
	if err := r.beginSession(ctx, id, v); err != nil {
		return Session{}, err
	}
	if s.Started != nil {
		s.Started()
	}
	c := &connection{master: master}
	c.redraw(WindowSize(req))
	v, err = r.attendTerminal(ctx, id, v, c, s, log)
	return r.endSession(context.WithoutCancel(ctx), id, v, err)
}

// attendTerminal shows and types until one of them ends.
func (r *Runtime) attendTerminal(ctx context.Context, id policy.WorkerID, v Session, c *connection, s SessionStreams, log *follower) (Session, error) {
	following, stop := context.WithCancel(ctx)
	defer stop()
	v.End = registry.SessionDetached
	left := make(chan struct{})
	if s.Stdin != nil {
		go func() {
			defer close(left)
			_, _ = io.Copy(c.master, s.Stdin) // the Worker's end shows elsewhere
		}()
	}
	end := make(chan Worker, 1)
	go func() {
		if w, err := r.WaitWorker(following, id); err == nil {
			end <- w
		}
	}()
	shown := make(chan error, 1)
	go func() { shown <- log.copy(following, s.Stdout) }()
	for {
		select {
		case size, ok := <-s.Sizes:
			if !ok {
				s.Sizes = nil
				continue
			}
			c.resize(size)
		case <-left:
			return v, nil
		case <-ctx.Done():
			v.HungUp = true
			return v, nil
		case err := <-shown:
			if ctx.Err() != nil {
				continue
			}
			return v, err
		case w := <-end:
			stop()
			<-shown
			_ = log.rest(s.Stdout)
			v.End = registry.SessionWorkerEnded
			if w.Outcome != nil {
				v.ExitCode, v.Signal = w.Outcome.ExitCode, w.Outcome.Signal
			}
			return v, nil
		}
	}
}

// redraw sets a size so that full-screen programs draw anew: the kernel tells them
// of a change only.
func (c *connection) redraw(s WindowSize) {
	conn, err := c.master.SyscallConn()
	if err != nil {
		return
	}
	var now *unix.Winsize
	_ = conn.Control(func(fd uintptr) { now, err = unix.IoctlGetWinsize(int(fd), unix.TIOCGWINSZ) })
	if err != nil {
		return
	}
	if s.Rows == 0 || s.Columns == 0 {
		s = WindowSize{now.Row, now.Col}
	}
	if now.Row == s.Rows && now.Col == s.Columns && s.Rows > 1 {
		c.resize(WindowSize{s.Rows - 1, s.Columns})
	}
	c.resize(s)
}

// follower follows a log by inotify(7): a person waits for each character.
type follower struct {
	log    *os.File
	at     int64
	events *os.File
}

// lastLine bounds what of a log is shown to who begins to look: the line that is
// being written, a prompt for one.
const lastLine = 1 << 10

func (r *Runtime) followLog(id policy.WorkerID) (t *follower, err error) {
	t = &follower{}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	if t.log, err = r.root.OpenFile(rootdir.Worker(id)+"/logs/stdout", unix.O_RDONLY, 0); err != nil {
		return nil, err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	t.events = os.NewFile(uintptr(fd), "inotify")
	if _, err = unix.InotifyAddWatch(fd, "/proc/self/fd/"+strconv.Itoa(int(t.log.Fd())), unix.IN_MODIFY); err != nil {
		return nil, os.NewSyscallError("inotify_add_watch", err)
	}
	st, err := t.log.Stat()
	if err != nil {
		return nil, err
	}
	buf := make([]byte, min(st.Size(), lastLine))
	t.at = st.Size() - int64(len(buf))
	n, err := t.log.ReadAt(buf, t.at)
	if err != nil && err != io.EOF {
		return nil, err
	}
	t.at += int64(bytes.LastIndexByte(buf[:n], '\n') + 1)
	return t, nil
}

func (t *follower) close() {
	for _, f := range []*os.File{t.log, t.events} {
		if f != nil {
			f.Close()
		}
	}
}

// rest copies what there is.
func (t *follower) rest(w io.Writer) error {
	next, _, err := copyLog(w, t.log, t.at, 1<<62)
	t.at = next
	return err
}

// copy copies until ctx ends or w takes no more.
func (t *follower) copy(ctx context.Context, w io.Writer) error {
	stop := context.AfterFunc(ctx, func() { _ = t.events.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, 4096)
	for {
		if err := t.rest(w); err != nil {
			return err
		}
		if _, err := t.events.Read(buf); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return nil
			}
			return err
		}
	}
}
