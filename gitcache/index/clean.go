package index

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// CachedTree returns the tree that all of the index's entries make, in bytes,
// if the cache-tree extension knows it.
func (x *Index) CachedTree() ([]byte, bool) {
	end := len(x.buf) - x.oidSize
	for pos := x.extAt; pos < end; {
		sig, next, err := x.extension(pos, end)
		if err != nil {
			return nil, false
		}
		if sig == "TREE" {
			return x.rootTree(x.buf[pos+8 : next])
		}
		pos = next
	}
	return nil, false
}

// rootTree reads the first record: "" NUL entries SP subtrees LF oid.
func (x *Index) rootTree(data []byte) ([]byte, bool) {
	nul := bytes.IndexByte(data, 0)
	lf := bytes.IndexByte(data, '\n')
	if nul != 0 || lf < 0 || len(data) < lf+1+x.oidSize {
		return nil, false
	}
	count, _, _ := strings.Cut(string(data[1:lf]), " ")
	if n, err := strconv.Atoi(count); err != nil || n != len(x.at) { // -1 is "invalidated"
		return nil, false
	}
	return data[lf+1 : lf+1+x.oidSize], true
}

// job is one directory of the work tree.
type job struct {
	path     string
	files    []int    // entries directly in it
	racy     []int    // those of them whose content has to be read
	links    [][]byte // submodules directly in it
	children int      // names that it must have, and no more
	dirs     int      // those of them that are directories
	listed   atomic.Bool
}

const (
	maxRacy     = 1024
	maxRacySize = 16 << 20
)

// MatchesTree reports whether the work tree holds exactly the index's files,
// judged by stat data and names alone, where that is proof: every entry's stat
// data is that of its file, and no directory has a further name. Racy entries
// (not older than written, the index file's modification time) are hashed.
// False means only that somebody has to look closer.
func (x *Index) MatchesTree(ctx context.Context, tree *os.File, written time.Time) bool {
	jobs, _, ok := x.jobs(written)
	if !ok {
		return false
	}
	var next atomic.Int64
	var differs atomic.Bool
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), 4, len(jobs)) {
		wg.Go(func() {
			buf := make([]byte, 32<<10)
			name := make([]byte, 0, unix.NAME_MAX+1)
			for !differs.Load() && ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(jobs) {
					return
				}
				if !x.matchesDir(tree, jobs[i], buf, name) {
					differs.Store(true)
				}
			}
		})
	}
	wg.Wait()
	return !differs.Load() && ctx.Err() == nil
}

// jobs sorts the entries by directory. It gives up on what stat can't judge:
// conflicts, skip-worktree and intent-to-add entries, too many racy ones.
func (x *Index) jobs(written time.Time) (jobs []*job, byPath map[string]*job, ok bool) {
	byPath = map[string]*job{"": {}}
	jobs = []*job{byPath[""]}
	sec, nsec := uint32(written.Unix()), uint32(written.Nanosecond())
	var last *job
	racy := 0
	for i := range x.at {
		e := x.Entry(i)
		if e.Stage != 0 || x.extended(i) || e.Mode&modeTypeMask == modeTree || bytes.HasSuffix(e.Path, []byte{'/'}) {
			return nil, nil, false
		}
		dir := e.Path[:max(bytes.LastIndexByte(e.Path, '/'), 0)]
		if last == nil || last.path != string(dir) {
			last = addDir(byPath, &jobs, string(dir))
		}
		last.children++
		if e.IsGitlink() {
			last.links = append(last.links, e.Path)
			last.dirs++
			continue
		}
		last.files = append(last.files, i)
		if s := e.Stat; s.MtimeSec > sec || (s.MtimeSec == sec && s.MtimeNsec >= nsec) {
			last.racy = append(last.racy, i)
			racy++
		}
	}
	return jobs, byPath, racy <= maxRacy
}

// addDir finds or makes the job of a directory, and counts a new one in its parent.
func addDir(byPath map[string]*job, jobs *[]*job, dir string) *job {
	if j, ok := byPath[dir]; ok {
		return j
	}
	parent := addDir(byPath, jobs, dir[:max(strings.LastIndexByte(dir, '/'), 0)])
	parent.children++
	parent.dirs++
	j := &job{path: dir}
	byPath[dir] = j
	*jobs = append(*jobs, j)
	return j
}

func (x *Index) extended(i int) bool {
	at := int(x.at[i]) + statSize + x.oidSize
	return x.buf[at]&(flagExtended>>8) != 0
}

// matchesDir looks at one directory. buf and name are room to work in: with ten
// thousand files and more, no allocation per file is worth a third of the time.
func (x *Index) matchesDir(tree *os.File, j *job, buf, name []byte) bool {
	fd, err := openBeneath(tree, j.path)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	if n := tally(fd, buf, j.path == "", j.children); !n.ok || n.names != j.children {
		return false
	}
	var st unix.Stat_t
	for _, i := range j.files {
		e := x.Entry(i)
		name = append(name[:0], e.Path[bytes.LastIndexByte(e.Path, '/')+1:]...)
		if len(name) > unix.NAME_MAX || bytes.IndexByte(name, 0) >= 0 || checkName(name) != nil {
			return false
		}
		if !lstatAt(fd, append(name, 0), &st) {
			return false
		}
		have, want := fromStat(&st), e.Stat
		have.Dev, want.Dev = 0, 0 // git does not compare it either, gitformat-index(5)
		if have != want || st.Mode&unix.S_IFMT != e.Mode&modeTypeMask {
			return false
		}
	}
	for _, i := range j.racy {
		if !x.matchesContent(fd, x.Entry(i)) {
			return false
		}
	}
	return true
}

// matchesContent compares a file as it is, with no conversion, to its object.
func (x *Index) matchesContent(dir int, e Entry) bool {
	name := string(e.Path[bytes.LastIndexByte(e.Path, '/')+1:])
	var content []byte
	if e.Mode&modeTypeMask == unix.S_IFLNK {
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(dir, name, buf)
		if err != nil {
			return false
		}
		content = buf[:n]
	} else {
		fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return false
		}
		f := os.NewFile(uintptr(fd), name)
		defer f.Close()
		if content, err = io.ReadAll(io.LimitReader(f, maxRacySize+1)); err != nil || len(content) > maxRacySize {
			return false
		}
	}
	h := newHash(x.oidSize)
	fmt.Fprintf(h, "blob %d\x00", len(content))
	h.Write(content)
	return bytes.Equal(h.Sum(nil), e.OID)
}

// lstatAt is fstatat(2) of a name that ends with NUL, without its copies.
func lstatAt(dir int, name []byte, st *unix.Stat_t) bool {
	_, _, errno := unix.Syscall6(unix.SYS_NEWFSTATAT, uintptr(dir), uintptr(unsafe.Pointer(&name[0])), uintptr(unsafe.Pointer(st)),
		unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, 0, 0)
	return errno == 0
}
