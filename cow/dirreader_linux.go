package cow

import (
	"sync"

	"golang.org/x/sys/unix"
)

// direntBuffer is what one getdents64(2) fills. The kernel reads a directory
// ahead by it, and 64 KiB holds some two thousand short names.
const direntBuffer = 64 << 10

// dirReader reads one directory through a buffer that is used again for the next.
type dirReader struct {
	buf  []byte
	rest []byte
}

func newDirReader() *dirReader { return &dirReader{buf: make([]byte, direntBuffer)} }

// dirReaders are between two removals: each end of a Worker is some, of trees so small
// that the buffer would be most of what it costs.
var dirReaders = sync.Pool{New: func() any { return newDirReader() }}

// fill reads the next batch; more is false at the directory's end.
func (r *dirReader) fill(fd int) (more bool, err error) {
	n, err := getdents(fd, r.buf)
	if err != nil || n == 0 {
		r.rest = nil
		return false, err
	}
	r.rest = r.buf[:n]
	return true, nil
}

// next returns the batch's next entry without "." and "..". name is valid until
// the next fill.
func (r *dirReader) next() (name cname, typ byte, ok bool, err error) {
	for len(r.rest) > 0 {
		n, t, rest, good := nextDirent(r.rest)
		if !good {
			return nil, 0, false, unix.EUCLEAN
		}
		r.rest = rest
		if !isDot(n) {
			return n, t, true, nil
		}
	}
	return nil, 0, false, nil
}
