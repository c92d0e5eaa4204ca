package index

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Differing returns the paths at which the work tree can differ from the index: of
// entries whose file is gone, has other stat data or is racy (not older than
// written, the index file's modification time), and of files and symbolic links
// that are no entries. No path that is not among them differs, as far as an inode's
// change time tells. Owners are not compared. It is not ok if that cannot be said:
// what MatchesTree gives up on, special files, a .git below the top, a populated
// submodule, more than most paths.
//
// The tree may be hostile. It is read by descriptors, through no symbolic link, and
// nothing in it is opened but directories.
func (x *Index) Differing(ctx context.Context, tree *os.File, written time.Time, most int) (paths [][]byte, ok bool) {
	jobs, byPath, ok := x.jobs(written)
	if !ok {
		return nil, false
	}
	d := &differing{x: x, tree: tree, byPath: byPath, most: most}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), 4, len(jobs)) {
		wg.Go(func() {
			buf := make([]byte, 32<<10)
			name := make([]byte, 0, unix.NAME_MAX+1)
			for !d.odd.Load() && ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(jobs) {
					return
				}
				d.dir(jobs[i], buf, name)
			}
		})
	}
	wg.Wait()
	return d.paths, !d.odd.Load() && ctx.Err() == nil
}

// differing is one walk.
type differing struct {
	x      *Index
	tree   *os.File
	byPath map[string]*job
	most   int
	odd    atomic.Bool // it cannot be said

	mu    sync.Mutex
	paths [][]byte
}

func (d *differing) add(paths ...[]byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.paths = append(d.paths, paths...)
	if len(d.paths) > d.most {
		d.odd.Store(true)
	}
}

// dir looks at one directory of the index.
func (d *differing) dir(j *job, buf, name []byte) {
	fd, err := openBeneath(d.tree, j.path)
	if err != nil { // gone, renamed, or no directory any more: the one above tells which
		for _, i := range j.files {
			d.add(d.x.Entry(i).Path)
		}
		above := d.byPath[j.path[:max(strings.LastIndexByte(j.path, '/'), 0)]]
		if fd, err := openBeneath(d.tree, above.path); err == nil {
			defer unix.Close(fd)
			d.names(above, fd, buf)
		}
		return
	}
	defer unix.Close(fd)
	n := tally(fd, buf, j.path == "", j.children+d.most)
	if !n.ok || n.untold {
		d.odd.Store(true)
		return
	}
	same := n.names == j.children && n.dirs == j.dirs
	var st unix.Stat_t
	for _, i := range j.files {
		e := d.x.Entry(i)
		name = append(name[:0], e.Path[bytes.LastIndexByte(e.Path, '/')+1:]...)
		if len(name) > unix.NAME_MAX || checkName(name) != nil {
			d.odd.Store(true)
			return
		}
		if !lstatAt(fd, append(name, 0), &st) || st.Mode&unix.S_IFMT != e.Mode&modeTypeMask {
			same = false
			d.add(e.Path)
			continue
		}
		have, want := fromStat(&st), e.Stat
		have.Dev, have.UID, have.GID, want.Dev, want.UID, want.GID = 0, 0, 0, 0, 0, 0
		if have != want {
			d.add(e.Path)
		}
	}
	for _, i := range j.racy {
		d.add(d.x.Entry(i).Path)
	}
	for _, link := range j.links {
		same = d.gitlink(string(link), buf) && same
	}
	if !same {
		d.names(j, fd, buf)
	}
}

// gitlink tells an empty directory, which a submodule that nobody fetched is, from
// all else, and reports whether there is a directory.
func (d *differing) gitlink(path string, buf []byte) bool {
	fd, err := openBeneath(d.tree, path)
	if err != nil {
		d.add([]byte(path))
		return false
	}
	defer unix.Close(fd)
	if n := tally(fd, buf, false, 0); !n.ok || n.names > 0 {
		d.odd.Store(true)
	}
	return true
}

// names reads a directory again and compares each name with the index, once.
func (d *differing) names(j *job, fd int, buf []byte) {
	if !j.listed.CompareAndSwap(false, true) {
		return
	}
	files := make(map[string]bool, len(j.files))
	for _, i := range j.files {
		p := d.x.Entry(i).Path
		files[string(p[bytes.LastIndexByte(p, '/')+1:])] = true
	}
	links := make(map[string]bool, len(j.links))
	for _, p := range j.links {
		links[string(p)] = true
	}
	if _, err := unix.Seek(fd, 0, 0); err != nil {
		d.odd.Store(true)
		return
	}
	var found [][]byte
	var below []string
	ok := eachName(fd, buf, func(name []byte, kind byte) bool {
		path := string(name)
		if j.path != "" {
			path = j.path + "/" + path
		}
		_, dir := d.byPath[path]
		switch {
		case path == ".git":
		case string(name) == ".git":
			return false
		case kind == unix.DT_DIR:
			if files[string(name)] || (!dir && !links[path]) {
				below = append(below, path)
			}
		case kind != unix.DT_REG && kind != unix.DT_LNK:
			return false
		case !files[string(name)]: // new, or where a directory was
			found = append(found, []byte(path))
		}
		return len(found)+len(below) <= d.most
	})
	if !ok {
		d.odd.Store(true)
		return
	}
	d.add(found...)
	for _, p := range below {
		d.below(p, buf)
	}
}

// below adds everything in a directory that the index does not have.
func (d *differing) below(top string, buf []byte) {
	dirs := []string{top}
	for seen := 0; len(dirs) > 0 && !d.odd.Load(); seen++ {
		path := dirs[len(dirs)-1]
		dirs = dirs[:len(dirs)-1]
		fd, err := openBeneath(d.tree, path)
		ok := err == nil && seen <= d.most
		if ok {
			ok = eachName(fd, buf, func(name []byte, kind byte) bool {
				sub := path + "/" + string(name)
				switch {
				case string(name) == ".git":
					return false
				case kind == unix.DT_DIR:
					dirs = append(dirs, sub)
				case kind == unix.DT_REG || kind == unix.DT_LNK:
					d.add([]byte(sub))
				default:
					return false
				}
				return len(dirs) <= d.most && !d.odd.Load()
			})
		}
		if err == nil {
			unix.Close(fd)
		}
		if !ok {
			d.odd.Store(true)
		}
	}
}

// openBeneath opens a directory of the tree; "" is its top.
func openBeneath(tree *os.File, path string) (int, error) {
	if path == "" {
		path = "."
	}
	return unix.Openat2(int(tree.Fd()), path, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NONBLOCK,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
}

// count is how many names a directory has.
type count struct {
	names, dirs int
	untold      bool // the file system does not tell a directory by its entry
	ok          bool
}

// tally counts a directory's names, without the top's .git. It is not ok beyond most.
func tally(fd int, buf []byte, top bool, most int) (n count) {
	n.ok = eachName(fd, buf, func(name []byte, kind byte) bool {
		if top && string(name) == ".git" {
			return true
		}
		n.names++
		if kind == unix.DT_DIR {
			n.dirs++
		}
		n.untold = n.untold || kind == unix.DT_UNKNOWN
		return n.names <= most
	})
	return n
}

// eachName reads a directory until f says no; it reports whether all was read.
func eachName(fd int, buf []byte, f func(name []byte, kind byte) bool) bool {
	for {
		n, err := unix.ReadDirent(fd, buf)
		if err != nil {
			return false
		}
		if n == 0 {
			return true
		}
		for rest := buf[:n]; len(rest) > 0; {
			const kindAt, nameAt = 18, 19 // struct linux_dirent64: ino, off, reclen, type, name
			if len(rest) < nameAt {
				return false
			}
			size := int(binary.NativeEndian.Uint16(rest[16:]))
			if size < nameAt || size > len(rest) {
				return false
			}
			name, _, _ := bytes.Cut(rest[nameAt:size], []byte{0})
			kind := rest[kindAt]
			rest = rest[size:]
			if string(name) != "." && string(name) != ".." && !f(name, kind) {
				return false
			}
		}
	}
}
