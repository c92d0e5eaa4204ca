package cow

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

// The kernel's sizes, linux/quota.h and others: a wrong one would overwrite memory.
func TestProjectStructs(t *testing.T) {
	for name, c := range map[string][2]uintptr{
		"fs_quota_stat": {unsafe.Sizeof(quotaStat{}), 80}, "if_dqblk": {unsafe.Sizeof(quotaBlock{}), 72}, "fsxattr": {unsafe.Sizeof(fileAttr{}), 28},
	} {
		if c[0] != c[1] {
			t.Errorf("%s has %d bytes, not %d", name, c[0], c[1])
		}
	}
}

func TestLimitBlock(t *testing.T) {
	for _, c := range []struct {
		bytes, inodes int64
		want          quotaBlock
	}{
		{0, 0, quotaBlock{valid: 5}},
		{1, 0, quotaBlock{blockHard: 1, valid: 5}},
		{1024, 16, quotaBlock{blockHard: 1, inodeHard: 16, valid: 5}},
		{1025, 0, quotaBlock{blockHard: 2, valid: 5}},
		{4 << 30, 200000, quotaBlock{blockHard: 4 << 20, inodeHard: 200000, valid: 5}},
	} {
		if got := limitBlock(c.bytes, c.inodes); got != c.want {
			t.Errorf("%d, %d: %+v, want %+v", c.bytes, c.inodes, got, c.want)
		}
	}
}

func TestProjectEnforcement(t *testing.T) {
	for flags, want := range map[uint16]bool{0: false, 1<<4 | 1<<1: false, 1 << 5: true, 0x3f: true} { // accounting is not enforcing
		if got := (quotaStat{flags: flags}).enforced(); got != want {
			t.Errorf("%#x: %v", flags, got)
		}
	}
}

func TestFreeProject(t *testing.T) {
	used := map[uint32]bool{ProjectIDs: true, ProjectIDs + 1: true, ProjectIDs + ProjectIDCount - 1: true}
	usage := func(id uint32) (u ProjectUsage, err error) {
		if used[id] {
			u.Inodes = 1
		}
		return u, nil
	}
	for start, want := range map[uint32]uint32{0: ProjectIDs + 2, 5: ProjectIDs + 5, ProjectIDCount - 1: ProjectIDs + 2, ProjectIDCount + 5: ProjectIDs + 5} {
		if got, err := freeProject(start, usage); err != nil || got != want {
			t.Errorf("from %d: %#x, %v, want %#x", start, got, err, want)
		}
	}
	full := func(uint32) (ProjectUsage, error) { return ProjectUsage{Bytes: 1}, nil }
	if _, err := freeProject(0, full); !errors.Is(err, policy.CodeQuotaUnsupported) {
		t.Error(err)
	}
	broken := func(uint32) (ProjectUsage, error) { return ProjectUsage{}, unix.EIO }
	if _, err := freeProject(0, broken); !errors.Is(err, unix.EIO) {
		t.Error(err)
	}
}

// TestNoProjectQuota: a file system that does not enforce them is never chosen.
func TestNoProjectQuota(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs", "btrfs", "tmpfs"} {
		dir := t.TempDir()
		if kind != "tmpfs" {
			dir = testenv.FS(t, kind, map[string]int{"ext4": 64, "xfs": 320, "btrfs": 128}[kind])
		}
		f := openForTest(t, dir)
		if ProjectQuota(f) {
			t.Errorf("%s without prjquota is taken for one that enforces it", kind)
		}
		if err := LimitProject(f, ProjectIDs, 1<<20, 0); !errors.Is(err, policy.CodeQuotaUnsupported) {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// asWorker is f without CAP_SYS_RESOURCE, which no Worker has, and with which ext4 refuses
// nothing (capabilities(7)).
func asWorker(t *testing.T, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	must(t, unix.Capget(&head, &caps[0]))
	less := caps
	less[0].Effective &^= 1 << unix.CAP_SYS_RESOURCE
	must(t, unix.Capset(&head, &less[0]))
	defer func() { must(t, unix.Capset(&head, &caps[0])) }()
	f()
}

// TestProjectQuota: the kernel refuses what is beyond, counts what is there, and
// nothing is moved in from outside.
func TestProjectQuota(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) {
			dir := testenv.ProjectQuotaFS(t, kind)
			top := openForTest(t, dir)
			if !ProjectQuota(top) {
				t.Fatal("it is not found to be enforced")
			}
			id, err := FreeProject(top, 7)
			if err != nil || id != ProjectIDs+7 {
				t.Fatal(id, err)
			}
			must(t, os.Mkdir(filepath.Join(dir, "ws"), 0o700))
			ws := openForTest(t, filepath.Join(dir, "ws"))
			must(t, SetProject(ws, id))
			must(t, LimitProject(top, id, 4<<20, 20))
			if next, err := FreeProject(top, 7); err != nil || next != id+1 {
				t.Errorf("the next free id is %d, %v", next, err)
			}
			must(t, os.MkdirAll(filepath.Join(dir, "ws/a/b"), 0o755))
			asWorker(t, func() { err = os.WriteFile(filepath.Join(dir, "ws/a/b/big"), make([]byte, 8<<20), 0o644) })
			if !errors.Is(err, unix.EDQUOT) && !errors.Is(err, unix.ENOSPC) {
				t.Errorf("8 MiB: %v", err)
			}
			must(t, os.WriteFile(filepath.Join(dir, "outside"), make([]byte, 8<<20), 0o644))
			if err := os.Rename(filepath.Join(dir, "outside"), filepath.Join(dir, "ws/in")); !errors.Is(err, unix.EXDEV) {
				t.Errorf("renamed into the project: %v", err)
			}
			must(t, os.Remove(filepath.Join(dir, "ws/a/b/big")))
			unix.Sync()
			n := 0
			asWorker(t, func() {
				for ; n < 40; n++ {
					if os.WriteFile(filepath.Join(dir, "ws", string(rune('a'+n))+"x"), nil, 0o644) != nil {
						break
					}
				}
			})
			if u, err := UsageOfProject(top, id); err != nil || u.Inodes != 20 || n > 18 {
				t.Errorf("%d files and %+v, %v", n, u, err)
			}
			must(t, RemoveTree(t.Context(), top, "ws", RemoveOptions{}))
			must(t, LimitProject(top, id, 0, 0))
		})
	}
}
