package systemd

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/tests/internal/host"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

func TestMain(m *testing.M) {
	host.Stage()
	testenv.Main(m)
}

// installed boots a machine and sets the service up on it as the README says, with a
// user who may use it and a repository of hers.
func installed(t *testing.T) *host.Host {
	t.Helper()
	h := host.New(t)
	tree := t.TempDir()
	module, err := rig.ModuleDir()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("make", "--silent", "install", "DESTDIR="+tree)
	cmd.Dir = module
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make install: %v\n%s", err, out)
	}
	// The tree's own top directories would replace the machine's links.
	h.Copy(filepath.Join(tree, "usr"), "/usr")
	h.OK("systemd-sysusers")
	h.OK("systemd-tmpfiles", "--create")
	h.OK("systemctl", "daemon-reload")
	h.OK("systemctl", "enable", "--now", "yoi-helper.socket", "yoi-runtimed.socket", "yoi-gc.timer")
	h.OK("useradd", "--create-home", "--groups", "yoi", "agent")
	h.OK("install", "-d", "-o", "agent", "/srv/app")
	agent(h, "sh", "-c", `cd /srv/app && git init -q -b main && echo hello >README && git add . &&
		git -c user.name=a -c user.email=a@example.com commit -qm first`).Want(0)
	return h
}

func agent(h *host.Host, args ...string) host.Result { return h.RunAs("agent", args...) }

func yoi(h *host.Host, args ...string) host.Result {
	return agent(h, append([]string{"yoi", "--socket", "/run/yoi/runtimed.sock"}, args...)...)
}

// answer decodes a command's --json.
func answer[T any](t *testing.T, r host.Result) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.Want(0).Stdout), &v); err != nil {
		t.Fatalf("%v\n%s%s", err, r.Stdout, r.Stderr)
	}
	return v
}

type made struct{ ID string }

type worker struct {
	ID      string
	Outcome *struct {
		ExitCode *int `json:"exit_code"`
		Lost     bool
	}
}

// ended waits for a Worker and says how it ended.
func ended(t *testing.T, h *host.Host, id string) worker {
	t.Helper()
	yoi(h, "worker", "wait", id)
	return answer[worker](t, yoi(h, "worker", "show", "--json", id))
}

// TestService is an operator's and a user's first day: set up, a Worker, its end, and
// nothing that was not asked for starts before it is needed.
func TestService(t *testing.T) {
	h := installed(t)
	if s := h.Run("systemctl", "is-active", "yoi-runtimed", "yoi-helper").Stdout; s != "inactive\ninactive\n" {
		t.Errorf("before the first request the services are %q", s)
	}
	yoi(h, "doctor").Want(0)
	if s := h.OK("systemctl", "is-active", "yoi-runtimed", "yoi-helper", "yoi-gc.timer"); s != "active\nactive\nactive\n" {
		t.Errorf("behind the first request the services are %q", s)
	}
	if r := h.RunAs("nobody", "yoi", "--socket", "/run/yoi/runtimed.sock", "doctor"); r.Code == 0 {
		t.Error("somebody outside the group yoi was served")
	}
	yoi(h, "repo", "add", "/srv/app").Want(0)
	ws := answer[made](t, yoi(h, "ws", "create", "--json", "app", "--cleanup", "keep_until_asked"))
	wk := answer[made](t, yoi(h, "worker", "spawn", "--json", ws.ID, "--", "sh", "-c", "cat README; exit 3"))
	if w := ended(t, h, wk.ID); w.Outcome == nil || w.Outcome.ExitCode == nil || *w.Outcome.ExitCode != 3 {
		t.Errorf("%+v", w)
	}
	if out := yoi(h, "worker", "logs", wk.ID).Want(0).Stdout; out != "hello\n" {
		t.Errorf("the log says %q", out)
	}
	yoi(h, "ws", "rm", ws.ID).Want(0)
	if r := h.Run("systemctl", "start", "yoi-gc.service"); r.Code != 0 {
		t.Error(h.OK("journalctl", "-u", "yoi-gc.service", "-o", "cat"))
	}
	h.OK("systemctl", "stop", "yoi-runtimed", "yoi-helper")
	h.OK("yoi", "--runtime-root", "/var/lib/yoi", "ledger", "verify")
}

// TestRestart: a Worker lives on under a restart and under the death of both
// services, says what it would have said, and its exit code is known.
func TestRestart(t *testing.T) {
	h := installed(t)
	yoi(h, "repo", "add", "/srv/app").Want(0)
	for name, act := range map[string]func(){
		"restart": func() { h.OK("systemctl", "restart", "yoi-runtimed", "yoi-helper") },
		"kill": func() {
			h.OK("systemctl", "kill", "--kill-whom=main", "-s", "KILL", "yoi-runtimed", "yoi-helper")
			h.Eventually("both services are started again", func() bool {
				return h.Run("systemctl", "is-active", "yoi-runtimed", "yoi-helper").Stdout == "active\nactive\n"
			})
		},
	} {
		ws := answer[made](t, yoi(h, "ws", "create", "--json", "app", "--cleanup", "keep_until_asked"))
		wk := answer[made](t, yoi(h, "worker", "spawn", "--json", ws.ID, "--", "sh", "-c", "trap 'echo told; exit 5' USR1; echo ready; while :; do sleep 0.05; done"))
		h.Eventually("the worker is ready", func() bool { return yoi(h, "worker", "logs", wk.ID).Stdout == "ready\n" })
		act()
		yoi(h, "worker", "signal", wk.ID, "USR1").Want(0)
		if w := ended(t, h, wk.ID); w.Outcome == nil || w.Outcome.ExitCode == nil || *w.Outcome.ExitCode != 5 {
			t.Errorf("%s: %+v", name, w)
		}
		if out := yoi(h, "worker", "logs", wk.ID).Want(0).Stdout; out != "ready\ntold\n" {
			t.Errorf("%s: the log says %q", name, out)
		}
		yoi(h, "ws", "rm", ws.ID).Want(0)
	}
}

// TestPowerLoss: after the machine's death and its next start a kept workspace is
// there, the Worker's is not running, and nothing else is left.
func TestPowerLoss(t *testing.T) {
	h := installed(t)
	yoi(h, "repo", "add", "/srv/app").Want(0)
	kept := answer[made](t, yoi(h, "ws", "create", "--json", "app", "--cleanup", "keep_until_asked"))
	wk := answer[made](t, yoi(h, "worker", "spawn", "--json", kept.ID, "--", "sleep", "1000"))
	h.Kill()
	h.Boot()
	list := answer[struct {
		Items []struct{ ID, Status string }
	}](t, yoi(h, "ws", "list", "--json"))
	if len(list.Items) != 1 || list.Items[0].ID != kept.ID || list.Items[0].Status != "active" {
		t.Errorf("workspaces after the loss of power: %+v", list)
	}
	if w := ended(t, h, wk.ID); w.Outcome == nil || !w.Outcome.Lost {
		t.Errorf("the worker after the loss of power: %+v", w)
	}
	yoi(h, "ws", "rm", kept.ID).Want(0)
	h.OK("systemctl", "stop", "yoi-runtimed", "yoi-helper")
	h.OK("yoi", "--runtime-root", "/var/lib/yoi", "ledger", "verify")
}
