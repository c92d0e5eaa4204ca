// Command yoi-runtimed serves a Runtime root: the API on a unix socket, the
// registry, and git. It needs no privilege; what does is yoi-helper's.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"os/user"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/api"
	"yoi.dev/yoi-runtime/internal/journal"
	"yoi.dev/yoi-runtime/internal/metrics"
	"yoi.dev/yoi-runtime/internal/notify"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/systemd"
)

type flags struct {
	root, socket, helper string
	workspace            string
	allow, groups        []string
	verbose              bool
	format               string
}

func main() {
	notify.Frugal()
	var f flags
	usage := false
	c := command(&f, &usage)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	if err := c.ExecuteContext(ctx); err != nil {
		d := policy.AsDiagnostic(err)
		if usage {
			fmt.Fprintf(os.Stderr, "yoi-runtimed: %v\n", err)
			os.Exit(2)
		}
		fmt.Fprintf(os.Stderr, "yoi-runtimed: %v\nhint: %s\ncode: %s\n", err, d.Hint, d.Code)
		os.Exit(1)
	}
}

// command is the program's command line. usage tells whether a mistake was made on it.
func command(f *flags, usage *bool) *cobra.Command {
	c := &cobra.Command{
		Use:   "yoi-runtimed",
		Short: "Serve a Runtime root on a unix socket",
		Long: `Serve a Runtime root: the API on a unix socket (or on one that systemd passes).
With --helper-socket the privileged work is yoi-helper's; without, it is done in
this process, with this process' privilege.

Exit codes: 0 ended by a signal; 1 refused or failed; 2 wrong usage.`,
		Example:       "  yoi-runtimed --runtime-root /var/lib/yoi --socket /run/yoi/runtimed.sock --helper-socket /run/yoi/helper.sock",
		SilenceErrors: true, SilenceUsage: true, Version: runtime.Version,
		Args: func(cmd *cobra.Command, argv []string) error {
			err := cobra.NoArgs(cmd, argv)
			*usage = err != nil
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), *f) },
	}
	fl := c.Flags()
	fl.StringVar(&f.root, "runtime-root", os.Getenv("YOI_RUNTIME_ROOT"), "the Runtime root `DIR` (env YOI_RUNTIME_ROOT)")
	fl.StringVar(&f.socket, "socket", os.Getenv("YOI_SOCKET"), "the API's socket `PATH` (env YOI_SOCKET; default runtimed.sock in the Runtime root)")
	fl.StringVar(&f.helper, "helper-socket", "", "yoi-helper's socket `PATH`")
	fl.StringArrayVar(&f.allow, "allow-uid", nil, "admit this `UID` beside root and the daemon's own (repeatable)")
	fl.StringArrayVar(&f.groups, "allow-group", nil, "admit the members of this `GROUP`, by name or id (repeatable)")
	fl.StringVar(&f.workspace, "workspace", "", "legacy: register the repository at `DIR` at the start; use yoi repo add")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "log every request")
	fl.StringVar(&f.format, "log-format", "auto", "where the log goes: `FORMAT` "+journal.Formats)
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { *usage = true; return err })
	return c
}

func serve(ctx context.Context, f flags) (err error) {
	level := slog.LevelInfo
	if f.verbose {
		level = slog.LevelDebug
	}
	log, err := journal.Open(journal.Options{Format: f.format, Identifier: "yoi-runtimed", Level: level, Stderr: os.Stderr})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	if err = run(ctx, f, log); err != nil && log.Journal != nil {
		log.Error("ended", "error", err)
	}
	return err
}

// output is what makes Workers' lines entries of the journal, nil where there is none.
func output(w *journal.Writer) func(context.Context, runtime.OutputLine) error {
	if w == nil {
		return nil
	}
	return func(ctx context.Context, l runtime.OutputLine) error {
		return w.Send(ctx, journal.Entry{
			Message: l.Text, Priority: journal.Info, Identifier: "yoi-worker", Stream: l.Stream,
			Runtime: l.RuntimeID, Workspace: l.WorkspaceID, Allocation: l.AllocationID, Worker: l.WorkerID,
		})
	}
}

func run(ctx context.Context, f flags, journaled *journal.Log) (err error) {
	log := journaled.Logger
	meter := metrics.New(journaled.Lost)
	uids, err := parseUIDs(f.allow)
	if err != nil {
		return err
	}
	gids, err := findGroups(f.groups)
	if err != nil {
		return err
	}
	if f.root == "" {
		if f.root, err = runtime.DefaultRoot(); err != nil {
			return err
		}
	}
	options := runtime.Options{Root: f.root, Daemon: true, HelperSocket: f.helper, Log: log, Output: output(journaled.Journal), Meter: meter}
	if f.helper == "" {
		if m := systemd.Own(); m != nil {
			defer m.Close()
			options.Scopes = m
		}
	}
	r, err := runtime.Open(ctx, options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	log = log.With("runtime", r.ID())
	rep, err := r.Recover(ctx)
	if err != nil {
		return err
	}
	log.Info("recovered", "leftovers", rep.Leftovers, "removed", rep.Removed, "adopted", rep.Adopted, "kept", rep.Kept)
	if err := bootstrap(ctx, r, f.workspace, log); err != nil {
		return err
	}
	listeners, err := listen(ctx, f)
	if err != nil {
		return err
	}
	s := api.NewServer(api.Options{Service: r, Log: log, Failed: meter.Failed, AllowUIDs: uids, AllowGIDs: gids, AdmitSelf: true})
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { failed <- s.Serve(l) }()
	}
	manager := &notify.Manager{Log: log, Check: statusLine(listeners[0])}
	manager.Ready()
	background, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { manager.KeepAlive(background, r.Changed) })
	wg.Go(func() { logDoctor(background, r, log) })
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, unix.SIGHUP)
	defer signal.Stop(hup)
	for err == nil && ctx.Err() == nil {
		select {
		case err = <-failed:
		case <-ctx.Done():
		case <-hup:
			_ = manager.Reload(func() error { return r.Reload(ctx) }) // it has said why not
		}
	}
	manager.Stopping()
	grace, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if serr := s.Shutdown(grace); serr != nil {
		log.Warn("some requests were cut off", "error", serr)
	}
	return err
}

// statusLine asks as any client does, over a connection of its own.
func statusLine(l net.Listener) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		c := api.NewClient(l.Addr().String())
		defer c.Close()
		s, err := c.Status(ctx)
		return s.Line(), err
	}
}

// logDoctor tells an operator who reads the log, not the host, what is amiss with it.
func logDoctor(ctx context.Context, r *runtime.Runtime, log *slog.Logger) {
	rep, err := r.Doctor(ctx)
	if err != nil {
		if ctx.Err() == nil {
			log.Warn("doctor cannot tell what this host can do", "error", err)
		}
		return
	}
	for _, c := range rep.Checks {
		if c.State != "ok" {
			log.Warn("doctor: "+c.Message, "check", c.Name, "state", c.State, "fix", c.Fix)
		}
	}
	log.Info("doctor", "severity", rep.Severity, "checks", len(rep.Checks))
}

// bootstrap registers what the legacy flag --workspace names. That is all the
// flag does: the Runtime's identity and scope do not depend on it, and one
// Runtime serves many repositories.
func bootstrap(ctx context.Context, r *runtime.Runtime, dir string, log *slog.Logger) error {
	if dir == "" {
		return nil
	}
	repo, err := r.AddRepository(ctx, runtime.AddRepositoryRequest{Source: dir})
	if err != nil {
		return err
	}
	d := policy.Warnf(policy.CodeWorkspaceFlagLegacy, "runtimed.bootstrap", "--workspace is a legacy input: %s is registered as the repository %s", policy.Printable(dir), repo.ID)
	log.Warn("noted", "error", d)
	return nil
}

// listen takes the sockets that systemd passed, or makes one.
func listen(ctx context.Context, f flags) ([]net.Listener, error) {
	passed, err := api.Activated()
	if err != nil || len(passed) > 0 {
		return passed, err
	}
	path := f.socket
	if path == "" {
		path = api.DefaultSocket(f.root)
	}
	l, err := api.Listen(ctx, path)
	if err != nil {
		return nil, err
	}
	return []net.Listener{l}, nil
}

func parseUIDs(list []string) ([]uint32, error) {
	var out []uint32
	for _, s := range list {
		n, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			return nil, policy.Errorf(policy.CodeConfigInvalid, "runtimed.flags", "%q is not a uid", policy.Printable(s))
		}
		out = append(out, uint32(n))
	}
	return out, nil
}

// findGroups looks groups up, by name first: a name may be made of digits.
func findGroups(list []string) ([]uint32, error) {
	var out []uint32
	for _, s := range list {
		id := s
		if g, err := user.LookupGroup(s); err == nil {
			id = g.Gid
		}
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil, policy.Errorf(policy.CodeConfigInvalid, "runtimed.flags", "there is no group %q", policy.Printable(s)).
				WithHint("Name a group of this host, or its id.")
		}
		out = append(out, uint32(n))
	}
	return out, nil
}
