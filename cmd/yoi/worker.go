package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

func (a *app) workerCommand() *cobra.Command {
	return groupCommand("worker", "Start, watch and stop Workers", "  yoi worker spawn ws-… -- make test\n  yoi worker logs -f wk-…\n  yoi worker stop wk-…",
		a.workerSpawn(), a.workerExec(), a.workerAttach(), a.workerTop(), a.workerPause(), a.workerResume(), a.workerList(), a.workerShow(), a.workerLogs(), a.workerUsage(), a.workerEgress(), a.workerSignal(), a.workerStop(), a.workerWait())
}

func (a *app) workerSpawn() *cobra.Command {
	var repo, cwd, key string
	var env, limits, allow []string
	var timeout time.Duration
	var tty bool
	c := &cobra.Command{
		Use: "spawn WORKSPACE [flags] -- COMMAND [ARG...]", Short: "Start a command on an Execution Workspace and return",
		Long: `Start a command on an Execution Workspace and return. What it can see, use and reach
is what the workspace was made with: --network, --seccomp, --tool, --secret and the
like belong to yoi ws create. --allow opens more to this command alone.`,
		Example: "  yoi worker spawn ws-0123456789abcdef --cwd src -- go test ./...\n  yoi worker spawn ws-0123456789abcdef --tty -- agent",
		Args:    args(cobra.MinimumNArgs(2)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			req := runtime.SpawnWorkerRequest{
				AllocationID: policy.AllocationID(argv[0]), Command: argv[1:], RepositoryID: policy.RepositoryID(repo),
				RelativeCwd: cwd, IdempotencyKey: key, Allow: allow,
			}
			var err error
			if req.Env, err = parseEnv(env); err != nil {
				return err
			}
			if req.Limits, err = parseLimits(limits); err != nil {
				return err
			}
			req.Limits.WallClock = timeout
			if req.Terminal = tty; tty {
				if req.Rows, req.Columns = windowSize(os.Stdin, a.stdout); req.Rows == 0 {
					req.Rows, req.Columns = 24, 80
				}
				if _, set := req.Env["TERM"]; !set && os.Getenv("TERM") != "" {
					req.Env = withTerm(req.Env)
				}
			}
			return a.withRecovered(cmd.Context(), func(s runtime.Service) error {
				w, err := s.SpawnWorker(cmd.Context(), req)
				if err != nil {
					return err
				}
				return a.showWorker(w)
			})
		},
	}
	fl := c.Flags()
	fl.SetInterspersed(true)
	fl.StringVar(&repo, "repository", "", "start in this repository `ID` (default: the workspace's first)")
	fl.StringVar(&cwd, "cwd", "", "start in `DIRECTORY`, relative to the repository's root")
	fl.StringArrayVar(&env, "env", nil, "set `K=V`, or pass the caller's K (repeatable)")
	fl.StringArrayVar(&limits, "limit", nil, "`NAME=VALUE`; see yoi run --help (repeatable)")
	fl.StringArrayVar(&allow, "allow", nil, allowUsage)
	fl.DurationVar(&timeout, "timeout", 0, "end the command after this `DURATION`")
	fl.BoolVarP(&tty, "tty", "t", false, "give it a terminal, for yoi worker attach")
	fl.StringVar(&key, "idempotency-key", "", "a repeated request with this `KEY` returns the first one's Worker")
	return c
}

func (a *app) showWorker(w runtime.Worker) error {
	if a.json {
		return a.printJSON(w)
	}
	kv := []string{
		"id", string(w.ID), "status", workerStatus(w), "workspace", string(w.AllocationID), "command", strings.Join(w.Command, " "),
		"cwd", w.RelativeCwd, "created", ago(w.CreatedAt), "started", ago(w.StartedAt), "ended", ago(w.EndedAt),
	}
	if o := w.Outcome; o != nil {
		kv = append(kv, "outcome", outcome(o), "wall time", o.WallTime.Round(time.Millisecond).String(),
			"cpu time", (o.UserTime + o.SystemTime).Round(time.Millisecond).String(), "peak memory", size(o.MaxRSS))
	}
	if err := a.pairs(kv...); err != nil {
		return err
	}
	a.printWarnings(w.Diagnostics)
	a.printDenied(w)
	return nil
}

// printDenied says on stderr which system calls were refused, under the profile
// audit.
func (a *app) printDenied(w runtime.Worker) {
	if w.Outcome != nil {
		a.printDeniedCalls(w.Outcome.Denied)
	}
}

func (a *app) printDeniedCalls(denied []runtime.DeniedCall) {
	for _, d := range denied {
		fmt.Fprintf(a.stderr, "yoi: refused: %s, by %s: %s, %d times\n", policy.Printable(d.Call), policy.Printable(d.Program), policy.Printable(d.Answer), d.Count)
	}
}

func workerStatus(w runtime.Worker) string {
	if w.Paused {
		return "paused"
	}
	return string(w.Status)
}

func outcome(o *runtime.Outcome) string {
	switch {
	case o == nil:
		return ""
	case o.Lost:
		return "lost"
	case o.TimedOut:
		return "time limit"
	case o.OOMKilled:
		return "out of memory"
	case o.Stopped && o.Signal != "":
		return o.Signal + ", stopped by systemd"
	case o.Stopped:
		return fmt.Sprintf("exit %d, stopped by systemd", o.ExitCode)
	case o.Exceeded != "":
		return o.Signal + ", quota exceeded: " + o.Exceeded
	case o.Signal != "":
		return o.Signal
	case o.TasksDenied:
		return fmt.Sprintf("exit %d, out of tasks", o.ExitCode)
	}
	return fmt.Sprintf("exit %d", o.ExitCode)
}

func (a *app) workerList() *cobra.Command {
	var f runtime.ListFilter
	var ws string
	c := &cobra.Command{
		Use: "list", Short: "List Workers, newest first", Example: "  yoi worker list --status running", Aliases: []string{"ls"},
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.AllocationID = policy.AllocationID(ws)
			return a.withRecovered(cmd.Context(), func(s runtime.Service) error {
				list, err := s.ListWorkers(cmd.Context(), f)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(list)
				}
				rows := make([][]string, 0, len(list.Items))
				for _, w := range list.Items {
					rows = append(rows, []string{string(w.ID), workerStatus(w), outcome(w.Outcome), string(w.AllocationID), ago(w.CreatedAt), strings.Join(w.Command, " ")})
				}
				if err := a.table([]string{"ID", "STATUS", "OUTCOME", "WORKSPACE", "CREATED", "COMMAND"}, rows); err != nil {
					return err
				}
				return a.more(list.Next)
			})
		},
	}
	c.Flags().StringVar(&ws, "workspace", "", "only on this Execution Workspace `ID`")
	a.pageFlags(c, &f)
	return c
}

func (a *app) workerShow() *cobra.Command {
	return a.workerOne("show ID", "Show one Worker and how it ended", "  yoi worker show wk-0123456789abcdef",
		func(cmd *cobra.Command, s runtime.Service, id policy.WorkerID) (runtime.Worker, error) {
			return s.GetWorker(cmd.Context(), id)
		})
}

// workerOne is a command that takes a Worker's id and shows the Worker.
func (a *app) workerOne(use, short, example string, do func(*cobra.Command, runtime.Service, policy.WorkerID) (runtime.Worker, error)) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Example: example, Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				w, err := do(cmd, s, policy.WorkerID(argv[0]))
				if err != nil {
					return err
				}
				return a.showWorker(w)
			})
		},
	}
}

func (a *app) workerLogs() *cobra.Command {
	var req runtime.LogsRequest
	var stderr bool
	c := &cobra.Command{
		Use: "logs ID", Short: "Print a Worker's output as it was written", Example: "  yoi worker logs -f wk-0123456789abcdef\n  yoi worker logs --stderr wk-0123456789abcdef",
		Long: "Print a Worker's output. On a terminal, bytes that could act on it are shown escaped.",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			if stderr {
				req.Stream = "stderr"
			}
			return a.with(cmd.Context(), func(s runtime.Service) error {
				_, err := s.WorkerLogs(cmd.Context(), policy.WorkerID(argv[0]), req, safeOutput(a.stdout))
				if brokenPipe(err) {
					return nil
				}
				return err
			})
		},
	}
	c.Flags().BoolVar(&stderr, "stderr", false, "the standard error instead of the standard output")
	c.Flags().BoolVarP(&req.Follow, "follow", "f", false, "go on until the Worker ends")
	c.Flags().Int64Var(&req.Offset, "offset", 0, "begin at byte `N`; past the end is the end")
	c.Flags().Int64Var(&req.Limit, "limit", 0, "at most `N` bytes")
	return c
}

func (a *app) workerSignal() *cobra.Command {
	return &cobra.Command{
		Use: "signal ID SIGNAL", Short: "Send a signal to a Worker", Example: "  yoi worker signal wk-0123456789abcdef HUP",
		Args: args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				if err := s.SignalWorker(cmd.Context(), policy.WorkerID(argv[0]), runtime.SignalRequest{Signal: argv[1]}); err != nil {
					return err
				}
				if a.json {
					return a.printJSON(map[string]string{"worker": argv[0], "signal": argv[1]})
				}
				return nil
			})
		},
	}
}

func (a *app) workerStop() *cobra.Command {
	var req runtime.StopRequest
	c := a.workerOne("stop ID", "Stop a Worker: TERM, then KILL after the grace", "  yoi worker stop --grace 30s wk-0123456789abcdef",
		func(cmd *cobra.Command, s runtime.Service, id policy.WorkerID) (runtime.Worker, error) {
			return s.StopWorker(cmd.Context(), id, req)
		})
	c.Flags().DurationVar(&req.Grace, "grace", 0, "the `DURATION` between TERM and KILL (default 10s)")
	return c
}

func (a *app) workerWait() *cobra.Command {
	return a.workerOne("wait ID", "Wait until a Worker has ended", "  yoi worker wait wk-0123456789abcdef",
		func(cmd *cobra.Command, s runtime.Service, id policy.WorkerID) (runtime.Worker, error) {
			return s.WaitWorker(cmd.Context(), id)
		})
}
