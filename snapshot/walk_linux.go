package snapshot

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

const opWalk = "snapshot.walk"

// maxDepth bounds the directories that are open at once.
const maxDepth = 400

// WorkTree is what a walk found in a workspace's tree. A Worker made it: the
// walk opens one component at a time, follows no link, leaves no file system,
// and reads content only of regular files that are still the ones it saw.
type WorkTree struct {
	Files int64 // all but directories
	Bytes int64

	top      node
	upper    *os.File
	lower    *os.File
	devices  struct{ upper, lower uint64 }
	links    map[inode]*node
	skipped  dropped
	modes    dropped
	attrs    dropped
	maxFiles int64
}

type inode struct{ dev, ino uint64 }

// dropped counts what was left out and remembers one path.
type dropped struct {
	n    int
	path string
}

func (d *dropped) add(p string) {
	if d.n++; d.n == 1 {
		d.path = p
	}
}

// node is one name. A directory of an overlay may be in both layers.
type node struct {
	name         string
	st           unix.Stat_t
	upper, lower bool
	children     []*node
	linked       bool   // further names follow
	first        string // the path that this is a further name of
	path         string // of a linked file
}

func (n *node) typ() uint32 { return n.st.Mode & unix.S_IFMT }

// Walk looks at a whole tree but its git directory. With lower, upper is the
// upper directory of an overlay on it.
func Walk(ctx context.Context, upper, lower *os.File, limits policy.SnapshotLimits) (*WorkTree, error) {
	w := &WorkTree{upper: upper, lower: lower, links: make(map[inode]*node), maxFiles: limits.Normalize().MaxFiles}
	if err := unix.Fstat(int(upper.Fd()), &w.top.st); err != nil {
		return nil, walkError("", err)
	}
	w.top.upper, w.top.lower = true, lower != nil
	w.devices.upper = w.top.st.Dev
	if lower != nil {
		var st unix.Stat_t
		if err := unix.Fstat(int(lower.Fd()), &st); err != nil {
			return nil, walkError("", err)
		}
		w.devices.lower = st.Dev
	}
	dirs, err := w.openTop()
	if err != nil {
		return nil, err
	}
	defer dirs.close()
	if err := w.scan(ctx, &w.top, dirs, "", 0); err != nil {
		return nil, err
	}
	w.findLinks(&w.top, "")
	return w, nil
}

// Warnings says what is not in the archive, once it has been written.
func (t *WorkTree) Warnings() (out []policy.Diagnostic) {
	for _, d := range []struct {
		dropped
		code policy.Code
		what string
	}{
		{t.skipped, policy.CodeFileSkipped, "FIFOs, sockets or device nodes"},
		{t.modes, policy.CodeAttributesDropped, "set-user-ID, set-group-ID or sticky bits"},
		{t.attrs, policy.CodeAttributesDropped, "ACLs or file capabilities"},
	} {
		if d.n > 0 {
			out = append(out, *policy.Warnf(d.code, opWalk, "%d %s are not in the snapshot", d.n, d.what).With("path", policy.Printable(d.path)))
		}
	}
	return out
}

// layers are one directory's descriptors, -1 where a layer has it not.
type layers struct{ upper, lower int }

func (l layers) close() {
	for _, fd := range []int{l.upper, l.lower} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

func (l layers) of(n *node) int {
	if n.upper {
		return l.upper
	}
	return l.lower
}

func (w *WorkTree) openTop() (layers, error) {
	l := layers{-1, -1}
	var err error
	if l.upper, err = unix.Openat(int(w.upper.Fd()), ".", openDirFlags, 0); err == nil && w.lower != nil {
		l.lower, err = unix.Openat(int(w.lower.Fd()), ".", openDirFlags, 0)
	}
	if err != nil {
		l.close()
		return l, walkError("", err)
	}
	return l, nil
}

// open opens the directory n of parent, in each layer that has it.
func (w *WorkTree) open(parent layers, n *node, path string) (layers, error) {
	l := layers{-1, -1}
	var err error
	if n.upper {
		l.upper, err = openOne(parent.upper, n.name, openDirFlags)
	}
	if n.lower && err == nil {
		l.lower, err = openOne(parent.lower, n.name, openDirFlags)
	}
	if err == nil {
		var st unix.Stat_t
		if err = unix.Fstat(l.of(n), &st); err == nil && (st.Dev != n.st.Dev || st.Ino != n.st.Ino) {
			err = unix.ESTALE
		}
	}
	if err != nil {
		l.close()
		return l, walkError(path, err)
	}
	return l, nil
}

func openOne(dir int, name string, flags uint64) (int, error) {
	for {
		fd, err := unix.Openat2(dir, name, &unix.OpenHow{
			Flags:   flags | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
		})
		if err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
}

// scan lists the directory and what is below it.
func (w *WorkTree) scan(ctx context.Context, n *node, dirs layers, path string, depth int) error {
	if err := ctx.Err(); err != nil {
		return policy.Errorf(policy.CodeCanceled, opWalk, "the operation was canceled").Because(err)
	}
	if depth > maxDepth {
		return policy.Errorf(policy.CodePathTooLong, opWalk, "the workspace is deeper than %d directories", maxDepth)
	}
	if err := w.list(n, dirs, path); err != nil {
		return err
	}
	for _, c := range n.children {
		if c.typ() != unix.S_IFDIR {
			continue
		}
		below := join(path, c.name)
		sub, err := w.open(dirs, c, below)
		if err != nil {
			return err
		}
		err = w.scan(ctx, c, sub, below, depth+1)
		sub.close()
		if err != nil {
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

// list merges the layers' names as overlayfs does: a whiteout hides the lower
// name, an opaque directory the whole lower one.
func (w *WorkTree) list(n *node, dirs layers, path string) error {
	hidden := make(map[string]*node)
	if dirs.upper >= 0 {
		err := w.names(dirs.upper, n, path, func(c *node) error {
			c.upper = true
			hidden[c.name] = c
			if w.lower != nil && whiteout(dirs.upper, c) {
				return nil
			}
			return w.add(n, c, path)
		})
		if err != nil {
			return err
		}
	}
	if dirs.lower >= 0 && !(dirs.upper >= 0 && overlayAttr(dirs.upper, "opaque") == "y") {
		err := w.names(dirs.lower, n, path, func(c *node) error {
			if over := hidden[c.name]; over != nil {
				over.lower = over.typ() == unix.S_IFDIR && c.typ() == unix.S_IFDIR
				return nil
			}
			c.lower = true
			return w.add(n, c, path)
		})
		if err != nil {
			return err
		}
	}
	slices.SortFunc(n.children, func(a, b *node) int { return strings.Compare(a.name, b.name) })
	return nil
}

// names calls each for every name but the top's git directory.
func (w *WorkTree) names(dir int, n *node, path string, each func(*node) error) error {
	fd, err := unix.Openat(dir, ".", openDirFlags, 0)
	if err != nil {
		return walkError(path, err)
	}
	f := os.NewFile(uintptr(fd), ".")
	defer f.Close()
	for {
		batch, err := f.Readdirnames(1024)
		for _, name := range batch {
			if n == &w.top && strings.EqualFold(name, ".git") {
				continue
			}
			c := &node{name: name}
			if err := unix.Fstatat(dir, name, &c.st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return walkError(join(path, name), err)
			}
			if err := each(c); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return walkError(path, err)
		}
	}
}

// whiteout: a 0:0 character device, or an empty file that says so.
func whiteout(dir int, c *node) bool {
	switch c.typ() {
	case unix.S_IFCHR:
		return c.st.Rdev == 0
	case unix.S_IFREG:
		if c.st.Size == 0 {
			if fd, err := openOne(dir, c.name, unix.O_RDONLY|unix.O_NONBLOCK); err == nil {
				defer unix.Close(fd)
				_, err := unix.Fgetxattr(fd, "user.overlay.whiteout", nil)
				return err == nil
			}
		}
	}
	return false
}

func overlayAttr(fd int, name string) string {
	var b [8]byte
	n, err := unix.Fgetxattr(fd, "user.overlay."+name, b[:])
	if err != nil {
		return ""
	}
	return string(b[:n])
}

func (w *WorkTree) add(n, c *node, path string) error {
	p := join(path, c.name)
	switch c.typ() {
	case unix.S_IFDIR:
		if (c.upper && c.st.Dev != w.devices.upper) || (!c.upper && c.st.Dev != w.devices.lower) {
			return policy.Errorf(policy.CodeNestedFileSystem, opWalk, "another file system or subvolume lies inside the workspace").With("path", policy.Printable(p))
		}
	case unix.S_IFREG, unix.S_IFLNK:
		w.Files++
		w.Bytes += c.st.Size
	default:
		w.skipped.add(p)
		return nil
	}
	if c.st.Mode&0o7000 != 0 && c.typ() != unix.S_IFLNK {
		w.modes.add(p)
	}
	if w.maxFiles--; w.maxFiles < 0 {
		return policy.Errorf(policy.CodeSnapshotTooLarge, opWalk, "the workspace has more files than a snapshot may hold")
	}
	n.children = append(n.children, c)
	return nil
}

// findLinks goes through the regular files in the archive's order: the first of
// a file's names has the content.
func (w *WorkTree) findLinks(n *node, path string) {
	for _, c := range n.children {
		p := join(path, c.name)
		if c.typ() == unix.S_IFDIR {
			w.findLinks(c, p)
		}
		if c.typ() != unix.S_IFREG || c.st.Nlink < 2 {
			continue
		}
		id := inode{c.st.Dev, c.st.Ino}
		first := w.links[id]
		if first == nil {
			c.path = p
			w.links[id] = c
			continue
		}
		first.linked, c.first = true, first.path
		w.Bytes -= c.st.Size
	}
}

// Write writes the entries. A file that is no longer what the walk saw is an error.
func (t *WorkTree) Write(ctx context.Context, w *Writer, progress func(files int64)) error {
	dirs, err := t.openTop()
	if err != nil {
		return err
	}
	defer dirs.close()
	p := &pass{t: t, w: w, progress: progress}
	return p.dir(ctx, &t.top, dirs, "")
}

type pass struct {
	t        *WorkTree
	w        *Writer
	progress func(int64)
	n        int64
}

func (p *pass) dir(ctx context.Context, n *node, dirs layers, path string) error {
	for _, c := range n.children {
		if err := ctx.Err(); err != nil {
			return policy.Errorf(policy.CodeCanceled, opWalk, "the operation was canceled").Because(err)
		}
		below := join(path, c.name)
		if c.typ() != unix.S_IFDIR {
			if err := p.file(c, dirs, below); err != nil {
				return err
			}
			continue
		}
		sub, err := p.t.open(dirs, c, below)
		if err != nil {
			return err
		}
		e := Entry{Type: Dir, Path: below, Mode: c.st.Mode & 0o777}
		if e.Xattrs, err = p.t.xattrs(sub.of(c), below); err == nil {
			err = p.w.Entry(e, nil)
		}
		if err == nil {
			err = p.dir(ctx, c, sub, below)
		}
		sub.close()
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *pass) file(c *node, dirs layers, path string) error {
	if p.n++; p.progress != nil && p.n%256 == 0 {
		p.progress(p.n)
	}
	dir := dirs.of(c)
	if c.typ() == unix.S_IFLNK {
		target, err := readlink(dir, c.name)
		if err != nil {
			return walkError(path, err)
		}
		return p.w.Entry(Entry{Type: Symlink, Path: path, Target: target}, nil)
	}
	if c.first != "" {
		return p.w.Entry(Entry{Type: HardLink, Path: path, Target: c.first}, nil)
	}
	fd, err := openOne(dir, c.name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return walkError(path, err)
	}
	f := os.NewFile(uintptr(fd), c.name)
	defer f.Close()
	if err := unchanged(fd, &c.st); err != nil {
		return walkError(path, err)
	}
	e := Entry{Type: File, Path: path, Mode: c.st.Mode & 0o777, Size: c.st.Size, Linked: c.linked}
	if e.Xattrs, err = p.t.xattrs(fd, path); err != nil {
		return err
	}
	if err := p.w.Entry(e, f); err != nil {
		if errors.Is(err, errSize) {
			err = unix.ESTALE
		}
		return walkError(path, err)
	}
	if err := unchanged(fd, &c.st); err != nil {
		return walkError(path, err)
	}
	return nil
}

// unchanged compares with what the walk saw: content, mode and names all move ctime.
func unchanged(fd int, was *unix.Stat_t) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Dev != was.Dev || st.Ino != was.Ino || st.Mode != was.Mode || st.Size != was.Size || st.Ctim != was.Ctim || st.Mtim != was.Mtim {
		return unix.ESTALE
	}
	return nil
}

func readlink(dir int, name string) (string, error) {
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, b)
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}

// xattrs reads the attributes that an archive carries, sorted.
func (t *WorkTree) xattrs(fd int, path string) ([]Xattr, error) {
	var list []byte
	for size := 1024; ; size = 64 << 10 { // XATTR_LIST_MAX
		list = make([]byte, size)
		n, err := unix.Flistxattr(fd, list)
		if err == unix.EOPNOTSUPP {
			return nil, nil
		}
		if err == nil {
			list = list[:n]
			break
		}
		if err != unix.ERANGE || size > 1024 {
			return nil, walkError(path, err)
		}
	}
	var out []Xattr
	for name := range bytes.SplitSeq(list, []byte{0}) {
		switch s := string(name); {
		case s == "security.capability", strings.HasPrefix(s, "system.posix_acl_"):
			t.attrs.add(path)
		case carried(s):
			v := make([]byte, maxValue)
			n, err := unix.Fgetxattr(fd, s, v)
			if err != nil {
				return nil, walkError(path, err)
			}
			out = append(out, Xattr{s, slices.Clip(v[:n])})
		}
	}
	slices.SortFunc(out, func(a, b Xattr) int { return strings.Compare(a.Name, b.Name) })
	if len(out) > maxXattrs {
		return nil, policy.Errorf(policy.CodeSnapshotTooLarge, opWalk, "a file has more than %s extended attributes", strconv.Itoa(maxXattrs)).With("path", policy.Printable(path))
	}
	return out, nil
}

func walkError(p string, err error) error {
	var known *policy.Diagnostic
	d := func(code policy.Code, message string) error {
		return policy.Errorf(code, opWalk, "%s", message).With("path", policy.Printable(p)).Because(err)
	}
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, unix.ESTALE), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return d(policy.CodeSourceChanged, "the workspace changed while it was read")
	case errors.Is(err, unix.EXDEV):
		return d(policy.CodeNestedFileSystem, "another file system lies inside the workspace")
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return d(policy.CodeSourceUnreadable, "a file of the workspace cannot be read")
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return d(policy.CodeDiskFull, "the disk is full")
	}
	return d(policy.CodeCopyFailed, "the workspace cannot be read")
}
