package cow

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Cached returns what an earlier Probe kept in the probe.json of dir, the
// Runtime root, if it still holds (cacheKey says what goes stale), else nil.
func Cached(dir *os.File) *Table {
	defer runtime.KeepAlive(dir)
	key, err := cacheKey(fd(dir))
	if err != nil {
		return nil // Probe says why
	}
	return readCache(fd(dir), key, time.Now())
}

// Probe says which strategies work on the file system of dir, the Runtime root.
// Each is tried out in a directory of its own below scratch, an empty directory
// on the same file system that the caller made and will remove. The answer is
// kept for Cached.
func Probe(ctx context.Context, dir, scratch *os.File) (*Table, error) {
	const op = "cow.probe"
	defer runtime.KeepAlive(dir)
	key, err := cacheKey(fd(dir))
	if err != nil {
		return nil, diagnose(op, onTarget, "", err)
	}
	t := &Table{FileSystem: fileSystemOf(fd(dir)), ProbedAt: time.Now().UTC()}
	for _, s := range Strategies() {
		if err := ctxErr(ctx, op); err != nil {
			return nil, err
		}
		own, err := makeDir(scratch, string(s.Name()))
		if err != nil {
			return nil, diagnose(op, onTarget, "", err)
		}
		t.Entries = append(t.Entries, Entry{s.Name(), s.Probe(ctx, ProbeDir{Dir: own, FileSystem: t.FileSystem})})
		own.Close()
	}
	writeCache(fd(dir), key, t)
	return t, nil
}

// giveTo makes a file of the probe belong to the owner of like: a privileged
// probe must find out what a Worker could do, who owns the Runtime root's files.
func giveTo(like, f int) error {
	if unix.Geteuid() != 0 {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(like, &st); err != nil {
		return err
	}
	return unix.Fchown(f, int(st.Uid), int(st.Gid))
}

func makeDir(parent *os.File, name string) (*os.File, error) {
	if err := mkdirat(fd(parent), newCname(name), 0o700); err != nil {
		return nil, err
	}
	d, err := openBeneath(fd(parent), newCname(name), openDir)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(d), name), giveTo(fd(parent), d)
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
	if err := snapCreate(dir, src, "snapshot"); err != nil {
		return err
	}
	// Without CAP_SYS_ADMIN a read-only subvolume is not deleted, EROFS.
	return setSubvolReadOnly(src, false)
}
