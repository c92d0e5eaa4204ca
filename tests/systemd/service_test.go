package systemd

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/tests/internal/host"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

func TestMain(m *testing.M) {
	host.Stage()
	scopeStage()
	testenv.Main(m)
}

// pack makes the package, once, and the same as a later version.
var pack = sync.OnceValues(func() (debs [2]string, err error) {
	module, err := rig.ModuleDir()
	if err != nil {
		return debs, err
	}
	dir, err := os.MkdirTemp("", "deb") // testenv's supervisor removes it
	if err != nil {
		return debs, err
	}
	run := func(args ...string) {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = module
		cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=1767225600", "DPKG_DEB_COMPRESSOR_LEVEL=0")
		if out, rerr := cmd.CombinedOutput(); rerr != nil && err == nil {
			err = fmt.Errorf("%q: %w\n%s", args, rerr, out)
		}
	}
	run("make", "--silent", "install", "DESTDIR="+dir+"/tree")
	for i, version := range []string{"1.0", "1.1"} {
		if err == nil {
			run("scripts/deb", dir+"/tree", version, dir)
		}
		debs[i] = fmt.Sprintf("%s/yoi-runtime_%s_amd64.deb", dir, version)
	}
	return debs, err
})

// install installs a version of the package on the machine.
func install(t *testing.T, h *host.Host, version int) {
	t.Helper()
	debs, err := pack()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(debs[version])
	if err != nil {
		t.Fatal(err)
	}
	h.Write("/var/tmp/yoi-runtime.deb", string(b), 0o644)
	h.OK("dpkg", "--install", "/var/tmp/yoi-runtime.deb")
}

// installed boots a machine and sets the service up on it as the README says, with a
// user who may use it and a repository of hers.
func installed(t *testing.T) *host.Host {
	t.Helper()
	h := host.New(t)
	install(t, h, 0)
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

type made struct{ ID string }

type worker struct {
	ID      string
	Outcome *struct {
		ExitCode *int `json:"exit_code"`
		Lost     bool
		Stopped  bool `json:"stopped_by_service_manager"`
	}
}

// ended waits for a Worker and says how it ended.
func ended(t *testing.T, h *host.Host, id string) worker {
	t.Helper()
	yoi(h, "worker", "wait", id)
	return rig.Answer[worker](yoi(h, "worker", "show", "--json", id))
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
	ws := rig.Answer[made](yoi(h, "ws", "create", "--json", "app", "--cleanup", "keep_until_asked"))
	wk := rig.Answer[made](yoi(h, "worker", "spawn", "--json", ws.ID, "--", "sh", "-c", "cat README; exit 3"))
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
		ws := rig.Answer[made](yoi(h, "ws", "create", "--json", "app", "--cleanup", "keep_until_asked"))
		wk := rig.Answer[made](yoi(h, "worker", "spawn", "--json", ws.ID, "--", "sh", "-c", "trap 'echo told; exit 5' USR1; echo ready; while :; do sleep 0.05; done"))
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
	kept := rig.Answer[made](yoi(h, "ws", "create", "--json", "app", "--cleanup", "keep_until_asked"))
	wk := rig.Answer[made](yoi(h, "worker", "spawn", "--json", kept.ID, "--", "sleep", "1000"))
	h.Kill()
	h.Boot()
	list := rig.Answer[struct {
		Items []struct{ ID, Status string }
	}](yoi(h, "ws", "list", "--json"))
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

// TestPackage: lintian finds no error; removing ends every Worker and keeps the data;
// purging leaves no trace. TestLife has what is between.
func TestPackage(t *testing.T) {
	before := host.New(t)
	names := func(h *host.Host) string {
		return h.OK("find", "/usr", "/etc", "/var/lib", "/run", "-xdev", "-name", "yoi*", "-not", "-path", "/var/lib/systemd/*")
	}
	was := names(before)
	before.Kill()
	h := installed(t)
	debs, err := pack()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("lintian", "--allow-root", "--fail-on", "error", debs[0]).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if out := h.OK("sh", "-c", "man yoi-run | head -4; bash -c '. /usr/share/bash-completion/completions/yoi && complete -p yoi'"); !strings.Contains(out, "yoi-run - Run a command") || !strings.Contains(out, "__start_yoi yoi") {
		t.Errorf("%s", out)
	}
	yoi(h, "repo", "add", "/srv/app").Want(0)
	ws := rig.Answer[made](yoi(h, "ws", "create", "--json", "app", "--cleanup", "keep_until_asked"))
	rig.Answer[made](yoi(h, "worker", "spawn", "--json", ws.ID, "--", "sleep", "987654"))
	h.OK("dpkg", "--remove", "yoi-runtime")
	if r := h.Run("pgrep", "--full", "--list-full", "^sleep 987654"); r.Code == 0 {
		t.Errorf("a worker outlives the package: %s", r.Stdout)
	}
	if r := h.Run("test", "-d", "/var/lib/yoi/execution-workspaces/"+ws.ID); r.Code != 0 {
		t.Error("removing the package lost a workspace that was to be kept")
	}
	h.OK("dpkg", "--purge", "yoi-runtime")
	if now := names(h); now != was {
		t.Errorf("purging leaves\n%sof what was\n%s", now, was)
	}
	if r := h.Run("id", "yoi"); r.Code == 0 {
		t.Error("the user yoi is left")
	}
}

// TestScopes: each Worker is in a scope of its own below its workspace's slice, with
// what enters it later; it is stopped there by name, alone and with all others; a
// command of which the manager would expand parts reaches the Worker as it is.
func TestScopes(t *testing.T) {
	h := installed(t)
	yoi(h, "repo", "add", "/srv/app").Want(0)
	spawn := func(args ...string) (ws, wk string) {
		t.Helper()
		ws = rig.Answer[made](yoi(h, "ws", "create", "--json", "app", "--cleanup", "keep_until_asked")).ID
		wk = rig.Answer[made](yoi(h, append([]string{"worker", "spawn", "--json", ws, "--"}, args...)...)).ID
		return ws, wk
	}
	const odd = "$HOME ${HOME} %n %% $$"
	ws, wk := spawn("sh", "-c", `echo "$1"; exec sleep 987654`, "sh", odd)
	h.Eventually("the worker is ready", func() bool { return yoi(h, "worker", "logs", wk).Stdout == odd+"\n" })
	slice := "yoi-workspace-" + strings.ReplaceAll(ws, "-", `\x2d`) + ".slice"
	if out := h.OK("systemctl", "show", "--property=Slice,SubState,TasksMax", "yoi-"+wk+".scope"); out != "Slice="+slice+"\nTasksMax=infinity\nSubState=running\n" {
		t.Errorf("the scope: %s", out)
	}
	if out := h.OK("systemctl", "show", "--property=ControlGroup", "--value", "yoi-"+wk+".scope"); out != "/yoi.slice/yoi-workspace.slice/"+slice+"/yoi-"+wk+".scope\n" {
		t.Errorf("the scope's group is %s", out)
	}
	if out := yoi(h, "worker", "exec", wk, "--", "cat", "/proc/self/cgroup").Want(0).Stdout; strings.Contains(out, "yoi") || strings.Contains(out, "..") {
		t.Errorf("an entered process sees its group: %s", out)
	}
	h.OK("systemd-run", "--quiet", "--collect", "--uid=agent", "yoi", "--socket", "/run/yoi/runtimed.sock", "worker", "exec", wk, "--", "sleep", "987655")
	h.Eventually("the session is in the scope", func() bool {
		return strings.Contains(h.OK("systemd-cgls", "--no-pager", "--unit", "yoi-"+wk+".scope"), "sleep 987655")
	})
	// Pausing takes nobody out of the scope, where the limits are.
	yoi(h, "worker", "pause", wk).Want(0)
	for _, n := range []string{"987654", "987655"} {
		for line := range strings.Lines(h.OK("sh", "-c", "cat /proc/$(pgrep -fx 'sleep "+n+"')/cgroup")) {
			if (strings.HasPrefix(line, "0::") || strings.Contains(line, ":name=systemd:")) && !strings.Contains(line, "/yoi-"+wk+".scope") {
				t.Errorf("sleep %s left the scope by being paused: %s", n, line)
			}
		}
	}
	yoi(h, "worker", "resume", wk).Want(0)
	// A restart in between: the manager's word is heard by whoever adopted the Worker.
	h.OK("systemctl", "restart", "yoi-helper", "yoi-runtimed")
	yoi(h, "doctor")
	h.OK("systemctl", "stop", "yoi-"+wk+".scope")
	if w := ended(t, h, wk); w.Outcome == nil || !w.Outcome.Stopped || w.Outcome.Lost {
		t.Errorf("stopped by name: %+v", w.Outcome)
	}
	yoi(h, "ws", "rm", ws).Want(0)
	one, first := spawn("sleep", "987656")
	two, second := spawn("sh", "-c", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done")
	h.Eventually("the second worker is ready", func() bool { return yoi(h, "worker", "logs", second).Stdout == "ready\n" })
	h.OK("systemctl", "stop", "yoi-workspace.slice")
	for _, id := range []string{first, second} {
		if w := ended(t, h, id); w.Outcome == nil || !w.Outcome.Stopped {
			t.Errorf("stopped with all others: %+v", w.Outcome)
		}
	}
	three, third := spawn("true")
	if w := ended(t, h, third); w.Outcome == nil || w.Outcome.Stopped || w.Outcome.ExitCode == nil || *w.Outcome.ExitCode != 0 {
		t.Errorf("a worker that ended by itself: %+v", w.Outcome)
	}
	for _, id := range []string{one, two, three} {
		yoi(h, "ws", "rm", id).Want(0)
	}
	h.Eventually("no unit of a worker is left", func() bool {
		return h.OK("systemctl", "list-units", "--all", "--no-legend", "--plain", "yoi-wk-*", "yoi-workspace-*") == ""
	})
	h.OK("systemctl", "stop", "yoi.slice")
	if r := h.Run("pgrep", "--list-full", "yoi"); r.Code == 0 {
		t.Errorf("behind the slice's stop there are %s", r.Stdout)
	}
}

// TestWithoutManager: a helper that cannot reach the service manager runs Workers as
// processes of its own service, says so, and what enters them later is not refused.
func TestWithoutManager(t *testing.T) {
	h := installed(t)
	h.Write("/run/systemd/system/yoi-helper.service.d/deaf.conf", "[Service]\nInaccessiblePaths=/run/systemd/private\n", 0o644)
	h.OK("systemctl", "daemon-reload")
	yoi(h, "repo", "add", "/srv/app").Want(0)
	ws := rig.Answer[made](yoi(h, "ws", "create", "--json", "app", "--cleanup", "keep_until_asked"))
	spawned := yoi(h, "worker", "spawn", "--json", ws.ID, "--", "sleep", "987654")
	wk := rig.Answer[struct {
		ID          string
		Diagnostics []struct{ Code string }
	}](spawned)
	if len(wk.Diagnostics) != 1 || wk.Diagnostics[0].Code != "service_manager_unavailable" {
		t.Errorf("nothing says that the worker has no scope: %s", spawned.Stdout)
	}
	if out := h.OK("systemctl", "show", "--property=LoadState", "--value", "yoi-"+wk.ID+".scope"); out != "not-found\n" {
		t.Errorf("the scope is %s", out)
	}
	h.OK("rm", "-r", "/run/systemd/system/yoi-helper.service.d")
	h.OK("systemctl", "daemon-reload")
	h.OK("systemctl", "restart", "yoi-helper", "yoi-runtimed")
	if out := yoi(h, "worker", "exec", wk.ID, "--", "echo", "here").Want(0).Stdout; out != "here\n" {
		t.Errorf("%q", out)
	}
	yoi(h, "worker", "stop", wk.ID).Want(0)
	if w := ended(t, h, wk.ID); w.Outcome == nil || w.Outcome.Stopped {
		t.Errorf("%+v", w.Outcome)
	}
	yoi(h, "ws", "rm", ws.ID).Want(0)
}
