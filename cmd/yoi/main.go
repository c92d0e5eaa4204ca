// Command yoi gives a command its own working tree at an exact commit, inside a
// sandbox. `yoi run` does everything in one process; the other commands use
// the daemon of a Runtime root if one answers, else the Runtime root itself.
package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/api"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// The exit codes of every command but run, whose own are docker's and env's.
const (
	exitOK      = 0
	exitRefused = 1
	exitUsage   = 2
	// exitInterrupted is what a shell reports for a command that SIGINT ended.
	exitInterrupted = 130
)

// app is what all commands share: the global flags and the streams.
type app struct {
	root    string
	socket  string
	json    bool
	verbose bool

	stdout, stderr *os.File
	// progress is the line of a terminal that has to go before anything is printed.
	progress *progress
	// code is the exit code of a command that has ended without an error.
	code int
}

func main() {
	os.Exit(newApp().main(os.Args[1:]))
}

func newApp() *app {
	return &app{stdout: os.Stdout, stderr: os.Stderr, progress: newProgress(os.Stderr)}
}

func (a *app) main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	root := a.command()
	root.SetArgs(args)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return a.code
	}
	var u usageError
	switch {
	case errors.As(err, &u):
		a.printUsage(cmd, u.err)
		return a.failCode(cmd, exitUsage)
	case ctx.Err() != nil && errors.Is(err, policy.CodeCanceled):
		return exitInterrupted // by the caller, who knows
	}
	a.printError(err)
	return a.failCode(cmd, exitOf(cmd, err))
}

// failCode is code, or for run and exec docker's 125: 1 and 2 belong to the command.
func (a *app) failCode(cmd *cobra.Command, code int) int {
	if ownCode(cmd) && code < 125 {
		return 125
	}
	return code
}

// ownCode: the command exits with the code of what it ran.
func ownCode(cmd *cobra.Command) bool {
	switch cmd.CommandPath() {
	case "yoi run", "yoi worker exec", "yoi worker attach":
		return true
	}
	return false
}

// exitOf maps a refusal to an exit code; for run, 127 and 126 are a command
// that is not there or cannot be executed.
func exitOf(cmd *cobra.Command, err error) int {
	if ownCode(cmd) {
		switch {
		case errors.Is(err, policy.CodeCommandNotFound):
			return 127
		case errors.Is(err, policy.CodeCommandNotExecutable):
			return 126
		}
	}
	return exitRefused
}

// usageError is a mistake on the command line.
type usageError struct{ err error }

func (u usageError) Error() string { return u.err.Error() }
func (u usageError) Unwrap() error { return u.err }

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "yoi",
		Short: "Working trees and sandboxes for coding agents",
		Long: `yoi gives every command its own working tree at an exact commit, in
milliseconds and almost no disk, inside a sandbox in which git just works.

Exit codes: 0 done; 1 refused or failed, with a diagnostic; 2 wrong usage;
130 interrupted. With --json a refusal is a problem document (RFC 9457) on stderr.
yoi run exits with the command's own code; see yoi run --help.`,
		Example: "  yoi run --repo . --rev HEAD -- make\n  yoi ws list\n  yoi doctor",
		// Without these an unknown command is cobra's error, not a usage error.
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },

		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       runtime.Version,
	}
	f := root.PersistentFlags()
	f.StringVar(&a.root, "runtime-root", os.Getenv("YOI_RUNTIME_ROOT"), "the Runtime root `DIR` (env YOI_RUNTIME_ROOT; default ~/.yoi/runtimes/default)")
	f.StringVar(&a.socket, "socket", os.Getenv("YOI_SOCKET"), "the daemon's socket `PATH` (env YOI_SOCKET; default: the Runtime root's, if a daemon answers)")
	for _, name := range []string{"runtime-root", "socket"} {
		f.Lookup(name).DefValue = "" // help is the same whatever the environment
	}
	f.BoolVar(&a.json, "json", false, "print JSON")
	f.BoolVarP(&a.verbose, "verbose", "v", false, "say more on stderr")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(a.runCommand(), a.repoCommand(), a.snapshotCommand(), a.patchCommand(), a.bundleCommand(), a.wsCommand(), a.workerCommand(), a.imageCommand(), a.policyCommand(), a.ledgerCommand(),
		a.doctorCommand(), a.statusCommand(), a.gcCommand(), a.eventsCommand(), a.metricsCommand(), a.infoCommand(), a.versionCommand())
	return root
}

// args makes cobra's argument errors usage errors.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError{err}
		}
		return nil
	}
}

// groupCommand is a command that only holds others.
func groupCommand(name, short, example string, children ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: name, Short: short, Example: example,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usageError{errors.New("a subcommand is missing")}
		},
	}
	c.AddCommand(children...)
	return c
}

// log is for what went wrong beside the request, such as space that could not be
// reclaimed; -v shows it.
func (a *app) log() *slog.Logger {
	level := slog.LevelError
	if a.verbose {
		level = slog.LevelWarn
	}
	return slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: level}))
}

// with opens the service that the flags name and calls f: the daemon's if one
// was named or answers at the Runtime root's own socket, else the Runtime root.
func (a *app) with(ctx context.Context, f func(runtime.Service) error) error {
	if s := a.daemon(ctx); s != nil {
		return f(s)
	}
	r, err := runtime.Open(ctx, runtime.Options{Root: a.root, Log: a.log(), Progress: a.progress.showGit})
	if err != nil {
		return err
	}
	return errors.Join(f(r), r.Close())
}

// withRecovered is with for what makes, lists or removes workspaces, Workers and
// images: what a crash left behind is no longer there. A daemon has seen to that at
// its start. Commands that only look at one thing change nothing.
func (a *app) withRecovered(ctx context.Context, f func(runtime.Service) error) error {
	return a.with(ctx, func(s runtime.Service) error {
		if r, ok := s.(*runtime.Runtime); ok {
			a.printWarnings(r.RecoverLeftovers(ctx))
		}
		return f(s)
	})
}

// daemon is a client of the daemon, nil if none was named and none answers.
func (a *app) daemon(ctx context.Context) runtime.Service {
	if a.socket != "" {
		return api.NewClient(a.socket)
	}
	root := a.root
	if root == "" {
		var err error
		if root, err = runtime.DefaultRoot(); err != nil {
			return nil // Open says why
		}
	}
	if s := api.DefaultSocket(root); api.Answers(ctx, s) {
		return api.NewClient(s)
	}
	return nil
}
