package ledger

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// disk is the writing half of the file system, one method per system call. It
// is an interface so that tests can refuse a call, or drop what was not synced.
type disk interface {
	create(dir *os.File, name string) (segmentFile, error)
	open(dir *os.File, name string) (segmentFile, error)
	rename(dir *os.File, from, to string) error
	unlink(dir *os.File, name string) error
	syncDir(dir *os.File) error
	// syncOther makes another writer's segment and its name durable.
	syncOther(dir *os.File, name string) error
}

type segmentFile interface {
	WriteAt(p []byte, off int64) (int, error)
	allocate(off, n int64) error
	truncate(size int64) error
	sync() error // fdatasync(2): the size too, where it changed
	Close() error
}

type osDisk struct{}

type osFile struct{ *os.File }

func (osDisk) create(dir *os.File, name string) (segmentFile, error) {
	return openSegmentFile(dir, name, unix.O_CREAT|unix.O_EXCL)
}

func (osDisk) open(dir *os.File, name string) (segmentFile, error) {
	return openSegmentFile(dir, name, 0)
}

func openSegmentFile(dir *os.File, name string, flags int) (segmentFile, error) {
	f, err := openAt(dir, name, unix.O_RDWR|flags)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osDisk) rename(dir *os.File, from, to string) error {
	err := unix.Renameat2(int(dir.Fd()), from, int(dir.Fd()), to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) { // file systems without RENAME_NOREPLACE, renameat2(2)
		err = unix.Renameat(int(dir.Fd()), from, int(dir.Fd()), to)
	}
	return os.NewSyscallError("renameat2", err)
}

func (osDisk) unlink(dir *os.File, name string) error {
	return os.NewSyscallError("unlinkat", unix.Unlinkat(int(dir.Fd()), name, 0))
}

func (osDisk) syncDir(dir *os.File) error { return dir.Sync() }

// syncOther opens for reading only: the other writer may be another uid, and
// fsync(2) asks for no write access.
func (d osDisk) syncOther(dir *os.File, name string) error {
	f, err := openAt(dir, name, unix.O_RDONLY)
	if errors.Is(err, unix.ENOENT) {
		return nil // replaced by one that was durable before this one went
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return errors.Join(osFile{f}.sync(), d.syncDir(dir))
}

func (f osFile) allocate(off, n int64) error {
	return retry(func() error { return unix.Fallocate(int(f.Fd()), 0, off, n) })
}

func (f osFile) truncate(size int64) error { return f.Truncate(size) }

func (f osFile) sync() error {
	return retry(func() error { return unix.Fdatasync(int(f.Fd())) })
}

// retry repeats what a signal interrupted: the Go runtime's preemption signals
// reach raw calls too (SA_RESTART does not cover all of them, signal(7)).
func retry(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// openAt opens one component below dir and never follows a link: another uid
// may own the directory.
func openAt(dir *os.File, name string, flags int) (*os.File, error) {
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Openat(int(dir.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o644)
		return err
	})
	if err != nil {
		return nil, &os.PathError{Op: "openat", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

func openDirAt(dir *os.File, name string) (*os.File, error) {
	return openAt(dir, name, unix.O_RDONLY|unix.O_DIRECTORY)
}

// makeDir makes a directory, or opens the one that is there. A new stream's are
// made durable by syncAbove.
func makeDir(dir *os.File, name string) (*os.File, error) {
	err := unix.Mkdirat(int(dir.Fd()), name, 0o755)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, os.NewSyscallError("mkdirat", err)
	}
	return openDirAt(dir, name)
}

// overwrites reports whether a file system profits from overwriting allocated
// zeros: on ext4 and xfs the fdatasync then needs no journal commit. On btrfs
// every write goes to a new place anyway, and appending is fastest.
func overwrites(dir *os.File) bool {
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(int(dir.Fd()), &st) }); err != nil {
		return false
	}
	return st.Type == unix.EXT4_SUPER_MAGIC || st.Type == unix.XFS_SUPER_MAGIC
}

func noSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
