package cow

import (
	"golang.org/x/sys/unix"
)

const (
	// dataBuffer is one read and one write of the fallback.
	dataBuffer = 256 << 10
	// smallFile is read and written through the buffer at once: setting up a
	// copy_file_range(2) costs more than moving so little.
	smallFile = 64 << 10
	// copyStep bounds one copy_file_range(2), so that a cancel is seen in a
	// large file.
	copyStep = 64 << 20
)

// copyData copies size bytes and keeps holes. allocated is what the file
// occupies: a file that fits into one page has either no hole or nothing else.
func (w *worker) copyData(src, dst int, size, allocated int64) (side, error) {
	if size <= 4096 && allocated > 0 {
		return w.copyRange(src, dst, 0, size)
	}
	end := int64(0) // end of what was written
	for off := int64(0); off < size; {
		data, err := unix.Seek(src, off, unix.SEEK_DATA)
		if err == unix.ENXIO { // only a hole follows
			break
		}
		hole := size
		switch err {
		case nil:
			if hole, err = unix.Seek(src, data, unix.SEEK_HOLE); err != nil {
				return onSource, err
			}
		case unix.EINVAL, unix.EOPNOTSUPP: // no hole information: everything is data
			data = off
		default:
			return onSource, err
		}
		if data >= size {
			break
		}
		hole = min(hole, size)
		if s, err := w.copyRange(src, dst, data, hole); err != nil {
			return s, err
		}
		off, end = hole, hole
	}
	if end < size {
		return onTarget, unix.Ftruncate(dst, size)
	}
	return onTarget, nil
}

// copyRange copies [off, end). A source that ends before is no longer the file
// that was looked at.
func (w *worker) copyRange(src, dst int, off, end int64) (side, error) {
	for end-off > smallFile {
		if w.stop.Load() {
			return onSource, canceled(w.op, nil)
		}
		in, out := off, off
		n, err := unix.CopyFileRange(src, &in, dst, &out, int(min(end-off, copyStep)), 0)
		switch {
		case err == unix.EINTR:
		case err == unix.ENOSPC || err == unix.EDQUOT || err == unix.EIO:
			return onTarget, err
		case err != nil || n == 0:
			// EXDEV, EOPNOTSUPP, EINVAL: not for this pair. 0 before the end has
			// also been a file system's way to refuse.
			return w.pump(src, dst, off, end)
		default:
			off += int64(n)
		}
	}
	return w.pump(src, dst, off, end)
}

// pump is read and write.
func (w *worker) pump(src, dst int, off, end int64) (side, error) {
	if w.data == nil {
		w.data = make([]byte, dataBuffer)
	}
	for off < end {
		if w.stop.Load() {
			return onSource, canceled(w.op, nil)
		}
		n, err := unix.Pread(src, w.data[:min(end-off, dataBuffer)], off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return onSource, err
		}
		if n == 0 {
			return onSource, unix.ESTALE
		}
		for b := w.data[:n]; len(b) > 0; {
			m, err := unix.Pwrite(dst, b, off)
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				return onTarget, err
			}
			b, off = b[m:], off+int64(m)
		}
	}
	return onTarget, nil
}
