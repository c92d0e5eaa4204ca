package testenv

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// supervise runs the tests in a child and returns the package's exit status.
func supervise() int {
	if err := sweepStale(os.TempDir(), time.Hour); err != nil {
		fmt.Fprintln(os.Stderr, "testenv: sweeping after killed runs:", err)
	}
	base, lock, err := makeBase(os.TempDir())
	if err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		return 1
	}
	defer lock.Close()
	code, err := runChild(base)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		code = 1
	}
	leaks := findLeaks(base, 5*time.Second)
	if err := os.RemoveAll(base); err != nil {
		leaks = append(leaks, "files: "+err.Error())
	}
	for _, l := range leaks {
		fmt.Fprintln(os.Stderr, "testenv: LEAK:", l)
	}
	if len(leaks) > 0 && code == 0 {
		code = 1
	}
	return code
}

// makeBase makes the run's directory and locks it for as long as the run
// lives. The name is short because tests put unix sockets below it, whose
// paths end at 107 bytes (unix(7)).
func makeBase(tmp string) (string, *os.File, error) {
	var r [4]byte
	if _, err := rand.Read(r[:]); err != nil {
		return "", nil, err
	}
	base := filepath.Join(tmp, basePrefix+hex.EncodeToString(r[:]))
	for _, d := range []struct {
		name string
		mode os.FileMode
	}{{"", 0o755}, {"m", 0o755}, {"t", 0o777 | os.ModeSticky}, {"i", 0o700}} {
		p := filepath.Join(base, d.name)
		if err := os.Mkdir(p, 0o700); err != nil {
			return "", nil, err
		}
		if err := os.Chmod(p, d.mode); err != nil {
			return "", nil, err
		}
	}
	f, err := os.Open(base)
	if err != nil {
		return "", nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return "", nil, err
	}
	return base, f, nil
}

// sweepStale removes directories of runs whose supervisor was itself killed:
// old, and locked by nobody. The age keeps it off a run between mkdir and lock.
func sweepStale(tmp string, age time.Duration) error {
	dirs, err := filepath.Glob(filepath.Join(tmp, basePrefix+"[0-9a-f]*"))
	if err != nil {
		return err
	}
	for _, d := range dirs {
		st, err := os.Lstat(d)
		if err != nil || !st.IsDir() || time.Since(st.ModTime()) < age || st.Sys().(*syscall.Stat_t).Uid != 0 {
			continue
		}
		f, err := os.Open(d)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			err = os.RemoveAll(d)
		}
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// runChild starts the test binary in the new namespace and reaps until it has
// ended. The supervisor is a subreaper, so whatever the tests orphan comes to
// it: the dead are reaped at once, as init would, and the living are found by
// findLeaks.
func runChild(base string) (int, error) {
	// The parent-death signal goes by thread, not process (prctl(2)): this
	// thread must live as long as the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 1, fmt.Errorf("PR_SET_CHILD_SUBREAPER: %w", err)
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), envBase+"="+base)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// With Unshareflags (not Cloneflags) the standard library also makes every
	// mount private, so that nothing propagates out.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	stop := forwardSignals(cmd.Process.Pid)
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			stop()
			return 1, fmt.Errorf("wait4: %w", err)
		case pid == cmd.Process.Pid:
			stop()
			return exitCode(ws), nil
		}
	}
}

func exitCode(ws unix.WaitStatus) int {
	if ws.Signaled() {
		fmt.Fprintln(os.Stderr, "testenv: the test process was killed by", ws.Signal())
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// forwardSignals passes on what `go test` or a person sends, until stop.
func forwardSignals(pid int) (stop func()) {
	c := make(chan os.Signal, 8)
	signal.Notify(c, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGHUP)
	var mu sync.Mutex
	live := true
	go func() {
		for s := range c {
			mu.Lock()
			if live {
				// The child is not reaped while live, so the number is still its own.
				_ = unix.Kill(pid, s.(syscall.Signal))
			}
			mu.Unlock()
		}
	}()
	return func() {
		mu.Lock()
		live = false
		mu.Unlock()
		signal.Stop(c)
	}
}

// isOurs says whether a path belongs to the run of base. Both ends are
// compared so that one run's name is never a prefix of another's.
func isOurs(path, base string) bool {
	return path == base || strings.HasPrefix(path, base+"/")
}
