package systemd

import (
	"strconv"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/tests/internal/host"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// request is one request to the Backend, by a client of the machine: METHOD PATH TOKEN
// [BODY].
const request = `
import sys, urllib.request
method, path, token, *body = sys.argv[1:]
r = urllib.request.Request("http://127.0.0.1:8420" + path, method=method, data=body[0].encode() if body else None,
    headers={"Authorization": "Bearer " + token, "Content-Type": "application/json"})
sys.stdout.buffer.write(urllib.request.urlopen(r).read())
`

// backendOn sets the Backend up on a machine as its document says, with the package's
// sample configuration, and returns what asks it below a path of the workspace.
func backendOn(t *testing.T, h *host.Host) (ask func(method, path string, body ...string) host.Result) {
	t.Helper()
	h.OK("install", "-D", "-m", "644", "/usr/share/doc/yoi-runtime/examples/backend.toml", "/etc/yoi/backend.toml")
	h.OK("sh", "-c", "mkdir /srv/git && mv /srv/app /srv/git/app")
	token := strings.TrimSpace(h.RunAs("yoi-backend", "yoi-backend", "--config", "/etc/yoi/backend.toml",
		"token", "add", "--workspace", "demo", "--role", "operator", "--label", "test").Want(0).Stdout)
	h.OK("systemctl", "enable", "--now", "yoi-backend")
	return func(method, path string, body ...string) host.Result {
		return h.RunAs("nobody", append([]string{"python3", "-c", request, method, "/api/w/demo" + path, token}, body...)...)
	}
}

// TestBackend: the Backend serves, as a user of its own who has nothing but the
// Runtime's socket, and goes on when the daemon behind it is restarted.
func TestBackend(t *testing.T) {
	h := installed(t)
	if r := h.Run("systemctl", "start", "yoi-backend"); r.Code == 0 {
		t.Error("the Backend starts without a configuration")
	}
	ask := backendOn(t, h)
	ws := rig.Answer[made](ask("POST", "/execution-workspaces", `{"repository_id":"app"}`))
	h.OK("systemctl", "restart", "yoi-runtimed")
	wk := rig.Answer[made](ask("POST", "/workers", `{"allocation_id":"`+ws.ID+`","command":["cat","README"]}`))
	h.Eventually("the worker has ended", func() bool {
		return rig.Answer[struct{ Status string }](ask("GET", "/workers/"+wk.ID)).Status == "exited"
	})
	if out := ask("GET", "/workers/"+wk.ID+"/logs").Want(0).Stdout; !strings.Contains(out, "hello") {
		t.Errorf("the log says %q", out)
	}
	// Its own files and the socket, and nothing of the Runtime's.
	for path, readable := range map[string]bool{"/var/lib/yoi-backend/backend.db": true, "/var/lib/yoi/runtime.db": false} {
		if r := h.RunAs("yoi-backend", "test", "-r", path); (r.Code == 0) != readable {
			t.Errorf("the Backend's user reading %s: %d", path, r.Code)
		}
	}
	if out := h.OK("systemctl", "show", "--property=User,SubState", "yoi-backend"); out != "User=yoi-backend\nSubState=running\n" {
		t.Errorf("%s", out)
	}
}

// TestBackendWatchdog: a Backend that stands still, or whose store does not answer, is
// killed and started again, and serves what it served.
func TestBackendWatchdog(t *testing.T) {
	h := installed(t)
	ask := backendOn(t, h)
	ask("GET", "").Want(0)
	h.Write("/run/systemd/system/yoi-backend.service.d/quick.conf", "[Service]\nWatchdogSec=3\n", 0o644)
	h.OK("systemctl", "daemon-reload")
	h.OK("systemctl", "restart", "yoi-backend")
	restarts := 0
	for _, c := range []struct {
		name string
		hang func() (release func())
		says string // of what a process that stands still can say nothing
	}{
		{"a store that is locked", func() func() { return lockDatabase(t, h, "/var/lib/yoi-backend/backend.db") }, "the main path does not answer"},
		{"a process that stands still", func() func() {
			h.OK("systemctl", "kill", "--signal=STOP", "yoi-backend")
			return func() {}
		}, ""},
	} {
		release := c.hang()
		restarts++
		h.Eventually(c.name+": the Backend is started again", func() bool {
			return property(h, "yoi-backend", "NRestarts") == strconv.Itoa(restarts)
		})
		release()
		h.Eventually(c.name+": the Backend serves", func() bool { return property(h, "yoi-backend", "ActiveState") == "active" })
		h.OK("journalctl", "--sync")
		out := h.OK("journalctl", "-u", "yoi-backend", "-o", "cat")
		if strings.Count(out, "Watchdog timeout") != restarts || !strings.Contains(out, c.says) {
			t.Errorf("%s: %s", c.name, out)
		}
		ask("GET", "").Want(0)
	}
}

// TestBackendReload: systemctl reload puts a changed configuration into force under the
// same process; one with a mistake is refused to whoever asked for it, and the old one
// goes on.
func TestBackendReload(t *testing.T) {
	h := installed(t)
	ask := backendOn(t, h)
	pid := h.MainPID("yoi-backend")
	good := h.OK("cat", "/etc/yoi/backend.toml")
	offers := func() string { return ask("GET", "").Want(0).Stdout }
	status := func(want string) {
		t.Helper()
		h.Eventually("the status is told: "+want, func() bool { return property(h, "yoi-backend", "StatusText") == want })
	}
	const usual = "1 workspace, 0 creations, 0 live streams"
	status(usual)

	changed := strings.ReplaceAll(good, "modules.example.org:443", "packages.example.org:443")
	h.Write("/etc/yoi/backend.toml", changed, 0o644)
	h.OK("systemctl", "reload", "yoi-backend")
	h.Eventually("the changed configuration is in force", func() bool { return strings.Contains(offers(), "packages.example.org:443") })

	h.Write("/etc/yoi/backend.toml", changed+"\n[worksapces]\n", 0o644)
	if r := h.Run("systemctl", "reload", "yoi-backend"); r.Code == 0 {
		t.Error("a reload of a configuration with a mistake succeeds")
	}
	// Who signals the process itself gets the same, by the status line.
	h.OK("systemctl", "kill", "--kill-whom=main", "--signal=HUP", "yoi-backend")
	h.Eventually("the mistake is told", func() bool {
		return strings.HasPrefix(property(h, "yoi-backend", "StatusText"), usual+"; degraded: the configuration is not in force: ")
	})
	h.OK("journalctl", "--sync")
	if out := h.OK("journalctl", "-u", "yoi-backend", "-o", "cat"); strings.Count(out, "worksapces") < 2 {
		t.Errorf("the journal does not say what is wrong: %s", out)
	}
	if got := offers(); !strings.Contains(got, "packages.example.org:443") {
		t.Errorf("the old configuration does not go on: %s", got)
	}

	h.Write("/etc/yoi/backend.toml", strings.ReplaceAll(good, "127.0.0.1:8420", "127.0.0.1:8421"), 0o644)
	h.OK("systemctl", "reload", "yoi-backend")
	status(usual + "; degraded: a restart is needed for listen.address")
	if got := offers(); !strings.Contains(got, "modules.example.org:443") {
		t.Errorf("what needs no restart is not in force: %s", got)
	}
	h.Write("/etc/yoi/backend.toml", good, 0o644)
	h.OK("systemctl", "reload", "yoi-backend")
	status(usual)
	if now := h.MainPID("yoi-backend"); now != pid {
		t.Errorf("the Backend is process %s, was %s", now, pid)
	}
}
