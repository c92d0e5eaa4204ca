package cow

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// Probe says which strategies work on the file system of dir, the Runtime root.
// Each is tried out in a temporary directory below it, once: the answer is
// kept in dir's probe.json and believed while its key holds (cacheKey says what
// is in it and what goes stale).
func Probe(ctx context.Context, dir *os.File) (*Table, error) {
	defer runtime.KeepAlive(dir)
	key, err := cacheKey(fd(dir))
	if err != nil {
		return nil, diagnose("cow.probe", onTarget, "", err)
	}
	if t := readCache(fd(dir), key, time.Now()); t != nil {
		return t, nil
	}
	return probe(ctx, dir, key)
}

// ProbeFresh is Probe without believing the kept answer, as yoi doctor wants it.
func ProbeFresh(ctx context.Context, dir *os.File) (*Table, error) {
	defer runtime.KeepAlive(dir)
	key, err := cacheKey(fd(dir))
	if err != nil {
		return nil, diagnose("cow.probe", onTarget, "", err)
	}
	return probe(ctx, dir, key)
}

func probe(ctx context.Context, dir *os.File, key string) (t *Table, err error) {
	const op = "cow.probe"
	parent, err := probeParent(dir)
	if err != nil {
		return nil, diagnose(op, onTarget, "", err)
	}
	defer parent.Close()
	name := policy.NewID("probe-")
	defer func() {
		if rerr := RemoveTree(context.WithoutCancel(ctx), parent, name, RemoveOptions{}); rerr != nil && err == nil {
			t, err = nil, rerr
		}
	}()
	t = &Table{FileSystem: fileSystemOf(fd(dir)), ProbedAt: time.Now().UTC()}
	top, err := makeDir(parent, name)
	if err != nil {
		return nil, diagnose(op, onTarget, "", err)
	}
	defer top.Close()
	for _, s := range Strategies() {
		if err := ctxErr(ctx, op); err != nil {
			return nil, err
		}
		own, err := makeDir(top, string(s.Name()))
		if err != nil {
			return nil, diagnose(op, onTarget, "", err)
		}
		t.Entries = append(t.Entries, Entry{s.Name(), s.Probe(ctx, ProbeDir{Dir: own, FileSystem: t.FileSystem})})
		own.Close()
	}
	writeCache(fd(dir), key, t)
	return t, nil
}

// probeParent is tmp of a Runtime root, so that a crash's leftover lies where
// such things are swept; else dir itself.
func probeParent(dir *os.File) (*os.File, error) {
	tmp, err := openBeneath(fd(dir), newCname("tmp"), openDir)
	if err != nil {
		if tmp, err = openBeneath(fd(dir), newCname("."), openDir); err != nil {
			return nil, err
		}
	}
	return os.NewFile(uintptr(tmp), "probe parent"), nil
}

func makeDir(parent *os.File, name string) (*os.File, error) {
	if err := mkdirat(fd(parent), newCname(name), 0o700); err != nil {
		return nil, err
	}
	d, err := openBeneath(fd(parent), newCname(name), openDir)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(d), name), nil
}

// makeFile makes a file with content and returns its descriptor.
func makeFile(dir int, name string, content []byte) (int, error) {
	f, err := createFile(dir, newCname(name), 0o600)
	if err != nil {
		return -1, err
	}
	if len(content) > 0 {
		if _, err := unix.Pwrite(f, content, 0); err != nil {
			closeFd(f)
			return -1, err
		}
	}
	return f, nil
}

// Probe clones one file, or for copy only says what it costs.
func (s treeCopy) Probe(_ context.Context, d ProbeDir) Support {
	if !s.clone {
		return Support{OK: true, Reason: "works on every file system, at the price of a full copy"}
	}
	switch err := tryClone(fd(d.Dir)); err {
	case nil:
		return Support{OK: true, Reason: "files can share their blocks (FICLONE), the time goes with the number of files"}
	default:
		return Support{
			Reason: fmt.Sprintf("this %s does not let files share their blocks (FICLONE: %v)", d.FileSystem, err),
			Fix:    "Put the Runtime root on btrfs, or on xfs made with -m reflink=1.",
		}
	}
}

func tryClone(dir int) error {
	a, err := makeFile(dir, "a", make([]byte, 64<<10))
	if err != nil {
		return err
	}
	defer closeFd(a)
	src, err := openBeneath(dir, newCname("a"), unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer closeFd(src)
	b, err := makeFile(dir, "b", nil)
	if err != nil {
		return err
	}
	defer closeFd(b)
	return ficlone(b, src)
}

// Probe makes a subvolume and a read-only and a writable snapshot, and deletes
// all as subvolumes.
func (btrfsSnapshot) Probe(_ context.Context, d ProbeDir) Support {
	if d.FileSystem != "btrfs" {
		return Support{Reason: "the file system is " + d.FileSystem + ", not btrfs", Fix: "Put the Runtime root on btrfs."}
	}
	dir := fd(d.Dir)
	if err := trySnapshot(dir); err != nil {
		return Support{Reason: fmt.Sprintf("a snapshot could not be made (%v)", err)}
	}
	for _, name := range []string{"snapshot", "source"} {
		if err := snapDestroy(dir, newCname(name)); err != nil {
			return Support{OK: true, Costly: true,
				Reason: fmt.Sprintf("a snapshot takes constant time, but deleting it goes file by file (%v)", err),
				Fix:    "Mount the file system with user_subvol_rm_allowed, or use the privileged helper."}
		}
	}
	return Support{OK: true, Reason: "a snapshot is made and deleted in constant time and is an ordinary tree"}
}

func trySnapshot(dir int) error {
	if err := subvolCreate(dir, "source"); err != nil {
		return err
	}
	src, err := openBeneath(dir, newCname("source"), openDir)
	if err != nil {
		return err
	}
	defer closeFd(src)
	if err := setSubvolReadOnly(src, true); err != nil {
		return err
	}
	return snapCreate(dir, src, "snapshot")
}
