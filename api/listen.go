package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"yoi.dev/yoi-runtime/policy"
)

const socketMode = 0o660

// Listener is a socket that this process made. Close removes it, if it is
// still the one.
type Listener struct {
	*net.UnixListener
	dir      *os.File
	name     string
	dev, ino uint64
	once     sync.Once
}

// Listen makes the socket at path with mode 0660. One that a dead daemon left
// is replaced; one that somebody answers on is not. The directory must be one
// that only its owner (this user or root) can change, and is locked meanwhile,
// or two daemons could each find the other's socket stale and unlink it.
func Listen(ctx context.Context, path string) (*Listener, error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, socketError("the socket's directory cannot be opened", err)
	}
	l, err := listenIn(ctx, dir, filepath.Base(path))
	if err != nil {
		_ = dir.Close()
		return nil, err
	}
	return l, nil
}

func listenIn(ctx context.Context, dir *os.File, name string) (*Listener, error) {
	if err := checkDirectory(dir); err != nil {
		return nil, err
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return nil, socketError("the socket's directory cannot be locked", err)
	}
	defer func() { _ = unix.Flock(int(dir.Fd()), unix.LOCK_UN) }()
	if err := clearStale(ctx, dir, name); err != nil {
		return nil, err
	}
	lc := net.ListenConfig{Control: modeBeforeBind}
	nl, err := lc.Listen(ctx, "unix", socketPath(dir, name))
	if err != nil {
		return nil, socketError("the socket cannot be made", err)
	}
	ul := nl.(*net.UnixListener)
	ul.SetUnlinkOnClose(false) // by name only; ours compares first
	l := &Listener{UnixListener: ul, dir: dir, name: name}
	if err := l.settle(); err != nil {
		_ = ul.Close()
		return nil, err
	}
	return l, nil
}

// socketPath names the socket through the directory's descriptor: sun_path
// holds 108 bytes, unix(7), and the directory cannot be swapped underneath.
func socketPath(dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}

// modeBeforeBind narrows the socket's own inode, whose mode bind(2) gives to
// the file, so that the file is never wider, even for a moment. (umask is the
// whole process's, and other goroutines make files.)
func modeBeforeBind(_, _ string, c syscall.RawConn) error {
	var err error
	if cerr := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), socketMode) }); cerr != nil {
		return cerr
	}
	return err
}

// settle undoes what the umask took from the mode, and remembers the inode.
func (l *Listener) settle() error {
	if err := unix.Fchmodat(int(l.dir.Fd()), l.name, socketMode, 0); err != nil {
		return socketError("the socket's mode cannot be set", err)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(l.dir.Fd()), l.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return socketError("the socket vanished", err)
	}
	l.dev, l.ino = uint64(st.Dev), st.Ino
	return nil
}

// Close stops listening and removes the socket, unless another took its place.
func (l *Listener) Close() error {
	err := net.ErrClosed
	l.once.Do(func() {
		var st unix.Stat_t
		fd := int(l.dir.Fd())
		if unix.Fstatat(fd, l.name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && uint64(st.Dev) == l.dev && st.Ino == l.ino {
			_ = unix.Unlinkat(fd, l.name, 0)
		}
		err = l.UnixListener.Close()
		_ = l.dir.Close()
	})
	return err
}

func checkDirectory(dir *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return socketError("the socket's directory cannot be examined", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return socketError("the socket's directory is not a directory", syscall.ENOTDIR)
	}
	if st.Mode&0o022 != 0 || (st.Uid != 0 && st.Uid != uint32(os.Geteuid())) {
		return policy.Errorf(policy.CodeConfigInvalid, "api.listen", "others can change the socket's directory").
			WithHint("Put the socket into a directory that only the daemon's user can write.")
	}
	return nil
}

// clearStale removes a socket that nobody answers on.
func clearStale(ctx context.Context, dir *os.File, name string) error {
	var st unix.Stat_t
	err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return socketError("the socket's place cannot be examined", err)
	case st.Mode&unix.S_IFMT != unix.S_IFSOCK:
		return policy.Errorf(policy.CodeConflict, "api.listen", "something that is not a socket is in the socket's place").
			WithHint("Move it away, or choose another --socket.")
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socketPath(dir, name))
	if err == nil {
		_ = c.Close()
	}
	// Any other answer, EAGAIN of a full backlog for one, is a sign of life.
	if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
		return policy.Errorf(policy.CodeConflict, "api.listen", "another daemon answers on the socket").Because(err).
			WithHint("Stop it, or choose another --socket.")
	}
	if err := unix.Unlinkat(int(dir.Fd()), name, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return socketError("a stale socket cannot be removed", err)
	}
	return nil
}

func socketError(message string, err error) error {
	return policy.Errorf(policy.CodeUnavailable, "api.listen", "%s", message).Because(err).
		WithHint("Check the directory of --socket.")
}
