package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"yoi.dev/yoi-runtime/gitcache"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

var errPipe = unix.EPIPE

type runFlags struct {
	repo, rev, branch, strategy, dirty, patch, cwd string
	scope, env, limits                             []string
	network, seccomp                               string
	allow                                          []string
	transparent                                    bool
	require                                        []string
	ids                                            string
	policy                                         string
	timeout                                        time.Duration
	keep                                           bool
	shared                                         sharedFlags
	root                                           rootFlags
	authority                                      authorityFlags
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "run [flags] [--] COMMAND [ARG...]",
		Short: "Run a command in a sandbox on its own working tree",
		Long: `Run a command on its own working tree of a repository at one commit, inside a
sandbox, at /workspace/<repository>. Nothing is left behind when it ends.

Exit codes: the command's own; 128+n if signal n ended it; 125 if yoi refused
or failed; 126 if the command cannot be executed; 127 if it does not exist.
With --json the evidence goes to stdout and the command's own output to stderr.`,
		Example: `  yoi run -- make
  yoi run --repo ~/src/app --rev v1.2 --scope src -- sh -c 'git log -1 && ./build'
  yoi run --repo https://example.org/app.git --rev branch:main --json -- go test ./...
  yoi run --keep --branch fix/123 -- agent
  yoi run --patch wip.patch -- make test`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error { return a.run(cmd, f, argv) },
	}
	fl := c.Flags()
	fl.SetInterspersed(false) // what follows COMMAND belongs to it
	fl.StringVar(&f.repo, "repo", ".", "the repository: a `PATH` or a file, ssh or https URL")
	fl.StringVar(&f.rev, "rev", "HEAD", "the commit: a `REVISION`, or branch:NAME, tag:NAME, commit:ID, ref:refs/…")
	fl.StringArrayVar(&f.scope, "scope", nil, "only this `DIRECTORY` of the repository (repeatable)")
	fl.StringVar(&f.branch, "branch", "", "make HEAD a new branch `NAME` (default: detached)")
	fl.StringVar(&f.strategy, "strategy", "", "how to make the tree: `NAME` (default auto; see yoi doctor)")
	fl.StringVar(&f.dirty, "dirty", "", "what becomes of uncommitted changes: `POLICY` clean_point_only (default: refused), patch_artifact (with --patch), current_worktree_snapshot or direct_legacy_mount")
	fl.StringVar(&f.patch, "patch", "", "apply a git diff: a `FILE`, - for stdin, or a stored patch's sha256:… (implies --dirty patch_artifact)")
	fl.BoolVar(&f.keep, "keep", false, "keep the workspace; see yoi ws list")
	fl.StringArrayVar(&f.env, "env", nil, "set `K=V`, or pass the caller's K (repeatable)")
	fl.StringVar(&f.cwd, "cwd", "", "start in `DIRECTORY`, relative to the repository's root")
	fl.DurationVar(&f.timeout, "timeout", 0, "end the command after this `DURATION`")
	fl.StringArrayVar(&f.limits, "limit", nil, "`NAME=VALUE` of open_files, processes, file_size, address_space, stack_size, cpu_time, nice, oom_score_adj of each process; tmp_size, home_size, shm_size, log_size of its own files; memory_max, memory_high, swap_max, tasks, cpu_percent, cpu_weight, io_weight, io_read, io_write of all together (repeatable)")
	f.shared.register(c)
	networkFlags(fl, &f.network, &f.allow, &f.transparent)
	fl.StringVar(&f.seccomp, "seccomp", "", "system-call `PROFILE` default, strict, debug, nested or audit")
	fl.StringVar(&f.policy, "policy", "", "a sandbox policy's `FILE`, TOML or JSON; other flags go first (see yoi policy)")
	fl.StringArrayVar(&f.require, "require", nil, "refuse to start without this `PROTECTION`: landlock, limits or id_range (repeatable)")
	fl.StringVar(&f.ids, "ids", "", "as an ordinary user: `range` gives the sandbox the user's subordinate ids too (default: the user's own id alone)")
	f.root.add(fl)
	f.authority.register(c, true)
	return c
}

func (a *app) run(cmd *cobra.Command, f runFlags, argv []string) error {
	req, err := a.runRequest(f, argv)
	if err != nil {
		return err
	}
	// Signals are the command's from here on, so the context must not end by them.
	signals := make(chan os.Signal, 16)
	signal.Reset(unix.SIGINT, unix.SIGTERM)
	signal.Notify(signals, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGCONT)
	defer signal.Stop(signals)
	req.Signals = signals
	if a.json {
		req.Stdout = a.stderr
	}
	req.Progress = a.progress.show
	res, err := runtime.RunEmbedded(cmd.Context(), req)
	a.printWarnings(res.Warnings)
	if err != nil {
		return err
	}
	a.code = res.ExitCode
	a.printRun(f, res)
	if a.json {
		return a.printJSON(res.Evidence)
	}
	return nil
}

// printRun says on stderr what the exit code does not: what the command went
// without, that a limit ended it, and the name of what was kept.
func (a *app) printRun(f runFlags, res runtime.RunResult) {
	for _, w := range res.Evidence.Workers {
		a.printWarnings(w.Diagnostics)
		a.printDenied(w)
		if w.Outcome != nil && w.Outcome.Exceeded != "" {
			fmt.Fprintf(a.stderr, "yoi: the command was ended by its quota: %s\n", policy.Printable(w.Outcome.Exceeded))
		}
		if w.Outcome != nil && w.Outcome.TimedOut {
			fmt.Fprintf(a.stderr, "yoi: the command was ended by --timeout %s\n", f.timeout)
		}
	}
	if f.keep && !a.json {
		fmt.Fprintf(a.stderr, "yoi: kept %s\n", res.Evidence.AllocationID)
	}
	if a.verbose {
		fmt.Fprintf(a.stderr, "yoi: %s\n", policy.Printable(res.Summary))
	}
}

func (a *app) runRequest(f runFlags, argv []string) (runtime.RunRequest, error) {
	req := runtime.RunRequest{
		RuntimeRoot: a.root, Repo: f.repo, Scope: f.scope, Branch: f.branch,
		Strategy: policy.StrategyName(f.strategy), DirtyState: policy.DirtyStatePolicy(f.dirty),
		RelativeCwd: f.cwd, Command: argv, Keep: f.keep, Results: a.json || f.keep,
		Stdin: os.Stdin, Stdout: a.stdout, Stderr: a.stderr, Log: a.log(),
	}
	var err error
	if req.Selector, err = parseRev(f.rev); err != nil {
		return req, err
	}
	req.Sandbox = policy.SandboxPolicy{
		Network: networkOf(f.network, f.allow, f.transparent),
		Seccomp: policy.SeccompProfile(f.seccomp),
		Require: protections(f.require), IDs: policy.IDs(f.ids),
	}
	if req.Sandbox.Root, err = f.root.profile(); err != nil {
		return req, err
	}
	if req.Sandbox.Env, err = parseEnv(f.env); err != nil {
		return req, err
	}
	if req.Sandbox.Limits, err = parseLimits(f.limits); err != nil {
		return req, err
	}
	req.Sandbox.Limits.WallClock = f.timeout
	if req.Caches, err = f.shared.apply(&req.Sandbox); err != nil {
		return req, err
	}
	if req.Secrets, err = f.authority.apply(&req.Sandbox); err != nil {
		return req, err
	}
	if req.Sandbox, err = a.underPolicy(f.policy, req.Sandbox); err != nil {
		return req, err
	}
	if f.patch != "" {
		if req.DirtyState == "" {
			req.DirtyState = policy.PatchArtifact
		}
		if req.Patch, req.PatchContent, err = patchArgument(f.patch); err != nil {
			return req, err
		}
		if f.patch == "-" {
			req.Stdin = nil // read to its end
		}
	}
	return req, req.Sandbox.Validate()
}

// protections reads --require; the policy says which there are.
func protections(names []string) (out []policy.Protection) {
	for _, n := range names {
		out = append(out, policy.Protection(n))
	}
	return out
}

// parseRev reads --rev. Empty is HEAD to the policy, but on a command line it is
// more likely a variable that was never set.
func parseRev(s string) (policy.Selector, error) {
	if s == "" {
		return policy.Selector{}, policy.Errorf(policy.CodeSelectorInvalid, "yoi.rev", "the selector is empty")
	}
	return policy.ParseSelector(s)
}

// parseEnv reads K=V, and K alone as the caller's own value.
func parseEnv(list []string) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil
	}
	env := make(map[string]string, len(list))
	for _, s := range list {
		k, v, ok := strings.Cut(s, "=")
		if !ok {
			if v, ok = os.LookupEnv(k); !ok {
				return nil, policy.Errorf(policy.CodeEnvironmentInvalid, "yoi.env", "the caller has no variable %q", policy.Printable(k))
			}
		}
		env[k] = v
	}
	return env, nil
}

// parseLimits reads NAME=VALUE. Sizes take K, M and G; times are durations.
func parseLimits(list []string) (l policy.Limits, err error) {
	for _, s := range list {
		name, v, ok := strings.Cut(s, "=")
		if !ok {
			return l, usageError{fmt.Errorf("--limit %q is not NAME=VALUE", s)}
		}
		switch name {
		case "open_files":
			l.OpenFiles, err = policy.ParseSize(v)
		case "processes":
			l.Processes, err = policy.ParseSize(v)
		case "file_size":
			l.FileSize, err = policy.ParseSize(v)
		case "address_space":
			l.AddressSpace, err = policy.ParseSize(v)
		case "stack_size":
			l.StackSize, err = policy.ParseSize(v)
		case "cpu_time":
			l.CPUTime, err = time.ParseDuration(v)
		case "tmp_size":
			l.TmpSize, err = policy.ParseSize(v)
		case "home_size":
			l.HomeSize, err = policy.ParseSize(v)
		case "shm_size":
			l.ShmSize, err = policy.ParseSize(v)
		case "log_size":
			l.LogSize, err = policy.ParseSize(v)
		case "nice":
			l.Nice, err = strconv.Atoi(v)
		case "oom_score_adj":
			l.OOMScoreAdj, err = strconv.Atoi(v)
		case "memory_max":
			l.MemoryMax, err = policy.ParseSize(v)
		case "memory_high":
			l.MemoryHigh, err = policy.ParseSize(v)
		case "swap_max":
			l.SwapMax, err = policy.ParseSize(v)
		case "tasks":
			l.Tasks, err = policy.ParseSize(v)
		case "cpu_percent":
			l.CPUPercent, err = policy.ParseSize(v)
		case "cpu_weight":
			l.CPUWeight, err = policy.ParseSize(v)
		case "io_weight":
			l.IOWeight, err = policy.ParseSize(v)
		case "io_read":
			l.IORead, err = policy.ParseSize(v)
		case "io_write":
			l.IOWrite, err = policy.ParseSize(v)
		default:
			err = errors.New("there is no such limit")
		}
		if err != nil {
			return l, policy.Errorf(policy.CodeLimitsInvalid, "yoi.limit", "--limit %s: %s", policy.Printable(s), policy.Printable(err.Error()))
		}
	}
	return l, nil
}

// progress shows slow work on one line of a terminal.
type progress struct {
	out   *os.File
	on    bool
	shown bool
	last  time.Time
}

func newProgress(out *os.File) *progress {
	return &progress{out: out, on: term.IsTerminal(int(out.Fd()))}
}

func (p *progress) show(r runtime.RunProgress) {
	if !p.on {
		return
	}
	if r.Finished {
		p.clear()
		return
	}
	if time.Since(p.last) < 50*time.Millisecond {
		return
	}
	p.last, p.shown = time.Now(), true
	line := policy.Printable(r.Phase)
	if r.Total > 0 {
		line += fmt.Sprintf(" %d%% (%d/%d)", r.Done*100/r.Total, r.Done, r.Total)
	} else if r.Done > 0 {
		line += fmt.Sprintf(" %d", r.Done)
	}
	fmt.Fprintf(p.out, "\r\x1b[K%s", line)
}

// showGit is show for what git does under the other commands.
func (p *progress) showGit(g gitcache.Progress) {
	p.show(runtime.RunProgress{Phase: g.Phase, Done: g.Done, Total: g.Total})
}

func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.shown = false
	}
}
