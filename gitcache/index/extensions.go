package index

import (
	"encoding/binary"
	"fmt"
)

// extension returns the signature, and where its header and data begin and end.
func (x *Index) extension(pos, end int) (sig string, next int, err error) {
	if end-pos < 8 {
		return "", 0, corrupt("extension header cut off at byte %d", pos)
	}
	size := binary.BigEndian.Uint32(x.buf[pos+4:])
	if uint64(size) > uint64(end-pos-8) {
		return "", 0, corrupt("extension of %d bytes cut off at byte %d", size, pos)
	}
	return string(x.buf[pos : pos+4]), pos + 8 + int(size), nil
}

// checkExtensions walks them once, so that later walks cannot fail.
func (x *Index) checkExtensions(end int) error {
	for pos := x.extAt; pos < end; {
		sig, next, err := x.extension(pos, end)
		if err != nil {
			return err
		}
		switch {
		case sig == "link":
			return fmt.Errorf("split index: %w", ErrUnsupported)
		case sig[0] >= 'A' && sig[0] <= 'Z', sig == "sdir":
		default: // not optional: a reader that does not know it must give up
			return fmt.Errorf("extension %q: %w", sig, ErrUnsupported)
		}
		pos = next
	}
	return nil
}

// dropStale removes the extensions that describe the work tree the index was
// made for, or that would no longer be true:
//   - UNTR, the untracked cache: stat data of directories, and their place
//     (AddUntracked makes another);
//   - FSMN: what a file system monitor of another tree said;
//   - EOIE: a hash over the other extensions' headers, wrong once one is gone.
//
// An untracked cache that is to be added goes behind them all, so EOIE goes then too.
//
// TREE, REUC, IEOT (offsets of entries, which do not move) and unknown ones stay.
func (x *Index) dropStale() {
	end := len(x.buf) - x.oidSize
	stale := x.untracked != nil
	for pos := x.extAt; pos < end; {
		sig, next, err := x.extension(pos, end)
		if err != nil {
			return // checked by Parse
		}
		stale = stale || sig == "UNTR" || sig == "FSMN"
		pos = next
	}
	if !stale {
		return
	}
	out := x.extAt
	for pos := x.extAt; pos < end; {
		sig, next, err := x.extension(pos, end)
		if err != nil {
			return
		}
		if sig != "UNTR" && sig != "FSMN" && sig != "EOIE" {
			out += copy(x.buf[out:], x.buf[pos:next])
		}
		pos = next
	}
	x.buf = x.buf[:out+x.oidSize]
}
