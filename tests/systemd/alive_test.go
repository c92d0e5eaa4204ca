package systemd

import (
	"net"
	"os"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/tests/internal/host"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// property is one of a unit's, as systemctl shows it.
func property(h *host.Host, unit, name string) string {
	return strings.TrimSuffix(h.OK("systemctl", "show", "--property="+name, "--value", unit), "\n")
}

// TestWatchdog: a service whose process lives but whose main path does not answer is
// killed and started again, and no Worker is the worse for it.
func TestWatchdog(t *testing.T) {
	h := installed(t)
	for _, u := range []string{"yoi-runtimed", "yoi-helper"} {
		h.Write("/run/systemd/system/"+u+".service.d/quick.conf", "[Service]\nWatchdogSec=3\n", 0o644)
	}
	h.OK("systemctl", "daemon-reload")
	yoi(h, "repo", "add", "/srv/app").Want(0)
	for unit, hang := range map[string]func() (release func()){
		"yoi-runtimed": func() func() { return lockDatabase(t, h, "/var/lib/yoi/runtime.db") },
		"yoi-helper":   func() func() { return fillSocket(t, h) },
	} {
		ws := rig.Answer[made](yoi(h, "ws", "create", "--json", "app", "--cleanup", "keep_until_asked"))
		wk := rig.Answer[made](yoi(h, "worker", "spawn", "--json", ws.ID, "--", "sh", "-c", "trap 'exit 5' USR1; echo ready; while :; do sleep 0.05; done"))
		h.Eventually("the worker is ready", func() bool { return yoi(h, "worker", "logs", wk.ID).Stdout == "ready\n" })
		release := hang()
		h.Eventually(unit+" is killed by the watchdog", func() bool {
			h.OK("journalctl", "--sync")
			return strings.Contains(h.OK("journalctl", "-u", unit, "-o", "cat"), "Watchdog timeout")
		})
		release()
		h.Eventually(unit+" is started again", func() bool {
			return property(h, unit, "NRestarts") != "0" && property(h, unit, "ActiveState") == "active"
		})
		if out := h.OK("journalctl", "-u", unit, "-o", "cat"); !strings.Contains(out, "the main path does not answer") {
			t.Errorf("%s does not say why it is not alive: %s", unit, out)
		}
		yoi(h, "worker", "signal", wk.ID, "USR1").Want(0)
		if w := ended(t, h, wk.ID); w.Outcome == nil || w.Outcome.ExitCode == nil || *w.Outcome.ExitCode != 5 {
			t.Errorf("the worker of a %s that hung: %+v", unit, w)
		}
		yoi(h, "ws", "rm", ws.ID).Want(0)
	}
}

// lockDatabase takes the locks of SQLite's shared memory that every reader and writer
// needs (sqlite.org/walformat.html, "WAL locks").
func lockDatabase(t *testing.T, h *host.Host, path string) (release func()) {
	t.Helper()
	f, err := os.OpenFile(h.Path(path+"-shm"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: 120, Len: 8}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLKW, &lock); err != nil {
		t.Fatal(err)
	}
	return func() { f.Close() }
}

// fillSocket takes every place that the helper has for connections.
func fillSocket(t *testing.T, h *host.Host) (release func()) {
	var open []net.Conn
	for range 32 {
		c, err := net.Dial("unixpacket", h.Path("/run/yoi/helper.sock"))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	return func() {
		for _, c := range open {
			c.Close()
		}
	}
}

// TestReload: systemctl reload reads config.toml again; one with a mistake leaves the
// old one in force, and whoever looks is told which line. Nothing is restarted.
func TestReload(t *testing.T) {
	h := installed(t)
	yoi(h, "repo", "add", "/srv/app").Want(0)
	pid := property(h, "yoi-runtimed", "MainPID")
	cleanup := func() string {
		t.Helper()
		ws := rig.Answer[struct {
			ID      string
			Cleanup struct{ Mode string } `json:"cleanup_policy"`
		}](yoi(h, "ws", "create", "--json", "app"))
		yoi(h, "ws", "rm", ws.ID).Want(0)
		return ws.Cleanup.Mode
	}
	reload := func(config string) {
		t.Helper()
		h.Write("/var/lib/yoi/config.toml", config, 0o644)
		h.OK("systemctl", "reload", "yoi-runtimed")
	}
	reload("[defaults]\ncleanup_policy = \"keep_for:2h\"\n")
	h.Eventually("the configuration is read", func() bool { return strings.Contains(yoi(h, "events").Want(0).Stdout, "runtime.reloaded") })
	if mode := cleanup(); mode != "keep_for" {
		t.Errorf("a workspace is made with %q", mode)
	}
	type problems struct {
		Problems []struct{ Name, State, Message string }
	}
	refused := func() string {
		t.Helper()
		r := yoi(h, "status", "--json")
		if r.Code != 0 && r.Code != 3 {
			t.Fatalf("status ends with %d: %s", r.Code, r.Stderr)
		}
		r.Code = 0
		for _, p := range rig.Answer[problems](r).Problems {
			if p.Name == "configuration" {
				return p.State + ": " + p.Message
			}
		}
		return ""
	}
	reload("[defaults]\ncleanup_polcy = \"keep_for:3h\"\n")
	const why = "degraded: config.toml is not in force: line 2: no such setting"
	h.Eventually("the mistake is told", func() bool { return refused() == why })
	h.Eventually("systemctl status tells it too", func() bool { return strings.HasSuffix(property(h, "yoi-runtimed", "StatusText"), why) })
	if mode := cleanup(); mode != "keep_for" {
		t.Errorf("with a mistake in the file a workspace is made with %q", mode)
	}
	reload("")
	h.Eventually("the mistake is mended", func() bool { return refused() == "" })
	if mode := cleanup(); mode != "keep_until_asked" {
		t.Errorf("a workspace is made with %q", mode)
	}
	if now := property(h, "yoi-runtimed", "MainPID"); now != pid || property(h, "yoi-runtimed", "ActiveState") != "active" {
		t.Errorf("the daemon is process %s, was %s", now, pid)
	}
}

// TestStatusText: what systemctl status says of both services follows what is there.
func TestStatusText(t *testing.T) {
	h := installed(t)
	h.Write("/run/systemd/system/yoi-helper.service.d/quick.conf", "[Service]\nWatchdogSec=2\n", 0o644)
	h.OK("systemctl", "daemon-reload")
	yoi(h, "repo", "add", "/srv/app").Want(0)
	ws := rig.Answer[made](yoi(h, "ws", "create", "--json", "app", "--cleanup", "keep_until_asked"))
	wk := rig.Answer[made](yoi(h, "worker", "spawn", "--json", ws.ID, "--", "sleep", "1000"))
	h.Eventually("the status is told", func() bool {
		return strings.HasPrefix(property(h, "yoi-runtimed", "StatusText"), "1 Worker, 1 workspace, cache ") && property(h, "yoi-helper", "StatusText") == "1 Worker"
	})
	h.OK("journalctl", "--sync")
	if out := h.OK("journalctl", "-u", "yoi-runtimed", "-o", "cat"); !strings.Contains(out, "doctor") {
		t.Errorf("the daemon's start says nothing of what this host can do: %s", out)
	}
	yoi(h, "worker", "stop", wk.ID).Want(0)
	yoi(h, "ws", "rm", ws.ID).Want(0)
	h.Eventually("the status is told", func() bool {
		return strings.HasPrefix(property(h, "yoi-runtimed", "StatusText"), "0 Workers, 0 workspaces, cache ") && property(h, "yoi-helper", "StatusText") == "0 Workers"
	})
}

// TestIdleHelper: a helper without Workers leaves the service manager, which would wake
// it up by all that happens on the host; one with a Worker stays, and knows that it was
// stopped by name.
func TestIdleHelper(t *testing.T) {
	h := installed(t)
	yoi(h, "repo", "add", "/srv/app").Want(0)
	// Both ends of a connection are in the network namespace of the one that asked for it.
	clients := func() int { // of the manager's private socket, in the state "connected"
		b, err := os.ReadFile(h.Path("/proc/" + h.MainPID("yoi-helper") + "/net/unix"))
		if err != nil {
			t.Fatal(err)
		}
		return len(regexp.MustCompile(`(?m)^\S+ \S+ \S+ \S+ \S+ 03 .*/run/systemd/private$`).FindAll(b, -1))
	}
	ws := workspace(t, h)
	ended(t, h, spawned(t, h, ws, "true"))
	if clients() == 0 {
		t.Fatal("the helper that started a worker is no client of the manager")
	}
	h.Eventually("the idle helper has left the manager", func() bool { return clients() == 0 })
	wk := spawned(t, h, ws, "sleep", "987654")
	if clients() == 0 {
		t.Error("the helper with a worker is no client of the manager")
	}
	h.OK("systemctl", "stop", "yoi-"+wk+".scope")
	if w := ended(t, h, wk); w.Outcome == nil || !w.Outcome.Stopped {
		t.Errorf("stopped by name: %+v", w.Outcome)
	}
	yoi(h, "ws", "rm", ws).Want(0)
}
