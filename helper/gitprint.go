package helper

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"os"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxPrinted bounds the files that a print is of.
	maxPrinted = 4096
	// settled is how old a change must be for the next to have another ctime: more
	// than the longest tick that kernels before 6.13 stamp inodes with.
	settled = 20 * time.Millisecond
)

// gitPrint is a digest of names and stat data in a git directory that may be hostile.
// It says that nothing has changed by the ctimes, which only the kernel sets. Nothing
// is opened but directories, and no link is followed.
func (l *Local) gitPrint(dir string) string {
	top, err := l.root.OpenDir(dir)
	if err != nil {
		return "" // a Worker may have put something else in its place
	}
	defer top.Close()
	return printOf(top, time.Now())
}

func printOf(top *os.File, now time.Time) string {
	h := sha256.New()
	dirs := []string{""}
	for n := 0; len(dirs) > 0; {
		dir := dirs[len(dirs)-1]
		dirs = dirs[:len(dirs)-1]
		below, ok := printDir(h, top, dir, now, &n)
		if !ok {
			return ""
		}
		dirs = append(dirs, below...)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// printDir adds what is in one directory, and returns the directories in it.
func printDir(h io.Writer, top *os.File, dir string, now time.Time, n *int) (below []string, ok bool) {
	d, names, ok := listDir(top, dir, maxPrinted)
	if !ok {
		return nil, false
	}
	defer d.Close()
	slices.Sort(names)
	for _, name := range names {
		if dir == "" && (name == "objects" || name == "index") { // git status writes the index again
			continue
		}
		var st unix.Stat_t
		if *n++; *n > maxPrinted || unix.Fstatat(int(d.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			return nil, false
		}
		if now.Sub(time.Unix(st.Ctim.Unix())) < settled {
			return nil, false
		}
		rel := path.Join(dir, name)
		line := append([]byte(rel), 0)
		for _, v := range []uint64{st.Ino, uint64(st.Mode), uint64(st.Size), uint64(st.Ctim.Sec), uint64(st.Ctim.Nsec), uint64(st.Mtim.Sec), uint64(st.Mtim.Nsec)} {
			line = binary.LittleEndian.AppendUint64(line, v)
		}
		_, _ = h.Write(line) // a hash takes everything
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			below = append(below, rel)
		}
	}
	return below, true
}
