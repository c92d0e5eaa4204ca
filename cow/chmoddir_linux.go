package cow

import (
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// chmodDir changes the mode of an open directory, also of one opened with
// O_PATH because its mode forbids anything else. fchmodat(2) by name would
// follow a symbolic link that a racing process put there.
func chmodDir(fd int, mode uint32) error {
	if err := fchmod(fd, mode); err != unix.EBADF {
		return err
	}
	_, err := retry(unix.SYS_FCHMODAT2, uintptr(fd), uintptr(emptyName.ptr()), uintptr(mode), unix.AT_EMPTY_PATH, 0, 0)
	if err != unix.ENOSYS {
		return err
	}
	return chmodByProc(fd, mode)
}

// chmodByProc is for kernels before 6.6, which have no fchmodat2(2): the magic
// link in /proc leads to the very inode.
func chmodByProc(fd int, mode uint32) error {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return err
	}
	defer dir.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return err
	}
	if uint32(st.Type) != unix.PROC_SUPER_MAGIC {
		return unix.ENOSYS
	}
	return unix.Fchmodat(int(dir.Fd()), strconv.Itoa(fd), mode, 0)
}

// clearFlagsIn takes the immutable and append-only flags from name in dir, and
// from dir itself if it is ours, and says whether any was set. It takes
// CAP_LINUX_IMMUTABLE.
func clearFlagsIn(dir int, name cname, ours bool) bool {
	cleared := false
	if !ours {
	} else if d, err := openBeneath(dir, cname(".\x00"), openDir); err == nil {
		cleared = clearFlags(d)
		closeFd(d)
	}
	// Only a regular file or directory has flags to change, and opening a device
	// has effects of its own: look before opening. O_NONBLOCK should it be
	// swapped for a FIFO in between.
	var st unix.Statx_t
	if err := statxAt(dir, name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE, &st); err != nil {
		return cleared
	}
	if t := st.Mode & unix.S_IFMT; t != unix.S_IFREG && t != unix.S_IFDIR {
		return cleared
	}
	f, err := openBeneath(dir, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return cleared
	}
	defer closeFd(f)
	return clearFlags(f) || cleared
}

const hardFlags = 0x10 | 0x20 // FS_IMMUTABLE_FL, FS_APPEND_FL

func clearFlags(fd int) bool {
	var flags int32 // the kernel takes an int, whatever the ioctl number says
	if err := ioctlPtr(fd, unix.FS_IOC_GETFLAGS, unsafe.Pointer(&flags)); err != nil || flags&hardFlags == 0 {
		return false
	}
	flags &^= hardFlags
	return ioctlPtr(fd, unix.FS_IOC_SETFLAGS, unsafe.Pointer(&flags)) == nil
}
