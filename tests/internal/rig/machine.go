package rig

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Machine is what the machine looked like when a test began: its mounts, System V
// objects and this process' children. Control groups are a Runtime root's: Leftovers.
type Machine struct {
	mounts, ipc []string
	children    map[int]bool
}

// Before looks at the machine. This process becomes a subreaper, prctl(2): what
// the product orphans becomes its child, and is seen.
func Before(t testing.TB) *Machine {
	t.Helper()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	reaper.Do(func() { go reapSandboxed() })
	m := &Machine{mounts: mounts(t), ipc: ipc(t), children: map[int]bool{}}
	for _, pid := range children() {
		m.children[pid] = true
	}
	return m
}

// Unchanged fails the test if there is anything now that was not there before.
// Namespaces are torn down behind the last exit, so it waits; less than
// the Workers of tests sleep, which are not to be taken for ended.
func (m *Machine) Unchanged(t testing.TB) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		left := m.new(t)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			for _, l := range left {
				t.Errorf("left on the machine: %s", l)
			}
			m.killNew()
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (m *Machine) new(t testing.TB) []string {
	var left []string
	for name, pair := range map[string][2][]string{
		"mount": {m.mounts, mounts(t)}, "ipc object": {m.ipc, ipc(t)},
	} {
		for _, d := range Difference(pair[0], pair[1]) {
			if strings.HasPrefix(d, "+ ") {
				left = append(left, name+" "+d[2:])
			}
		}
	}
	for _, pid := range children() {
		if m.children[pid] || reap(pid) {
			continue
		}
		left = append(left, Process(pid))
	}
	return left
}

func (m *Machine) killNew() {
	for _, pid := range children() {
		if !m.children[pid] {
			_ = unix.Kill(pid, unix.SIGKILL) // our unreaped child: the number is its own
		}
	}
}

// Process describes a process for a message.
func Process(pid int) string {
	cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return fmt.Sprintf("process %d %s %q", pid, exe, strings.ReplaceAll(string(cmdline), "\x00", " "))
}

// reap takes a dead orphan away and reports whether it did. Orphans are not in
// any exec.Cmd's hands, and no command runs while a test looks for them.
func reap(pid int) bool {
	got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
	return (err == nil && got == pid) || err == unix.ECHILD
}

// reaper is as long as the process is a subreaper: until its end.
var reaper sync.Once

// reapSandboxed does for dead orphans from sandboxes what the machine's init would:
// a sandbox does not end as long as one of its processes is unreaped. No exec.Cmd
// starts a process in another pid namespace.
func reapSandboxed() {
	for ; ; time.Sleep(20 * time.Millisecond) {
		for _, pid := range children() {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			_, ids, ok := strings.Cut(string(b), "\nNSpid:")
			ids, _, _ = strings.Cut(ids, "\n")
			if err == nil && ok && len(strings.Fields(ids)) > 1 && strings.Contains(string(b), "\nState:\tZ") {
				reap(pid)
			}
		}
	}
}

func children() []int {
	var pids []int
	files, _ := filepath.Glob("/proc/self/task/*/children")
	for _, f := range files {
		b, _ := os.ReadFile(f)
		for s := range strings.FieldsSeq(string(b)) {
			if pid, err := strconv.Atoi(s); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func mounts(t testing.TB) []string {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

var workerGroup = regexp.MustCompile(`yoi-wk-[a-z0-9]+`)

// workerGroups lists the control groups that a Runtime root's ledger has ever
// named and that exist.
func workerGroups(root string) ([]string, error) {
	named := make(map[string]bool)
	segments, err := filepath.Glob(filepath.Join(root, "ledger/*/*/*.seg"))
	if err != nil {
		return nil, err
	}
	for _, s := range segments {
		b, err := os.ReadFile(s)
		if err != nil {
			return nil, err
		}
		for _, name := range workerGroup.FindAll(b, -1) {
			named[string(name)] = true
		}
	}
	if len(named) == 0 {
		return nil, nil
	}
	return cgroupsOf(func(name string) bool { return named[name] }), nil
}

func cgroupsOf(match func(name string) bool) []string {
	var out []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && match(d.Name()) {
			out = append(out, path)
		}
		return nil // it may vanish while we look
	})
	return out
}

func ipc(t testing.TB) []string {
	var out []string
	for _, f := range []string{"shm", "sem", "msg"} {
		b, err := os.ReadFile("/proc/sysvipc/" + f)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if fields := strings.Fields(line); len(fields) > 1 {
				out = append(out, f+" "+fields[0]+" "+fields[1])
			}
		}
	}
	return out
}

// Eventually waits up to a minute for something that another process does.
func Eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	Await(t, what, time.Minute, 5*time.Millisecond, cond)
}

// SignalMarked signals the process whose command line holds marker: a Worker,
// found without asking the daemons.
func SignalMarked(t testing.TB, marker string, s unix.Signal) {
	t.Helper()
	pid := marked(t, marker)
	if pid == 0 {
		t.Fatalf("no process is marked %s", marker)
	}
	if err := unix.Kill(pid, s); err != nil {
		t.Fatal(err)
	}
}

// Marked tells whether a process' command line holds marker.
func Marked(t testing.TB, marker string) bool {
	t.Helper()
	return marked(t, marker) != 0
}

func marked(t testing.TB, marker string) int {
	t.Helper()
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil || !strings.Contains(string(b), marker) {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(f, "/")[2])
		if err != nil {
			t.Fatal(err)
		}
		return pid
	}
	return 0
}
