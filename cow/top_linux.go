package cow

import (
	"context"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// MakeTop makes name below parent the top directory of a tree, mode 0700: a
// subvolume where parent is on btrfs, else a directory.
func MakeTop(parent *os.File, name string) error {
	const op = "cow.make_top"
	defer runtime.KeepAlive(parent)
	if err := checkName(op, name); err != nil {
		return err
	}
	dir := fd(parent)
	if fileSystemOf(dir) != "btrfs" {
		if err := mkdirat(dir, newCname(name), 0o700); err != nil {
			return diagnose(op, onTarget, "", err)
		}
		return nil
	}
	if err := subvolCreate(dir, name); err != nil {
		return diagnose(op, onTarget, "", err)
	}
	top, err := openBeneath(dir, newCname(name), openDir)
	if err != nil {
		return diagnose(op, onTarget, "", err)
	}
	defer closeFd(top)
	if err := fchmod(top, 0o700); err != nil {
		return diagnose(op, onTarget, "", err)
	}
	return nil
}

// SealTop makes the tree read-only where the file system can do that for a
// whole tree: a btrfs subvolume. Elsewhere it does nothing.
func SealTop(parent *os.File, name string) error {
	const op = "cow.seal_top"
	defer runtime.KeepAlive(parent)
	if err := checkName(op, name); err != nil {
		return err
	}
	top, err := openBeneath(fd(parent), newCname(name), openDir)
	if err != nil {
		return diagnose(op, onTarget, "", err)
	}
	defer closeFd(top)
	var st unix.Statx_t
	if err := statxFd(top, dirMask, &st); err != nil {
		return diagnose(op, onTarget, "", err)
	}
	if !isSubvolume(top, st.Ino) {
		return nil
	}
	if err := setSubvolReadOnly(top, true); err != nil {
		return policy.Errorf(policy.CodeCopyFailed, op, "the subvolume could not be made read-only").Because(err)
	}
	return nil
}

// RemoveTop removes a tree that MakeTop began, sealed or not.
func RemoveTop(parent *os.File, name string) error {
	return RemoveTree(context.Background(), parent, name, RemoveOptions{})
}

// SubvolumeUUID is the identity of the btrfs subvolume that dir is the top of,
// and "" for any other directory.
func SubvolumeUUID(dir *os.File) (string, error) {
	const op = "cow.subvolume_uuid"
	defer runtime.KeepAlive(dir)
	var st unix.Statx_t
	if err := statxFd(fd(dir), dirMask, &st); err != nil {
		return "", diagnose(op, onSource, "", err)
	}
	if !isSubvolume(fd(dir), st.Ino) {
		return "", nil
	}
	uuid, err := subvolumeUUID(fd(dir))
	if err != nil {
		return "", diagnose(op, onSource, "", err)
	}
	return uuid, nil
}
