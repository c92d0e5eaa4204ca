package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// FSOptions are the rare needs of a file system.
type FSOptions struct {
	// OnDisk puts the image on the machine's disk, for measurements. Otherwise
	// it lies in memory.
	OnDisk bool
	// MountOptions are the file system's own, as mount(2)'s data.
	MountOptions string
	// MountFlags are mount(2)'s.
	MountFlags uintptr
	// MkfsArgs are added to mkfs's command line.
	MkfsArgs []string
	// kernel are the build options without which a kernel refuses (EINVAL) the mount.
	kernel []string
}

// ProjectQuotaFS is an ext4 or xfs that enforces project quotas.
func ProjectQuotaFS(t testing.TB, kind string) string {
	t.Helper()
	o := FSOptions{MountOptions: "prjquota", kernel: []string{"CONFIG_XFS_QUOTA"}}
	size := 320
	if kind == "ext4" {
		o.kernel = []string{"CONFIG_QUOTA", "CONFIG_QFMT_V2"}
		o.MkfsArgs, size = []string{"-O", "quota,project", "-E", "quotatype=prjquota", "-m", "0"}, 256
	}
	return FSWith(t, kind, size, o)
}

// FS makes a file system of kind ext4, xfs or btrfs on a loop device and
// returns its mount point. It vanishes with the test, and with the process.
// The smallest are about 8 MiB (ext4), 300 (xfs) and 110 (btrfs).
func FS(t testing.TB, kind string, sizeMiB int) string {
	t.Helper()
	return FSWith(t, kind, sizeMiB, FSOptions{})
}

// FSWith is FS with options.
func FSWith(t testing.TB, kind string, sizeMiB int, o FSOptions) string {
	t.Helper()
	Root(t)
	image := makeImage(t, sizeMiB, o.OnDisk)
	mkfs(t, kind, image, o.MkfsArgs)
	node, dev := attachLoop(t, image)
	// The device holds the file: without a name there is nothing to forget.
	if err := os.Remove(image); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(baseDir(), "m", fmt.Sprintf("%s%d", kind, fsCount.Add(1)))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	err := unix.Mount(node, dir, kind, o.MountFlags, o.MountOptions)
	dev.Close() // from here the mount keeps the device
	if errors.Is(err, unix.EINVAL) {
		for _, option := range o.kernel {
			if builtWithout(option) {
				MissingKernelFeature(t, o.MountOptions+" of "+kind, "/proc/config.gz has no "+option)
			}
		}
	}
	if errors.Is(err, unix.ENODEV) {
		MissingKernelFeature(t, kind, "mount(2) says ENODEV")
	}
	if err != nil {
		t.Fatalf("mount %s: %v", kind, err)
	}
	t.Cleanup(func() { unmount(t, dir) })
	// Every kind starts empty.
	if err := os.Remove(filepath.Join(dir, "lost+found")); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return dir
}

var fsCount atomic.Int64

// TmpFS mounts a tmpfs, the file system of smallest means: no reflink, no
// snapshots. sizeMiB bounds it.
func TmpFS(t testing.TB, sizeMiB int) string {
	t.Helper()
	Root(t)
	dir := filepath.Join(baseDir(), "m", fmt.Sprintf("tmpfs%d", fsCount.Add(1)))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("mode=0755,size=%dm", sizeMiB)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unmount(t, dir) })
	return dir
}

func makeImage(t testing.TB, sizeMiB int, onDisk bool) string {
	t.Helper()
	parent := filepath.Join(baseDir(), "m")
	if onDisk {
		parent = filepath.Join(baseDir(), "i")
	}
	f, err := os.CreateTemp(parent, RunID()+"-image-")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(int64(sizeMiB) << 20); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

func mkfs(t testing.TB, kind, image string, more []string) {
	t.Helper()
	args, ok := map[string][]string{
		// One inode per 8 KiB: trees of small files would run out by default.
		"ext4":  {"-q", "-F", "-i", "8192", "-E", "nodiscard"},
		"xfs":   {"-q", "-f", "-K", "-m", "reflink=1"},
		"btrfs": {"-q", "-f", "-K", "-m", "single"},
	}[kind]
	if !ok {
		t.Fatalf("testenv makes no file system %q", kind)
	}
	path, err := exec.LookPath("mkfs." + kind)
	if err != nil {
		path = "/sbin/mkfs." + kind // not on an ordinary PATH in Debian
	}
	cmd := exec.Command(path, append(append(args, more...), image)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("mkfs.%s (make setup installs it): %v\n%s", kind, err, out)
	}
}

// unmount is a check too: a mount that stays busy is a descriptor or process
// that the test lost. The wait is for killed processes still on their way out.
func unmount(t testing.TB, dir string) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
	for err == unix.EBUSY && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
		err = unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
	}
	if err != nil {
		t.Errorf("unmounting %s: %v: the test left a file open or a process or mount on it", dir, err)
		_ = unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	if err := os.Remove(dir); err != nil {
		t.Error(err)
	}
}
