package testenv

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// findLeaks looks for what the run of base left on the machine. Namespaces and
// loop devices are torn down behind the last process's exit, so it looks again
// until nothing is found or the time is over. Left processes are killed.
func findLeaks(base string, patience time.Duration) []string {
	deadline := time.Now().Add(patience)
	for {
		reapDead()
		leaks := append(leakedProcesses(), leakedMounts(base)...)
		leaks = append(leaks, leakedLoops(base)...)
		leaks = append(leaks, leakedCgroups("/sys/fs/cgroup", filepath.Base(base))...)
		if len(leaks) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			killChildren()
			return leaks
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func reapDead() {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if pid <= 0 || err != nil {
			return
		}
	}
}

// children lists this process's children. The subreaper's adopted orphans are
// listed under the thread group leader, ordinary ones under their thread.
func children() []int {
	var pids []int
	files, _ := filepath.Glob("/proc/self/task/*/children")
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has ended
		}
		for s := range strings.FieldsSeq(string(b)) {
			if pid, err := strconv.Atoi(s); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func leakedProcesses() []string {
	var leaks []string
	for _, pid := range children() {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		leaks = append(leaks, fmt.Sprintf("process %d %s: %q", pid, strings.TrimSpace(string(comm)),
			strings.ReplaceAll(string(cmdline), "\x00", " ")))
	}
	return leaks
}

// killChildren ends leaked processes. They are our unreaped children, so their
// numbers cannot have been reused. Killing one may hand us its children.
func killChildren() {
	for range 100 {
		pids := children()
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		time.Sleep(10 * time.Millisecond)
		reapDead()
	}
}

// leakedMounts looks in the supervisor's, that is the machine's, namespace.
func leakedMounts(base string) []string {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return []string{"mounts: " + err.Error()}
	}
	var leaks []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && isOurs(f[4], base) {
			leaks = append(leaks, "mount at "+f[4])
		}
	}
	return leaks
}

func leakedLoops(base string) []string {
	var leaks []string
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // detached between the two
		}
		// The image's own name holds the run's id: of the path above it nothing
		// is left in the kernel's answer once its mount is detached.
		if backing := strings.TrimSpace(string(b)); strings.Contains(backing, filepath.Base(base)) {
			leaks = append(leaks, fmt.Sprintf("loop device %s of %s", strings.Split(f, "/")[3], backing))
		}
	}
	return leaks
}

func leakedCgroups(root, runID string) []string {
	var leaks []string
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(d.Name(), runID) {
			leaks = append(leaks, "cgroup "+path)
		}
		return nil // an unreadable or vanished directory is not ours
	})
	return leaks
}
