package cow

import (
	"bytes"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// carried says whether an extended attribute comes along: an allowlist, because
// a new namespace is more likely to mean something to a kernel than to a user.
// user.overlay.* would redirect lookups when the tree becomes a layer of a
// userxattr overlay. A copy that is to be such a layer gets what a Worker cannot
// have set (it sees and sets user.overlay.overlay.* in their place) and what names
// no place: which directories are opaque.
func (w *worker) carried(name []byte) bool {
	switch {
	case bytes.HasPrefix(name, []byte("user.")):
		if w.req.Layer && (bytes.Equal(name, []byte("user.overlay.opaque")) || bytes.HasPrefix(name, []byte("user.overlay.overlay."))) {
			return true
		}
		return !bytes.HasPrefix(name, []byte("user.overlay."))
	case bytes.Equal(name, []byte("security.capability")):
		return w.me.setfcap && w.me.chown
	}
	return bytes.Equal(name, []byte("system.posix_acl_access")) || bytes.Equal(name, []byte("system.posix_acl_default"))
}

// copyXattrs copies src's attributes to dst. A source file system without
// attributes is asked once only; for one with them, a file without any costs
// one flistxattr(2), which reads nothing that opening has not read.
func (w *worker) copyXattrs(src, dst int, n *dirNode, name cname) error {
	if w.noXattrs.Load() {
		return nil
	}
	size, err := flistxattr(src, w.list)
	if err == unix.ERANGE {
		w.list = make([]byte, 64<<10) // XATTR_LIST_MAX
		size, err = flistxattr(src, w.list)
	}
	if err == unix.EOPNOTSUPP {
		w.noXattrs.Store(true)
		return nil
	}
	if err != nil {
		return w.fail(onSource, n, name, err)
	}
	for names := w.list[:size]; len(names) > 0; {
		nul := bytes.IndexByte(names, 0)
		if nul < 0 {
			break
		}
		attr := cname(names[:nul+1])
		names = names[nul+1:]
		if w.carried(attr.bytes()) {
			if err := w.copyXattr(src, dst, attr, n, name); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *worker) copyXattr(src, dst int, attr cname, n *dirNode, name cname) error {
	if w.value == nil {
		w.value = make([]byte, 64<<10) // XATTR_SIZE_MAX
	}
	size, err := fgetxattr(src, attr, w.value)
	switch err {
	case nil:
	case unix.ENODATA:
		return nil // removed since it was listed
	default:
		return w.fail(onSource, n, name, err)
	}
	err = fsetxattr(dst, attr, w.value[:size])
	if err == unix.EACCES && !w.chmodded {
		// user.* asks for write permission on the inode, whatever the descriptor
		// was opened for (xattr(7)): a 0444 file made by its final mode refuses.
		if err = fchmod(dst, 0o700); err == nil {
			w.chmodded = true
			err = fsetxattr(dst, attr, w.value[:size])
		}
	}
	switch err {
	case nil:
		return nil
	case unix.EOPNOTSUPP, unix.EPERM:
		// EPERM: ids of an ACL or a capability's rootid that this user namespace
		// does not map.
		w.warnOnce(&w.lostXattrs, policy.Warnf(policy.CodeAttributesDropped, w.op,
			"the target file system does not take some extended attributes").
			With("path", n.rel(name)).With("attribute", string(attr.bytes())).Because(err))
		return nil
	default:
		return w.fail(onTarget, n, name, err)
	}
}

// ownership says whether a file made here has to be given another owner, and
// what permission bits it may then carry.
func (w *worker) ownership(st *unix.Statx_t) (chown bool, mode uint32) {
	mode = uint32(st.Mode) & 0o7777
	same := st.Uid == w.me.uid && st.Gid == w.me.gid && !w.strangeGroup
	if same {
		return false, mode
	}
	if !w.me.chown {
		return false, mode &^ (unix.S_ISUID | unix.S_ISGID)
	}
	return true, mode
}

// setAttrs gives a fresh file or directory what it has in the source. The order
// matters: fchown(2) clears set-user-ID bits and capabilities, an ACL rewrites
// the group bits, and everything touches the times but chmod.
func (w *worker) setAttrs(src, dst int, st *unix.Statx_t, created uint32, n *dirNode, name cname) (mode uint32, err error) {
	chown, mode := w.ownership(st)
	if chown {
		switch err := fchown(dst, st.Uid, st.Gid); err {
		case nil:
		case unix.EPERM, unix.EINVAL: // not mapped in this user namespace
			mode &^= unix.S_ISUID | unix.S_ISGID
		default:
			return mode, w.fail(onTarget, n, name, err)
		}
	}
	w.chmodded = false
	if err := w.copyXattrs(src, dst, n, name); err != nil {
		return mode, err
	}
	if mode != created || w.chmodded {
		if err := fchmod(dst, mode); err != nil {
			return mode, w.fail(onTarget, n, name, err)
		}
	}
	if err := setMtime(dst, st.Mtime); err != nil {
		return mode, w.fail(onTarget, n, name, err)
	}
	return mode, nil
}
