package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/snapshot"
)

// directory is a store on this host's file systems. The directory must exist:
// whoever made it decides who may write there.
type directory struct{ path string }

func (d directory) open() (*os.File, error) {
	fd, err := unix.Open(d.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, directoryError("the store's directory cannot be opened", err)
	}
	return os.NewFile(uintptr(fd), d.path), nil
}

func directoryError(message string, err error) error {
	code := policy.CodeSnapshotStoreFailed
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		code = policy.CodeDiskFull
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		code = policy.CodeSnapshotStoreRefused
	}
	bad := failed(code, message, err)
	switch {
	case code == policy.CodeSnapshotStoreRefused:
		bad = bad.WithHint("Give the calling user (with a daemon: the daemon's) the right to it.")
	case errors.Is(err, fs.ErrNotExist):
		bad = bad.WithHint("Make the directory first, for whoever is to write there.")
	}
	return bad
}

func (d directory) Get(_ context.Context, digest string) (io.ReadCloser, error) {
	dir, err := d.open()
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	// O_NONBLOCK: a FIFO of that name must not make us wait.
	fd, err := unix.Openat(int(dir.Fd()), snapshot.ObjectName(digest), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, unknown(digest, err)
	}
	if err != nil {
		return nil, directoryError("the snapshot cannot be opened", err)
	}
	f := os.NewFile(uintptr(fd), digest)
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, failed(policy.CodeSnapshotStoreFailed, "the store has something that is no file under that name", err)
	}
	return f, nil
}

// Put writes a nameless file and links it: a crash leaves nothing. Only where
// another file has the name already is it replaced by renaming.
func (d directory) Put(ctx context.Context, digest string, archive *os.File, size int64) error {
	dir, err := d.open()
	if err != nil {
		return err
	}
	defer dir.Close()
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_WRONLY|unix.O_TMPFILE|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return directoryError("the snapshot cannot be written", err)
	}
	f := os.NewFile(uintptr(fd), digest)
	defer f.Close()
	n, err := io.Copy(f, contextReader{ctx, io.NewSectionReader(archive, 0, size)})
	if err == nil && n != size {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = link(f, dir, snapshot.ObjectName(digest))
	}
	if err == nil {
		err = dir.Sync()
	}
	if err != nil {
		if ctx.Err() != nil {
			return failed(policy.CodeCanceled, "the operation was canceled", err)
		}
		return directoryError("the snapshot cannot be written", err)
	}
	return nil
}

func link(f, dir *os.File, name string) error {
	self := fmt.Sprintf("/proc/self/fd/%d", f.Fd()) // AT_EMPTY_PATH wants CAP_DAC_READ_SEARCH
	err := unix.Linkat(unix.AT_FDCWD, self, int(dir.Fd()), name, unix.AT_SYMLINK_FOLLOW)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	tmp := policy.NewID("." + name + "-")
	if err := unix.Linkat(unix.AT_FDCWD, self, int(dir.Fd()), tmp, unix.AT_SYMLINK_FOLLOW); err != nil {
		return err
	}
	if err := unix.Renameat(int(dir.Fd()), tmp, int(dir.Fd()), name); err != nil {
		return errors.Join(err, unix.Unlinkat(int(dir.Fd()), tmp, 0))
	}
	return nil
}

// contextReader ends a copy when ctx does.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(b)
}

func (d directory) List(context.Context) ([]Item, error) {
	dir, err := d.open()
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return nil, directoryError("the store's directory cannot be read", err)
	}
	var items []Item
	for _, e := range entries {
		digest, ok := snapshot.DigestOf(e.Name())
		st, err := e.Info()
		if ok && err == nil && st.Mode().IsRegular() {
			items = append(items, Item{digest, st.Size(), st.ModTime()})
		}
	}
	sortItems(items)
	return items, nil
}

func sortItems(items []Item) {
	slices.SortFunc(items, func(a, b Item) int {
		if c := a.StoredAt.Compare(b.StoredAt); c != 0 {
			return c
		}
		if a.Digest < b.Digest {
			return -1
		}
		return 1
	})
}

func (d directory) Remove(_ context.Context, digest string) error {
	dir, err := d.open()
	if err != nil {
		return err
	}
	defer dir.Close()
	err = unix.Unlinkat(int(dir.Fd()), snapshot.ObjectName(digest), 0)
	if errors.Is(err, fs.ErrNotExist) {
		return unknown(digest, err)
	}
	if err == nil {
		err = dir.Sync()
	}
	if err != nil {
		return directoryError("the snapshot cannot be removed", err)
	}
	return nil
}
