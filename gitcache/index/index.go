package index

import (
	"bytes"
	"crypto/sha1" // #nosec: the format's own checksum, git's choice
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"sort"
)

const (
	signature  = "DIRC"
	headerSize = 12
	statSize   = 40 // ten 32-bit words, the mode among them

	flagExtended     = 0x4000
	flagNameMask     = 0x0fff
	flagSkipWorktree = 0x4000 // in the extended flags, version 3 only

	modeTypeMask = 0o170000
	modeGitlink  = 0o160000
	modeTree     = 0o040000 // a directory of a sparse index
)

// ErrUnsupported is for an index that is well formed but that this package
// must not patch: version 4, a split index.
var ErrUnsupported = errors.New("unsupported index")

// ErrCorrupt is for bytes that are no index.
var ErrCorrupt = errors.New("corrupt index")

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

// Entry is one file, symbolic link or submodule of an index.
type Entry struct {
	Path         []byte // aliases the index's bytes
	OID          []byte // aliases the index's bytes
	Mode         uint32
	Stage        int
	SkipWorktree bool
	Stat         Stat
}

// Blob is what an entry says of a file's content.
type Blob struct {
	OID  string // raw
	Mode uint32
}

// IsGitlink says whether the entry is a submodule's commit.
func (e Entry) IsGitlink() bool { return e.Mode&modeTypeMask == modeGitlink }

// isFile says whether the entry's stat data is that of a file in the work tree.
func (e Entry) isFile() bool {
	return !e.SkipWorktree && e.Stage == 0 && !e.IsGitlink() && e.Mode&modeTypeMask != modeTree
}

// Index is a parsed index file. It owns its bytes.
type Index struct {
	buf     []byte
	oidSize int
	at      []uint32 // offset of each entry
	nameLen []uint32
	skip    []bool
	extAt   int // where the extensions begin
	// untracked is the data of an extension that Bytes adds.
	untracked []byte
}

// Parse reads an index whose object ids have oidSize bytes (20 or 32); 0 tells
// the two apart by the trailer. It keeps b, which must not be changed after.
func Parse(b []byte, oidSize int) (*Index, error) {
	switch oidSize {
	case 20, 32:
		return parse(b, oidSize)
	case 0:
		x, err := parse(b, 20)
		if err == nil || errors.Is(err, ErrUnsupported) {
			return x, err
		}
		if y, err256 := parse(b, 32); err256 == nil || errors.Is(err256, ErrUnsupported) {
			return y, err256
		}
		return nil, err
	}
	return nil, fmt.Errorf("object ids of %d bytes: %w", oidSize, ErrUnsupported)
}

func parse(b []byte, oidSize int) (*Index, error) {
	if len(b) < headerSize+oidSize || string(b[:4]) != signature {
		return nil, corrupt("no %s header", signature)
	}
	if uint64(len(b)) > 1<<32-1 {
		return nil, fmt.Errorf("%d bytes: %w", len(b), ErrUnsupported)
	}
	version, count := binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:])
	end := len(b) - oidSize
	if err := checkTrailer(b, oidSize); err != nil {
		return nil, err
	}
	if version != 2 && version != 3 {
		return nil, fmt.Errorf("version %d: %w", version, ErrUnsupported)
	}
	least := statSize + oidSize + 2 + 1 // of an entry, so count cannot make us allocate more than the file's size
	if uint64(count) > uint64(end-headerSize)/uint64(least) {
		return nil, corrupt("%d entries in %d bytes", count, len(b))
	}
	x := &Index{buf: b, oidSize: oidSize, at: make([]uint32, 0, count), nameLen: make([]uint32, 0, count), skip: make([]bool, 0, count)}
	pos := headerSize
	for i := range count {
		next, err := x.parseEntry(pos, end, version)
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", i, err)
		}
		pos = next
	}
	x.extAt = pos
	return x, x.checkExtensions(end)
}

// parseEntry notes the entry at pos and returns where the next one begins.
func (x *Index) parseEntry(pos, end int, version uint32) (int, error) {
	fixed := statSize + x.oidSize + 2
	if end-pos < fixed+1 {
		return 0, corrupt("cut off at byte %d", pos)
	}
	flags := binary.BigEndian.Uint16(x.buf[pos+fixed-2:])
	skip := false
	if flags&flagExtended != 0 {
		if version < 3 || end-pos < fixed+3 {
			return 0, corrupt("extended flags in version %d", version)
		}
		skip = binary.BigEndian.Uint16(x.buf[pos+fixed:])&flagSkipWorktree != 0
		fixed += 2
	}
	n := int(flags & flagNameMask)
	nul := bytes.IndexByte(x.buf[pos+fixed:end], 0)
	// A path of 4095 bytes or more has only its NUL to say where it ends.
	if nul < 0 || (n < flagNameMask && nul != n) || (n == flagNameMask && nul < n) {
		return 0, corrupt("path length %d does not fit at byte %d", n, pos)
	}
	size := (fixed + nul + 8) &^ 7 // 1 to 8 NULs, to a multiple of 8
	if size > end-pos {
		return 0, corrupt("padding cut off at byte %d", pos)
	}
	x.at = append(x.at, uint32(pos))
	x.nameLen = append(x.nameLen, uint32(nul))
	x.skip = append(x.skip, skip)
	return pos + size, nil
}

func newHash(oidSize int) hash.Hash {
	if oidSize == 32 {
		return sha256.New()
	}
	return sha1.New()
}

// checkTrailer verifies the checksum. All zero is what index.skipHash writes.
func checkTrailer(b []byte, oidSize int) error {
	body, trailer := b[:len(b)-oidSize], b[len(b)-oidSize:]
	if bytes.Count(trailer, []byte{0}) == oidSize {
		return nil
	}
	h := newHash(oidSize)
	h.Write(body)
	if !bytes.Equal(h.Sum(nil), trailer) {
		return corrupt("the checksum does not match")
	}
	return nil
}

// Len is the number of entries.
func (x *Index) Len() int { return len(x.at) }

// OIDSize is 20 or 32.
func (x *Index) OIDSize() int { return x.oidSize }

// Entry returns the i-th entry.
func (x *Index) Entry(i int) Entry {
	b := x.buf[x.at[i]:]
	return Entry{
		Path:         x.path(i),
		OID:          b[statSize : statSize+x.oidSize],
		Mode:         binary.BigEndian.Uint32(b[24:]),
		Stage:        int(binary.BigEndian.Uint16(b[statSize+x.oidSize:])>>12) & 3,
		SkipWorktree: x.skip[i],
		Stat:         getStat(b),
	}
}

func (x *Index) path(i int) []byte {
	b := x.buf[x.at[i]:]
	at := statSize + x.oidSize + 2
	if binary.BigEndian.Uint16(b[at-2:])&flagExtended != 0 {
		at += 2
	}
	return b[at : at+int(x.nameLen[i])]
}

// SetStat replaces the i-th entry's stat data. The mode, which in an index is
// the object's and not the file's, stays.
func (x *Index) SetStat(i int, s Stat) { putStat(x.buf[x.at[i]:], s) }

// Patch calls f for each entry that has a file in the work tree (not for
// submodules, skip-worktree entries, conflict stages and sparse directories)
// and stores the stat data it returns with true. It returns how many it stored.
func (x *Index) Patch(f func(Entry) (Stat, bool)) int {
	n := 0
	for i := range x.at {
		e := x.Entry(i)
		if !e.isFile() {
			continue
		}
		if s, ok := f(e); ok {
			x.SetStat(i, s)
			n++
		}
	}
	return n
}

// PatchPath is Patch for the entry of one path, and tells whether it stored. Calls for
// different paths may run at once. It relies on the order of gitformat-index(5): in a
// file that does not keep to it an entry may not be found.
func (x *Index) PatchPath(path string, f func(Entry) (Stat, bool)) bool {
	i := sort.Search(len(x.at), func(i int) bool { return string(x.path(i)) >= path })
	if i == len(x.at) || string(x.path(i)) != path {
		return false
	}
	e := x.Entry(i)
	if !e.isFile() {
		return false
	}
	s, ok := f(e)
	if ok {
		x.SetStat(i, s)
	}
	return ok
}

// Bytes returns the index file with the present stat data and its checksum.
// The slice aliases the index until the next change.
func (x *Index) Bytes() []byte {
	x.dropStale()
	body := x.buf[:len(x.buf)-x.oidSize]
	if x.untracked != nil {
		body = append(body, "UNTR"...)
		body = binary.BigEndian.AppendUint32(body, uint32(len(x.untracked)))
		body = append(body, x.untracked...)
	}
	h := newHash(x.oidSize)
	h.Write(body)
	x.buf = h.Sum(body)
	return x.buf
}
