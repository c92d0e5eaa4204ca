package image

import (
	"archive/tar"
	"errors"
	"io"
	"path"
	"strings"
	"time"

	"yoi.dev/yoi-runtime/policy"
)

const opFilter = "image.filter"

// Whiteouts, as layers write them (OCI image-spec, "Whiteouts").
const (
	whiteoutPrefix = ".wh."
	whiteoutOpaque = ".wh..wh..opq"
	whiteoutMeta   = ".wh..wh."
	xattrRecord    = "SCHILY.xattr."
)

// MaxID is the highest uid and gid that an image's files can have: a Worker's
// range has 65536. Nobody stands in for the others.
const (
	MaxID  = 65535
	nobody = 65534
)

// Counts are what a Filter kept and what it neutralised.
type Counts struct {
	Entries  int64 `json:"entries"`
	Bytes    int64 `json:"bytes"`
	Setuid   int64 `json:"setuid,omitempty"`     // setuid and setgid bits taken away
	Xattrs   int64 `json:"attributes,omitempty"` // extended attributes left out
	Specials int64 `json:"specials,omitempty"`   // device nodes and FIFOs left out
	Owners   int64 `json:"owners,omitempty"`     // given to nobody
}

// Filter copies the layers of one image, lowest first.
type Filter struct {
	Limits policy.ImageLimits
	// Single gives every file to uid and gid 0, for a store that can have one owner
	// only.
	Single bool
	Counts Counts

	// merged is what the layers so far add up to: only what kind of thing a path is,
	// and a directory's attributes.
	merged map[string]node
}

type node struct {
	dir      bool
	mode     int64
	uid, gid int
	modified time.Time
}

// layerFilter is the copy of one layer.
type layerFilter struct {
	*Filter
	w *tar.Writer
	// seen is what this layer itself has at a path; gone are its whiteouts.
	seen map[string]byte
	gone map[string]bool
}

// The kinds in seen.
const (
	isDir  = 'd'
	isFile = 'f'
	isLink = 'l'
)

// Layer copies one layer from r to w, which gets a whole tar stream. Errors are
// diagnostics; what was written by then must be thrown away.
func (f *Filter) Layer(r io.Reader, w io.Writer) error {
	if f.merged == nil {
		f.merged = make(map[string]node)
	}
	l := &layerFilter{Filter: f, w: tar.NewWriter(w), seen: make(map[string]byte), gone: make(map[string]bool)}
	// The layer's top is ours to decide: it becomes the sandbox's.
	if err := l.put(&tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755}); err != nil {
		return layerError(err)
	}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err == nil {
			err = l.entry(h, tr)
		}
		if err != nil {
			return layerError(err)
		}
	}
	return layerError(l.w.Close())
}

// layerError words what reading a layer can fail with.
func layerError(err error) error {
	var d *policy.Diagnostic
	if err == nil || errors.As(err, &d) {
		return err
	}
	return invalid("a layer is damaged or cut off").Because(err)
}

func refused(name, why string) error {
	return policy.Errorf(policy.CodeImageLayerRefused, opFilter, "a layer's entry %q %s", policy.Printable(name), why)
}

// entry copies one entry, or decides against it.
func (l *layerFilter) entry(h *tar.Header, content io.Reader) error {
	name, err := cleanName(h.Name)
	if err != nil || name == "." {
		return err
	}
	switch h.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		l.Counts.Specials++ // a character device 0/0 is overlayfs's own whiteout, too
		return nil
	}
	if err := l.count(h); err != nil {
		return err
	}
	if err := l.parents(path.Dir(name)); err != nil {
		return err
	}
	if base := path.Base(name); strings.HasPrefix(base, whiteoutPrefix) {
		return l.whiteout(h, name, base)
	}
	out := &tar.Header{Typeflag: h.Typeflag, Name: name, Mode: l.mode(h), ModTime: plausible(h.ModTime), Format: tar.FormatPAX}
	out.Uid, out.Gid = l.owner(h)
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		out.Typeflag, out.Size, out.PAXRecords = tar.TypeReg, h.Size, l.xattrs(h)
		if err := l.put(out); err != nil {
			return err
		}
		if _, err := io.CopyN(l.w, content, h.Size); err != nil {
			return err
		}
		return l.made(name, isFile, node{})
	case tar.TypeDir:
		out.Name, out.PAXRecords = name+"/", l.xattrs(h)
		if err := l.put(out); err != nil {
			return err
		}
		return l.made(name, isDir, node{dir: true, mode: out.Mode, uid: out.Uid, gid: out.Gid, modified: out.ModTime})
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) > 4095 || strings.ContainsRune(h.Linkname, 0) {
			return refused(name, "is a symbolic link without a usable target")
		}
		out.Linkname, out.Mode = h.Linkname, 0o777
		if err := l.put(out); err != nil {
			return err
		}
		return l.made(name, isLink, node{})
	case tar.TypeLink:
		return l.hardLink(h, out)
	}
	return refused(name, "has a type that is not known")
}

// count holds the layers to the limits, before anything of an entry is copied.
func (l *layerFilter) count(h *tar.Header) error {
	l.Counts.Entries++
	if h.Size < 0 {
		return refused(h.Name, "has a negative size")
	}
	l.Counts.Bytes += h.Size
	if l.Counts.Entries > l.Limits.Entries || l.Counts.Bytes > l.Limits.Bytes {
		return policy.Errorf(policy.CodeImageLimit, opFilter, "the image has more than %d entries or %d bytes", l.Limits.Entries, l.Limits.Bytes)
	}
	return nil
}

// cleanName turns an entry's name into a relative path that leads down. A
// leading slash means the layer's top, as it does to every other reader.
func cleanName(s string) (string, error) {
	if len(s) > 4000 || strings.ContainsRune(s, 0) {
		return "", refused(s[:min(len(s), 64)], "has a name that is too long or holds a NUL")
	}
	for _, c := range strings.Split(s, "/") {
		if c == ".." {
			return "", refused(s, "has a name with ..")
		}
		if len(c) > 255 {
			return "", refused(s[:64], "has a name that is too long")
		}
	}
	name := path.Clean(strings.TrimLeft(s, "/"))
	if name == "" {
		name = "."
	}
	return name, nil
}

// parents makes sure that a directory is one of this layer's, with the attributes
// that it has in the layers below: a layer that names only a file in it does not
// mean to change it, but overlayfs shows the uppermost directory's attributes.
func (l *layerFilter) parents(dir string) error {
	if dir == "." {
		return nil
	}
	switch l.seen[dir] {
	case isDir:
		return nil
	case isFile, isLink:
		// Honest layers never do that. Through a link one could write elsewhere.
		return refused(dir, "has others below it but is no directory")
	}
	if strings.HasPrefix(path.Base(dir), whiteoutPrefix) {
		return refused(dir, "is a whiteout with others below it")
	}
	if err := l.parents(path.Dir(dir)); err != nil {
		return err
	}
	if err := l.count(&tar.Header{}); err != nil {
		return err
	}
	n, known := l.merged[dir]
	if known && !n.dir {
		// A directory in the place of a lower layer's link or file: without the
		// whiteout, vfs would go through the link.
		if err := l.put(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(path.Dir(dir), whiteoutPrefix+path.Base(dir))}); err != nil {
			return err
		}
	}
	if !n.dir {
		n = node{dir: true, mode: 0o755}
	}
	if err := l.put(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: n.mode, Uid: n.uid, Gid: n.gid, ModTime: n.modified, Format: tar.FormatPAX}); err != nil {
		return err
	}
	return l.made(dir, isDir, n)
}

// whiteout passes a removal on. One of a path that this same layer has is about
// the layers below, whichever comes first in the archive.
func (l *layerFilter) whiteout(h *tar.Header, name, base string) error {
	if h.Typeflag != tar.TypeReg {
		return refused(name, "is a whiteout but no regular file")
	}
	dir := path.Dir(name)
	switch {
	case base == whiteoutOpaque:
		return l.put(&tar.Header{Typeflag: tar.TypeReg, Name: name})
	case strings.HasPrefix(base, whiteoutMeta):
		return nil // aufs's own files
	}
	target := strings.TrimPrefix(base, whiteoutPrefix)
	if target == "" || target == "." || target == ".." {
		return refused(name, "is a whiteout of a directory itself or of its parent")
	}
	removed := path.Join(dir, target)
	l.gone[removed] = true
	switch l.seen[removed] {
	case isDir:
		return l.opaque(removed)
	case isFile, isLink:
		return nil
	}
	delete(l.merged, removed)
	return l.put(&tar.Header{Typeflag: tar.TypeReg, Name: name})
}

func (l *layerFilter) opaque(dir string) error {
	return l.put(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(dir, whiteoutOpaque)})
}

// made remembers an entry.
func (l *layerFilter) made(name string, kind byte, n node) error {
	l.seen[name], l.merged[name] = kind, n
	if kind == isDir && l.gone[name] {
		return l.opaque(name)
	}
	return nil
}

// hardLink passes a hard link on. Its target must be a file of this layer: what
// a lower layer has cannot be linked to from here.
func (l *layerFilter) hardLink(h, out *tar.Header) error {
	target, err := cleanName(h.Linkname)
	if err != nil {
		return refused(out.Name, "is a hard link that leads out of the layer")
	}
	if k := l.seen[target]; k != isFile && k != isLink {
		return refused(out.Name, "is a hard link to what is no file of the same layer")
	}
	if target == out.Name {
		return refused(out.Name, "is a hard link to itself")
	}
	out.Linkname = target
	if err := l.put(out); err != nil {
		return err
	}
	return l.made(out.Name, l.seen[target], node{})
}

func (l *layerFilter) put(h *tar.Header) error {
	if h.ModTime.IsZero() {
		h.ModTime = time.Unix(0, 0)
	}
	return l.w.WriteHeader(h)
}

// mode takes setuid and setgid away. The sandbox's mounts are nosuid all the
// same; this is for the host, on which the store lies.
func (l *layerFilter) mode(h *tar.Header) int64 {
	if h.Mode&0o6000 != 0 {
		l.Counts.Setuid++
	}
	return h.Mode & 0o1777
}

func (l *layerFilter) owner(h *tar.Header) (uid, gid int) {
	if l.Single {
		return 0, 0
	}
	uid, gid = h.Uid, h.Gid
	if uid < 0 || uid > MaxID || gid < 0 || gid > MaxID {
		l.Counts.Owners++
	}
	if uid < 0 || uid > MaxID {
		uid = nobody
	}
	if gid < 0 || gid > MaxID {
		gid = nobody
	}
	return uid, gid
}

// xattrs keeps the user's own attributes. security.capability would be privilege,
// trusted.overlay.* and user.overlay.* are overlayfs's redirects and metadata, and
// user.containers.* is containers/storage's override of owners and modes.
func (l *layerFilter) xattrs(h *tar.Header) map[string]string {
	var kept map[string]string
	for k, v := range h.PAXRecords {
		name, ok := strings.CutPrefix(k, xattrRecord)
		if !ok {
			continue
		}
		if !strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "user.overlay.") || strings.HasPrefix(name, "user.containers.") || len(name) > 255 || len(v) > 4096 {
			l.Counts.Xattrs++
			continue
		}
		if kept == nil {
			kept = make(map[string]string)
		}
		kept[k] = v
	}
	return kept
}

// plausible keeps a time within what every file system can store.
func plausible(t time.Time) time.Time {
	if t.Unix() < 0 {
		return time.Unix(0, 0)
	}
	if latest := time.Unix(1<<33, 0); t.After(latest) {
		return latest
	}
	return t
}
