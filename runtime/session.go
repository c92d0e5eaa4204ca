package runtime

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/policy/seccomp/compile"
)

// ExecRequest runs a command in a live Worker's sandbox, under what holds the Worker.
type ExecRequest struct {
	Command []string `json:"command"`
	// RepositoryID and RelativeCwd are where it starts; "" is where the Worker did.
	RepositoryID policy.RepositoryID `json:"repository_id,omitempty"`
	RelativeCwd  string              `json:"relative_cwd,omitempty"`
	Env          map[string]string   `json:"env,omitempty"` // added to the Worker's
	// Terminal gives it a terminal of its own, of that size; the output is then all
	// standard output.
	Terminal bool   `json:"terminal,omitempty"`
	Rows     uint16 `json:"rows,omitempty"`
	Columns  uint16 `json:"columns,omitempty"`
}

// SessionStreams connect a caller with a session.
type SessionStreams struct {
	// Stdin is read until its end, or until the session's; nil is none. A read that
	// is under way when the session ends is not waited for.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Sizes are new sizes of the caller's terminal, Signals numbers of signals for
	// the session's process group. Nil is none.
	Sizes   <-chan WindowSize
	Signals <-chan int
	// Started is called once, when the command runs and before anything is copied.
	// May be nil.
	Started func()
}

// WindowSize is a terminal's, in characters.
type WindowSize struct {
	Rows    uint16 `json:"rows"`
	Columns uint16 `json:"columns"`
}

// Session is the record of one time that somebody entered a Worker's sandbox.
type Session = registry.Session

type callerKey struct{}

// WithCaller says on whose behalf a Service is called, for the records. Without it
// that is this process' user.
func WithCaller(ctx context.Context, uid uint32) context.Context {
	return context.WithValue(ctx, callerKey{}, uid)
}

func callerOf(ctx context.Context) uint32 {
	if uid, ok := ctx.Value(callerKey{}).(uint32); ok {
		return uid
	}
	return uint32(os.Getuid())
}

// ExecWorker starts a session, connects it with the caller, and returns how it ended.
// A context that ends hangs it up.
func (r *Runtime) ExecWorker(ctx context.Context, id policy.WorkerID, req ExecRequest, s SessionStreams) (Session, error) {
	w, a, err := r.enterable(ctx, id)
	if err != nil {
		return Session{}, err
	}
	if w.Paused {
		return Session{}, policy.Errorf(policy.CodeWorkerPaused, "runtime.exec", "the worker %s is paused", id)
	}
	er, filter, err := r.enterRequest(a, w, req)
	if err != nil {
		return Session{}, err
	}
	v := Session{
		ID: er.SessionID, Kind: registry.SessionExec, UID: callerOf(ctx), Command: req.Command,
		RelativeCwd: er.Worker.RelativeCwd, Terminal: req.Terminal, StartedAt: r.now(),
	}
	c, files, err := newConnection(req, s)
	if err != nil {
		return Session{}, policy.Errorf(policy.CodeLaunchFailed, "runtime.exec", "the standard streams cannot be connected").Because(err)
	}
	defer c.close()
	if err := r.beginSession(ctx, w.ID, v); err != nil {
		return Session{}, err
	}
	entered, err := r.helper.Enter(ctx, er, helper.EnterFiles{Stdio: files, Filter: filter})
	if err != nil {
		return Session{}, errors.Join(err, r.dropSession(context.WithoutCancel(ctx), w.ID, v.ID))
	}
	if err := c.start(entered.Terminal); err != nil {
		r.log.Warn("a session's terminal cannot be read", "session", v.ID, "error", err)
	}
	v, err = r.attendSession(ctx, v, c)
	if err != nil {
		v.End = registry.SessionLost
	}
	return r.endSession(context.WithoutCancel(ctx), w.ID, v, err)
}

// enterable is a Worker that can be entered.
func (r *Runtime) enterable(ctx context.Context, id policy.WorkerID) (w registry.Worker, a registry.Allocation, err error) {
	if w, err = r.workerRecord(ctx, id); err != nil {
		return w, a, err
	}
	if w.Status != registry.WorkerRunning {
		return w, a, policy.Errorf(policy.CodeWorkerNotRunning, "runtime.session", "the worker %s is %s", id, w.Status)
	}
	if a, err = r.registry.GetAllocation(ctx, w.AllocationID); err == nil {
		a.SandboxPolicy.Network, err = networkOf(a, w)
	}
	return w, a, err
}

// enterRequest says what a session is held by: what the Worker was given.
func (r *Runtime) enterRequest(a registry.Allocation, w registry.Worker, req ExecRequest) (er helper.EnterRequest, filter []byte, err error) {
	env := maps.Clone(w.Env)
	if env == nil {
		env = make(map[string]string)
	}
	maps.Copy(env, req.Env)
	l := launch{
		id: w.ID, command: req.Command, repo: cmp.Or(req.RepositoryID, w.RepositoryID), cwd: cmp.Or(req.RelativeCwd, w.RelativeCwd),
		env: env, limits: w.Limits, terminal: req.Terminal, rows: req.Rows, columns: req.Columns,
	}
	if l.repo != w.RepositoryID && req.RelativeCwd == "" {
		l.cwd = ""
	}
	if err := l.check(a); err != nil {
		return er, nil, err
	}
	if filter, err = compile.Filter(a.SandboxPolicy); err != nil {
		return er, nil, err
	}
	var given struct {
		SeccompDigest string `json:"seccomp_digest"`
	}
	if err := json.Unmarshal(a.Evidence, &given); err != nil || given.SeccompDigest != digest(filter) {
		return er, nil, policy.Errorf(policy.CodeSessionPolicyChanged, "runtime.exec", "the worker's system call filter is not the one that this version makes of its policy").Because(err)
	}
	return helper.EnterRequest{SessionID: policy.NewSessionID(), Worker: r.launchRequest(a, l)}, filter, nil
}

// attendSession waits for a session's end and passes signals and sizes meanwhile.
func (r *Runtime) attendSession(ctx context.Context, v Session, c *connection) (Session, error) {
	after := context.WithoutCancel(ctx)
	type ended struct {
		o   helper.SessionOutcome
		err error
	}
	end := make(chan ended, 1)
	go func() {
		o, err := r.helper.WaitSession(after, v.ID)
		end <- ended{o, err}
	}()
	canceled := ctx.Done()
	var kill, lost <-chan time.Time
	signal := func(n unix.Signal) {
		if err := r.helper.SignalSession(after, v.ID, int(n)); err != nil {
			r.log.Debug("signal not sent to a session", "session", v.ID, "signal", n, "error", err)
		}
	}
	for {
		select {
		case n, ok := <-c.caller.Signals:
			if !ok {
				c.caller.Signals = nil
				continue
			}
			signal(unix.Signal(n))
		case size, ok := <-c.caller.Sizes:
			if !ok {
				c.caller.Sizes = nil
				continue
			}
			c.resize(size)
		case <-canceled:
			canceled = nil
			v.HungUp = true
			signal(unix.SIGHUP)
			signal(unix.SIGCONT)
			kill = time.After(sessionGrace)
		case <-kill:
			signal(unix.SIGKILL)
			lost = time.After(sessionGrace)
		case <-lost:
			// A Worker that traces it, where Landlock does not forbid that, may keep its
			// end from us as long as the Worker lives (ptrace(2)).
			c.drain(ctx)
			v.End = registry.SessionLost
			return v, nil
		case e := <-end:
			c.drain(ctx)
			return outcomeOfSession(v, e.o), e.err
		}
	}
}

// sessionGrace is between HUP and KILL for a session whose caller has gone.
const sessionGrace = 2 * time.Second

func outcomeOfSession(v Session, o helper.SessionOutcome) Session {
	v.EndedAt, v.ExitCode = o.EndedAt, o.ExitCode
	v.End = registry.SessionExited
	if o.Signal != 0 {
		v.End, v.Signal = registry.SessionSignaled, unix.SignalName(unix.Signal(o.Signal))
	}
	if o.WorkerEnded {
		v.End = registry.SessionWorkerEnded
	}
	v.Denied = deniedCalls(o.Denied)
	return v
}

// beginSession records that somebody is about to enter, and tells the timeline.
func (r *Runtime) beginSession(ctx context.Context, id policy.WorkerID, v Session) error {
	w, err := r.registry.UpdateWorker(ctx, id, func(w *registry.Worker) error {
		w.AddSession(v)
		return nil
	})
	if err == nil {
		r.workerEvent(policy.EventSessionStarted, w, map[string]string{
			"session": string(v.ID), "kind": string(v.Kind), "uid": strconv.FormatUint(uint64(v.UID), 10), "command": shortCommand(v.Command),
		})
	}
	return err
}

func (r *Runtime) dropSession(ctx context.Context, id policy.WorkerID, s policy.SessionID) error {
	w, err := r.registry.UpdateWorker(ctx, id, func(w *registry.Worker) error {
		w.DropSession(s)
		return nil
	})
	w.ID = id // also where there is no record any more
	r.workerEvent(policy.EventSessionEnded, w, map[string]string{"session": string(s), "end": "refused"})
	return err
}

func (r *Runtime) endSession(ctx context.Context, id policy.WorkerID, v Session, cause error) (Session, error) {
	if v.EndedAt.IsZero() {
		v.EndedAt = r.now()
	}
	w, err := r.registry.UpdateWorker(ctx, id, func(w *registry.Worker) error {
		w.EndSession(v)
		return nil
	})
	if errors.Is(err, policy.CodeWorkerUnknown) {
		err = nil // it went with its workspace
	}
	w.ID = id
	r.workerEvent(policy.EventSessionEnded, w, map[string]string{"session": string(v.ID), "end": string(v.End)})
	return v, cmp.Or(cause, err)
}

// shortCommand is a command for one line of a timeline.
func shortCommand(argv []string) string {
	s := policy.Printable(strings.Join(argv, " "))
	if len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "") + "…"
	}
	return s
}

// connection is between a caller's streams and a session's: pipes, or the terminal.
type connection struct {
	caller   SessionStreams
	terminal bool
	master   *os.File

	theirs []*os.File // the session's ends
	stdin  *os.File   // our ends
	outs   []*os.File
	to     []io.Writer

	ended  context.Context
	finish context.CancelFunc
	pumps  sync.WaitGroup // of output
}

func newConnection(req ExecRequest, s SessionStreams) (c *connection, files [3]*os.File, err error) {
	c = &connection{caller: s, terminal: req.Terminal}
	c.ended, c.finish = context.WithCancel(context.Background())
	if c.terminal {
		return c, files, nil
	}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if s.Stdin != nil {
		pr, pw, err := os.Pipe()
		if err != nil {
			return nil, files, err
		}
		c.theirs, c.stdin, files[0] = append(c.theirs, pr), pw, pr
	}
	for i, w := range []io.Writer{1: s.Stdout, 2: s.Stderr} {
		if w == nil {
			continue
		}
		pr, pw, err := os.Pipe()
		if err != nil {
			return nil, files, err
		}
		c.theirs, files[i] = append(c.theirs, pw), pw
		c.outs, c.to = append(c.outs, pr), append(c.to, w)
	}
	for _, f := range c.theirs {
		if err := blocking(f); err != nil {
			return nil, files, err
		}
	}
	return c, files, nil
}

// blocking makes an end of a pipe what programs expect.
func blocking(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	cerr := conn.Control(func(fd uintptr) { err = unix.SetNonblock(int(fd), false) })
	return errors.Join(cerr, err)
}

// start begins to copy.
func (c *connection) start(master *os.File) (err error) {
	for _, f := range c.theirs {
		f.Close() // the session has its own; its end must be the last
	}
	c.theirs = nil
	if c.caller.Started != nil {
		c.caller.Started()
	}
	if c.terminal {
		if c.master, err = pollable(master); err != nil {
			return err
		}
		c.stdin, c.outs, c.to = c.master, []*os.File{c.master}, []io.Writer{c.caller.Stdout}
	}
	for i, f := range c.outs {
		w := c.to[i]
		c.pumps.Go(func() { pump(c.ended, w, f) })
	}
	if in := c.caller.Stdin; in != nil {
		go func() {
			_, err := io.Copy(c.stdin, in) // EPIPE: the session has stopped reading
			switch {
			case !c.terminal:
				c.stdin.Close()
			case err == nil:
				_, _ = c.stdin.Write([]byte{4}) // VEOF, termios(3)
			}
		}()
	}
	return nil
}

// pollable is f with reads that can be interrupted. f is closed.
func pollable(f *os.File) (*os.File, error) {
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// pump copies output until its end, or, once the session has ended, what is there:
// a process that it left behind may hold the other end for ever.
func pump(ended context.Context, w io.Writer, r *os.File) {
	stop := context.AfterFunc(ended, func() { _ = r.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	_, err := io.Copy(w, r)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return // the end, EIO of a terminal, or nobody takes the output any more
	}
	conn, err := r.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, 32<<10)
	for n := 1; n > 0; {
		if cerr := conn.Control(func(fd uintptr) { n, err = unix.Read(int(fd), buf) }); cerr != nil || err != nil || n <= 0 {
			return
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (c *connection) resize(s WindowSize) {
	if c.master == nil || s.Rows == 0 || s.Columns == 0 {
		return
	}
	conn, err := c.master.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) {
		_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: s.Rows, Col: s.Columns})
	})
}

// drain waits until all that the session wrote has been copied, unless the caller
// has gone.
func (c *connection) drain(ctx context.Context) {
	c.finish()
	done := make(chan struct{})
	go func() {
		c.pumps.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

func (c *connection) close() {
	c.finish()
	for _, f := range c.theirs {
		f.Close()
	}
	for _, f := range c.outs {
		f.Close()
	}
	if c.stdin != nil {
		c.stdin.Close()
	}
}
