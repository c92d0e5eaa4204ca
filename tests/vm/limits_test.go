package vm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/tests/internal/rig"
	"yoi.dev/yoi-runtime/tests/internal/vm"
)

// testMachine: the machine is what the cases are about.
func testMachine(t *testing.T, m *vm.Machine) {
	have := strings.Fields(read(m, "/sys/fs/cgroup", "cgroup.controllers"))
	for _, c := range []string{"cpu", "io", "memory", "pids"} {
		if !slices.Contains(have, c) {
			t.Errorf("there is no controller %s among %q", c, have)
		}
	}
	if out := m.OK("sh", "-c", "grep -c cgroup /proc/mounts; cat /proc/1/comm; hostname"); out != "1\nsystemd\nvm\n" {
		t.Errorf("%q", out)
	}
	checks := rig.Answer[struct {
		Checks []struct{ Name, State, Message string }
	}](yoi(m, "doctor", "--json"))
	for _, c := range checks.Checks {
		if c.Name == "cgroups" && (c.State != "ok" || c.Message != "version 2: cpu, io, memory, pids") {
			t.Errorf("doctor says: %s: %s", c.State, c.Message)
		}
	}
}

// eat asks for more memory than there is, in a process of its own.
const eat = `python3 -c "x = bytearray(1 << 30)"; echo ended with $?; exec sleep 1000`

// testMemory: the kernel ends what needs more than memory_max, swap is no way round it,
// and the outcome has its name, whether the Worker's own process was ended or another.
func testMemory(t *testing.T, m *vm.Machine) {
	w := spawn(t, m, "--limit", "memory_max=64M", "--", "sh", "-c", eat)
	said(m, w.ID, "ended with 137")
	g := group(m, w.ID)
	if limit, swap := read(m, g, "memory.max"), read(m, g, "memory.swap.max"); limit != "67108864" || swap != "0" {
		t.Errorf("the kernel keeps %s bytes of memory and %s of swap", limit, swap)
	}
	if n := key(m, g, "memory.events", "oom_kill"); n != "1" {
		t.Errorf("the kernel counts %s processes that it ended", n)
	}
	if o := stopped(t, m, w.ID); !o.OOM || o.TasksDenied {
		t.Errorf("a worker of which a process was ended for its memory: %+v", o)
	}
	w = spawn(t, m, "--limit", "memory_max=64M", "--", "python3", "-c", "x = bytearray(1 << 30)")
	if o := ended(t, m, w.ID); !o.OOM || o.Signal != "SIGKILL" || o.Lost || o.Stopped {
		t.Errorf("a worker that was ended for its memory: %+v", o)
	}
	w = spawn(t, m, "--limit", "memory_max=64M", "--", "true")
	if o := ended(t, m, w.ID); o != (outcome{}) {
		t.Errorf("a worker that needed little memory: %+v", o)
	}
}

// testMemoryHigh: memory_high slows down and ends nobody. What is in a file can be taken
// back at once; for anything else the kernel would make it very slow.
func testMemoryHigh(t *testing.T, m *vm.Machine) {
	w := spawn(t, m, "--limit", "memory_high=16M", "--", "sh", "-c", "for i in 1 2 3 4 5 6 7 8; do head -c 4M /dev/zero >f$i && sync f$i; done; echo ended with $?; exec sleep 1000")
	said(m, w.ID, "ended with 0")
	g := group(m, w.ID)
	if limit, n := read(m, g, "memory.high"), key(m, g, "memory.events", "high"); limit != "16777216" || n == "0" {
		t.Errorf("the kernel keeps %s bytes and counts %s times that there were more", limit, n)
	}
	if n := key(m, g, "memory.events", "oom_kill"); n != "0" {
		t.Errorf("the kernel ended %s processes", n)
	}
	if o := stopped(t, m, w.ID); o.OOM {
		t.Errorf("%+v", o)
	}
}

// testTasks: a fork bomb is refused its next process, and that has a name.
func testTasks(t *testing.T, m *vm.Machine) {
	w := spawn(t, m, "--limit", "tasks=20", "--", "sh", "-c", `bomb() { bomb & bomb; }; (bomb) 2>/dev/null; echo over; exec sleep 1000`)
	g := group(m, w.ID)
	m.Eventually("the kernel refuses a process", func() bool { n := key(m, g, "pids.events", "max"); return n != "0" })
	if limit := read(m, g, "pids.max"); limit != "20" {
		t.Errorf("the kernel keeps %s tasks", limit)
	}
	yoi(m, "worker", "signal", w.ID, "KILL").Want(0)
	if o := ended(t, m, w.ID); !o.TasksDenied || o.OOM {
		t.Errorf("a worker that was refused a process: %+v", o)
	}
}

// testCPU: cpu_percent is cpu.max, and holds a busy loop.
func testCPU(t *testing.T, m *vm.Machine) {
	w := spawn(t, m, "--limit", "cpu_percent=20", "--limit", "cpu_weight=50", "--", "sh", "-c", "while :; do :; done")
	g := group(m, w.ID)
	if limit, weight := read(m, g, "cpu.max"), read(m, g, "cpu.weight"); limit != "20000 100000" || weight != "50" {
		t.Errorf("the kernel keeps %s, with the weight %s", limit, weight)
	}
	m.Eventually("the kernel holds the worker", func() bool { return key(m, g, "cpu.stat", "nr_throttled") != "0" })
	stopped(t, m, w.ID)
}

// testIO: bytes per second are limited on the disk that the Runtime root is on.
func testIO(t *testing.T, m *vm.Machine) {
	w := spawn(t, m, "--limit", "io_read=16M", "--limit", "io_write=8M", "--limit", "io_weight=50", "--",
		"sh", "-c", "dd if=/dev/zero of=big bs=1M count=4 conv=fsync 2>/dev/null; echo written; exec sleep 1000")
	said(m, w.ID, "written")
	g, dev := group(m, w.ID), strings.TrimSpace(m.OK("cat", "/sys/block/vda/dev"))
	if got, want := read(m, g, "io.max"), dev+" rbps=16777216 wbps=8388608 riops=max wiops=max"; got != want {
		t.Errorf("the kernel keeps %q, not %q", got, want)
	}
	if got := read(m, g, "io.weight"); got != "default 50" {
		t.Errorf("the kernel keeps the weight %q", got)
	}
	var read_, written int64
	if _, err := fmt.Sscanf(key(m, g, "io.stat", dev), "rbytes=%d wbytes=%d", &read_, &written); err != nil || written < 4<<20 {
		t.Errorf("the kernel counts %d bytes that were written: %v", written, err)
	}
	stopped(t, m, w.ID)
}

// testWorkspaceLimits: a workspace's own limits are its slice's, and hold for Workers
// who ask for more.
func testWorkspaceLimits(t *testing.T, m *vm.Machine) {
	m.OK("sh", "-c", `printf '[limits]\nmemory_max = "64M"\ntasks = 30\n' >/srv/policy.toml`)
	ws := workspace(t, m, "--policy", "/srv/policy.toml")
	w := spawnIn(t, m, ws, "--limit", "memory_max=1G", "--", "sh", "-c", eat)
	said(m, w.ID, "ended with 137")
	g := group(m, w.ID)
	if limit, above := read(m, g, "memory.max"), read(m, g, "../memory.max"); limit != "1073741824" && limit != "67108864" || above != "67108864" {
		t.Errorf("the kernel keeps %s bytes for the worker, %s for the workspace", limit, above)
	}
	if n := read(m, g, "../pids.max"); n != "30" {
		t.Errorf("the kernel keeps %s tasks for the workspace", n)
	}
	if n := key(m, g, "../memory.events", "oom_kill"); n != "1" {
		t.Errorf("the kernel counts %s processes that it ended", n)
	}
	if o := stopped(t, m, w.ID); !o.OOM {
		t.Errorf("%+v", o)
	}
}

// testClosed: a Worker sees nothing of its control group and changes nothing of it, even
// where it may make namespaces and mount.
func testClosed(t *testing.T, m *vm.Machine) {
	ws := workspace(t, m, "--seccomp", "nested")
	w := spawnIn(t, m, ws, "--limit", "memory_max=256M", "--limit", "tasks=100", "--", "sh", "-c", `
		cat /proc/self/cgroup
		ls -d /sys/fs/cgroup 2>/dev/null
		mkdir /tmp/c
		mount -t cgroup2 none /tmp/c 2>/dev/null && echo mounted by the worker itself
		unshare --user --map-root-user --mount --cgroup sh -c '
			mount -t cgroup2 none /tmp/c && echo mounted || exit
			for f in memory.max pids.max cpu.max cgroup.freeze cgroup.procs cgroup.subtree_control cgroup.kill; do
				for v in max 0 1 +memory; do { echo $v >/tmp/c/$f; } 2>/dev/null && echo wrote $v to $f; done
			done
			mkdir /tmp/c/own 2>/dev/null && echo made a group' 2>&1
		echo over; exec sleep 1000`)
	said(m, w.ID, "over")
	out := yoi(m, "worker", "logs", w.ID).Stdout
	if !strings.HasPrefix(out, "0::/\n") {
		t.Errorf("the worker sees its group: %s", out)
	}
	for _, bad := range []string{"/sys/fs/cgroup", "by the worker itself", "wrote", "made a group"} {
		if strings.Contains(out, bad) {
			t.Errorf("the worker reaches its group: %s", out)
		}
	}
	g := group(m, w.ID)
	if limit, tasks, frozen := read(m, g, "memory.max"), read(m, g, "pids.max"), read(m, g, "cgroup.freeze"); limit != "268435456" || tasks != "100" || frozen != "0" {
		t.Errorf("behind the attack the kernel keeps %s bytes and %s tasks, and frozen is %s", limit, tasks, frozen)
	}
	stopped(t, m, w.ID)
}
