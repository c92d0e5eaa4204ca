package cow

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// fileSystemOf names the type of the file system that fd is on, as mount(8)
// does; an unknown one by its magic number.
func fileSystemOf(fd int) string {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return "unknown"
	}
	return fileSystemName(uint32(st.Type))
}

func fileSystemName(magic uint32) string {
	switch magic {
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.EXT4_SUPER_MAGIC: // ext2 and ext3 share it
		return "ext4"
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlay"
	case unix.F2FS_SUPER_MAGIC:
		return "f2fs"
	case unix.NFS_SUPER_MAGIC:
		return "nfs"
	case unix.FUSE_SUPER_MAGIC:
		return "fuse"
	case 0xca451a4e:
		return "bcachefs"
	case 0x2fc12fc1:
		return "zfs"
	}
	return fmt.Sprintf("file system 0x%x", magic)
}
