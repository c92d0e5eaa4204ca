package host

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Census is what services of the machine have of what a leak would show in.
type Census struct {
	// Descriptors are of each process, Mounts those that it sees.
	Descriptors, Mounts map[string]int
	// Groups and Units are what there is by the name of yoi.
	Groups, Units int
}

// Census counts, for units of the system's manager.
func (h *Host) Census(units ...string) Census {
	h.t.Helper()
	c := Census{Descriptors: make(map[string]int), Mounts: make(map[string]int)}
	for _, u := range units {
		proc := h.Path("/proc/" + h.MainPID(u))
		fds, err := os.ReadDir(proc + "/fd")
		if err != nil {
			h.t.Fatal(err)
		}
		b, err := os.ReadFile(proc + "/mountinfo")
		if err != nil {
			h.t.Fatal(err)
		}
		c.Descriptors[u], c.Mounts[u] = len(fds), strings.Count(string(b), "\n")
	}
	err := filepath.WalkDir(h.Path("/sys/fs/cgroup")+"/", func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(d.Name(), "yoi-w") {
			c.Groups++
		}
		return nil // a group may go while it is looked at
	})
	if err != nil {
		h.t.Fatal(err)
	}
	c.Units = strings.Count(h.OK("systemctl", "list-units", "--all", "--no-legend", "--plain", "yoi-w*"), "\n")
	return c
}

// More reports whether anything has become more.
func (c Census) More(before Census) bool {
	for u := range c.Descriptors {
		if c.Descriptors[u] > before.Descriptors[u] || c.Mounts[u] > before.Mounts[u] {
			return true
		}
	}
	return c.Groups > before.Groups || c.Units > before.Units
}

// MainPID is the number that a service's main process has in the machine.
func (h *Host) MainPID(unit string) string {
	h.t.Helper()
	return strings.TrimSpace(h.OK("systemctl", "show", "--property=MainPID", "--value", unit))
}

// Resident is a service's memory in bytes (VmRSS), Switches how often its threads
// were woken up or interrupted since their start (proc_pid_status(5)).
func (h *Host) Resident(unit string) int64 {
	h.t.Helper()
	return 1024 * h.statusOf(unit, "status", "VmRSS:")
}

func (h *Host) Switches(unit string) int64 {
	h.t.Helper()
	return h.statusOf(unit, "task/*/status", "voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:")
}

// statusOf sums fields of a service's files below /proc/PID.
func (h *Host) statusOf(unit, pattern string, fields ...string) (sum int64) {
	h.t.Helper()
	files, err := filepath.Glob(h.Path("/proc/" + h.MainPID(unit) + "/" + pattern))
	if err != nil || len(files) == 0 {
		h.t.Fatalf("%s has no process: %v", unit, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // a thread that has ended
		}
		for line := range strings.Lines(string(b)) {
			for _, name := range fields {
				if v, ok := strings.CutPrefix(line, name); ok {
					var n int64
					if _, err := fmt.Sscan(v, &n); err != nil {
						h.t.Fatal(err)
					}
					sum += n
				}
			}
		}
	}
	return sum
}
