package notify

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
)

// manager is a service manager's end: what it was told, in order.
func manager(t *testing.T, watchdog string) (told func() string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", watchdog)
	return func() string {
		b := make([]byte, 4096)
		n, err := c.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
}

// errors that a daemon logged.
type logged chan string

func (l logged) Enabled(context.Context, slog.Level) bool { return true }
func (l logged) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l logged) WithGroup(string) slog.Handler            { return l }
func (l logged) Handle(_ context.Context, r slog.Record) error {
	select {
	case l <- r.Message:
	default: // the test has seen enough
	}
	return nil
}

// keepAlive runs KeepAlive until the test ends.
func keepAlive(t *testing.T, m *Manager, changed func() <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); m.KeepAlive(ctx, changed) }()
	t.Cleanup(func() { cancel(); <-done })
}

func TestKeepAlive(t *testing.T) {
	told := manager(t, "20000")
	lines := make(chan string, 4)
	for _, l := range []string{"1 Worker", "1 Worker", "2\nWorkers", "2\nWorkers"} {
		lines <- l
	}
	m := &Manager{Log: slog.New(slog.DiscardHandler), Check: func(ctx context.Context) (string, error) {
		select {
		case l := <-lines:
			return l, nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}}
	keepAlive(t, m, nil)
	for _, want := range []string{"STATUS=1 Worker", "WATCHDOG=1", "WATCHDOG=1", "STATUS=2 Workers", "WATCHDOG=1", "WATCHDOG=1"} {
		if got := told(); got != want {
			t.Errorf("told %q, not %q", got, want)
		}
	}
}

// TestHang: what hangs, whether it looks at its context or not, gets no keep-alive,
// and is not asked twice at once; when it answers again there is one.
func TestHang(t *testing.T) {
	told := manager(t, "20000")
	log, release, asked := make(logged, 16), make(chan error), make(chan bool, 16)
	m := &Manager{Log: slog.New(log), Check: func(context.Context) (string, error) {
		asked <- true
		return "here", <-release
	}}
	keepAlive(t, m, nil)
	<-asked
	for range 3 {
		if msg := <-log; !strings.Contains(msg, "no keep-alive") {
			t.Error(msg)
		}
	}
	if len(asked) != 0 {
		t.Error("what hangs was asked again")
	}
	release <- errors.New("late, and refused")
	<-asked
	release <- nil
	for _, want := range []string{"STATUS=here", "WATCHDOG=1"} {
		if got := told(); got != want {
			t.Errorf("the first that was told is %q, not %q", got, want)
		}
	}
	close(release)
}

// TestChanged: without a watchdog the status line follows what changes.
func TestChanged(t *testing.T) {
	told := manager(t, "")
	changes, n := make(chan struct{}), 0
	m := &Manager{Log: slog.New(slog.DiscardHandler), Check: func(context.Context) (string, error) {
		n++
		return strings.Repeat("x", n), nil
	}}
	keepAlive(t, m, func() <-chan struct{} { return changes })
	if got := told(); got != "STATUS=x" {
		t.Error(got)
	}
	changes <- struct{}{}
	if got := told(); got != "STATUS=xx" {
		t.Error(got)
	}
}

func TestReload(t *testing.T) {
	told := manager(t, "")
	m := &Manager{Log: slog.New(slog.DiscardHandler)}
	before := monotonic()
	bad := errors.New("bad file")
	if err := m.Reload(func() error {
		if got := told(); !strings.HasPrefix(got, "RELOADING=1\nMONOTONIC_USEC=") || before == 0 {
			t.Errorf("%q", got)
		}
		return bad
	}); err != bad {
		t.Error(err)
	}
	if got := told(); got != "READY=1" {
		t.Error(got)
	}
}

// TestNobody: without a manager nothing is asked.
func TestNobody(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	m := &Manager{Log: slog.New(slog.DiscardHandler), Check: func(context.Context) (string, error) {
		t.Error("asked")
		return "", nil
	}}
	m.Ready()
	m.Stopping()
	m.KeepAlive(t.Context(), nil)
}
