package gitcache

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/gitcache/index"
	"yoi.dev/yoi-runtime/policy"
)

// openBeneath opens rel beneath dir without following any symbolic link.
func openBeneath(dir *os.File, rel string, flags int, mode uint32) (*os.File, error) {
	if flags&unix.O_PATH == 0 { // with which openat2 refuses it
		flags |= unix.O_NOCTTY
	}
	fd, err := unix.Openat2(int(dir.Fd()), rel, &unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Mode:    uint64(mode),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, &fs.PathError{Op: "openat2", Path: rel, Err: err}
	}
	return os.NewFile(uintptr(fd), rel), nil
}

// mkdirBeneath makes rel and its parents beneath dir, with mode 0755 whatever
// the umask, and returns it open.
func mkdirBeneath(dir *os.File, rel string) (*os.File, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY
	f, err := openBeneath(dir, rel, flags, 0)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	parent := dir
	if up := path.Dir(rel); up != "." {
		if parent, err = mkdirBeneath(dir, up); err != nil {
			return nil, err
		}
		defer parent.Close()
	}
	if err := unix.Mkdirat(int(parent.Fd()), path.Base(rel), 0o755); err != nil && err != unix.EEXIST {
		return nil, err
	}
	if f, err = openBeneath(parent, path.Base(rel), flags, 0); err != nil {
		return nil, err
	}
	return f, f.Chmod(0o755)
}

// writeBeneath replaces the file rel beneath dir atomically. Its mode is 0644.
func writeBeneath(dir *os.File, rel string, data []byte) error {
	parent, err := mkdirBeneath(dir, path.Dir(rel))
	if err != nil {
		return err
	}
	defer parent.Close()
	tmp := policy.NewID(".yoi-")
	f, err := openBeneath(parent, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = unix.Renameat(int(parent.Fd()), tmp, int(parent.Fd()), path.Base(rel))
	}
	if err != nil {
		_ = unix.Unlinkat(int(parent.Fd()), tmp, 0)
	}
	return err
}

// writeIndex writes x as .git/index, with a modification time later than every
// entry's, so that none is racy.
func writeIndex(tree *os.File, x *index.Index) error {
	newest := int64(0)
	for i := range x.Len() {
		if e := x.Entry(i); !e.IsGitlink() { // which git never counts as racy
			newest = max(newest, int64(e.Stat.MtimeSec))
		}
	}
	if err := writeBeneath(tree, ".git/index", x.Bytes()); err != nil {
		return err
	}
	if newest < time.Now().Unix() {
		return nil
	}
	ts := unix.NsecToTimespec(time.Unix(newest+1, 0).UnixNano())
	git, err := openBeneath(tree, ".git", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer git.Close()
	return unix.UtimesNanoAt(int(git.Fd()), "index", []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
}

// readRegular reads a regular file of at most max bytes in one go.
func readRegular(f *os.File, max int64) ([]byte, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > max {
		return nil, &fs.PathError{Op: "read", Path: f.Name(), Err: errors.New("not a regular file of sensible size")}
	}
	b := make([]byte, st.Size())
	_, err = io.ReadFull(f, b)
	return b, err
}
