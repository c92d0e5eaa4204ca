package image

import (
	"archive/tar"
	"errors"
	"io"
	"path"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

const opOpen = "image.open"

// Bounds of the archive around the layers. The largest manifests and
// configurations seen have some ten thousand bytes.
const (
	maxDocument    = 4 << 20
	maxArchiveFile = 1 << 14
)

func invalid(format string, args ...any) *policy.Diagnostic {
	return policy.Errorf(policy.CodeImageInvalid, opOpen, format, args...)
}

// archive is a tar file's table of contents.
type archive struct {
	r     io.ReaderAt
	files map[string]span
	links map[string]string // old docker archives share a layer by a symbolic link
}

type span struct{ offset, size int64 }

// position is a reader that knows where it is; it seeks for archive/tar, which
// then skips contents instead of reading them.
type position struct{ *io.SectionReader }

func (p position) at() int64 {
	n, _ := p.Seek(0, io.SeekCurrent) // of a section, it cannot fail
	return n
}

// index lists the archive. A name that occurs twice is refused: two readers
// could see two images.
func index(r io.ReaderAt, size int64) (*archive, error) {
	a := &archive{r: r, files: make(map[string]span), links: make(map[string]string)}
	pos := position{io.NewSectionReader(r, 0, size)}
	tr := tar.NewReader(pos)
	for n := 0; ; n++ {
		h, err := tr.Next()
		if err == io.EOF {
			return a, nil
		}
		if err != nil {
			return nil, invalid("the archive is damaged or cut off, or no tar file").Because(err)
		}
		if n > maxArchiveFile {
			return nil, invalid("the archive holds more than %d files", maxArchiveFile)
		}
		name := path.Clean(strings.TrimPrefix(h.Name, "./"))
		if a.has(name) {
			return nil, invalid("the archive holds %q twice", policy.Printable(name))
		}
		switch h.Typeflag {
		case tar.TypeReg:
			at := pos.at()
			if h.Size > size-at {
				return nil, invalid("the archive is cut off in %q", policy.Printable(name))
			}
			a.files[name] = span{at, h.Size}
		case tar.TypeSymlink:
			a.links[name] = path.Join(path.Dir(name), h.Linkname)
		case tar.TypeLink:
			a.links[name] = path.Clean(h.Linkname)
		}
	}
}

func (a *archive) has(name string) bool {
	_, file := a.files[name]
	_, link := a.links[name]
	return file || link
}

// open returns a file of the archive, by one link at most.
func (a *archive) open(name string) (*io.SectionReader, bool) {
	name = path.Clean(name)
	if to, ok := a.links[name]; ok {
		name = to
	}
	s, ok := a.files[name]
	if !ok {
		return nil, false
	}
	return io.NewSectionReader(a.r, s.offset, s.size), true
}

// document reads a small file whole.
func (a *archive) document(name string) ([]byte, error) {
	s, ok := a.open(name)
	if !ok {
		return nil, invalid("the archive lacks %q", policy.Printable(name))
	}
	if s.Size() > maxDocument {
		return nil, invalid("%q is larger than %d bytes", policy.Printable(name), maxDocument)
	}
	b := make([]byte, s.Size())
	if _, err := io.ReadFull(s, b); err != nil && !errors.Is(err, io.EOF) {
		return nil, invalid("%q cannot be read", policy.Printable(name)).Because(err)
	}
	return b, nil
}
