package ledger

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	segmentSuffix = ".seg"
	newSuffix     = ".new" // being written; has no meaning yet
	lockName      = "lock"

	// allocStep is how much zero-filled room is added at a time, and allocReserve
	// how much of it only releases may use up: a full disk then refuses new
	// intents while what frees space can still be recorded.
	allocStep    = 256 << 10
	allocReserve = 64 << 10
)

var zeros [allocStep]byte

func segmentName(n uint64) string { return fmt.Sprintf("%08d%s", n, segmentSuffix) }

// segmentNumber reads a name that segmentName made, and no other.
func segmentNumber(name string) (uint64, bool) {
	n, err := strconv.ParseUint(strings.TrimSuffix(name, segmentSuffix), 10, 64)
	return n, err == nil && n > 0 && name == segmentName(n)
}

// segment is the open last segment of a claimed stream.
type segment struct {
	file   segmentFile
	number uint64
	off    int64 // behind the last record
	size   int64 // of the file: zeros from off to here
	alloc  bool  // overwrite allocated zeros
}

// room makes room for n bytes behind the last record. With must unset (no
// intent among them) they may use up the reserve. What is there stays as it was
// if room fails.
func (s *segment) room(n int, must bool) error {
	need, least := s.off+int64(n), s.off+int64(n)
	if must {
		least += allocReserve
	}
	if !s.alloc || least <= s.size {
		return nil
	}
	return s.extend(need + allocReserve)
}

// put writes buf behind the last record. It does not sync.
func (s *segment) put(buf []byte) error {
	if _, err := s.file.WriteAt(buf, s.off); err != nil {
		return err
	}
	s.off += int64(len(buf))
	s.size = max(s.size, s.off)
	return nil
}

// wipe makes what stands behind the last record free again: cut off, or where
// allocated room is overwritten, zeroed in place, since a full disk would not
// give that room back.
func (s *segment) wipe(used int64) error {
	if !s.alloc {
		s.size = s.off
		return s.file.truncate(s.off)
	}
	for at := s.off; at < s.off+used; {
		n := min(s.off+used-at, allocStep)
		if _, err := s.file.WriteAt(zeros[:n], at); err != nil {
			return err
		}
		at += n
	}
	return nil
}

// extend adds written zeros up to at least size. Allocating is not enough: an
// unwritten extent costs a journal commit when it is first written (fallocate(2)).
func (s *segment) extend(size int64) error {
	size = (size + allocStep - 1) / allocStep * allocStep
	err := s.file.allocate(s.size, size-s.size)
	if errors.Is(err, unix.EOPNOTSUPP) {
		s.alloc = false
		return nil
	}
	if err != nil {
		return err
	}
	for s.size < size {
		n := min(size-s.size, allocStep)
		if _, err := s.file.WriteAt(zeros[:n], s.size); err != nil {
			return err
		}
		s.size += n
	}
	return nil
}
