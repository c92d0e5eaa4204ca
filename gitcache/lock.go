package gitcache

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockFile is an flock(2) on a file of the cache. It belongs to the open file
// description: git processes that inherit it keep it held.
type lockFile struct{ f *os.File }

var errLocked = errors.New("locked by another holder")

// lock waits for the lock. how is LOCK_SH or LOCK_EX, with LOCK_NB not to wait.
// The file may be unlinked by a holder of LOCK_EX, so a lock counts only if the
// name still leads to it.
func lock(ctx context.Context, path string, how int) (*lockFile, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		if err := flock(ctx, f, how); err != nil {
			f.Close()
			return nil, err
		}
		if sameFile(f, path) {
			return &lockFile{f}, nil
		}
		f.Close()
	}
}

// flock polls, because a blocked flock(2) can't be given up when ctx ends.
func flock(ctx context.Context, f *os.File, how int) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 25*time.Millisecond) {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case err == unix.EINTR:
			continue
		case err != unix.EWOULDBLOCK:
			return os.NewSyscallError("flock", err)
		case how&unix.LOCK_NB != 0:
			return errLocked
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

func sameFile(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Lstat(path)
	return err == nil && os.SameFile(a, b)
}

// unlock releases the lock for every process that shares the description.
func (l *lockFile) unlock() {
	if l == nil || l.f == nil {
		return
	}
	_ = unix.Flock(int(l.f.Fd()), unix.LOCK_UN)
	_ = l.f.Close()
	l.f = nil
}
