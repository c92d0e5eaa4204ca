package vm

import (
	"encoding/json"
	"path"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/tests/internal/rig"
	"yoi.dev/yoi-runtime/tests/internal/vm"
)

// counting counts without an end, which shows whether it runs: in memory, since what
// waits for a disk, which may be slow, is not frozen before that.
const counting = `i=0; while :; do i=$((i+1)); echo $i >/tmp/count; sleep 0.05; done`

// testPause: a paused Worker is frozen by the kernel below its scope, where its limits
// go on to hold, is not entered, and goes on where it was.
func testPause(t *testing.T, m *vm.Machine) {
	w := spawn(t, m, "--limit", "tasks=50", "--", "sh", "-c", "echo ready; "+counting)
	said(m, w.ID, "ready")
	yoi(m, "worker", "pause", w.ID).Want(0)
	g := group(m, w.ID)
	frozen := path.Join(g, "yoi-"+w.ID)
	if v := key(m, frozen, "cgroup.events", "frozen"); v != "1" {
		t.Errorf("the kernel says frozen %s", v)
	}
	if n := read(m, g, "pids.max"); n != "50" {
		t.Errorf("the paused worker's tasks are limited to %s", n)
	}
	used := func() string { return key(m, frozen, "cpu.stat", "usage_usec") }
	if before := used(); used() != before {
		t.Error("a paused worker has used the processor")
	}
	if r := yoi(m, "worker", "exec", "--json", w.ID, "--", "true"); r.Code != 125 || !strings.Contains(r.Stderr, "worker_paused") {
		t.Errorf("entering a paused worker: %d %s", r.Code, r.Stderr)
	}
	yoi(m, "worker", "resume", w.ID).Want(0)
	if v := key(m, frozen, "cgroup.events", "frozen"); v != "0" {
		t.Errorf("behind resume the kernel says frozen %s", v)
	}
	if out := yoi(m, "worker", "exec", w.ID, "--", "cat", "/proc/self/cgroup").Want(0).Stdout; out != "0::/\n" {
		t.Errorf("who entered sees the group %q", out)
	}
	yoi(m, "worker", "pause", w.ID).Want(0)
	if o := stopped(t, m, w.ID); o.Lost || o.Stopped {
		t.Errorf("a paused worker that was stopped: %+v", o)
	}
	m.Eventually("the scope is gone", func() bool { return property(m, "yoi-"+w.ID+".scope", "LoadState") == "not-found" })
}

// testEnds: each way in which the manager ends a Worker has a name.
func testEnds(t *testing.T, m *vm.Machine) {
	w := spawn(t, m, "--timeout", "1s", "--", "sleep", "1000")
	if o := ended(t, m, w.ID); !o.TimedOut || o.Stopped || o.Lost {
		t.Errorf("time: %+v", o)
	}
	w = spawn(t, m, "--timeout", "5s", "--", "sleep", "1000")
	// Its own PID 1 keeps the time, unless somebody keeps that from running.
	m.OK("sh", "-c", `kill -STOP $(sort -n "$1/cgroup.procs" | head -1)`, "sh", group(m, w.ID))
	if o := ended(t, m, w.ID); !o.TimedOut || o.Stopped || o.Lost {
		t.Errorf("time by the manager: %+v", o)
	}
	w = spawn(t, m, "--", "sleep", "1000")
	m.OK("systemctl", "stop", "yoi-"+w.ID+".scope")
	if o := ended(t, m, w.ID); !o.Stopped || o.TimedOut || o.Lost {
		t.Errorf("stopped by name: %+v", o)
	}
}

// testRestart: Workers and their limits outlive the death of both services, and what a
// limit did meanwhile is not lost.
func testRestart(t *testing.T, m *vm.Machine) {
	begin := `trap 'echo told; exit 5' USR1; echo ready; while :; do sleep 0.05; done`
	lives := spawn(t, m, "--limit", "memory_max=64M", "--limit", "tasks=50", "--", "sh", "-c", begin)
	dies := spawn(t, m, "--limit", "memory_max=64M", "--", "sh", "-c", `trap 'exec python3 -c "x = bytearray(1 << 30)"' USR1; echo ready; while :; do sleep 0.05; done`)
	said(m, lives.ID, "ready")
	said(m, dies.ID, "ready")
	g, before := group(m, lives.ID), pids(m)
	init := func() string { return m.OK("sh", "-c", `sort -n "$1/cgroup.procs" | head -1`, "sh", g) }
	lived := init()
	// Nobody is there when the second one ends.
	for _, u := range []string{"yoi-runtimed", "yoi-helper"} {
		m.OK("sh", "-c", `mkdir /run/systemd/system/$1.service.d && printf '[Service]\nRestart=no\n' >/run/systemd/system/$1.service.d/stay.conf`, "sh", u)
	}
	m.OK("systemctl", "daemon-reload")
	m.OK("systemctl", "kill", "--kill-whom=main", "-s", "KILL", "yoi-runtimed", "yoi-helper")
	m.Eventually("both services are dead", func() bool { return pids(m) == "0 0" })
	if now := init(); now != lived {
		t.Errorf("the sandbox's first process is %q, was %q", now, lived)
	}
	m.OK("sh", "-c", `kill -USR1 $(sort -n "$1/cgroup.procs" | head -1)`, "sh", group(m, dies.ID))
	m.Eventually("the second worker has ended", func() bool { return property(m, "yoi-"+dies.ID+".scope", "ActiveState") != "active" })
	m.OK("sh", "-c", "rm -r /run/systemd/system/yoi-runtimed.service.d /run/systemd/system/yoi-helper.service.d && systemctl daemon-reload")
	m.OK("systemctl", "reset-failed", "yoi-runtimed", "yoi-helper")
	yoi(m, "status")
	if now := pids(m); now == before || strings.Contains(" "+now+" ", " 0 ") {
		t.Errorf("the services are %q, were %q", now, before)
	}
	if o := ended(t, m, dies.ID); !o.OOM || o.Signal != "SIGKILL" || o.Lost {
		t.Errorf("a worker that was ended for its memory while nobody was there: %+v", o)
	}
	if limit, tasks := read(m, g, "memory.max"), read(m, g, "pids.max"); limit != "67108864" || tasks != "50" {
		t.Errorf("behind the restart the kernel keeps %s bytes and %s tasks", limit, tasks)
	}
	yoi(m, "worker", "signal", lives.ID, "USR1").Want(0)
	if o := ended(t, m, lives.ID); o.ExitCode != 5 || o.Lost {
		t.Errorf("a worker that lived on: %+v", o)
	}
	if out := yoi(m, "worker", "logs", lives.ID).Stdout; out != "ready\ntold\n" {
		t.Errorf("its log says %q", out)
	}
}

// one is the Worker of an evidence.
func one(t *testing.T, r vm.Result) worker {
	t.Helper()
	var v struct{ Workers []worker }
	if err := json.Unmarshal([]byte(r.Stdout), &v); err != nil || len(v.Workers) != 1 {
		t.Fatalf("%v\n%s%s", err, r.Stdout, r.Stderr)
	}
	return v.Workers[0]
}

// testEmbedded: `yoi run` without a daemon makes control groups of its own where its own
// one is delegated to it, and says where it is not; no group is left.
func testEmbedded(t *testing.T, m *vm.Machine) {
	run := func(delegate string, args ...string) vm.Result {
		return m.Run(append([]string{"systemd-run", "--quiet", "--pipe", "--wait", "--collect", "--unit=embedded", "-p", "Delegate=" + delegate, "--",
			"yoi", "run", "--runtime-root", "/srv/embedded", "--repo", "/srv/app", "--json"}, args...)...)
	}
	r := run("yes", "--limit", "memory_max=64M", "--limit", "tasks=20", "--limit", "cpu_percent=150", "--", "sh", "-c",
		`for i in $(seq 30); do sleep 1 & done 2>/dev/null; wait; exec python3 -c "x = bytearray(1 << 30)"`)
	if w := one(t, r); w.Protections.Cgroup != 2 || len(w.Diagnostics) != 0 || w.Outcome == nil || !w.Outcome.TasksDenied && !w.Outcome.OOM {
		t.Errorf("by a delegated group: %+v, %+v", w, w.Outcome)
	}
	r = run("yes", "--limit", "memory_max=64M", "--", "python3", "-c", "x = bytearray(1 << 30)")
	if w := one(t, r); r.Code != 137 || w.Outcome == nil || !w.Outcome.OOM || w.Outcome.Signal != "SIGKILL" {
		t.Errorf("by a delegated group: %d, %+v", r.Code, w.Outcome)
	}
	r = run("no", "--limit", "memory_max=64M", "--", "true")
	if w := one(t, r); w.Protections.Cgroup != 0 || len(w.Diagnostics) != 1 || w.Diagnostics[0].Code != "limits_unavailable" {
		t.Errorf("without a delegated group: %+v", w)
	}
	if r := run("no", "--require", "limits", "--limit", "memory_max=64M", "--", "true"); r.Code != 125 || !strings.Contains(r.Stderr, "limits_unavailable") {
		t.Errorf("without a delegated group, where limits are required: %d %s", r.Code, r.Stderr)
	}
	if out := m.OK("find", "/sys/fs/cgroup/system.slice", "-name", "yoi-w*"); out != "" {
		t.Errorf("groups are left: %s", out)
	}
}

// testUser: a user who is no administrator has limits by her own manager.
func testUser(t *testing.T, m *vm.Machine) {
	m.OK("loginctl", "enable-linger", "ada")
	id := strings.TrimSpace(m.OK("id", "-u", "ada"))
	m.Eventually("the user's manager runs", func() bool { return property(m, "user@"+id+".service", "ActiveState") == "active" })
	env := []string{"XDG_RUNTIME_DIR=/run/user/" + id}
	as := func(args ...string) vm.Result { return m.RunAs("ada", env, args...) }
	// Nobody has delegated anything to this one.
	r := as("yoi", "run", "--repo", "/home/ada/app", "--limit", "memory_max=64M", "--json", "--", "true")
	if w := one(t, r); w.Protections.Cgroup != 0 || len(w.Diagnostics) != 1 || w.Diagnostics[0].Code != "limits_unavailable" {
		t.Errorf("without a delegated group: %+v", w)
	}
	env = append(env, "YOI_SOCKET=/run/user/"+id+"/yoi/runtimed.sock")
	as("systemctl", "--user", "enable", "--now", "yoi-runtimed.socket").Want(0)
	as("yoi", "repo", "add", "/home/ada/app").Want(0)
	ws := rig.Answer[struct{ ID string }](as("yoi", "ws", "create", "--json", "app", "--cleanup", "keep_until_asked")).ID
	w := rig.Answer[worker](as("yoi", "worker", "spawn", "--json", ws, "--limit", "memory_max=64M", "--limit", "tasks=50", "--limit", "cpu_percent=150", "--", "sh", "-c", eat))
	if w.Protections.Cgroup != 2 || len(w.Diagnostics) != 0 {
		t.Errorf("by the user's manager: %+v", w)
	}
	m.Eventually("the worker's process is ended", func() bool { return as("yoi", "worker", "logs", w.ID).Stdout == "ended with 137\n" })
	g := "/sys/fs/cgroup" + strings.TrimSpace(as("systemctl", "--user", "show", "--property=ControlGroup", "--value", "yoi-"+w.ID+".scope").Want(0).Stdout)
	if limit, tasks, cpu := read(m, g, "memory.max"), read(m, g, "pids.max"), read(m, g, "cpu.max"); limit != "67108864" || tasks != "50" || cpu != "150000 100000" {
		t.Errorf("the kernel keeps %s bytes, %s tasks and %s of the processor", limit, tasks, cpu)
	}
	if n := key(m, g, "memory.events", "oom_kill"); n != "1" {
		t.Errorf("the kernel counts %s processes that it ended", n)
	}
	as("yoi", "worker", "stop", w.ID).Want(0)
	as("yoi", "worker", "wait", w.ID)
	if o := rig.Answer[worker](as("yoi", "worker", "show", "--json", w.ID)).Outcome; o == nil || !o.OOM {
		t.Errorf("by the user's manager: %+v", o)
	}
	// What the user's manager was not given itself is said, and refused where it must be kept.
	w = rig.Answer[worker](as("yoi", "worker", "spawn", "--json", ws, "--limit", "io_weight=50", "--", "true"))
	if len(w.Diagnostics) != 1 || w.Diagnostics[0].Code != "limits_unavailable" {
		t.Errorf("a controller that the user has not: %+v", w)
	}
	as("yoi", "worker", "wait", w.ID)
	as("yoi", "ws", "rm", "--discard", ws).Want(0)
	as("systemctl", "--user", "disable", "--now", "yoi-runtimed.socket").Want(0)
	as("systemctl", "--user", "stop", "yoi.slice").Want(0)
	m.OK("loginctl", "disable-linger", "ada")
	m.OK("systemctl", "stop", "user@"+id+".service")
}

// testStop: one stop ends all Workers, another the services too.
func testStop(t *testing.T, m *vm.Machine) {
	a := spawn(t, m, "--limit", "tasks=50", "--", "sleep", "1000")
	b := spawn(t, m, "--", "sleep", "1000")
	m.OK("systemctl", "stop", "yoi-workspace.slice")
	for _, w := range []worker{a, b} {
		if o := ended(t, m, w.ID); !o.Stopped || o.Lost {
			t.Errorf("stopped with all others: %+v", o)
		}
	}
	c := spawn(t, m, "--limit", "tasks=50", "--", "sleep", "1000")
	m.OK("systemctl", "stop", "yoi.slice")
	// The group itself goes with the last unit in it.
	if out := m.Run("find", "/sys/fs/cgroup/yoi.slice", "-name", "yoi-w*", "-o", "-name", "*.service").Stdout; out != "" {
		t.Errorf("behind the slice's stop there are %s", out)
	}
	m.OK("systemctl", "start", "yoi-helper.socket", "yoi-runtimed.socket")
	if o := ended(t, m, c.ID); o.ExitCode == 0 && !o.Lost {
		t.Errorf("stopped with the services: %+v", o)
	}
}
