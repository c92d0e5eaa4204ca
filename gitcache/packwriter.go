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

func (p *packWriter) object(kind string, size int64, content io.Reader) error {
	b := []byte{packTypes[kind]<<4 | byte(size&0x0f)}
	for n := size >> 4; n > 0; n >>= 7 {
		b[len(b)-1] |= 0x80
		b = append(b, byte(n&0x7f))
	}
	if _, err := p.w.Write(b); err != nil {
		return err
	}
	if size <= smallObject {
		return p.small(content)
	}
	p.z.Reset(p.w)
	if _, err := io.Copy(p.z, content); err != nil {
		return err
	}
	return p.z.Close()
}

// smallObject is compressed without a compressor's tables, which cost more to
// clear than so little data to write.
const smallObject = 64 << 10

func (p *packWriter) small(content io.Reader) error {
	b, err := io.ReadAll(content)
	if err != nil {
		return err
	}
	p.out.Reset()
	p.out.Write([]byte{0x78, 0x01}) // zlib's header, RFC 1950
	if err := flate.StatelessDeflate(&p.out, b, true, nil); err != nil {
		return err
	}
	p.out.Write(binary.BigEndian.AppendUint32(nil, adler32.Checksum(b)))
	_, err = p.w.Write(p.out.Bytes())
	return err
}

// trailer makes the pack whole: without it git takes nothing of it.
func (p *packWriter) trailer() error {
	_, err := p.w.Write(p.sum.Sum(nil))
	return err
}
