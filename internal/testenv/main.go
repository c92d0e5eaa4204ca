package testenv

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// markerSource is the "device" of the tmpfs that marks our namespace. It is
	// found in mountinfo rather than in the environment, because test scripts
	// start the test binary again with an environment of their own.
	markerSource = "yoi-testenv"
	envBase      = "YOI_TESTENV_BASE"
	basePrefix   = "yoi-t"
)

// Runner is what a TestMain is given: a *testing.M, or a wrapper of one.
type Runner interface{ Run() int }

// Main is a TestMain's whole body: it runs the package's tests in a private
// mount namespace when the caller is root, and does not return.
func Main(m Runner) {
	Reexec()
	os.Exit(m.Run())
}

// Reexec is the half of Main for a TestMain that ends in a runner of its own,
// such as testscript.Main. In the first process it does not return: it starts
// the binary again inside the namespace, waits, checks for leaks and exits.
// Go cannot move a process with threads into a new mount namespace
// (unshare(2), EINVAL for setns), hence the second start.
func Reexec() {
	if os.Geteuid() != 0 || findBase() != "" {
		return
	}
	base := os.Getenv(envBase)
	if base == "" {
		os.Exit(supervise())
	}
	if err := enter(base); err != nil {
		fmt.Fprintln(os.Stderr, "testenv: entering the mount namespace:", err)
		os.Exit(1)
	}
}

// enter is the second process's part: the marker mount and the directories.
func enter(base string) error {
	if err := os.Unsetenv(envBase); err != nil {
		return err
	}
	mnt := filepath.Join(base, "m")
	// 0755: ordinary users of AsUser pass through. Devices must work on it, as
	// it holds the loop nodes.
	if err := unix.Mount(markerSource, mnt, "tmpfs", unix.MS_NOSUID, "mode=0755"); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	return os.Setenv("TMPDIR", filepath.Join(base, "t"))
}

// inside says whether this process runs in a namespace of ours.
func inside() bool { return baseDir() != "" }

// baseDir is the run's directory, "" outside. It is read once, after Reexec:
// tests may change what this process sees later.
var baseDir = sync.OnceValue(findBase)

func findBase() string {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	return markerBase(string(b))
}

// markerBase finds the directory above the marker's mount point.
func markerBase(mountinfo string) string {
	for line := range strings.Lines(mountinfo) {
		left, right, ok := strings.Cut(line, " - ")
		if !ok || !strings.HasPrefix(right, "tmpfs "+markerSource+" ") {
			continue
		}
		// proc_pid_mountinfo(5): the fifth field is the mount point.
		if f := strings.Fields(left); len(f) > 4 {
			return filepath.Dir(f[4])
		}
	}
	return ""
}

// RunID names this run of this package. A test that makes something with a
// machine-wide name (a cgroup, an abstract socket) puts RunID into the name,
// so that the leak check can tell it from another run's.
func RunID() string {
	if b := baseDir(); b != "" {
		return filepath.Base(b)
	}
	return fmt.Sprintf("%s%d", basePrefix, os.Getpid())
}
