// Package bundle reads and checks configuration bundles: small directories that a
// policy names by their digest, for Workers to read.
//
// A bundle is what its digest says and nothing else: names, contents, which files are
// executable, links that stay within. No owner, time, attribute or hard link is part
// of it, so the same directory has the same digest everywhere. It travels as a tar
// archive, which is read as hostile: what would leave the bundle, or is neither a
// file, a directory nor a link, refuses the whole.
//
// It is not for large trees: see Limits.
package bundle

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/policy"
)

const op = "bundle"

// The limits of one bundle. It is read whole whenever it is used.
const (
	MaxBytes   = 32 << 20 // of all files
	MaxEntries = 4096
	maxPath    = 1024
	maxDepth   = 32
)

// MaxArchive is above what a bundle's archive takes.
const MaxArchive = MaxBytes + MaxEntries*4096 + 1<<20

// Stats is what a bundle holds.
type Stats struct {
	Files int   // and links
	Bytes int64 // of the files
}

func invalid(format string, args ...any) *policy.Diagnostic {
	return policy.Errorf(policy.CodeBundleInvalid, op, format, args...)
}

// Pack writes the directory dir as an archive. Its top may be a link; nothing below
// is followed.
func Pack(dir string, w io.Writer) error {
	top, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return invalid("the directory cannot be read").Because(err)
	}
	t := tar.NewWriter(w)
	n := 0
	err = filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return invalid("the directory cannot be read").Because(err)
		}
		rel, err := filepath.Rel(top, p)
		if err != nil {
			return err
		}
		if rel == "." {
			if !d.IsDir() {
				return invalid("a bundle is made of a directory")
			}
			return nil
		}
		if n++; n > MaxEntries {
			return invalid("the directory has more than %d entries", MaxEntries)
		}
		return packOne(t, p, rel)
	})
	if err != nil {
		return err
	}
	return t.Close()
}

func packOne(t *tar.Writer, p, rel string) error {
	bad := func(err error) error {
		return invalid("%s cannot be read", policy.Printable(rel)).With("path", rel).Because(err)
	}
	info, err := os.Lstat(p)
	if err != nil {
		return bad(err)
	}
	h := &tar.Header{Name: rel, Mode: 0o644, Format: tar.FormatPAX}
	switch {
	case info.IsDir():
		h.Typeflag, h.Name, h.Mode = tar.TypeDir, rel+"/", 0o755
		return t.WriteHeader(h)
	case info.Mode()&fs.ModeSymlink != 0:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = os.Readlink(p); err != nil {
			return bad(err)
		}
		return t.WriteHeader(h)
	case !info.Mode().IsRegular():
		return invalid("%s is neither a file, a directory nor a link", policy.Printable(rel)).With("path", rel)
	}
	f, err := os.OpenFile(p, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return bad(err)
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil || !info.Mode().IsRegular() {
		return bad(err)
	}
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if info.Mode()&0o111 != 0 {
		h.Mode = 0o755
	}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	if _, err := io.CopyN(t, f, h.Size); err != nil {
		if errors.Is(err, io.EOF) {
			return invalid("%s changed while it was read", policy.Printable(rel))
		}
		return err
	}
	return nil
}

// Unpack fills the empty directory into from an archive. It says what is wrong with
// one before anything of it counts: the caller throws the directory away then.
func Unpack(r io.Reader, into *os.File) (s Stats, err error) {
	in := &ending{r: io.LimitReader(r, MaxArchive)}
	t := tar.NewReader(in)
	entries := 0
	for {
		h, err := t.Next()
		if err == io.EOF && !in.marked() {
			return s, arrived(io.ErrUnexpectedEOF)
		}
		if err == io.EOF {
			return s, nil
		}
		if err != nil {
			return s, arrived(err)
		}
		if entries++; entries > MaxEntries {
			return s, invalid("the bundle has more than %d entries", MaxEntries)
		}
		name := strings.TrimSuffix(strings.TrimPrefix(h.Name, "./"), "/")
		if name == "" || name == "." {
			if h.Typeflag == tar.TypeDir {
				continue
			}
			return s, invalid("an entry has no name")
		}
		if why := checkName(name); why != "" {
			return s, invalid("%s: the name %s", policy.Printable(name), why).With("path", name)
		}
		if err := unpackOne(t, h, name, into, &s); err != nil {
			return s, err
		}
	}
}

// ending notes that there was no more to read: package tar takes that for the end of
// an archive, which its own mark has to be.
type ending struct {
	r     io.Reader
	over  bool
	total int64
	zeros int64 // how many bytes of zero came last
}

func (e *ending) Read(b []byte) (int, error) {
	n, err := e.r.Read(b)
	e.over = e.over || n == 0 && err == io.EOF
	e.total += int64(n)
	if tail := len(bytes.TrimRight(b[:n], "\x00")); tail > 0 {
		e.zeros = int64(n - tail)
	} else {
		e.zeros += int64(n)
	}
	return n, err
}

// marked tells whether what was read ended with an archive's mark: blocks of zeros.
func (e *ending) marked() bool { return !e.over && e.total%512 == 0 && e.zeros >= 512 }

// arrived explains why an archive cannot be read on.
func arrived(err error) error {
	var d *policy.Diagnostic
	if errors.As(err, &d) {
		return d
	}
	return invalid("the archive is damaged, or did not arrive whole").Because(err)
}

// checkName says why a name is refused.
func checkName(name string) string {
	switch {
	case path.IsAbs(name) || path.Clean(name) != name || name == ".." || strings.HasPrefix(name, "../"):
		return "leaves the bundle, or is not clean"
	case len(name) > maxPath || strings.Count(name, "/") >= maxDepth:
		return "is too long or too deep"
	case strings.ContainsRune(name, 0):
		return "holds a NUL"
	}
	for _, c := range strings.Split(name, "/") {
		if len(c) > 255 {
			return "is too long or too deep"
		}
	}
	return ""
}

// checkLink refuses a link that leads out of the bundle, wherever the bundle is.
func checkLink(name, to string) error {
	depth := strings.Count(name, "/")
	if to == "" || path.IsAbs(to) || len(to) > maxPath || strings.ContainsRune(to, 0) {
		return invalid("the link %s does not stay in the bundle", policy.Printable(name)).With("path", name)
	}
	for _, c := range strings.Split(to, "/") {
		switch c {
		case "", ".":
		case "..":
			depth--
		default:
			depth++
		}
		if depth < 0 {
			return invalid("the link %s does not stay in the bundle", policy.Printable(name)).With("path", name)
		}
	}
	return nil
}

func unpackOne(t *tar.Reader, h *tar.Header, name string, into *os.File, s *Stats) error {
	parent, err := ensure(into, path.Dir(name))
	if err != nil {
		return refused(name, err)
	}
	defer parent.Close()
	base := path.Base(name)
	switch h.Typeflag {
	case tar.TypeDir:
		err := unix.Mkdirat(int(parent.Fd()), base, 0o755)
		if errors.Is(err, unix.EEXIST) { // made for what lies in it
			var d *os.File
			if d, err = rootdir.OpenAt(parent, base, unix.O_RDONLY|unix.O_DIRECTORY, 0); err == nil {
				d.Close()
			}
		}
		return refused(name, err)
	case tar.TypeSymlink:
		if err := checkLink(name, h.Linkname); err != nil {
			return err
		}
		s.Files++
		return refused(name, unix.Symlinkat(h.Linkname, int(parent.Fd()), base))
	case tar.TypeReg:
	default:
		return invalid("%s is neither a file, a directory nor a link", policy.Printable(name)).With("path", name)
	}
	if h.Size < 0 || h.Size > MaxBytes-s.Bytes {
		return invalid("the bundle's files are larger than %d bytes", MaxBytes)
	}
	mode := uint32(0o644)
	if h.Mode&0o111 != 0 {
		mode = 0o755
	}
	f, err := rootdir.OpenAt(parent, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, mode)
	if err != nil {
		return refused(name, err)
	}
	defer f.Close()
	n, err := io.Copy(f, t)
	if s.Files, s.Bytes = s.Files+1, s.Bytes+n; err == nil {
		err = f.Chmod(fs.FileMode(mode)) // whatever the umask
	}
	if d := rootdir.NoRoom(op, err); d != nil {
		return d
	}
	if err != nil {
		return arrived(err)
	}
	return nil
}

func refused(name string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrExist), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EXDEV):
		return invalid("%s is in the bundle twice, or lies behind a file or a link", policy.Printable(name)).With("path", name).Because(err)
	}
	return rootdir.Failed(op, "the bundle cannot be stored", err)
}

// ensure opens a directory below top, making what is missing of it.
func ensure(top *os.File, rel string) (*os.File, error) {
	d, err := rootdir.OpenAt(top, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil || rel == "." {
		return d, err
	}
	for _, c := range strings.Split(rel, "/") {
		err := unix.Mkdirat(int(d.Fd()), c, 0o755)
		var next *os.File
		if err == nil || errors.Is(err, unix.EEXIST) {
			next, err = rootdir.OpenAt(d, c, unix.O_RDONLY|unix.O_DIRECTORY, 0)
			if err == nil {
				err = next.Chmod(0o755)
			}
		}
		d.Close()
		if err != nil {
			if next != nil {
				next.Close()
			}
			return nil, err
		}
		d = next
	}
	return d, nil
}

// Sum reads a bundle and returns its digest: SHA-256 of all entries in the order of
// their paths, each as its kind, the length and bytes of its path, and the length and
// bytes of its content or target.
func Sum(top *os.File) (policy.BundleDigest, Stats, error) {
	w := summing{hash: sha256.New()}
	w.hash.Write([]byte("yoi config bundle 1\n"))
	err := w.dir(top, "", 0)
	return policy.BundleDigest(policy.FormatDigest(w.hash.Sum(nil))), w.stats, err
}

type summing struct {
	hash    hash.Hash
	stats   Stats
	entries int
}

// The kinds of entries.
const (
	kindDir, kindFile, kindProgram, kindLink = 'd', 'f', 'x', 'l'
)

func (w *summing) head(kind byte, p string, n int64) {
	b := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(p)))
	w.hash.Write(binary.BigEndian.AppendUint64(append(b, p...), uint64(n)))
}

var errShape = errors.New("not what a bundle is made of")

func (w *summing) dir(d *os.File, prefix string, depth int) error {
	if depth > maxDepth {
		return errShape
	}
	list, err := rootdir.OpenAt(d, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0) // a position of its own
	if err != nil {
		return err
	}
	names, err := list.Readdirnames(MaxEntries + 1)
	list.Close()
	if err != nil && err != io.EOF {
		return err
	}
	slices.Sort(names)
	for _, n := range names {
		if w.entries++; w.entries > MaxEntries {
			return errShape
		}
		if err := w.entry(d, n, prefix, depth); err != nil {
			return err
		}
	}
	return nil
}

func (w *summing) entry(d *os.File, name, prefix string, depth int) error {
	at := prefix + name
	var st unix.Stat_t
	if err := unix.Fstatat(int(d.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &fs.PathError{Op: "fstatat", Path: at, Err: err}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		w.head(kindDir, at, 0)
		sub, err := rootdir.OpenAt(d, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		defer sub.Close()
		return w.dir(sub, at+"/", depth+1)
	case unix.S_IFLNK:
		b := make([]byte, maxPath+1)
		n, err := unix.Readlinkat(int(d.Fd()), name, b)
		if err != nil || n > maxPath {
			return &fs.PathError{Op: "readlinkat", Path: at, Err: errors.Join(errShape, err)}
		}
		w.stats.Files++
		w.head(kindLink, at, int64(n))
		w.hash.Write(b[:n])
		return nil
	case unix.S_IFREG:
	default:
		return errShape
	}
	f, err := rootdir.OpenAt(d, name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if w.stats.Bytes+st.Size > MaxBytes {
		return errShape
	}
	kind := byte(kindFile)
	if st.Mode&0o111 != 0 {
		kind = kindProgram
	}
	w.head(kind, at, st.Size)
	n, err := io.Copy(w.hash, io.LimitReader(f, st.Size+1))
	if err == nil && n != st.Size {
		err = errors.New("its size is not " + strconv.FormatInt(st.Size, 10))
	}
	w.stats.Files, w.stats.Bytes = w.stats.Files+1, w.stats.Bytes+n
	return err
}
