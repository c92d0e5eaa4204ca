package cow

import (
	"golang.org/x/sys/unix"
)

// enter opens the directory name of f and puts it on the stack, or removes it
// at once when it turns out to be something else or a subvolume.
func (r *remover) enter(f *frame, name cname) {
	dir, err := r.openForRemoval(f, name)
	switch err {
	case nil:
	case unix.ENOENT:
		return
	case unix.ENOTDIR, unix.ELOOP: // a file, or a symbolic link that took its place
		err := r.unlink(f, name, 0)
		if err != nil {
			r.stay(f, name, err)
		}
		return
	default:
		r.stay(f, name, err)
		return
	}
	var st unix.Statx_t
	if err := statxFd(dir, dirMask, &st); err != nil {
		closeFd(dir)
		r.stay(f, name, err)
		return
	}
	if isSubvolume(dir, st.Ino) {
		if r.destroySubvolume(f, name, dir) {
			closeFd(dir)
			f.gone++
			return
		}
	} else if len(r.stack) > 1 && devOf(&st) != f.id.dev {
		closeFd(dir)
		r.stay(f, name, unix.EXDEV)
		return
	}
	r.stack = append(r.stack, &frame{name: append(cname(nil), name...), fd: dir, id: inodeOf(&st)})
	if i := len(r.stack) - maxOpenFrames; i > 1 && r.stack[i].fd >= 0 {
		closeFd(r.stack[i].fd)
		r.stack[i].fd = -1
	}
}

func (r *remover) stay(f *frame, name cname, err error) {
	r.fail(name, err)
	f.stuck = true
}

// openForRemoval opens a directory for reading, and gives it and the one above
// a mode that allows it if need be.
func (r *remover) openForRemoval(f *frame, name cname) (int, error) {
	dir, err := openBeneath(f.fd, name, openDir)
	if err != unix.EACCES {
		return dir, err
	}
	r.openUp(f)
	path, err := openBeneath(f.fd, name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return -1, err
	}
	defer closeFd(path)
	if err := chmodDir(path, 0o700); err != nil {
		return -1, unix.EACCES
	}
	return openBeneath(f.fd, name, openDir)
}

// destroySubvolume deletes a subvolume in one transaction. Where that is not
// allowed or others lie inside, it only makes it writable: then its files are
// unlinked, and rmdir(2) takes the empty subvolume (Linux 4.18).
func (r *remover) destroySubvolume(f *frame, name cname, dir int) bool {
	if r.keepTop && len(r.stack) == 1 {
		_ = setSubvolReadOnly(dir, false)
		return false
	}
	if snapDestroy(f.fd, name) == nil {
		return true
	}
	_ = setSubvolReadOnly(dir, false) // refused: the unlinks will say EROFS
	return snapDestroy(f.fd, name) == nil
}

// leave removes the last frame's directory, which has been read to its end.
func (r *remover) leave() {
	f := r.last()
	up := r.stack[len(r.stack)-2]
	if !r.reopen(up, f) {
		return
	}
	var err error
	switch kept := r.keepTop && len(r.stack) == 2; {
	case f.stuck:
		up.stuck = true
	case kept && f.gone > 0:
		err = unix.ENOTEMPTY // until a round finds nothing
	case !kept:
		err = r.unlink(up, f.name, unix.AT_REMOVEDIR)
	}
	switch {
	case err == nil:
		r.pop()
	case err == unix.ENOTDIR: // swapped for a file since
		r.pop()
		if err := r.unlink(up, f.name, 0); err != nil {
			r.stay(up, f.name, err)
		}
	case err == unix.ENOTEMPTY && f.rounds < maxRounds && (f.gone > 0 || f.rounds == 0):
		// Entries came while it was read, or the file system's offsets shifted
		// when entries went (readdir(3) promises nothing): read it again.
		f.rounds++
		f.gone = 0
		if err := rewind(f.fd); err != nil {
			r.fail(nil, err)
			f.stuck = true
		}
	default:
		r.fail(nil, err)
		up.stuck = true
		r.pop()
	}
}

func rewind(dir int) error {
	_, err := unix.Seek(dir, 0, unix.SEEK_SET)
	return err
}

func (r *remover) pop() {
	f := r.last()
	closeFd(f.fd)
	r.stack = r.stack[:len(r.stack)-1]
}

// reopen opens up again, which was closed for the window, as f's "..". If that
// is no longer the same directory, f was moved: then the walk starts over at
// the top, which stays open all the time.
func (r *remover) reopen(up, f *frame) bool {
	if up.fd >= 0 {
		return true
	}
	how := unix.OpenHow{Flags: openDir | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV}
	dir, err := unix.Openat2(f.fd, "..", &how)
	if err == nil {
		var st unix.Statx_t
		if err = statxFd(dir, dirMask, &st); err == nil && inodeOf(&st) == up.id {
			up.fd = dir
			return true
		}
		closeFd(dir)
	}
	r.restart()
	return false
}

func (r *remover) restart() {
	for _, f := range r.stack[2:] {
		if f.fd >= 0 {
			closeFd(f.fd)
		}
	}
	r.stack = r.stack[:2]
	top := r.stack[1]
	top.names = nil
	r.restarts++
	if r.restarts > maxRestarts || rewind(top.fd) != nil {
		r.fail(nil, unix.EAGAIN)
		r.lost = true
	}
}
