package index

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrChanged is for a tree that does not hold what the index says.
var ErrChanged = errors.New("the tree does not match the index")

const parallelFrom = 4096 // entries; below, starting goroutines costs more than it saves

// PatchTree stores the stat data of every entry's file beneath tree, with uid
// and gid as owner, whoever owns the file on disk: inside a sandbox the owner
// is always the Worker. With a time each file gets that first, as its access and
// modification time. No symbolic link is followed and no mount crossed.
func (x *Index) PatchTree(ctx context.Context, tree *os.File, uid, gid uint32, when *time.Time) error {
	workers := 1
	if x.Len() >= parallelFrom {
		workers = min(runtime.GOMAXPROCS(0), 4)
	}
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		from, to := x.Len()*w/workers, x.Len()*(w+1)/workers
		wg.Go(func() { errs[w] = x.patchRange(ctx, tree, uid, gid, when, from, to) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (x *Index) patchRange(ctx context.Context, tree *os.File, uid, gid uint32, when *time.Time, from, to int) error {
	var times []unix.Timespec
	if when != nil {
		ts := unix.NsecToTimespec(when.UnixNano())
		times = []unix.Timespec{ts, ts}
	}
	dirs := dirCursor{root: int(tree.Fd()), fd: -1}
	defer dirs.close()
	var st unix.Statx_t
	for i := from; i < to; i++ {
		if i%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		e := x.Entry(i)
		if !e.isFile() {
			continue
		}
		fd, name, err := dirs.open(e.Path)
		if err == nil && times != nil {
			err = unix.UtimesNanoAt(fd, name, times, unix.AT_SYMLINK_NOFOLLOW)
		}
		if err == nil {
			err = unix.Statx(fd, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS, &st)
		}
		if err != nil {
			return fmt.Errorf("%w: %q: %w", ErrChanged, e.Path, err)
		}
		if uint32(st.Mode)&unix.S_IFMT != e.Mode&modeTypeMask {
			return fmt.Errorf("%w: %q is of another type", ErrChanged, e.Path)
		}
		s := FromStatx(&st)
		s.UID, s.GID = uid, gid
		x.SetStat(i, s)
	}
	return nil
}

// dirCursor keeps the directory of the last path open: entries are sorted, so
// each directory is opened about once.
type dirCursor struct {
	root, fd int
	dir      []byte
}

func (d *dirCursor) open(path []byte) (fd int, name string, err error) {
	slash := bytes.LastIndexByte(path, '/')
	if slash < 0 {
		return d.root, string(path), checkName(string(path))
	}
	dir, name := path[:slash], string(path[slash+1:])
	if err := checkName(name); err != nil {
		return -1, "", err
	}
	if d.fd >= 0 && bytes.Equal(dir, d.dir) {
		return d.fd, name, nil
	}
	d.close()
	d.dir = dir
	d.fd, err = unix.Openat2(d.root, string(dir), &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	return d.fd, name, err
}

// checkName keeps a hostile last component from naming another directory:
// fstatat of ".." is not covered by openat2's rules.
func checkName[T string | []byte](name T) error {
	switch s := string(name); {
	case s == "", s == ".", s == "..", strings.Contains(s, "/"):
		return unix.EINVAL
	}
	return nil
}

func (d *dirCursor) close() {
	if d.fd >= 0 {
		_ = unix.Close(d.fd)
	}
	d.fd = -1
}
