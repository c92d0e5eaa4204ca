package cow

import (
	"bytes"

	"golang.org/x/sys/unix"
)

const fileMask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_NLINK | unix.STATX_UID | unix.STATX_GID |
	unix.STATX_MTIME | unix.STATX_CTIME | unix.STATX_INO | unix.STATX_SIZE | unix.STATX_BLOCKS

// file makes one regular file.
func (w *worker) file(n *dirNode, name cname) error {
	// O_NONBLOCK: should the name have become a FIFO since it was listed, open
	// must not wait for a writer.
	src, err := openBeneath(n.src, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return w.fail(onSource, n, name, err)
	}
	defer closeFd(src)
	st := &w.from
	if err := statxFd(src, fileMask, st); err != nil {
		return w.fail(onSource, n, name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return w.fail(onSource, n, name, unix.ESTALE)
	}
	if st.Nlink > 1 {
		return w.linkedFile(src, st, n, name)
	}
	return w.newFile(src, st, n, name, w.reports())
}

// newFile makes name out of the open src.
func (w *worker) newFile(src int, st *unix.Statx_t, n *dirNode, name cname, report bool) error {
	create := uint32(st.Mode) & 0o777
	dst, err := createFile(n.dst, name, create)
	if err != nil {
		return w.fail(onTarget, n, name, err)
	}
	defer closeFd(dst)
	if st.Size > 0 {
		if err := w.content(src, dst, st, n, name); err != nil {
			return err
		}
	}
	if _, err := w.setAttrs(src, dst, st, create&^w.me.umask, n, name); err != nil {
		return err
	}
	w.res.Files++
	w.res.Bytes += int64(st.Size)
	if report && w.req.Busy {
		if report, err = stoodStill(src, st); err != nil {
			return w.fail(onSource, n, name, err)
		}
	}
	if report {
		return w.report(st, dst, emptyName, unix.AT_EMPTY_PATH, n, name)
	}
	return nil
}

// stoodStill reports whether an open file is as it was, and that was old enough for
// every change since to have another ctime.
func stoodStill(src int, was *unix.Statx_t) (bool, error) {
	var st unix.Statx_t
	if err := statxFd(src, fileMask, &st); err != nil {
		return false, err
	}
	return sinceChange(was) >= settled && versionOf(&st) == versionOf(was), nil
}

// content shares src's blocks with dst, or copies them. A refusal is taken for
// this file alone: it can be about this pair of files (EINVAL between a btrfs
// CoW and a no-CoW file, ETXTBSY, EPERM for an immutable one) and says nothing
// about the next.
func (w *worker) content(src, dst int, st *unix.Statx_t, n *dirNode, name cname) error {
	if w.clone {
		switch err := w.ficlone(dst, src); err {
		case nil:
			w.res.Cloned++
			return nil
		case unix.ENOSPC, unix.EDQUOT, unix.EIO, unix.EROFS:
			return w.fail(onTarget, n, name, err)
		}
	}
	w.res.Copied++
	s, err := w.copyData(src, dst, int64(st.Size), int64(st.Blocks)*512)
	if err != nil {
		return w.fail(s, n, name, err)
	}
	return nil
}

// reports tells whether anybody wants to hear of each file.
func (w *walk) reports() bool { return w.req.OnFile != nil || w.req.OnCopy != nil }

func (w *worker) report(from *unix.Statx_t, dir int, path cname, flags int, n *dirNode, name cname) error {
	if err := statxAt(dir, path, flags, unix.STATX_BASIC_STATS, &w.to); err != nil {
		return w.fail(onTarget, n, name, err)
	}
	rel := string(append(w.prefix, name.bytes()...))
	if w.req.OnFile != nil {
		w.req.OnFile(rel, &w.to)
	}
	if w.req.OnCopy != nil {
		w.req.OnCopy(rel, from, &w.to)
	}
	return nil
}

// whiteout makes a character device 0:0, which takes no capability (Linux 5.8). Its
// owner matters: one that an idmapped layer has no id for cannot be replaced
// (EOVERFLOW).
func (w *worker) whiteout(n *dirNode, name cname) (bool, error) {
	var st unix.Statx_t
	if err := statxAt(n.src, name, unix.AT_SYMLINK_NOFOLLOW, fileMask, &st); err != nil {
		return false, w.fail(onSource, n, name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev_major != 0 || st.Rdev_minor != 0 {
		return false, nil
	}
	if err := mknodat(n.dst, name, unix.S_IFCHR, 0); err != nil {
		return false, w.fail(onTarget, n, name, err)
	}
	if chown, _ := w.ownership(&st); chown {
		if err := lchownat(n.dst, name, st.Uid, st.Gid); err != nil && err != unix.EPERM && err != unix.EINVAL {
			return false, w.fail(onTarget, n, name, err)
		}
	}
	return true, nil
}

// symlink makes one symbolic link, its target's bytes as they are.
func (w *worker) symlink(n *dirNode, name cname) error {
	st := &w.from
	if err := statxAt(n.src, name, unix.AT_SYMLINK_NOFOLLOW, fileMask, st); err != nil {
		return w.fail(onSource, n, name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return w.fail(onSource, n, name, unix.ESTALE)
	}
	if st.Nlink > 1 {
		return w.linkedSymlink(st, n, name)
	}
	return w.newSymlink(st, n, name, w.reports())
}

func (w *worker) newSymlink(st *unix.Statx_t, n *dirNode, name cname, report bool) error {
	size, err := readlinkat(n.src, name, w.link)
	if err == unix.EINVAL || size == len(w.link) {
		err = unix.ESTALE // no longer a symbolic link, or longer than any can be
	}
	if err != nil {
		return w.fail(onSource, n, name, err)
	}
	if bytes.IndexByte(w.link[:size], 0) >= 0 {
		return w.fail(onSource, n, name, unix.EUCLEAN)
	}
	w.link[size] = 0
	if err := symlinkat(w.link[:size+1], n.dst, name); err != nil {
		return w.fail(onTarget, n, name, err)
	}
	if chown, _ := w.ownership(st); chown {
		if err := lchownat(n.dst, name, st.Uid, st.Gid); err != nil && err != unix.EPERM && err != unix.EINVAL {
			return w.fail(onTarget, n, name, err)
		}
	}
	if err := lsetMtime(n.dst, name, st.Mtime); err != nil {
		return w.fail(onTarget, n, name, err)
	}
	w.res.Symlinks++
	if report {
		return w.report(st, n.dst, name, unix.AT_SYMLINK_NOFOLLOW, n, name)
	}
	return nil
}
