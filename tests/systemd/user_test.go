package systemd

import (
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/tests/internal/host"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// userManager gives an ordinary user a service manager that outlives a session
// (loginctl enable-linger), and returns what runs commands with it.
func userManager(t *testing.T, h *host.Host, name string) func(args ...string) host.Result {
	t.Helper()
	h.OK("rm", "/etc/systemd/system/systemd-logind.service") // the machine is built without one
	h.OK("systemctl", "daemon-reload")
	h.OK("systemctl", "start", "dbus.socket", "systemd-logind")
	h.OK("useradd", "--create-home", name)
	h.OK("loginctl", "enable-linger", name)
	id := strings.TrimSpace(h.OK("id", "-u", name))
	h.Eventually("the user's manager runs", func() bool { return property(h, "user@"+id+".service", "ActiveState") == "active" })
	return func(args ...string) host.Result {
		return h.RunAs(name, append([]string{"env", "XDG_RUNTIME_DIR=/run/user/" + id, "YOI_SOCKET=/run/user/" + id + "/yoi/runtimed.sock"}, args...)...)
	}
}

// TestUserManager is the rootless mode as a service: a user who is no administrator
// and in no group enables it, and a Worker lives on, in a scope of the user's own
// manager, when the daemon is restarted and when it dies.
func TestUserManager(t *testing.T) {
	h := host.New(t)
	install(t, h, 0)
	as := userManager(t, h, "agent")
	as("systemctl", "--user", "enable", "--now", "yoi-runtimed.socket", "yoi-gc.timer").Want(0)
	as("sh", "-c", `mkdir ~/app && cd ~/app && git init -q -b main && echo hello >README && git add . &&
		git -c user.name=a -c user.email=a@example.com commit -qm first && yoi repo add ~/app`).Want(0)
	for name, act := range map[string]func(){
		"restart": func() { as("systemctl", "--user", "restart", "yoi-runtimed").Want(0) },
		"kill": func() {
			as("systemctl", "--user", "kill", "--kill-whom=main", "-s", "KILL", "yoi-runtimed").Want(0)
			h.Eventually("the daemon is started again", func() bool {
				return as("systemctl", "--user", "is-active", "yoi-runtimed").Stdout == "active\n"
			})
		},
	} {
		ws := rig.Answer[made](as("yoi", "ws", "create", "--json", "app", "--cleanup", "keep_until_asked"))
		wk := rig.Answer[struct {
			ID          string
			Diagnostics []struct{ Code string }
		}](as("yoi", "worker", "spawn", "--json", ws.ID, "--", "sh", "-c", "trap 'echo told; exit 5' USR1; cat README; while :; do sleep 0.05; done"))
		if len(wk.Diagnostics) != 0 {
			t.Errorf("%s: %+v", name, wk.Diagnostics)
		}
		h.Eventually("the worker is ready", func() bool { return as("yoi", "worker", "logs", wk.ID).Stdout == "hello\n" })
		slice := "yoi-workspace-" + strings.ReplaceAll(ws.ID, "-", `\x2d`) + ".slice"
		if out := as("systemctl", "--user", "show", "--property=Slice,SubState", "yoi-"+wk.ID+".scope").Stdout; out != "Slice="+slice+"\nSubState=running\n" {
			t.Errorf("%s: the scope: %s", name, out)
		}
		act()
		as("yoi", "worker", "signal", wk.ID, "USR1").Want(0)
		as("yoi", "worker", "wait", wk.ID)
		w := rig.Answer[worker](as("yoi", "worker", "show", "--json", wk.ID))
		if w.Outcome == nil || w.Outcome.ExitCode == nil || *w.Outcome.ExitCode != 5 {
			t.Errorf("%s: %+v", name, w)
		}
		if out := as("yoi", "worker", "logs", wk.ID).Stdout; out != "hello\ntold\n" {
			t.Errorf("%s: the log says %q", name, out)
		}
		as("yoi", "ws", "rm", ws.ID).Want(0)
	}
	as("systemctl", "--user", "start", "yoi-gc").Want(0)
	h.Eventually("no unit of a worker is left", func() bool {
		return as("systemctl", "--user", "list-units", "--all", "--no-legend", "--plain", "yoi-wk-*", "yoi-workspace-*").Stdout == ""
	})
	as("systemctl", "--user", "stop", "yoi.slice").Want(0)
	if r := h.Run("pgrep", "--list-full", "yoi"); r.Code == 0 {
		t.Errorf("behind the slice's stop there are %s", r.Stdout)
	}
}
