package testenv

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// attachLoop binds image to a free loop device and returns the device's node
// and an open descriptor of it. The device has LO_FLAGS_AUTOCLEAR: it detaches
// by itself when the last descriptor and mount are gone, however that happens.
func attachLoop(t testing.TB, image string) (string, *os.File) {
	t.Helper()
	img, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer ctl.Close()
	for range 200 {
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			t.Fatal("LOOP_CTL_GET_FREE: ", err)
		}
		node, err := loopNode(n)
		if err != nil {
			t.Fatal(err)
		}
		dev, err := os.OpenFile(node, os.O_RDWR, 0)
		if err != nil {
			time.Sleep(5 * time.Millisecond) // another process removed the number
			continue
		}
		// LOOP_CONFIGURE (Linux 5.8) sets the file and the flags in one step:
		// with LOOP_SET_FD there is a moment without autoclear.
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &unix.LoopConfig{
			Fd:   uint32(img.Fd()),
			Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR},
		})
		if err == nil {
			return node, dev
		}
		dev.Close()
		// GET_FREE reserves nothing: EBUSY means another process was faster.
		if err != unix.EBUSY {
			t.Fatalf("LOOP_CONFIGURE of loop%d: %v", n, err)
		}
	}
	t.Fatal("no free loop device in 200 tries")
	return "", nil
}

// loopNode makes a device node in the run's own tmpfs: beyond loop7 the
// machine's /dev need not have one, and /dev is not ours to change.
func loopNode(n int) (string, error) {
	dir := filepath.Join(baseDir(), "m", "dev")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	const loopMajor = 7 // admin-guide/devices.rst
	node := filepath.Join(dir, fmt.Sprintf("loop%d", n))
	err := unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(loopMajor, uint32(n))))
	if err != nil && err != unix.EEXIST {
		return "", fmt.Errorf("mknod loop%d: %w", n, err)
	}
	return node, nil
}
