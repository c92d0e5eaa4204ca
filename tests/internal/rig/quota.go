package rig

import (
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
)

// EnableQuota switches btrfs' quotas on: "qgroup" or "squota".
func EnableQuota(t testing.TB, dir, mode string) {
	t.Helper()
	a := struct{ cmd, status uint64 }{cmd: map[string]uint64{"qgroup": 1, "squota": 4}[mode]} // BTRFS_QUOTA_CTL_ENABLE…
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), 0xc0109428, uintptr(unsafe.Pointer(&a))) // BTRFS_IOC_QUOTA_CTL
	if e == unix.EINVAL && mode == "squota" {
		testenv.NeedFile(t, "btrfs simple quotas", "/sys/fs/btrfs/features/simple_quota") // Linux 6.7
	}
	if e != 0 {
		t.Fatal(e)
	}
}
