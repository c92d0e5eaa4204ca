package mounts

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

const opClone = "mounts.clone"

// CloneDetached returns a copy of the mount at rel beneath dir that is attached
// nowhere and ends with its descriptor. It needs CAP_SYS_ADMIN. idmap, if not
// nil, is a user namespace (UserNS) through which owners are translated.
func CloneDetached(dir *os.File, rel string, attr Attr, idmap *os.File, recursive bool) (*os.File, error) {
	at, err := OpenBeneath(dir, rel, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer at.Close()
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH)
	set := uint(unix.AT_EMPTY_PATH)
	if recursive {
		flags |= unix.AT_RECURSIVE
		set |= unix.AT_RECURSIVE
	}
	fd, err := unix.OpenTree(int(at.Fd()), "", flags)
	if err != nil {
		return nil, explain(opClone, "open_tree", err)
	}
	mnt := os.NewFile(uintptr(fd), "detached mount")
	// Private, so that neither side sees what the other mounts later.
	ma := unix.MountAttr{Attr_set: attr.Bits(), Propagation: unix.MS_PRIVATE}
	if idmap != nil {
		ma.Attr_set |= unix.MOUNT_ATTR_IDMAP
		ma.Userns_fd = uint64(idmap.Fd())
	}
	if err := unix.MountSetattr(fd, "", set, &ma); err != nil {
		mnt.Close()
		if idmap != nil && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)) {
			return nil, policy.Errorf(policy.CodeIDMapUnavailable, opClone, "the file system refuses an idmapped mount").Because(err)
		}
		return nil, explain(opClone, "mount_setattr", err)
	}
	return mnt, nil
}

// Bits are the attributes as mount_setattr(2) takes them.
func (a Attr) Bits() uint64 {
	var b uint64
	for _, f := range []struct {
		on  bool
		bit uint64
	}{
		{a.ReadOnly, unix.MOUNT_ATTR_RDONLY}, {a.NoSuid, unix.MOUNT_ATTR_NOSUID},
		{a.NoDev, unix.MOUNT_ATTR_NODEV}, {a.NoExec, unix.MOUNT_ATTR_NOEXEC},
	} {
		if f.on {
			b |= f.bit
		}
	}
	return b
}

// explain turns a system call's errno into a diagnostic that names the call.
func explain(op, call string, err error) error {
	code := policy.CodeMountFailed
	switch {
	case errors.Is(err, unix.ENOSYS):
		return policy.Errorf(policy.CodeKernelFeatureMissing, op, "the kernel lacks %s, or a filter hides it", call).
			With("feature", call).Because(os.NewSyscallError(call, err))
	case errors.Is(err, unix.ENOENT):
		code = policy.CodeNotFound
	}
	return policy.Errorf(code, op, "%s failed: %v", call, err).With("call", call).Because(os.NewSyscallError(call, err))
}
