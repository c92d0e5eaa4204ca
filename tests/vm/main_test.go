package vm

import (
	"encoding/json"
	"os/exec"
	"path"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/tests/internal/rig"
	"yoi.dev/yoi-runtime/tests/internal/vm"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestVM boots once for what limits do, and twice more behind losses of power.
func TestVM(t *testing.T) {
	testenv.Long(t)
	m := vm.New(t, tree(t))
	install(m)
	for _, c := range []struct {
		name string
		test func(*testing.T, *vm.Machine)
	}{
		{"machine", testMachine},
		{"memory", testMemory},
		{"memory_high", testMemoryHigh},
		{"tasks", testTasks},
		{"cpu", testCPU},
		{"io", testIO},
		{"workspace", testWorkspaceLimits},
		{"closed", testClosed},
		{"pause", testPause},
		{"ends", testEnds},
		{"restart", testRestart},
		{"embedded", testEmbedded},
		{"user", testUser},
		{"features", testFeatures},
		{"stop", testStop},
	} {
		before := pids(m)
		t.Run(c.name, func(t *testing.T) { c.test(t, m.For(t)) })
		if now := pids(m); c.name != "restart" && c.name != "stop" && c.name != "machine" && now != before {
			t.Errorf("behind %s the services are %q, before they were %q", c.name, now, before)
		}
	}
	testPowerLoss(t, m)
}

// tree is what `make install` installs, and tests of other packages.
func tree(t *testing.T) string {
	t.Helper()
	module, err := rig.ModuleDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.Command("make", "--silent", "install", "DESTDIR="+dir)
	cmd.Dir = module
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, f := range features {
		f.build(t, module, dir)
	}
	return dir
}

// install does what the package's installation does, and adds two users: agent, who may
// use the service, and ada, who may not.
func install(m *vm.Machine) {
	m.OK("systemd-sysusers", "yoi.conf")
	m.OK("systemd-tmpfiles", "--create", "yoi.conf")
	m.OK("systemctl", "enable", "--now", "yoi-helper.socket", "yoi-runtimed.socket")
	m.OK("useradd", "--create-home", "--groups", "yoi", "agent")
	m.OK("useradd", "--create-home", "ada")
	for user, dir := range map[string]string{"agent": "/srv/app", "ada": "/home/ada/app"} {
		m.OK("install", "-d", "-o", user, dir)
		m.RunAs(user, nil, "sh", "-c", `cd "$1" && git init -q -b main && echo hello >README && git add . &&
			git -c user.name=a -c user.email=a@example.com commit -qm first`, "sh", dir).Want(0)
	}
	yoi(m, "repo", "add", "/srv/app").Want(0)
}

func yoi(m *vm.Machine, args ...string) vm.Result {
	return m.RunAs("agent", []string{"YOI_SOCKET=/run/yoi/runtimed.sock"}, append([]string{"yoi"}, args...)...)
}

func decode[T any](t *testing.T, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return v
}

// worker is what the tests read of one.
type worker struct {
	ID          string
	Status      string
	Outcome     *outcome
	Diagnostics []struct{ Code string }
	Protections struct {
		Cgroup int `json:"cgroup_version"`
	}
}

type outcome struct {
	ExitCode    int    `json:"exit_code"`
	Signal      string `json:"signal"`
	TimedOut    bool   `json:"timed_out"`
	OOM         bool   `json:"oom_killed"`
	TasksDenied bool   `json:"tasks_denied"`
	Stopped     bool   `json:"stopped_by_service_manager"`
	Lost        bool
}

func workspace(t *testing.T, m *vm.Machine, args ...string) string {
	t.Helper()
	return rig.Answer[struct{ ID string }](yoi(m, append([]string{"ws", "create", "--json", "app", "--cleanup", "keep_until_asked"}, args...)...)).ID
}

// spawn starts a Worker in a workspace of its own, and removes that when the test ends.
func spawn(t *testing.T, m *vm.Machine, args ...string) worker {
	t.Helper()
	return spawnIn(t, m, workspace(t, m), args...)
}

func spawnIn(t *testing.T, m *vm.Machine, ws string, args ...string) worker {
	t.Helper()
	t.Cleanup(func() { yoi(m, "ws", "rm", "--stop", "--discard", ws).Want(0) })
	w := rig.Answer[worker](yoi(m, append([]string{"worker", "spawn", "--json", ws}, args...)...))
	if len(w.Diagnostics) != 0 {
		t.Errorf("a worker by %q: %+v", args, w.Diagnostics)
	}
	return w
}

// said waits until a Worker has written a line that is this.
func said(m *vm.Machine, id, line string) {
	m.Eventually("worker "+id+" says "+line, func() bool {
		return strings.Contains("\n"+yoi(m, "worker", "logs", id).Stdout, "\n"+line+"\n")
	})
}

// ended waits for a Worker's end.
func ended(t *testing.T, m *vm.Machine, id string) outcome {
	t.Helper()
	yoi(m, "worker", "wait", id)
	w := rig.Answer[worker](yoi(m, "worker", "show", "--json", id))
	if w.Outcome == nil {
		t.Fatalf("worker %s is %s", id, w.Status)
	}
	return *w.Outcome
}

func stopped(t *testing.T, m *vm.Machine, id string) outcome {
	t.Helper()
	yoi(m, "worker", "stop", id).Want(0)
	return ended(t, m, id)
}

// property is one of a unit's, as the manager tells it.
func property(m *vm.Machine, unit, name string) string {
	return strings.TrimSuffix(m.OK("systemctl", "show", "--property="+name, "--value", unit), "\n")
}

// group is the directory of a Worker's control group.
func group(m *vm.Machine, id string) string {
	return "/sys/fs/cgroup" + property(m, "yoi-"+id+".scope", "ControlGroup")
}

// read is what the kernel has in a control group's file.
func read(m *vm.Machine, dir, file string) string {
	return strings.TrimSpace(m.OK("cat", path.Join(dir, file)))
}

// key is a line's value of a flat keyed file, cgroup-v2.rst.
func key(m *vm.Machine, dir, file, name string) string {
	for line := range strings.Lines(read(m, dir, file)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			return v
		}
	}
	return ""
}

// pids are the processes of both services.
func pids(m *vm.Machine) string {
	return property(m, "yoi-runtimed", "MainPID") + " " + property(m, "yoi-helper", "MainPID")
}
