package cow

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// Same reports, as CodeExternalWrong with the first path, whether target is not
// what a copy of source by one of our own strategies would be: the same names,
// kinds, owners, modes, times, contents, attributes and link targets, and no
// file that is also reachable from elsewhere. What a program that is not ours
// made must pass before a Worker stands on it: a hard link into the cache would
// carry the Worker's writes there, a whiteout, an opaque mark or a redirect
// would let an overlay show other files (overlayfs.rst).
//
// Nobody may write to the target meanwhile. It reads every byte of both trees.
// onFile is called as Request.OnFile is, from one goroutine.
func Same(ctx context.Context, source, target *os.File, onFile func(rel string, st *Statx)) (Result, error) {
	const op = "cow.same"
	defer runtime.KeepAlive(source)
	defer runtime.KeepAlive(target)
	s := &same{ctx: ctx, onFile: onFile, links: make(map[uint64]*linked), a: make([]byte, dataBuffer), b: make([]byte, dataBuffer)}
	var st, want unix.Statx_t
	err := statxFd(fd(source), sameMask, &want)
	if err == nil {
		err = statxFd(fd(target), sameMask, &st)
	}
	if err != nil {
		return s.res, diagnose(op, onTarget, "", err)
	}
	s.dev = devOf(&st)
	if err := s.entry(fd(source), fd(target), "", &want, &st); err != nil {
		return s.res, err
	}
	if err := s.directory(fd(source), fd(target), ""); err != nil {
		return s.res, err
	}
	for _, ino := range slices.Sorted(maps.Keys(s.links)) {
		if l := s.links[ino]; l.seen != l.nlink {
			return s.res, wrong(l.rel, "is a hard link to a file outside")
		}
	}
	return s.res, nil
}

const sameMask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_UID | unix.STATX_GID | unix.STATX_SIZE | unix.STATX_MTIME | unix.STATX_NLINK | unix.STATX_INO | unix.STATX_CTIME

type same struct {
	ctx    context.Context
	onFile func(string, *Statx)
	dev    devID // the target's
	links  map[uint64]*linked
	a, b   []byte
	res    Result
}

// linked is a file of the target with several names.
type linked struct {
	rel         string
	nlink, seen uint32
}

func wrong(rel, what string) error {
	if rel == "" {
		rel = "."
	}
	return policy.Errorf(policy.CodeExternalWrong, "cow.same", "%s %s", policy.Printable(rel), what).With("path", policy.Printable(rel))
}

// directory compares two open directories' entries.
func (s *same) directory(src, dst int, rel string) error {
	want, err := names(src)
	if err != nil {
		return diagnose("cow.same", onSource, rel, err)
	}
	have, err := names(dst)
	if err != nil {
		return diagnose("cow.same", onTarget, rel, err)
	}
	for i := 0; i < len(want) || i < len(have); i++ {
		switch {
		case i >= len(have) || i < len(want) && want[i] < have[i]:
			return wrong(join(rel, want[i]), "is missing")
		case i >= len(want) || have[i] < want[i]:
			return wrong(join(rel, have[i]), "is not in the source")
		}
		if err := s.ctx.Err(); err != nil {
			return canceled("cow.same", err)
		}
		if err := s.name(src, dst, join(rel, want[i]), newCname(want[i])); err != nil {
			return err
		}
	}
	return nil
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// names are a directory's entries, sorted.
func names(dir int) ([]string, error) {
	own, err := openBeneath(dir, cname(".\x00"), openDir) // a descriptor's offset is shared
	if err != nil {
		return nil, err
	}
	defer closeFd(own)
	r := newDirReader()
	var out []string
	for {
		more, err := r.fill(own)
		if err != nil || !more {
			slices.Sort(out)
			return out, err
		}
		for {
			n, _, ok, err := r.next()
			if err != nil {
				return nil, err
			}
			if !ok {
				break
			}
			out = append(out, string(n.bytes()))
		}
	}
}

// name compares one entry of two directories.
func (s *same) name(srcDir, dstDir int, rel string, name cname) error {
	var want, st unix.Statx_t
	if err := statxAt(srcDir, name, unix.AT_SYMLINK_NOFOLLOW, sameMask, &want); err != nil {
		return diagnose("cow.same", onSource, rel, err)
	}
	if err := statxAt(dstDir, name, unix.AT_SYMLINK_NOFOLLOW, sameMask, &st); err != nil {
		return diagnose("cow.same", onTarget, rel, err)
	}
	if want.Mode&unix.S_IFMT == unix.S_IFLNK {
		return s.symlink(srcDir, dstDir, rel, name, &want, &st)
	}
	if st.Mode != want.Mode {
		return wrong(rel, fmt.Sprintf("has mode %06o, not %06o", st.Mode, want.Mode))
	}
	flags := uint64(unix.O_RDONLY | unix.O_NONBLOCK)
	if want.Mode&unix.S_IFMT == unix.S_IFDIR {
		flags = openDir
	}
	src, err := openBeneath(srcDir, name, flags)
	if err != nil {
		return diagnose("cow.same", onSource, rel, err)
	}
	defer closeFd(src)
	dst, err := openBeneath(dstDir, name, flags)
	if err != nil {
		return diagnose("cow.same", onTarget, rel, err)
	}
	defer closeFd(dst)
	if err := s.entry(src, dst, rel, &want, &st); err != nil {
		return err
	}
	switch want.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		s.res.Directories++
		return s.directory(src, dst, rel)
	case unix.S_IFREG:
		return s.file(src, dst, rel, &st)
	}
	return wrong(rel, "is no file that a tree may have")
}

// entry compares what files and directories have in common.
func (s *same) entry(src, dst int, rel string, want, st *unix.Statx_t) error {
	if st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
		s.link(rel, st)
	}
	switch {
	case st.Mode != want.Mode:
		return wrong(rel, fmt.Sprintf("has mode %06o, not %06o", st.Mode, want.Mode))
	case st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0:
		return wrong(rel, "has a set-user-ID or set-group-ID bit")
	}
	if err := s.inode(rel, want, st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size != want.Size {
		return wrong(rel, fmt.Sprintf("has %d bytes, not %d", st.Size, want.Size))
	}
	a, err := attributes(src)
	if err != nil {
		return diagnose("cow.same", onSource, rel, err)
	}
	b, err := attributes(dst)
	if err != nil {
		return diagnose("cow.same", onTarget, rel, err)
	}
	if !maps.Equal(a, b) {
		return wrong(rel, "has other extended attributes")
	}
	return nil
}

func (s *same) inode(rel string, want, st *unix.Statx_t) error {
	switch {
	case devOf(st) != s.dev:
		return wrong(rel, "lies on another file system or subvolume")
	case st.Uid != want.Uid || st.Gid != want.Gid:
		return wrong(rel, "belongs to another user")
	case st.Mtime != want.Mtime:
		return wrong(rel, "has another modification time")
	}
	return nil
}

func (s *same) link(rel string, st *unix.Statx_t) {
	l := s.links[st.Ino]
	if l == nil {
		l = &linked{rel: rel, nlink: st.Nlink}
		s.links[st.Ino] = l
	}
	l.seen++
}

// attributes are all that this process may list. An SELinux label is the
// system's own and differs by directory.
func attributes(fd int) (map[string]string, error) {
	list := make([]byte, 64<<10) // XATTR_LIST_MAX
	n, err := flistxattr(fd, list)
	if err == unix.EOPNOTSUPP || n == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := make(map[string]string)
	value := make([]byte, 64<<10)
	for name := range bytes.SplitSeq(bytes.TrimSuffix(list[:n], []byte{0}), []byte{0}) {
		if string(name) == "security.selinux" {
			continue
		}
		size, err := fgetxattr(fd, newCname(string(name)), value)
		if err != nil {
			return nil, err
		}
		out[string(name)] = string(value[:size])
	}
	return out, nil
}

func (s *same) symlink(srcDir, dstDir int, rel string, name cname, want, st *unix.Statx_t) error {
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return wrong(rel, "is no symbolic link")
	}
	if st.Nlink > 1 {
		s.link(rel, st)
	}
	if err := s.inode(rel, want, st); err != nil {
		return err
	}
	n, err := readlinkat(srcDir, name, s.a)
	if err != nil {
		return diagnose("cow.same", onSource, rel, err)
	}
	m, err := readlinkat(dstDir, name, s.b)
	if err != nil {
		return diagnose("cow.same", onTarget, rel, err)
	}
	if !bytes.Equal(s.a[:n], s.b[:m]) {
		return wrong(rel, "leads elsewhere")
	}
	s.res.Symlinks++
	s.report(rel, st)
	return nil
}

func (s *same) report(rel string, st *unix.Statx_t) {
	if s.onFile != nil {
		s.onFile(rel, st)
	}
}

// file compares the content of two files of one size.
func (s *same) file(src, dst int, rel string, st *unix.Statx_t) error {
	for off := int64(0); off < int64(st.Size); {
		if err := s.ctx.Err(); err != nil {
			return canceled("cow.same", err)
		}
		n, err := readFull(src, s.a[:min(int64(len(s.a)), int64(st.Size)-off)], off)
		if err != nil {
			return diagnose("cow.same", onSource, rel, err)
		}
		m, err := readFull(dst, s.b[:n], off)
		if err != nil {
			return diagnose("cow.same", onTarget, rel, err)
		}
		if n == 0 || n != m || !bytes.Equal(s.a[:n], s.b[:m]) {
			return wrong(rel, "has another content")
		}
		off += int64(n)
	}
	s.res.Files++
	s.res.Bytes += int64(st.Size)
	s.report(rel, st)
	return nil
}

// readFull reads until b is full or the file ends.
func readFull(fd int, b []byte, off int64) (int, error) {
	done := 0
	for done < len(b) {
		n, err := unix.Pread(fd, b[done:], off+int64(done))
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return done, err
		}
		done += n
	}
	return done, nil
}
