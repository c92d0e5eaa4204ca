// Command yoi-backend serves a Workspace Backend: people's API and pages in front of
// one or more Runtimes. It needs no privilege but the Runtimes' sockets.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/backend"
	"yoi.dev/yoi-runtime/backend/store"
	"yoi.dev/yoi-runtime/internal/journal"
	"yoi.dev/yoi-runtime/internal/notify"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

type app struct {
	config  string
	verbose bool
	format  string
	usage   bool // the command line was wrong
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	a := &app{}
	if err := a.root().ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "yoi-backend: %v\n", err)
		if a.usage {
			os.Exit(2)
		}
		d := policy.AsDiagnostic(err)
		if d.Hint != "" {
			fmt.Fprintf(os.Stderr, "hint: %s\n", d.Hint)
		}
		fmt.Fprintf(os.Stderr, "code: %s\n", d.Code)
		os.Exit(1)
	}
}

func (a *app) root() *cobra.Command {
	c := &cobra.Command{
		Use:   "yoi-backend",
		Short: "Serve workspaces to browsers",
		Long: `Serve workspaces to browsers: an API and pages on which people create, inspect, use
and clean up Execution Workspaces. It talks to Runtimes over their sockets only.

Exit codes: 0 ended by a signal, or done; 1 refused or failed; 2 wrong usage.`,
		Example:      "  yoi-backend serve --config /etc/yoi/backend.toml\n  yoi-backend user add ada --role demo=operator",
		SilenceUsage: true, SilenceErrors: true, Version: runtime.Version,
	}
	c.PersistentFlags().StringVar(&a.config, "config", os.Getenv("YOI_BACKEND_CONFIG"), "the configuration `FILE` (env YOI_BACKEND_CONFIG)")
	c.PersistentFlags().StringVar(&a.format, "log-format", "auto", "where the log goes: `FORMAT` "+journal.Formats)
	c.PersistentFlags().BoolVarP(&a.verbose, "verbose", "v", false, "log every request")
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { a.usage = true; return err })
	user := &cobra.Command{Use: "user", Short: "Manage people", Example: "  yoi-backend user add ada --role demo=operator"}
	user.AddCommand(a.userAdd(), a.userRemove())
	token := &cobra.Command{Use: "token", Short: "Manage programs' tokens", Example: "  yoi-backend token add --workspace demo --role viewer --label ci"}
	token.AddCommand(a.tokenAdd(), a.tokenList(), a.tokenRemove())
	c.AddCommand(a.serve(), a.check(), user, token)
	return c
}

func (a *app) args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, argv []string) error {
		err := check(cmd, argv)
		a.usage = err != nil
		return err
	}
}

func (a *app) load() (backend.Config, error) {
	if a.config == "" {
		a.usage = true
		return backend.Config{}, errors.New("--config is missing")
	}
	return backend.LoadConfig(a.config)
}

// with opens the store.
func (a *app) with(ctx context.Context, do func(backend.Config, *store.Store) error) error {
	cfg, err := a.load()
	if err == nil {
		err = cfg.CheckStore()
	}
	if err != nil {
		return err
	}
	s, err := store.Open(ctx, cfg.Store)
	if err != nil {
		return err
	}
	return errors.Join(do(cfg, s), s.Close())
}

func (a *app) check() *cobra.Command {
	return &cobra.Command{
		Use: "check", Short: "Check the configuration", Example: "  yoi-backend check --config backend.toml",
		Args: a.args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.load()
			if err == nil {
				err = cfg.Check()
			}
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), "the configuration is valid")
			}
			return err
		},
	}
}

func (a *app) serve() *cobra.Command {
	return &cobra.Command{
		Use: "serve", Short: "Serve until a signal", Example: "  yoi-backend serve --config backend.toml",
		Args: a.args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			cfg, err := a.load()
			if err != nil {
				return err
			}
			level := slog.LevelInfo
			if a.verbose {
				level = slog.LevelDebug
			}
			log, err := journal.Open(journal.Options{Format: a.format, Identifier: "yoi-backend", Level: level, Stderr: cmd.ErrOrStderr()})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, log.Close()) }()
			b, err := backend.New(cmd.Context(), cfg, log.Logger)
			if err != nil {
				return err
			}
			l, err := b.Listen()
			if err != nil {
				return errors.Join(err, b.Shutdown(context.Background()))
			}
			at := cfg.Listen.Socket
			if at == "" {
				scheme := "http"
				if cfg.Listen.TLSCert != "" {
					scheme = "https"
				}
				at = scheme + "://" + l.Addr().String()
			}
			fmt.Fprintln(cmd.OutOrStdout(), at)
			return a.answer(cmd.Context(), b, l, log.Logger)
		},
	}
}

// answer serves until ctx ends, and tells the service manager how it goes.
func (a *app) answer(ctx context.Context, b *backend.Backend, l net.Listener, log *slog.Logger) error {
	served := make(chan error, 1)
	go func() { served <- b.Serve(l) }()
	manager := &notify.Manager{Log: log, Check: func(ctx context.Context) (string, error) { return b.Alive(ctx, l) }}
	manager.Ready()
	background, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	changed := make(chan struct{}, 1)
	wg.Go(func() { manager.KeepAlive(background, func() <-chan struct{} { return changed }) })
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, unix.SIGHUP)
	defer signal.Stop(hup)
	for {
		select {
		case err := <-served:
			return errors.Join(err, b.Shutdown(context.Background()))
		case <-hup:
			_ = manager.Reload(func() error { return b.Reload(a.config) }) // it has said why not
			select {
			case changed <- struct{}{}:
			default: // the status line is about to be told anyway
			}
			continue
		case <-ctx.Done():
		}
		break
	}
	manager.Stopping()
	grace, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return errors.Join(b.Shutdown(grace), <-served)
}
