package snapshot

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"io"

	"github.com/klauspost/compress/zstd"

	"yoi.dev/yoi-runtime/policy"
)

// Writer writes an archive in its one form: the header, each object, each entry,
// Finish. It checks what it is given as Reader does.
type Writer struct {
	z     *zstd.Encoder
	out   io.Writer
	sum   hash.Hash
	h     Header
	plan  *planner
	left  int64
	order order
	buf   []byte
}

// NewWriter writes the header to w.
func NewWriter(w io.Writer, h Header) (*Writer, error) {
	line, err := encodeHeader(h)
	if err == nil {
		h, err = parseHeader(line)
	}
	if err != nil {
		return nil, err
	}
	z, err := zstd.NewWriter(w, zstd.WithWindowSize(8<<20))
	if err != nil {
		return nil, err
	}
	s := &Writer{z: z, sum: sha256.New(), h: h, plan: newPlanner(h), left: h.Objects}
	s.out = io.MultiWriter(s.sum, z)
	_, err = s.out.Write(append([]byte(magic), line...))
	return s, err
}

// Object writes the next object, whose size and content r gives.
func (w *Writer) Object(size int64, r io.Reader) error {
	if w.left == 0 || w.plan.next == "" {
		return invalid("was given more objects than it has")
	}
	w.left--
	w.buf = binary.AppendUvarint(append(w.buf[:0], w.plan.typ), uint64(size))
	if _, err := w.out.Write(w.buf); err != nil {
		return err
	}
	sum := w.plan.objectHash(size)
	dst := io.MultiWriter(w.out, sum)
	var kept bytes.Buffer
	if w.plan.typ != tagBlob {
		dst = io.MultiWriter(dst, &kept)
	}
	if err := copyExactly(dst, r, size); err != nil {
		return err
	}
	if string(sum.Sum(nil)) != w.plan.next {
		return invalid("was given another object than the one that comes next")
	}
	return w.plan.advance(kept.Bytes())
}

var errSize = errors.New("content of another size than announced")

func copyExactly(dst io.Writer, r io.Reader, size int64) error {
	n, err := io.Copy(dst, io.LimitReader(r, size))
	if err == nil && n != size {
		err = errSize
	}
	return err
}

// Entry writes an entry of a workspace. r gives a file's e.Size bytes.
func (w *Writer) Entry(e Entry, r io.Reader) error {
	if w.h.Kind != KindWorkspace || w.left > 0 {
		return invalid("was given an entry where none belongs")
	}
	if err := checkEntry(&e); err != nil {
		return err
	}
	if err := w.order.check(&e); err != nil {
		return err
	}
	b := append(w.buf[:0], byte(e.Type))
	if e.Linked {
		b[0] = tagLinked
	}
	b = appendText(b, e.Path)
	switch e.Type {
	case Symlink, HardLink:
		b = appendText(b, e.Target)
	default:
		b = binary.AppendUvarint(b, uint64(e.Mode))
		b = binary.AppendUvarint(b, uint64(len(e.Xattrs)))
		for _, x := range e.Xattrs {
			b = appendText(appendText(b, x.Name), string(x.Value))
		}
		if e.Type == File {
			b = binary.AppendUvarint(b, uint64(e.Size))
		}
	}
	w.buf = b
	if _, err := w.out.Write(b); err != nil {
		return err
	}
	if e.Type == File {
		return copyExactly(w.out, r, e.Size)
	}
	return nil
}

// Finish ends the archive and returns its digest.
func (w *Writer) Finish() (digest string, err error) {
	if w.left > 0 || w.plan.next != "" {
		return "", invalid("was given too few objects")
	}
	if err := w.order.finish(); err != nil {
		return "", err
	}
	if w.h.Kind == KindWorkspace {
		if _, err := w.out.Write([]byte{tagEnd}); err != nil {
			return "", err
		}
	}
	if err := w.z.Close(); err != nil {
		return "", err
	}
	return policy.FormatDigest(w.sum.Sum(nil)), nil
}
