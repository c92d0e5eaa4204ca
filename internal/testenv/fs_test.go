package testenv

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	btrfsMagic = 0x9123683e // statfs(2)
	xfsMagic   = 0x58465342
	ext4Magic  = 0xef53
	tmpfsMagic = 0x01021994
)

func TestFSKinds(t *testing.T) {
	for kind, want := range map[string]struct {
		mib     int
		magic   int64
		reflink bool
	}{
		"ext4":  {16, ext4Magic, false},
		"xfs":   {320, xfsMagic, true},
		"btrfs": {128, btrfsMagic, true},
	} {
		t.Run(kind, func(t *testing.T) {
			dir := FS(t, kind, want.mib)
			var st unix.Statfs_t
			if err := unix.Statfs(dir, &st); err != nil || int64(st.Type) != want.magic {
				t.Fatalf("statfs: type %#x, %v", st.Type, err)
			}
			if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
				t.Errorf("not empty at first: %v %v", entries, err)
			}
			if err := clone(dir); (err == nil) != want.reflink {
				t.Errorf("FICLONE: %v", err)
			}
		})
	}
	t.Run("tmpfs", func(t *testing.T) {
		var st unix.Statfs_t
		if err := unix.Statfs(TmpFS(t, 8), &st); err != nil || int64(st.Type) != tmpfsMagic || st.Blocks*uint64(st.Bsize) != 8<<20 {
			t.Fatalf("%+v %v", st, err)
		}
	})
}

func clone(dir string) error {
	src, err := os.Create(filepath.Join(dir, "a"))
	if err != nil {
		return err
	}
	defer src.Close()
	if _, err := src.WriteString(strings.Repeat("x", 8192)); err != nil {
		return err
	}
	dst, err := os.Create(filepath.Join(dir, "b"))
	if err != nil {
		return err
	}
	defer dst.Close()
	return unix.IoctlFileClone(int(dst.Fd()), int(src.Fd()))
}

// Many at once race for the same free loop numbers.
func TestFSConcurrent(t *testing.T) {
	Root(t)
	var wg sync.WaitGroup
	dirs := make([]string, 24)
	for i := range dirs {
		wg.Go(func() { dirs[i] = FS(t, "ext4", 8) })
	}
	wg.Wait()
	devs := map[uint64]bool{}
	for _, d := range dirs {
		var st unix.Stat_t
		if err := unix.Stat(d, &st); err != nil {
			t.Fatal(err)
		}
		if devs[st.Dev] {
			t.Errorf("two mounts of device %d", st.Dev)
		}
		devs[st.Dev] = true
	}
}

func TestFSIsFull(t *testing.T) {
	dir := FSWith(t, "ext4", 8, FSOptions{OnDisk: true, MountFlags: unix.MS_NOATIME})
	err := os.WriteFile(filepath.Join(dir, "big"), make([]byte, 16<<20), 0o600)
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("16 MiB on 8: %v", err)
	}
}

// The mounts must be in a namespace that is not our parent's.
func TestNamespaceIsPrivate(t *testing.T) {
	Root(t)
	dir := FS(t, "ext4", 8)
	ours, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	parents, err := os.Readlink("/proc/" + itoa(os.Getppid()) + "/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	if ours == parents {
		t.Error("same mount namespace as the supervisor")
	}
	b, err := os.ReadFile("/proc/" + itoa(os.Getppid()) + "/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), dir) || strings.Contains(string(b), RunID()) {
		t.Error("the supervisor's namespace sees our mounts")
	}
}
