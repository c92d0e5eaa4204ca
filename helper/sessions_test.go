package helper

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/nsexec"
)

func TestDying(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := strconv.Itoa(cmd.Process.Pid)
	if dying(pid) {
		t.Error("a process that sleeps is taken for dying")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if !dying(pid) { // whether it has noticed or not
		t.Error("a process that was killed is not taken for dying")
	}
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if !dying(pid) {
		t.Error("a zombie is not taken for dying")
	}
	_ = cmd.Wait() // killed
	if !dying(pid) {
		t.Error("what is gone is not taken for dying")
	}
}

// TestOlderInit: a Worker's lock is found wherever the version that started it had its
// PID 1 hold it, and no other file is taken for it.
func TestOlderInit(t *testing.T) {
	open := func(name string) *os.File {
		f, err := os.Create(filepath.Join(t.TempDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	lock, other := open("lock"), open("other")
	for _, at := range []int{5, nsexec.FirstHold, nsexec.FirstHold + 3, initDescriptors - 1} {
		cmd := exec.Command("sleep", "1000")
		cmd.ExtraFiles = make([]*os.File, initDescriptors-3)
		for i := range cmd.ExtraFiles {
			cmd.ExtraFiles[i] = other
		}
		cmd.ExtraFiles[at-3] = lock
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // killed
		})
		fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		pidfd := os.NewFile(uintptr(fd), "pidfd")
		t.Cleanup(func() { pidfd.Close() })
		if err := heldLock(pidfd, identify(lock)); err != nil {
			t.Errorf("the lock at %d: %v", at, err)
		}
		if err := heldLock(pidfd, identify(open("third"))); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a lock that it does not hold: %v", err)
		}
		if heldLock(pidfd, ledger.Identity{}) == nil {
			t.Error("no lock is taken for one")
		}
	}
}
