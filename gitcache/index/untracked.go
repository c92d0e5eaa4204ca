package index

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"os"
	"slices"

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
	root, ok := x.directories()
	if !ok {
		return nil
	}
	w := untrackedWriter{tree: int(tree.Fd()), uid: uid, gid: gid, oidSize: x.oidSize}
	if err := w.add(root, "."); err != nil {
		return err
	}
	x.untracked = w.extension(worktree)
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

// directory is one that the index has files in.
type directory struct {
	name   string
	ignore []byte // the object id of its .gitignore; nil for none
	below  []*directory
}

// directories is the tree of them. It is not ok if the index does not say what is in
// the work tree.
func (x *Index) directories() (root *directory, ok bool) {
	root = &directory{}
	// The directories of the path before: entries are sorted, so that each is met once.
	open, names := []*directory{root}, [][]byte(nil)
	for i := range x.at {
		e := x.Entry(i)
		if !e.isFile() && !e.IsGitlink() || e.Stage != 0 || len(e.Path) >= unix.PathMax {
			return nil, false
		}
		parts := bytes.Split(e.Path, []byte{'/'})
		dirs, file := parts[:len(parts)-1], parts[len(parts)-1]
		same := 0
		for same < min(len(dirs), len(names)) && bytes.Equal(dirs[same], names[same]) {
			same++
		}
		open, names = open[:same+1], append(names[:same:same], dirs[same:]...)
		for _, name := range dirs[same:] {
			if checkName(name) != nil {
				return nil, false
			}
			d := &directory{name: string(name)}
			above := open[len(open)-1]
			above.below = append(above.below, d)
			open = append(open, d)
		}
		if string(file) == ".gitignore" && e.Mode&modeTypeMask == unix.S_IFREG {
			open[len(open)-1].ignore = e.OID
		}
	}
	return root, true
}

// untrackedWriter collects the parts of the extension.
type untrackedWriter struct {
	tree            int
	uid, gid        uint32
	oidSize         int
	n               uint64
	blocks          []byte
	ignores         []uint64 // a bit for each directory: it has a .gitignore
	stats, excludes []byte
}

// add appends a directory's block, and those of the directories in it.
func (w *untrackedWriter) add(d *directory, path string) error {
	fd, err := unix.Openat2(w.tree, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return fmt.Errorf("%w: %q: %w", ErrChanged, path, err)
	}
	var st unix.Statx_t
	err = unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS, &st)
	unix.Close(fd)
	if err != nil {
		return fmt.Errorf("%w: %q: %w", ErrChanged, path, err)
	}
	w.blocks = appendVarint(w.blocks, 0) // untracked entries
	w.blocks = appendVarint(w.blocks, uint64(len(d.below)))
	w.blocks = append(append(w.blocks, d.name...), 0)
	s := FromStatx(&st)
	s.UID, s.GID = w.uid, w.gid
	w.stats = appendStat(w.stats, s)
	if w.n%64 == 0 {
		w.ignores = append(w.ignores, 0)
	}
	if d.ignore != nil {
		w.ignores[w.n/64] |= 1 << (w.n % 64)
		w.excludes = append(w.excludes, d.ignore...)
	}
	w.n++
	// git looks for a name by halves; in the index "a-b/c" comes before "a/c".
	slices.SortFunc(d.below, func(a, b *directory) int { return cmp.Compare(a.name, b.name) })
	for _, sub := range d.below {
		below := sub.name
		if path != "." {
			below = path + "/" + below
		}
		if err := w.add(sub, below); err != nil {
			return err
		}
	}
	return nil
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
