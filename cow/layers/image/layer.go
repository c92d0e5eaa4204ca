package image

import (
	"bytes"
	"compress/gzip"
	"hash"
	"io"

	"github.com/klauspost/compress/zstd"

	"yoi.dev/yoi-runtime/policy"
)

var (
	gzipMagic = []byte{0x1f, 0x8b}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
)

// maxWindow is what zstd --long=27 needs; more would be memory at a stranger's
// wish.
const maxWindow = 128 << 20

func isCompressed(r io.ReaderAt) (bool, error) {
	var b [4]byte
	n, err := r.ReadAt(b[:], 0)
	if n < len(b) {
		return false, invalid("the archive is empty or cut off").Because(err)
	}
	return bytes.HasPrefix(b[:], gzipMagic) || bytes.HasPrefix(b[:], zstdMagic), nil
}

// decompress looks at the first bytes, not at what the manifest says: the digest
// of the result is what counts.
func (l *Layer) decompress(r io.Reader) (io.ReadCloser, error) {
	var magic [4]byte
	_, _ = l.data.ReadAt(magic[:], 0) // too short for a magic is not compressed
	var out io.ReadCloser
	var err error
	switch {
	case bytes.HasPrefix(magic[:], gzipMagic):
		out, err = gzip.NewReader(r)
	case bytes.HasPrefix(magic[:], zstdMagic):
		var d *zstd.Decoder
		if d, err = zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow)); err == nil {
			out = d.IOReadCloser()
		}
	default:
		return io.NopCloser(r), nil
	}
	if err != nil {
		return nil, invalid("a layer cannot be decompressed").Because(err)
	}
	return out, nil
}

// Reader reads a layer's tar stream. Finish must be called when all of it has
// been used.
type Reader struct {
	io.Reader
	layer      *Layer
	raw        io.Reader
	plain      io.ReadCloser
	blob, diff hash.Hash
	left       int64
}

// Read opens the layer for reading at most limits' bytes of it.
func (l *Layer) Read(limits policy.ImageLimits) (*Reader, error) {
	r := &Reader{layer: l, diff: l.Diff.hash(), left: limits.Bytes + 4096*limits.Entries}
	if _, err := l.data.Seek(0, io.SeekStart); err != nil {
		return nil, invalid("a layer cannot be read").Because(err)
	}
	r.raw = l.data
	if l.blob != "" {
		r.blob = l.blob.hash()
		r.raw = io.TeeReader(r.raw, r.blob)
	}
	var err error
	if r.plain, err = l.decompress(r.raw); err != nil {
		return nil, err
	}
	r.Reader = io.TeeReader(bounded{r}, r.diff)
	return r, nil
}

// bounded is what stops a stream that expands without end.
type bounded struct{ r *Reader }

func (b bounded) Read(p []byte) (int, error) {
	if b.r.left <= 0 {
		return 0, policy.Errorf(policy.CodeImageLimit, opOpen, "a layer expands to more than allowed")
	}
	if int64(len(p)) > b.r.left {
		p = p[:b.r.left]
	}
	n, err := b.r.plain.Read(p)
	b.r.left -= int64(n)
	return n, err
}

// Finish reads what is left and compares the digests: only then may the layer
// be used.
func (r *Reader) Finish() error {
	defer r.plain.Close()
	if _, err := io.Copy(io.Discard, r.Reader); err != nil {
		return layerError(err)
	}
	if _, err := io.Copy(io.Discard, r.raw); err != nil {
		return layerError(err)
	}
	if r.blob != nil && !r.layer.blob.matches(r.blob) {
		return mismatch("a layer", r.layer.blob)
	}
	if !r.layer.Diff.matches(r.diff) {
		return mismatch("a layer's content", r.layer.Diff)
	}
	return nil
}

// Close gives up on a layer.
func (r *Reader) Close() { r.plain.Close() }
