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
	files    []int // entries directly in it
	racy     []int // those of them whose content has to be read
	children int   // names that it must have, and no more
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
	jobs, ok := x.jobs(written)
	if !ok {
		return false
	}
	var next atomic.Int64
	var differs atomic.Bool
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), 4, len(jobs)) {
		wg.Go(func() {
			buf := make([]byte, 32<<10)
			for !differs.Load() && ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(jobs) {
					return
				}
				if !x.matchesDir(tree, jobs[i], buf) {
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
func (x *Index) jobs(written time.Time) ([]*job, bool) {
	byPath := map[string]*job{"": {}}
	jobs := []*job{byPath[""]}
	sec, nsec := uint32(written.Unix()), uint32(written.Nanosecond())
	var last *job
	racy := 0
	for i := range x.at {
		e := x.Entry(i)
		if e.Stage != 0 || x.extended(i) || e.Mode&modeTypeMask == modeTree || bytes.HasSuffix(e.Path, []byte{'/'}) {
			return nil, false
		}
		dir := e.Path[:max(bytes.LastIndexByte(e.Path, '/'), 0)]
		if last == nil || last.path != string(dir) {
			last = addDir(byPath, &jobs, string(dir))
		}
		last.children++
		if e.IsGitlink() {
			continue
		}
		last.files = append(last.files, i)
		if s := e.Stat; s.MtimeSec > sec || (s.MtimeSec == sec && s.MtimeNsec >= nsec) {
			last.racy = append(last.racy, i)
			racy++
		}
	}
	return jobs, racy <= maxRacy
}

// addDir finds or makes the job of a directory, and counts a new one in its parent.
func addDir(byPath map[string]*job, jobs *[]*job, dir string) *job {
	if j, ok := byPath[dir]; ok {
		return j
	}
	parent := addDir(byPath, jobs, dir[:max(strings.LastIndexByte(dir, '/'), 0)])
	parent.children++
	j := &job{path: dir}
	byPath[dir] = j
	*jobs = append(*jobs, j)
	return j
}

func (x *Index) extended(i int) bool {
	at := int(x.at[i]) + statSize + x.oidSize
	return x.buf[at]&(flagExtended>>8) != 0
}

func (x *Index) matchesDir(tree *os.File, j *job, buf []byte) bool {
	path := j.path
	if path == "" {
		path = "."
	}
	fd, err := unix.Openat2(int(tree.Fd()), path, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NONBLOCK,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	names, ok := countNames(fd, buf, j.path == "")
	if !ok || names != j.children {
		return false
	}
	var st unix.Statx_t
	for _, i := range j.files {
		e := x.Entry(i)
		name := string(e.Path[bytes.LastIndexByte(e.Path, '/')+1:])
		if checkName(name) != nil || unix.Statx(fd, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS, &st) != nil {
			return false
		}
		have, want := FromStatx(&st), e.Stat
		have.Dev, want.Dev = 0, 0 // git does not compare it either, gitformat-index(5)
		if have != want || uint32(st.Mode)&unix.S_IFMT != e.Mode&modeTypeMask {
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

// countNames counts a directory's names, without the top's .git.
func countNames(fd int, buf []byte, top bool) (int, bool) {
	total := 0
	var names []string
	for {
		n, err := unix.ReadDirent(fd, buf)
		if err != nil {
			return 0, false
		}
		if n == 0 {
			return total, true
		}
		names = names[:0]
		_, count, names := unix.ParseDirent(buf[:n], -1, names)
		total += count
		for _, name := range names {
			if top && name == ".git" {
				total--
			}
		}
	}
}
