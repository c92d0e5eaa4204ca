package gitcache

import (
	"bytes"
	"crypto/sha1" // #nosec: git's checksum
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"hash/adler32"
	"io"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zlib"
)

// packWriter writes a pack without deltas, gitformat-pack(5).
type packWriter struct {
	w   io.Writer
	sum hash.Hash
	z   *zlib.Writer
	out bytes.Buffer
}

var packTypes = map[string]byte{"commit": 1, "tree": 2, "blob": 3}

func newPackWriter(w io.Writer, format string, objects int64) (*packWriter, error) {
	p := &packWriter{sum: sha1.New()}
	if format == "sha256" {
		p.sum = sha256.New()
	}
	p.w = io.MultiWriter(w, p.sum)
	var err error
	if p.z, err = zlib.NewWriterLevel(p.w, zlib.BestSpeed); err != nil {
		return nil, err
	}
	head := binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), uint32(objects))
	_, err = p.w.Write(head)
	return p, err
}

// header is an object's type and size.
func (p *packWriter) header(b []byte, kind string, size int64) []byte {
	b = append(b, packTypes[kind]<<4|byte(size&0x0f))
	for n := size >> 4; n > 0; n >>= 7 {
		b[len(b)-1] |= 0x80
		b = append(b, byte(n&0x7f))
	}
	return b
}

// stream writes an object of any size as it comes.
func (p *packWriter) stream(kind string, size int64, content io.Reader) error {
	if _, err := p.w.Write(p.header(nil, kind, size)); err != nil {
		return err
	}
	p.z.Reset(p.w)
	if _, err := io.Copy(p.z, content); err != nil {
		return err
	}
	return p.z.Close()
}

// storedObject is not compressed at all, which would take longer than to write its
// file. In the tree it occupies as much: a file system's block.
const storedObject = 4 << 10

// smallObject is compressed without a compressor's tables, which cost more to
// clear than so little data to write.
const smallObject = 64 << 10

// object writes one that is in memory.
func (p *packWriter) object(kind string, content []byte) error {
	if len(content) > smallObject {
		return p.stream(kind, int64(len(content)), bytes.NewReader(content))
	}
	p.out.Reset()
	p.out.Write(p.header(p.out.AvailableBuffer(), kind, int64(len(content))))
	p.out.WriteString("\x78\x01") // zlib's header, RFC 1950
	if n := uint16(len(content)); len(content) <= storedObject {
		b := append(p.out.AvailableBuffer(), 1) // the last block, stored: RFC 1951, 3.2.4
		b = binary.LittleEndian.AppendUint16(b, n)
		p.out.Write(binary.LittleEndian.AppendUint16(b, ^n))
		p.out.Write(content)
	} else if err := flate.StatelessDeflate(&p.out, content, true, nil); err != nil {
		return err
	}
	p.out.Write(binary.BigEndian.AppendUint32(p.out.AvailableBuffer(), adler32.Checksum(content)))
	_, err := p.w.Write(p.out.Bytes())
	return err
}

// trailer makes the pack whole: without it git takes nothing of it.
func (p *packWriter) trailer() error {
	_, err := p.w.Write(p.sum.Sum(nil))
	return err
}
