package cow

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Thin wrappers named after the system calls. They exist beside package unix
// because its wrappers take strings, which for a name that came out of
// getdents64(2) means two allocations per call; here a name is a pointer to
// its NUL-terminated bytes in the reader's buffer. Errnos are returned as they
// are, only EINTR is retried: Go's own preemption signals cause it.

// cname is one path component with its terminating NUL.
type cname []byte

func newCname(s string) cname       { return append([]byte(s), 0) }
func (n cname) ptr() unsafe.Pointer { return unsafe.Pointer(&n[0]) }
func (n cname) bytes() []byte       { return n[:len(n)-1] }

func retry(trap, a1, a2, a3, a4, a5, a6 uintptr) (int, error) {
	for {
		r, _, e := unix.Syscall6(trap, a1, a2, a3, a4, a5, a6)
		switch e {
		case 0:
			return int(r), nil
		case unix.EINTR:
		default:
			return -1, e
		}
	}
}

// beneath is how everything existing is opened: below the given directory,
// through no symbolic link, on the same mount (openat2(2), Linux 5.6).
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV

// openBeneath opens an existing path. For a single component the kernel never
// answers EAGAIN, for several it may while something is renamed: then try
// again, not for ever.
func openBeneath(dir int, name cname, flags uint64) (int, error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: beneath}
	for tries := 0; ; tries++ {
		fd, err := retry(unix.SYS_OPENAT2, uintptr(dir), uintptr(name.ptr()), uintptr(unsafe.Pointer(&how)), unsafe.Sizeof(how), 0, 0)
		if err == unix.EAGAIN && tries < 64 {
			continue
		}
		return fd, err
	}
}

const openDir = unix.O_RDONLY | unix.O_DIRECTORY

// createFile makes a file that must not exist; O_EXCL follows no symbolic link.
func createFile(dir int, name cname, mode uint32) (int, error) {
	return retry(unix.SYS_OPENAT, uintptr(dir), uintptr(name.ptr()),
		unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, uintptr(mode), 0, 0)
}

func mkdirat(dir int, name cname, mode uint32) error {
	_, err := retry(unix.SYS_MKDIRAT, uintptr(dir), uintptr(name.ptr()), uintptr(mode), 0, 0, 0)
	return err
}

func mknodat(dir int, name cname, mode uint32, dev int) error {
	_, err := retry(unix.SYS_MKNODAT, uintptr(dir), uintptr(name.ptr()), uintptr(mode), uintptr(dev), 0, 0)
	return err
}

func unlinkat(dir int, name cname, flags int) error {
	_, err := retry(unix.SYS_UNLINKAT, uintptr(dir), uintptr(name.ptr()), uintptr(flags), 0, 0, 0)
	return err
}

func linkat(olddir int, oldname cname, newdir int, newname cname) error {
	_, err := retry(unix.SYS_LINKAT, uintptr(olddir), uintptr(oldname.ptr()), uintptr(newdir), uintptr(newname.ptr()), 0, 0)
	return err
}

func symlinkat(target cname, dir int, name cname) error {
	_, err := retry(unix.SYS_SYMLINKAT, uintptr(target.ptr()), uintptr(dir), uintptr(name.ptr()), 0, 0, 0)
	return err
}

// readlinkat fills buf; a result of len(buf) may have been cut.
func readlinkat(dir int, name cname, buf []byte) (int, error) {
	return retry(unix.SYS_READLINKAT, uintptr(dir), uintptr(name.ptr()), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0, 0)
}

var emptyName = cname{0}

func statxAt(dir int, name cname, flags int, mask uint32, st *unix.Statx_t) error {
	_, err := retry(unix.SYS_STATX, uintptr(dir), uintptr(name.ptr()), uintptr(flags), uintptr(mask), uintptr(unsafe.Pointer(st)), 0)
	return err
}

func statxFd(fd int, mask uint32, st *unix.Statx_t) error {
	return statxAt(fd, emptyName, unix.AT_EMPTY_PATH, mask, st)
}

func fchmod(fd int, mode uint32) error {
	_, err := retry(unix.SYS_FCHMOD, uintptr(fd), uintptr(mode), 0, 0, 0, 0)
	return err
}

func fchown(fd int, uid, gid uint32) error {
	_, err := retry(unix.SYS_FCHOWN, uintptr(fd), uintptr(uid), uintptr(gid), 0, 0, 0)
	return err
}

func lchownat(dir int, name cname, uid, gid uint32) error {
	_, err := retry(unix.SYS_FCHOWNAT, uintptr(dir), uintptr(name.ptr()), uintptr(uid), uintptr(gid), unix.AT_SYMLINK_NOFOLLOW, 0)
	return err
}

// setMtime leaves atime at "now": doc.go says why.
func setMtime(fd int, t unix.StatxTimestamp) error {
	ts := mtimeOnly(t)
	_, err := retry(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
	return err
}

func lsetMtime(dir int, name cname, t unix.StatxTimestamp) error {
	ts := mtimeOnly(t)
	_, err := retry(unix.SYS_UTIMENSAT, uintptr(dir), uintptr(name.ptr()), uintptr(unsafe.Pointer(&ts)), unix.AT_SYMLINK_NOFOLLOW, 0, 0)
	return err
}

func mtimeOnly(t unix.StatxTimestamp) [2]unix.Timespec {
	return [2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Sec: t.Sec, Nsec: int64(t.Nsec)}}
}

func ficlone(dst, src int) error {
	_, err := retry(unix.SYS_IOCTL, uintptr(dst), unix.FICLONE, uintptr(src), 0, 0, 0)
	return err
}

func ioctlPtr(fd int, req uintptr, arg unsafe.Pointer) error {
	_, err := retry(unix.SYS_IOCTL, uintptr(fd), req, uintptr(arg), 0, 0, 0)
	return err
}

func flistxattr(fd int, buf []byte) (int, error) {
	return retry(unix.SYS_FLISTXATTR, uintptr(fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0, 0, 0)
}

func fgetxattr(fd int, name cname, buf []byte) (int, error) {
	return retry(unix.SYS_FGETXATTR, uintptr(fd), uintptr(name.ptr()), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0, 0)
}

func fsetxattr(fd int, name cname, val []byte) error {
	p := unsafe.Pointer(&emptyName[0])
	if len(val) > 0 {
		p = unsafe.Pointer(&val[0])
	}
	_, err := retry(unix.SYS_FSETXATTR, uintptr(fd), uintptr(name.ptr()), uintptr(p), uintptr(len(val)), 0, 0)
	return err
}

func getdents(fd int, buf []byte) (int, error) {
	return retry(unix.SYS_GETDENTS64, uintptr(fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0, 0, 0)
}

func closeFd(fd int) { _ = unix.Close(fd) } // EINTR from close(2) on Linux means closed
