package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

type execFlags struct {
	repo, cwd    string
	env          []string
	tty, noTTY   bool
	stdin, alone bool
	detachKeys   string
}

func (a *app) workerExec() *cobra.Command {
	var f execFlags
	c := &cobra.Command{
		Use: "exec ID [flags] -- COMMAND [ARG...]", Short: "Run a command in a running Worker's sandbox",
		Long: `Run a command in a running Worker's sandbox, under all that holds the Worker:
its namespaces, ids, system call filter, Landlock rules, limits, and what it can
see. It starts where the Worker started, with the environment that it was given.
On a terminal it gets a terminal of its own in the sandbox, which the Worker can
read and write as it can everything of its user: type no secret there. It ends
with the Worker, and is hung up when this command ends.

Exit codes: the command's own; 128+n if signal n ended it; 125 if yoi refused or
failed; 126 if the command cannot be executed; 127 if it does not exist.
With --json the record goes to stdout and the command's own output to stderr.`,
		Example: `  yoi worker exec wk-0123456789abcdef -- sh
  yoi worker exec wk-0123456789abcdef --cwd src -- git status
  yoi worker exec -n wk-0123456789abcdef -- cat /proc/loadavg`,
		Args: args(cobra.MinimumNArgs(2)),
		RunE: func(cmd *cobra.Command, argv []string) error { return a.exec(cmd, f, argv) },
	}
	fl := c.Flags()
	fl.StringVar(&f.repo, "repository", "", "start in this repository `ID` (default: the Worker's)")
	fl.StringVar(&f.cwd, "cwd", "", "start in `DIRECTORY`, relative to the repository's root (default: the Worker's)")
	fl.StringArrayVar(&f.env, "env", nil, "set `K=V`, or pass the caller's K (repeatable)")
	fl.BoolVarP(&f.tty, "tty", "t", false, "give it a terminal (default: if stdin and stdout are one)")
	fl.BoolVarP(&f.noTTY, "no-tty", "T", false, "give it none")
	fl.BoolVarP(&f.stdin, "interactive", "i", true, "connect stdin")
	fl.BoolVarP(&f.alone, "no-stdin", "n", false, "leave stdin alone: it reads nothing")
	fl.StringVar(&f.detachKeys, "detach-keys", "", "leave, and hang up, at these `KEYS`, such as ctrl-p,ctrl-q (default: none)")
	return c
}

func (a *app) exec(cmd *cobra.Command, f execFlags, argv []string) error {
	keys, err := parseKeys(f.detachKeys)
	if err != nil {
		return err
	}
	req := runtime.ExecRequest{Command: argv[1:], RepositoryID: policy.RepositoryID(f.repo), RelativeCwd: f.cwd}
	if req.Env, err = parseEnv(f.env); err != nil {
		return err
	}
	stdin := !f.alone && f.stdin
	terminal := term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(a.stdout.Fd()))
	req.Terminal = !f.noTTY && (f.tty || terminal && stdin && !a.json)
	if req.Terminal {
		req.Rows, req.Columns = windowSize(os.Stdin, a.stdout)
		if _, set := req.Env["TERM"]; !set {
			req.Env = withTerm(req.Env)
		}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(cmd.Context()))
	defer cancel()
	c := a.console(req.Terminal, stdin)
	defer c.restore()
	c.keys, c.left = keys, cancel
	s, err := a.inSession(ctx, c, func(svc runtime.Service, st runtime.SessionStreams) (runtime.Session, error) {
		return svc.ExecWorker(ctx, policy.WorkerID(argv[0]), req, st)
	})
	if ctx.Err() != nil && c.detached {
		fmt.Fprintln(a.stderr, "yoi: left; the command was hung up")
		return nil
	}
	if err != nil {
		return err
	}
	return a.endOfSession(s)
}

const defaultDetachKeys = "ctrl-p,ctrl-q"

func (a *app) workerAttach() *cobra.Command {
	var detachKeys string
	var alone bool
	c := &cobra.Command{
		Use: "attach ID", Short: "Connect with a Worker's terminal",
		Long: `Connect with the terminal of a Worker that was started with --tty, beside whoever
is connected already. The detach keys, or the end of this command in whatever way,
leave the Worker as it is. What it writes reaches your terminal as it is, as with
any remote shell.

Exit codes: 0 when detached; the Worker's own, or 128+n, if it ended; 125 if yoi
refused or failed.`,
		Example: "  yoi worker attach wk-0123456789abcdef\n  yoi worker attach --detach-keys ctrl-],q wk-0123456789abcdef",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			keys, err := parseKeys(detachKeys)
			if err != nil {
				return err
			}
			return a.attach(cmd, argv[0], keys, !alone)
		},
	}
	c.Flags().StringVar(&detachKeys, "detach-keys", defaultDetachKeys, "leave at these `KEYS`: ctrl-X or characters, with commas; \"\" is none")
	c.Flags().BoolVarP(&alone, "no-stdin", "n", false, "only look")
	return c
}

func (a *app) attach(cmd *cobra.Command, id string, keys []byte, stdin bool) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(cmd.Context()))
	defer cancel()
	c := a.console(true, stdin)
	defer c.restore()
	c.keys, c.left, c.leaves = keys, func() {}, cancel
	var req runtime.AttachRequest
	if stdin {
		req.Rows, req.Columns = windowSize(os.Stdin, a.stdout)
	}
	s, err := a.inSession(ctx, c, func(svc runtime.Service, st runtime.SessionStreams) (runtime.Session, error) {
		return svc.AttachWorker(ctx, policy.WorkerID(id), req, st)
	})
	if term.IsTerminal(int(a.stdout.Fd())) && !(err != nil && ctx.Err() == nil) {
		fmt.Fprint(a.stdout, plainScreen)
	}
	switch {
	case err != nil && ctx.Err() == nil:
		return err
	case err != nil || s.End == "detached":
		fmt.Fprintf(a.stderr, "yoi: detached from %s\n", policy.Printable(id))
	default:
		fmt.Fprintf(a.stderr, "yoi: %s has ended\n", policy.Printable(id))
	}
	a.code = s.ExitCode
	if a.json && err == nil {
		return a.printJSON(s)
	}
	return nil
}

// plainScreen takes back what a full-screen program that goes on, or a hostile one,
// has set: modes of the terminal by a soft reset (DECSTR), the alternate screen,
// reports of the mouse and of pasting.
const plainScreen = "\x1b[!p\x1b[?1047l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?25h\x1b[0m\r\n"

// inSession runs one with the caller's streams.
func (a *app) inSession(ctx context.Context, c *console, run func(runtime.Service, runtime.SessionStreams) (runtime.Session, error)) (s runtime.Session, err error) {
	// The signals are the session's from here on.
	signals := make(chan os.Signal, 16)
	signal.Reset(unix.SIGINT, unix.SIGTERM)
	signal.Notify(signals, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH)
	defer signal.Stop(signals)
	done := make(chan struct{})
	defer close(done)
	go c.forward(signals, done)
	err = a.with(ctx, func(svc runtime.Service) error {
		s, err = run(svc, c.streams())
		return err
	})
	c.restore()
	return s, err
}

func (a *app) endOfSession(s runtime.Session) error {
	a.code = s.ExitCode
	if s.End == "worker_ended" {
		fmt.Fprintln(a.stderr, "yoi: the worker has ended, and the command with it")
	}
	a.printDeniedCalls(s.Denied)
	if a.json {
		return a.printJSON(s)
	}
	return nil
}

// console is the caller's side of a session: its streams and, with a terminal, the
// terminal's mode, size and detach keys.
type console struct {
	terminal       bool
	stdin          *os.File // nil: none
	stdout, stderr *os.File
	raw            *term.State
	sizes          chan runtime.WindowSize
	signals        chan int
	keys           []byte
	left           func() // called at the keys
	detached       bool
	leaves         func() // what a signal does, where it is not for the session
}

func (a *app) console(terminal, stdin bool) *console {
	c := &console{terminal: terminal, stdout: a.stdout, stderr: a.stderr, sizes: make(chan runtime.WindowSize, 1), signals: make(chan int, 8)}
	if stdin {
		c.stdin = os.Stdin
	}
	if a.json {
		c.stdout = a.stderr
	}
	return c
}

func (c *console) streams() runtime.SessionStreams {
	s := runtime.SessionStreams{Stdout: c.stdout, Stderr: c.stderr, Sizes: c.sizes, Signals: c.signals, Started: c.start}
	if c.stdin != nil {
		s.Stdin = &keyReader{in: c.stdin, keys: c.keys, found: c.detach}
	}
	return s
}

// start makes the caller's terminal raw: keys are the session's.
func (c *console) start() {
	if !c.terminal || c.stdin == nil || !term.IsTerminal(int(c.stdin.Fd())) {
		return
	}
	if st, err := term.MakeRaw(int(c.stdin.Fd())); err == nil {
		c.raw = st
	}
}

func (c *console) restore() {
	if c.raw != nil {
		_ = term.Restore(int(c.stdin.Fd()), c.raw)
		c.raw = nil
	}
}

func (c *console) detach() {
	c.detached = true
	c.left()
}

// forward passes the caller's signals, and WINCH as a size.
func (c *console) forward(signals <-chan os.Signal, done <-chan struct{}) {
	for {
		select {
		case sig := <-signals:
			n, ok := sig.(unix.Signal)
			switch {
			case !ok:
			case n == unix.SIGWINCH:
				rows, columns := windowSize(os.Stdin, c.stdout)
				select {
				case <-c.sizes:
				default:
				}
				c.sizes <- runtime.WindowSize{Rows: rows, Columns: columns}
			case c.leaves != nil:
				c.leaves()
			default:
				select {
				case c.signals <- int(n):
				default:
				}
			}
		case <-done:
			return
		}
	}
}

// windowSize is that of the first of the files that is a terminal.
func windowSize(files ...*os.File) (rows, columns uint16) {
	for _, f := range files {
		if w, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			return w.Row, w.Col
		}
	}
	return 0, 0
}

// withTerm passes the caller's kind of terminal on.
func withTerm(env map[string]string) map[string]string {
	t := os.Getenv("TERM")
	if t == "" || len(t) > 64 || policy.Printable(t) != t {
		t = "dumb"
	}
	if env == nil {
		env = make(map[string]string)
	}
	env["TERM"] = t
	return env
}

// keyReader looks for the detach keys in what is typed, and passes on what turns
// out not to be them. After them is the end.
type keyReader struct {
	in    io.Reader
	keys  []byte
	found func()
	had   int // of keys
	rest  []byte
	err   error
}

func (k *keyReader) Read(p []byte) (int, error) {
	for len(k.rest) == 0 {
		if k.err != nil {
			return 0, k.err
		}
		buf := make([]byte, max(1, len(p)))
		n, err := k.in.Read(buf)
		k.err = err
		k.filter(buf[:n])
	}
	n := copy(p, k.rest)
	k.rest = k.rest[n:]
	return n, nil
}

func (k *keyReader) filter(b []byte) {
	for _, c := range b {
		if len(k.keys) == 0 {
			k.rest = append(k.rest, c)
			continue
		}
		if c != k.keys[k.had] && k.had > 0 {
			// Not them: what was held back was meant. c may begin them anew.
			k.rest = append(k.rest, k.keys[:k.had]...)
			k.had = 0
		}
		if c != k.keys[k.had] {
			k.rest = append(k.rest, c)
			continue
		}
		if k.had++; k.had == len(k.keys) {
			k.err = io.EOF
			k.found()
			return
		}
	}
}

// parseKeys reads keys as docker has them: ctrl-X or a character, with commas.
func parseKeys(s string) ([]byte, error) {
	if s == "" {
		return nil, nil
	}
	var keys []byte
	for k := range strings.SplitSeq(s, ",") {
		c, ctrl := strings.CutPrefix(k, "ctrl-")
		switch {
		case len(c) != 1 || c[0] < ' ' || c[0] > '~':
			return nil, usageError{fmt.Errorf("%q is no key: ctrl-X or a character", k)}
		case !ctrl:
			keys = append(keys, c[0])
		case strings.Contains("@[\\]^_", c) || c[0] >= 'a' && c[0] <= 'z':
			keys = append(keys, strings.ToUpper(c)[0]-'@')
		default:
			return nil, usageError{fmt.Errorf("there is no %q", k)}
		}
	}
	if len(keys) > 16 {
		return nil, usageError{errors.New("at most 16 keys")}
	}
	return keys, nil
}

func (a *app) workerTop() *cobra.Command {
	return &cobra.Command{
		Use: "top ID", Short: "List what runs in a running Worker's sandbox", Example: "  yoi worker top wk-0123456789abcdef",
		Long: "List what runs in a running Worker's sandbox, those of sessions too. CPU is the\ntime since a process' start, and what that is of one CPU.",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				list, err := s.WorkerProcesses(cmd.Context(), policy.WorkerID(argv[0]))
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(list)
				}
				rows := make([][]string, 0, len(list.Items))
				for _, p := range list.Items {
					rows = append(rows, []string{
						strconv.Itoa(p.PID), strconv.Itoa(p.Parent), p.State, p.CPUTime.Round(10 * time.Millisecond).String(),
						percent(p.CPUTime, time.Since(p.StartedAt)), size(p.MemoryBytes), strconv.Itoa(p.Threads), ago(p.StartedAt), p.Command,
					})
				}
				return a.table([]string{"PID", "PARENT", "STATE", "CPU", "%CPU", "MEMORY", "THREADS", "STARTED", "COMMAND"}, rows)
			})
		},
	}
}

func percent(part, whole time.Duration) string {
	if whole <= 0 {
		return ""
	}
	return fmt.Sprintf("%.1f", 100*part.Seconds()/whole.Seconds())
}

func (a *app) workerPause() *cobra.Command {
	c := a.workerOne("pause ID", "Stop a Worker's processes where they are", "  yoi worker pause wk-0123456789abcdef",
		func(cmd *cobra.Command, s runtime.Service, id policy.WorkerID) (runtime.Worker, error) {
			return s.PauseWorker(cmd.Context(), id)
		})
	c.Long = "Stop all of a Worker's processes, by the freezer of its control group: they see\nnothing of it. Its time limit goes on, and stopping it lets it go on first."
	return c
}

func (a *app) workerResume() *cobra.Command {
	return a.workerOne("resume ID", "Let a paused Worker go on", "  yoi worker resume wk-0123456789abcdef",
		func(cmd *cobra.Command, s runtime.Service, id policy.WorkerID) (runtime.Worker, error) {
			return s.ResumeWorker(cmd.Context(), id)
		})
}
