package cow

import (
	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

const dirMask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_UID | unix.STATX_GID | unix.STATX_MTIME | unix.STATX_INO

// directory copies one directory's entries and then its own attributes. What
// happens later inside its subdirectories no longer changes its mtime, so no
// second visit is needed; only a mode that would lock us out comes last.
func (w *worker) directory(n *dirNode) error {
	if err := w.open(n); err != nil {
		return err
	}
	if p := n.parent; p != nil && p.parent != nil && p.waiting.Add(-1) == 0 {
		w.shut(p)
	}
	var st unix.Statx_t
	if err := statxFd(n.src, dirMask, &st); err != nil {
		return w.fail(onSource, n, nil, err)
	}
	if err := w.checkDirectory(n, &st); err != nil {
		return err
	}
	err := w.entries(n)
	if err == nil {
		err = w.finish(n, &st)
	}
	if n.parent == nil {
		return err
	}
	switch {
	case err != nil, len(w.children) == 0, w.openNodes.Load() > w.maxNodes:
		w.shut(n)
	default:
		n.waiting.Store(int32(len(w.children)))
	}
	return err
}

// checkDirectory refuses another file system and the target itself. openat2
// has refused mount points already; a btrfs subvolume is none, but has a
// device number of its own.
func (w *worker) checkDirectory(n *dirNode, st *unix.Statx_t) error {
	if devOf(st) != w.dev {
		return policy.Errorf(policy.CodeNestedFileSystem, w.op, "another file system or subvolume lies inside the tree").With("path", n.rel(nil))
	}
	if inodeOf(st) == w.target {
		return policy.Errorf(policy.CodeBadRequest, w.op, "the target lies inside the source").With("path", n.rel(nil))
	}
	return nil
}

func (w *worker) entries(n *dirNode) error {
	if w.reports() {
		w.prefix = n.appendPath(w.prefix[:0])
		if len(w.prefix) > 0 {
			w.prefix = append(w.prefix, '/')
		}
	}
	for {
		more, err := w.dir.fill(n.src)
		if err != nil {
			return w.fail(onSource, n, nil, err)
		}
		if !more {
			return nil
		}
		for {
			name, typ, ok, err := w.dir.next()
			if err != nil {
				return w.fail(onSource, n, nil, err)
			}
			if !ok {
				break
			}
			if w.stop.Load() {
				return canceled(w.op, nil)
			}
			if err := w.entry(n, name, typ); err != nil {
				return err
			}
		}
	}
}

func (w *worker) entry(n *dirNode, name cname, typ byte) error {
	if typ == unix.DT_UNKNOWN { // a file system without d_type, getdents(2)
		var st unix.Statx_t
		if err := statxAt(n.src, name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE, &st); err != nil {
			return w.fail(onSource, n, name, err)
		}
		typ = byte(st.Mode >> 12) // IFTODT
	}
	switch typ {
	case unix.DT_REG:
		return w.file(n, name)
	case unix.DT_DIR:
		if err := mkdirat(n.dst, name, 0o700); err != nil {
			return w.fail(onTarget, n, name, err)
		}
		w.children = append(w.children, &dirNode{parent: n, name: append(cname(nil), name...), src: -1, dst: -1})
		w.res.Directories++
		return nil
	case unix.DT_LNK:
		return w.symlink(n, name)
	}
	if typ == unix.DT_CHR && w.req.Layer {
		if made, err := w.whiteout(n, name); made || err != nil {
			return err
		}
	}
	w.warnings.add(w.req, *policy.Warnf(policy.CodeFileSkipped, w.op, "a %s was left out", specialKind(typ)).With("path", n.rel(name)))
	return nil
}

func specialKind(typ byte) string {
	switch typ {
	case unix.DT_FIFO:
		return "FIFO"
	case unix.DT_SOCK:
		return "socket"
	case unix.DT_CHR:
		return "character device"
	case unix.DT_BLK:
		return "block device"
	}
	return "special file"
}

// finish gives the target directory its attributes.
func (w *worker) finish(n *dirNode, st *unix.Statx_t) error {
	final := st.Mode
	late := st.Mode&0o700 != 0o700
	if late {
		st.Mode |= 0o700
	}
	mode, err := w.setAttrs(n.src, n.dst, st, 0o700, n, nil)
	if late && err == nil {
		w.lateModes.add(n, mode&^0o700|uint32(final)&0o700)
	}
	return err
}
