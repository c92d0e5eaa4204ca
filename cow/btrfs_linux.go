package cow

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ioctls of linux/btrfs.h. Their structures are fixed ABI.
const (
	iocSnapDestroy      = 0x5000940f // BTRFS_IOC_SNAP_DESTROY
	iocSnapCreateV2     = 0x50009417 // BTRFS_IOC_SNAP_CREATE_V2
	iocSubvolCreateV2   = 0x50009418 // BTRFS_IOC_SUBVOL_CREATE_V2
	iocSubvolGetFlags   = 0x80089419 // BTRFS_IOC_SUBVOL_GETFLAGS
	iocSubvolSetFlags   = 0x4008941a // BTRFS_IOC_SUBVOL_SETFLAGS
	iocGetSubvolInfo    = 0x81f8943c // BTRFS_IOC_GET_SUBVOL_INFO, Linux 4.18, unprivileged
	iocGetSubvolRootref = 0xd000943d // BTRFS_IOC_GET_SUBVOL_ROOTREF, Linux 4.18, unprivileged
	iocInoLookupUser    = 0xd000943e // BTRFS_IOC_INO_LOOKUP_USER, Linux 4.18, unprivileged

	subvolReadOnly = 1 << 1 // BTRFS_SUBVOL_RDONLY
	subvolTopIno   = 256    // BTRFS_FIRST_FREE_OBJECTID, every subvolume's top
)

// volArgsV2 is struct btrfs_ioctl_vol_args_v2.
type volArgsV2 struct {
	fd      int64
	transid uint64
	flags   uint64
	unused  [4]uint64
	name    [4040]byte
}

// volArgs is struct btrfs_ioctl_vol_args.
type volArgs struct {
	fd   int64
	name [4088]byte
}

// snapCreate makes name below dir a writable snapshot of the subvolume that src
// is the top of.
func snapCreate(dir, src int, name string) error {
	a := volArgsV2{fd: int64(src)}
	copy(a.name[:len(a.name)-1], name)
	return ioctlPtr(dir, iocSnapCreateV2, unsafe.Pointer(&a))
}

func subvolCreate(dir int, name string) error {
	var a volArgsV2
	copy(a.name[:len(a.name)-1], name)
	return ioctlPtr(dir, iocSubvolCreateV2, unsafe.Pointer(&a))
}

// snapDestroy deletes the subvolume name below dir. The kernel looks name up in
// dir itself, follows no link and refuses what is not a subvolume's top.
// Without CAP_SYS_ADMIN it is EPERM unless the file system is mounted with
// user_subvol_rm_allowed; with nested subvolumes ENOTEMPTY.
func snapDestroy(dir int, name cname) error {
	var a volArgs
	copy(a.name[:len(a.name)-1], name.bytes())
	return ioctlPtr(dir, iocSnapDestroy, unsafe.Pointer(&a))
}

// setSubvolReadOnly switches the property of the subvolume whose top is fd.
func setSubvolReadOnly(fd int, on bool) error {
	var flags uint64
	if err := ioctlPtr(fd, iocSubvolGetFlags, unsafe.Pointer(&flags)); err != nil {
		return err
	}
	want := flags &^ subvolReadOnly
	if on {
		want |= subvolReadOnly
	}
	if want == flags {
		return nil
	}
	return ioctlPtr(fd, iocSubvolSetFlags, unsafe.Pointer(&want))
}

// isSubvolume says whether the open directory is a subvolume's top. Inode 256
// exists on other file systems too, hence the magic.
func isSubvolume(fd int, ino uint64) bool {
	if ino != subvolTopIno {
		return false
	}
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st) == nil && uint32(st.Type) == unix.BTRFS_SUPER_MAGIC
}

// rootrefs is struct btrfs_ioctl_get_subvol_rootref_args.
type rootrefs struct {
	minTree uint64
	refs    [255]struct{ tree, dir uint64 }
	count   uint8
	_       [7]byte
}

// nestedSubvolumes returns the paths of up to a few subvolumes directly inside
// the one that fd is the top of. It reads back references, not the tree.
func nestedSubvolumes(fd int) (names []string, err error) {
	var a rootrefs
	// EOVERFLOW: more than 255; the ones that fit are enough to say so.
	if err := ioctlPtr(fd, iocGetSubvolRootref, unsafe.Pointer(&a)); err != nil && err != unix.EOVERFLOW {
		return nil, err
	}
	for _, r := range a.refs[:a.count] {
		if len(names) == 8 {
			break
		}
		names = append(names, subvolumePath(fd, r.tree, r.dir))
	}
	return names, nil
}

// subvolumePath is the name of subvolume tree, linked in directory inode dir.
func subvolumePath(fd int, tree, dir uint64) string {
	a := struct {
		dir, tree uint64
		name      [256]byte
		path      [3824]byte
	}{dir: dir, tree: tree}
	if err := ioctlPtr(fd, iocInoLookupUser, unsafe.Pointer(&a)); err != nil {
		return fmt.Sprintf("subvolume %d", tree) // the path is not ours to read
	}
	return cstring(a.path[:]) + cstring(a.name[:])
}

func cstring(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

// subvolumeSince is when the subvolume that fd is the top of was made, by its
// file system's clock in nanoseconds; 0 if that is not known. It is the otime of
// struct btrfs_ioctl_get_subvol_info_args.
func subvolumeSince(fd int) int64 {
	var a [504]byte
	if ioctlPtr(fd, iocGetSubvolInfo, unsafe.Pointer(&a)) != nil {
		return 0
	}
	// Behind the identity: uuid, parent_uuid, received_uuid, four transaction ids,
	// and ctime; struct btrfs_ioctl_timespec is 16 bytes, its padding included.
	const at = 8 + 256 + 4*8 + 3*16 + 4*8 + 16
	return int64(binary.NativeEndian.Uint64(a[at:]))*1e9 + int64(binary.NativeEndian.Uint32(a[at+8:]))
}

// subvolumeUUID reads struct btrfs_ioctl_get_subvol_info_args, whose uuid
// follows treeid, name[256], parent_id, dirid, generation and flags.
func subvolumeUUID(fd int) (string, error) {
	var a [504]byte
	if err := ioctlPtr(fd, iocGetSubvolInfo, unsafe.Pointer(&a)); err != nil {
		return "", err
	}
	const at = 8 + 256 + 4*8
	u := a[at : at+16]
	return fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", binary.BigEndian.Uint32(u), binary.BigEndian.Uint16(u[4:]),
		binary.BigEndian.Uint16(u[6:]), binary.BigEndian.Uint16(u[8:]), u[10:]), nil
}
