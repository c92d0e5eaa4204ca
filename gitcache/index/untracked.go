package index

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// AddUntracked gives the index an untracked cache: `git status` then lists no
// directory that has not changed, and calls lstat(2) for it instead. The tree must hold
// the index's files and nothing else, and the empty file .git/info/exclude; worktree is
// the path at which git will have it, with uid and gid as owner whoever owns it on disk.
// The directories' stat data are taken now. No symbolic link is followed and no mount
// crossed.
//
// An index of which not every file is in the tree (sparse ones, conflicts) gets none,
// nor one with paths that no system call takes.
func (x *Index) AddUntracked(tree *os.File, worktree string, uid, gid uint32) error {
	jobs, _, ok := x.jobs(time.Unix(math.MaxUint32, 0)) // no entry is racy: no content is looked at
	if !ok {
		return nil
	}
	// A directory before those in it, each after its name: git looks for one by halves,
	// and in the index "a-b/c" comes before "a/c".
	slices.SortFunc(jobs, func(a, b *job) int {
		return strings.Compare(strings.ReplaceAll(a.path, "/", "\x00"), strings.ReplaceAll(b.path, "/", "\x00"))
	})
	w := untrackedWriter{oidSize: x.oidSize}
	for _, j := range jobs {
		if len(j.path) >= unix.PathMax {
			return nil
		}
		s, err := dirStat(tree, j.path)
		if err != nil {
			return fmt.Errorf("%w: %q: %w", ErrChanged, j.path, err)
		}
		s.UID, s.GID = uid, gid
		w.add(j, s, x.ignoreFile(j))
	}
	x.untracked = w.extension(worktree)
	return nil
}

func dirStat(tree *os.File, dir string) (Stat, error) {
	fd, err := openBeneath(tree, dir)
	if err != nil {
		return Stat{}, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	return fromStat(&st), err
}

// ignoreFile is the object id of a directory's .gitignore, nil for none.
func (x *Index) ignoreFile(j *job) []byte {
	for _, i := range j.files {
		if e := x.Entry(i); e.Mode&modeTypeMask == unix.S_IFREG && path.Base(string(e.Path)) == ".gitignore" {
			return e.OID
		}
	}
	return nil
}

// HasUntracked reports whether the index was parsed with an untracked cache.
func (x *Index) HasUntracked() bool {
	for pos := x.extAt; pos < len(x.buf)-x.oidSize; {
		sig, next, err := x.extension(pos, len(x.buf)-x.oidSize)
		if err != nil || sig == "UNTR" {
			return err == nil
		}
		pos = next
	}
	return false
}

// untrackedWriter collects the parts of the extension.
type untrackedWriter struct {
	oidSize         int
	n               uint64
	blocks          []byte
	ignores         []uint64 // a bit for each directory: it has a .gitignore
	stats, excludes []byte
}

// add appends a directory's block.
func (w *untrackedWriter) add(j *job, s Stat, ignore []byte) {
	w.blocks = appendVarint(w.blocks, 0) // untracked entries
	w.blocks = appendVarint(w.blocks, uint64(j.dirs-len(j.links)))
	w.blocks = append(append(w.blocks, j.path[strings.LastIndexByte(j.path, '/')+1:]...), 0)
	w.stats = appendStat(w.stats, s)
	if w.n%64 == 0 {
		w.ignores = append(w.ignores, 0)
	}
	if ignore != nil {
		w.ignores[w.n/64] |= 1 << (w.n % 64)
		w.excludes = append(w.excludes, ignore...)
	}
	w.n++
}

// extension is the data of UNTR, see gitformat-index(5).
func (w *untrackedWriter) extension(worktree string) []byte {
	// git takes the cache of another place or system for none, and says so.
	where := "Location " + worktree + ", system Linux\x00"
	b := appendVarint(nil, uint64(len(where)))
	b = append(b, where...)
	b = append(b, make([]byte, 2*untrackedStatSize)...) // of info/exclude and core.excludesFile: only their hashes count
	const dirFlags = 1<<1 | 1<<2                        // DIR_SHOW_OTHER_DIRECTORIES, DIR_HIDE_EMPTY_DIRECTORIES: as git status has them
	b = binary.BigEndian.AppendUint32(b, dirFlags)
	b = append(b, emptyBlob(w.oidSize)...)
	b = append(b, make([]byte, w.oidSize)...)
	b = append(b, ".gitignore\x00"...)
	b = appendVarint(b, w.n)
	b = append(b, w.blocks...)
	valid := make([]uint64, len(w.ignores))
	for i := range w.n {
		valid[i/64] |= 1 << (i % 64)
	}
	b = appendBitmap(b, w.n, valid)
	b = appendBitmap(b, 0, nil) // check-only
	b = appendBitmap(b, w.n, w.ignores)
	b = append(b, w.stats...)
	b = append(b, w.excludes...)
	return append(b, 0)
}

const untrackedStatSize = 36

func appendStat(b []byte, s Stat) []byte {
	for _, v := range []uint32{s.CtimeSec, s.CtimeNsec, s.MtimeSec, s.MtimeNsec, s.Dev, s.Ino, s.UID, s.GID, s.Size} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return b
}

func emptyBlob(oidSize int) []byte {
	h := newHash(oidSize)
	h.Write([]byte("blob 0\x00"))
	return h.Sum(nil)
}

// appendVarint is the offset encoding of gitformat-pack(5).
func appendVarint(b []byte, n uint64) []byte {
	var buf [10]byte
	at := len(buf) - 1
	buf[at] = byte(n & 0x7f)
	for n >>= 7; n > 0; n >>= 7 {
		n--
		at--
		buf[at] = 0x80 | byte(n&0x7f)
	}
	return append(b, buf[at:]...)
}

// appendBitmap writes a bitmap of so many bits as EWAH (gitformat-bitmap(5)): one
// marker word, that no run and so many literal words follow, and those.
func appendBitmap(b []byte, bits uint64, words []uint64) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(bits))
	b = binary.BigEndian.AppendUint32(b, uint32(1+len(words)))
	b = binary.BigEndian.AppendUint64(b, uint64(len(words))<<33)
	for _, w := range words {
		b = binary.BigEndian.AppendUint64(b, w)
	}
	return binary.BigEndian.AppendUint32(b, 0) // where the last marker is
}
