package snapshot

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"io"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"

	"yoi.dev/yoi-runtime/policy"
)

// maxWindow is what the decoder may have to keep; Writer uses 8 MiB.
const maxWindow = 32 << 20

// Reader reads an archive from front to back: Header, Object until io.EOF,
// Entry until io.EOF, Finish. Nothing that it returned may be used for anything
// lasting before Finish has returned the digest that was asked for.
type Reader struct {
	src    *source
	z      *zstd.Decoder
	in     *bufio.Reader
	sum    hash.Hash
	limits policy.SnapshotLimits
	header Header
	plan   *planner
	left   int64 // objects to come
	body   *body
	order  order
	files  int64
	paths  int64 // bytes of the entries' paths
	ended  bool
}

// source counts what comes from the store, bounds it, and keeps its error, which
// the decoder would hide behind its own. The decoder reads ahead in a goroutine.
type source struct {
	r   io.Reader
	max int64
	n   atomic.Int64
	err atomic.Pointer[error]
}

func (s *source) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if s.n.Add(int64(n)) > s.max && err == nil {
		err = policy.Errorf(policy.CodeSnapshotTooLarge, opRead, "the snapshot is larger than %d bytes as it comes from the store", s.max)
	}
	if err != nil && err != io.EOF {
		s.err.CompareAndSwap(nil, &err)
	}
	return n, err
}

// maxReceived is what an archive of that size can take at most: zstd adds three
// bytes to a block that does not become smaller. A frame may be followed by ones
// that unpack to nothing, without end.
func maxReceived(unpacked int64) int64 {
	return min(unpacked, 1<<60) + min(unpacked, 1<<60)>>10 + 1<<20
}

// unpacked is the archive inside its frame: hashed, counted, bounded.
type unpacked struct {
	r    *Reader
	from io.Reader
	n    int64
}

func (u *unpacked) Read(b []byte) (int, error) {
	n, err := u.from.Read(b)
	u.r.sum.Write(b[:n])
	u.n += int64(n)
	if u.n > u.r.limits.MaxBytes {
		return n, policy.Errorf(policy.CodeSnapshotTooLarge, opRead, "the snapshot is larger than %d bytes", u.r.limits.MaxBytes)
	}
	if received := max(u.r.src.n.Load(), 1); u.n > 64<<20 && u.n/received > u.r.limits.MaxRatio {
		return n, policy.Errorf(policy.CodeSnapshotTooLarge, opRead, "the snapshot unpacks to more than %d times what was received", u.r.limits.MaxRatio)
	}
	if err != nil && err != io.EOF {
		err = u.r.decodeError(err)
	}
	return n, err
}

func (r *Reader) decodeError(err error) error {
	switch {
	case r.src.err.Load() != nil:
		return *r.src.err.Load()
	case errors.Is(err, io.ErrUnexpectedEOF):
		return truncated(err)
	case errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return policy.Errorf(policy.CodeSnapshotTooLarge, opRead, "the snapshot wants more memory than its reader gives").Because(err)
	}
	return invalid("cannot be decompressed").Because(err)
}

func truncated(err error) *policy.Diagnostic {
	return policy.Errorf(policy.CodeSnapshotTruncated, opRead, "the snapshot ends too early").Because(err)
}

// NewReader reads the header. Close frees the decoder.
func NewReader(from io.Reader, limits policy.SnapshotLimits) (*Reader, error) {
	limits = limits.Normalize()
	r := &Reader{src: &source{r: from, max: maxReceived(limits.MaxBytes)}, sum: sha256.New(), limits: limits}
	var err error
	if r.z, err = zstd.NewReader(r.src, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true)); err != nil {
		return nil, invalid("cannot be decompressed").Because(err)
	}
	if err := r.begin(r.z); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// begin reads the header from what is inside the frame.
func (r *Reader) begin(from io.Reader) error {
	r.in = bufio.NewReaderSize(&unpacked{r: r, from: from}, 64<<10)
	return r.readHeader()
}

// Close frees what the reader holds; the source stays the caller's.
func (r *Reader) Close() { r.z.Close() }

func (r *Reader) readHeader() error {
	begin := make([]byte, len(magic))
	if _, err := io.ReadFull(r.in, begin); err != nil {
		return r.short(err)
	}
	if string(begin) != magic {
		return invalid("does not begin as one of this version does")
	}
	var line []byte
	for {
		part, err := r.in.ReadSlice('\n')
		if line = append(line, part...); len(line) > maxHeader {
			return invalid("has a header of more than %d bytes", maxHeader)
		}
		if err == nil {
			break
		}
		if err != bufio.ErrBufferFull {
			return r.short(err)
		}
	}
	var err error
	if r.header, err = parseHeader(line); err != nil {
		return err
	}
	if r.header.Objects > 2*r.limits.MaxFiles {
		return policy.Errorf(policy.CodeSnapshotTooLarge, opRead, "the snapshot has more than %d objects", 2*r.limits.MaxFiles)
	}
	r.plan, r.left = newPlanner(r.header), r.header.Objects
	return nil
}

// short makes an end in the middle a diagnostic.
func (r *Reader) short(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return truncated(err)
	}
	return err
}

// Header is the archive's.
func (r *Reader) Header() Header { return r.header }

// Received is how many bytes have been read from the source.
func (r *Reader) Received() int64 { return r.src.n.Load() }

// Object is one git object. Read ends with an error if the content is not that
// of OID. It is valid until the next call to the Reader.
type Object struct {
	Type string // commit, tree or blob
	OID  string // raw
	Size int64
	io.Reader
}

// Object returns the next object, io.EOF after the last.
func (r *Reader) Object() (*Object, error) {
	if err := r.endBody(); err != nil {
		return nil, err
	}
	if r.left == 0 {
		if r.plan.next != "" {
			return nil, invalid("lacks objects of its tree")
		}
		return nil, io.EOF
	}
	if r.plan.next == "" {
		return nil, invalid("has objects that are not of its tree")
	}
	r.left--
	tag, err := r.in.ReadByte()
	if err != nil {
		return nil, r.short(err)
	}
	if tag != r.plan.typ {
		return nil, invalid("has its objects out of order")
	}
	size, err := r.number(r.limits.MaxBytes)
	if err != nil {
		return nil, err
	}
	if tag != tagBlob && size > maxTrees {
		return nil, policy.Errorf(policy.CodeSnapshotTooLarge, opRead, "the snapshot has a commit or tree of more than %d bytes", maxTrees)
	}
	r.body = &body{r: r, left: size, sum: r.plan.objectHash(size)}
	if tag == tagBlob {
		return &Object{Type: "blob", OID: r.plan.next, Size: size, Reader: r.body}, nil
	}
	oid := r.plan.next
	var content bytes.Buffer
	if _, err := io.Copy(&content, r.body); err != nil {
		return nil, err
	}
	r.body = nil
	if err := r.plan.advance(content.Bytes()); err != nil {
		return nil, err
	}
	return &Object{Type: objectType(tag), OID: oid, Size: size, Reader: &content}, nil
}

// Graph is the whole tree once the first blob, or io.EOF, has come.
func (r *Reader) Graph() *Graph { return &r.plan.graph }

// body is an object's or a file's content.
type body struct {
	r    *Reader
	left int64
	sum  hash.Hash // of an object; nil for a file
	done bool
}

func (b *body) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, b.end()
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.r.in.Read(p)
	b.left -= int64(n)
	if b.sum != nil {
		b.sum.Write(p[:n])
	}
	if err != nil {
		return n, b.r.short(err)
	}
	if b.left == 0 {
		if err := b.end(); err != io.EOF {
			return n, err
		}
	}
	return n, nil
}

func (b *body) end() error {
	if !b.done && b.sum != nil {
		if string(b.sum.Sum(nil)) != b.r.plan.next {
			return invalid("has an object whose content is not that of its id")
		}
		b.done = true
	}
	return io.EOF
}

// endBody reads what the caller left of the present content.
func (r *Reader) endBody() error {
	if r.body == nil {
		return nil
	}
	if _, err := io.Copy(io.Discard, r.body); err != nil {
		return err
	}
	blob := r.body.sum != nil
	r.body = nil
	if blob {
		return r.plan.advance(nil)
	}
	return nil
}

// number reads a uvarint in its shortest form.
func (r *Reader) number(max int64) (int64, error) {
	var v uint64
	for shift := uint(0); ; shift += 7 {
		b, err := r.in.ReadByte()
		if err != nil {
			return 0, r.short(err)
		}
		if shift >= 63 || (b == 0 && shift > 0) {
			return 0, invalid("has a malformed number")
		}
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			break
		}
	}
	if v > uint64(max) {
		return 0, policy.Errorf(policy.CodeSnapshotTooLarge, opRead, "the snapshot has a part of more than %d bytes", max)
	}
	return int64(v), nil
}

func (r *Reader) text(max int64) (string, error) {
	n, err := r.number(max)
	if err != nil {
		return "", err
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r.in, b); err != nil {
		return "", r.short(err)
	}
	return string(b), nil
}

// Entry returns the next entry of a workspace's archive and its content, io.EOF
// after the last. Both are valid until the next call.
func (r *Reader) Entry() (*Entry, io.Reader, error) {
	if err := r.endBody(); err != nil {
		return nil, nil, err
	}
	if r.header.Kind != KindWorkspace || r.ended {
		return nil, nil, io.EOF
	}
	tag, err := r.in.ReadByte()
	if err != nil {
		return nil, nil, r.short(err)
	}
	if tag == tagEnd {
		r.ended = true
		if err := r.order.finish(); err != nil {
			return nil, nil, err
		}
		return nil, nil, io.EOF
	}
	if r.files++; r.files > r.limits.MaxFiles {
		return nil, nil, policy.Errorf(policy.CodeSnapshotTooLarge, opRead, "the snapshot has more than %d files", r.limits.MaxFiles)
	}
	e := &Entry{Type: EntryType(tag)}
	if tag == tagLinked {
		e.Type, e.Linked = File, true
	}
	if err := r.fields(e); err != nil {
		return nil, nil, err
	}
	if r.paths += int64(len(e.Path)); r.paths > maxPaths(r.limits.MaxFiles) {
		return nil, nil, policy.Errorf(policy.CodeSnapshotTooLarge, opRead, "the paths of the snapshot's files are longer than %d bytes together", maxPaths(r.limits.MaxFiles))
	}
	if err := checkEntry(e); err != nil {
		return nil, nil, err
	}
	if err := r.order.check(e); err != nil {
		return nil, nil, err
	}
	if e.Type != File {
		return e, bytes.NewReader(nil), nil
	}
	r.body = &body{r: r, left: e.Size}
	return e, r.body, nil
}

func (r *Reader) fields(e *Entry) (err error) {
	if e.Path, err = r.text(maxPath); err != nil {
		return err
	}
	switch e.Type {
	case Symlink:
		e.Target, err = r.text(maxTarget)
		return err
	case HardLink:
		e.Target, err = r.text(maxPath)
		return err
	case Dir, File:
		mode, err := r.number(0o177777)
		if err != nil {
			return err
		}
		e.Mode = uint32(mode)
		if err := r.attributes(e); err != nil || e.Type == Dir {
			return err
		}
		e.Size, err = r.number(r.limits.MaxBytes)
		return err
	}
	return nil // checkEntry refuses it
}

func (r *Reader) attributes(e *Entry) error {
	n, err := r.number(maxXattrs)
	for ; n > 0 && err == nil; n-- {
		var x Xattr
		var value string
		if x.Name, err = r.text(255); err == nil {
			value, err = r.text(maxValue)
		}
		x.Value = []byte(value)
		e.Xattrs = append(e.Xattrs, x)
	}
	return err
}

// Finish reads what is left, checks that nothing follows, and compares the
// digest with want.
func (r *Reader) Finish(want string) error {
	for {
		if _, err := r.Object(); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
	}
	for {
		if _, _, err := r.Entry(); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
	}
	if _, err := r.in.ReadByte(); err == nil {
		return invalid("goes on behind its end")
	} else if err != io.EOF {
		return err
	}
	if got := policy.FormatDigest(r.sum.Sum(nil)); got != want {
		return policy.Errorf(policy.CodeSnapshotDigest, opRead, "the snapshot is not the one that its digest names").With("digest", want).With("found", got)
	}
	return nil
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}
