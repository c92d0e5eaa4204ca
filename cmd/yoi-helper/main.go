// Command yoi-helper is the privileged side of the runtime: it clones trees,
// makes sandboxes, kills and deletes, below one Runtime root, for the peers
// that its socket admits. See package helper.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/internal/journal"
	"yoi.dev/yoi-runtime/internal/notify"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/systemd"
)

const usage = `yoi-helper serves the privileged side of yoi-runtime on a unix socket.

  yoi-helper --runtime-root DIR --socket PATH [--allow-uid UID,UID…]

  --runtime-root DIR  the one Runtime root it acts in; it must exist
  --socket PATH       a SOCK_SEQPACKET socket, made unless systemd passed one
  --allow-uid LIST    uids admitted beside root; default: the root's owner
  --id-base N         first uid of the pool of Workers' ranges (default %d)
  --id-count N        number of ranges of 65536 uids (default %d)
  --rebind            a backup was restored: write down in the ledger which
                      directories are there now, and end
  --no-scopes         under systemd too, keep Workers below the service's own group
  --log-format FORMAT where the log goes: %s (default auto)
  -v                  log every request

example: yoi-helper --runtime-root /var/lib/yoi --socket /run/yoi/helper.sock
`

// spareNetworks is for the launches of a moment: each is made in half a
// millisecond, behind the launch that took one.
const spareNetworks = 4

func main() {
	notify.Frugal()
	if err := run(); err != nil {
		d := policy.AsDiagnostic(err)
		fmt.Fprintf(os.Stderr, "yoi-helper: %v\nhint: %s\ncode: %s\n", err, d.Hint, d.Code)
		os.Exit(1)
	}
}

func usageText() string {
	return fmt.Sprintf(usage, helper.DefaultIDPool.Base, helper.DefaultIDPool.Count, journal.Formats)
}

type config struct {
	root, socket string
	allow        []uint32
	pool         helper.IDPool
	verbose      bool
	noScopes     bool
	format       string
	rebind       bool
}

func parse() (c config, err error) {
	c.pool = helper.DefaultIDPool
	var allow string
	base, count := uint(c.pool.Base), uint(c.pool.Count)
	flag.Usage = func() { fmt.Fprint(flag.CommandLine.Output(), usageText()) }
	flag.StringVar(&c.root, "runtime-root", "", "")
	flag.StringVar(&c.socket, "socket", "", "")
	flag.StringVar(&allow, "allow-uid", "", "")
	flag.UintVar(&base, "id-base", base, "")
	flag.UintVar(&count, "id-count", count, "")
	flag.BoolVar(&c.verbose, "v", false, "")
	flag.StringVar(&c.format, "log-format", "auto", "")
	flag.BoolVar(&c.rebind, "rebind", false, "")
	flag.BoolVar(&c.noScopes, "no-scopes", false, "")
	flag.Parse()
	if flag.NArg() > 0 || c.root == "" {
		flag.Usage()
		os.Exit(2)
	}
	c.pool = helper.IDPool{Base: uint32(base), Count: uint32(count)}
	if err := c.pool.Validate(); err != nil {
		return c, err
	}
	for _, s := range strings.FieldsFunc(allow, func(r rune) bool { return r == ',' }) {
		n, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			return c, policy.Errorf(policy.CodeConfigInvalid, "helper.flags", "%q is not a uid", policy.Printable(s))
		}
		c.allow = append(c.allow, uint32(n))
	}
	return c, nil
}

// sharedUmask: the daemon reads what the helper writes in the Runtime root, which
// lets nobody else in; a service manager's umask of 077 must not lock it out.
const sharedUmask = 0o022

func run() (err error) {
	c, err := parse()
	if err != nil {
		return err
	}
	unix.Umask(sharedUmask)
	level := slog.LevelWarn
	if c.verbose {
		level = slog.LevelDebug
	}
	log, err := journal.Open(journal.Options{Format: c.format, Identifier: "yoi-helper", Level: level, Stderr: os.Stderr})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	if err = serve(c, log.Logger); err != nil && log.Journal != nil {
		log.Error("ended", "error", err)
	}
	return err
}

func serve(c config, log *slog.Logger) (err error) {
	root, err := rootdir.Open(c.root)
	if err != nil {
		return err
	}
	defer root.Close()
	if id, err := root.ReadFile(rootdir.RuntimeID, 128); err == nil {
		log = log.With("runtime", string(id))
	}
	lock, err := lockRoot(root)
	if err != nil {
		return err
	}
	defer lock.Close()
	// Whoever comes first makes the directory, and it is the root's owner's.
	dir, err := root.Ensure(rootdir.Ledger)
	if err != nil {
		return policy.Errorf(policy.CodeLedgerFailed, "helper.open", "the ledger's directory cannot be opened").Because(err)
	}
	defer dir.Close()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	l, err := ledger.Open(ctx, ledger.Options{Dir: dir, Role: ledger.RoleHelper})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	var scopes helper.Scopes
	if systemd.Booted() && !c.noScopes {
		m := new(systemd.Manager)
		defer m.Close()
		scopes = m
	}
	h, err := helper.NewLocal(helper.LocalOptions{Root: root, Ledger: l, LedgerDir: dir, Role: ledger.RoleHelper, SpareNetworks: spareNetworks, IDPool: c.pool, Scopes: scopes, Log: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	if c.rebind {
		n, err := h.Rebind(ctx)
		if err == nil {
			fmt.Printf("%d directories are what the ledger means now\n", n)
		}
		return err
	}
	h.PrepareGroups()
	if _, err := h.Recover(ctx); err != nil {
		return err
	}
	listener, err := listen(c.socket, root)
	if err != nil {
		return err
	}
	manager := &notify.Manager{Log: log, Check: func(ctx context.Context) (string, error) { return statusLine(ctx, listener, l) }}
	manager.Ready()
	background, end := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end()
	wg.Go(func() { manager.KeepAlive(background, nil) })
	defer manager.Stopping()
	allow := append([]uint32{0, uint32(root.UID)}, c.allow...)
	return (&helper.Server{Helper: h, AllowUIDs: allow, Log: log}).Serve(ctx, listener)
}

// statusLine asks as the daemon does, over a connection of its own, and for a turn at
// the ledger, which every act needs.
func statusLine(ctx context.Context, at net.Listener, l *ledger.Ledger) (string, error) {
	r := helper.Dial(at.Addr().String())
	workers, err := r.Live(ctx)
	if err := errors.Join(err, l.Sync(ctx), r.Close()); err != nil {
		return "", err
	}
	if len(workers) == 1 {
		return "1 Worker", nil
	}
	return fmt.Sprintf("%d Workers", len(workers)), nil
}

// lockRoot refuses a second helper on one Runtime root: two would not know each
// other's Workers.
func lockRoot(root *rootdir.Root) (*os.File, error) {
	const op = "helper.lock"
	f, err := root.OpenFile(rootdir.HelperLock, unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		return nil, policy.Errorf(policy.CodeRuntimeRootInvalid, op, "the helper's lock cannot be opened").Because(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, policy.Errorf(policy.CodeRuntimeRootBusy, op, "another helper serves this Runtime root").Because(err)
	}
	return f, nil
}

// listen takes the socket that systemd passed (sd_listen_fds(3)), or makes one
// that only root and the Runtime root's owner can reach.
func listen(path string, root *rootdir.Root) (*net.UnixListener, error) {
	const op = "helper.listen"
	if files := notify.Sockets(); len(files) > 0 {
		l, err := net.FileListener(files[0])
		if err != nil {
			return nil, policy.Errorf(policy.CodeUnavailable, op, "the socket from systemd cannot be used").Because(err)
		}
		u, ok := l.(*net.UnixListener)
		if !ok {
			return nil, policy.Errorf(policy.CodeUnavailable, op, "the socket from systemd is not a unix socket")
		}
		return u, nil
	}
	if path == "" {
		return nil, policy.Errorf(policy.CodeConfigInvalid, op, "no socket is given").WithHint("Name one with --socket.")
	}
	if c, err := net.Dial("unixpacket", path); err == nil {
		c.Close()
		return nil, policy.Errorf(policy.CodeRuntimeRootBusy, op, "another helper answers on the socket")
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, policy.Errorf(policy.CodeUnavailable, op, "the old socket cannot be removed").Because(err)
	}
	old := unix.Umask(0o177)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	unix.Umask(old)
	if err != nil {
		return nil, policy.Errorf(policy.CodeUnavailable, op, "the socket cannot be made").Because(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(path, root.UID, root.GID); err != nil {
			l.Close()
			return nil, policy.Errorf(policy.CodeUnavailable, op, "the socket cannot be given to the Runtime root's owner").Because(err)
		}
	}
	return l, nil
}
