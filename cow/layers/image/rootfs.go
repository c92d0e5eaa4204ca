package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"path"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

// openRootFS takes a tar file as one layer, the root file system itself. Nothing
// says what it should hold, so it is read once to give it a digest.
func openRootFS(r io.ReaderAt, size int64, limits policy.ImageLimits) (*Image, error) {
	l := &Layer{data: io.NewSectionReader(r, 0, size)}
	s, err := l.decompress(l.data)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	h := sha256.New()
	end := &tail{}
	// A tar stream is its files and a block or two for each entry.
	most := limits.Bytes + 4096*limits.Entries
	stream := io.TeeReader(io.LimitReader(s, most), io.MultiWriter(h, end))
	if err := looksLikeRoot(stream); err != nil {
		return nil, err
	}
	if _, err := io.Copy(io.Discard, stream); err != nil {
		return nil, invalid("the archive is damaged or cut off").Because(err)
	}
	if n, _ := s.Read(make([]byte, 1)); n > 0 {
		return nil, policy.Errorf(policy.CodeImageLimit, opOpen, "the archive expands to more than %d bytes", most)
	}
	// Without digests this is what tells a file that was cut off between two
	// entries.
	if !end.zero() {
		return nil, invalid("the archive is cut off: it has no end mark")
	}
	l.Diff = Digest("sha256:" + hex.EncodeToString(h.Sum(nil)))
	img := &Image{Format: FormatRootFS, Digest: l.Diff, Layers: []*Layer{l}}
	return img, img.finish()
}

// looksLikeRoot reads entries until one is of a root file system.
func looksLikeRoot(r io.Reader) error {
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return invalid("the archive is neither an image nor a root file system")
		}
		if err != nil {
			return invalid("the archive is damaged or cut off, or no tar file").Because(err)
		}
		name := path.Clean(strings.TrimLeft(h.Name, "./"))
		top, _, _ := strings.Cut(name, "/")
		switch top {
		case "bin", "etc", "lib", "opt", "sbin", "srv", "usr", "nix":
			return nil
		case "oci-layout", "index.json", "manifest.json":
			return invalid("the archive is compressed as a whole").WithHint("Decompress it first: gunzip, or zstd -d.")
		}
	}
}

// tail keeps the last block of a stream.
type tail struct{ last []byte }

const tarBlock = 512

func (t *tail) Write(b []byte) (int, error) {
	t.last = append(t.last, b[max(0, len(b)-tarBlock):]...)
	t.last = t.last[max(0, len(t.last)-tarBlock):]
	return len(b), nil
}

func (t *tail) zero() bool {
	return len(t.last) == tarBlock && bytes.Count(t.last, []byte{0}) == tarBlock
}
