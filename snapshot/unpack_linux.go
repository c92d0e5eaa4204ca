package snapshot

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

const opUnpack = "snapshot.unpack"

// Tree fills an empty directory that nobody else can reach. Every name is made
// new (O_EXCL) in a directory that was opened without following a link, so no
// archive leads out of it, whatever it says. Small files are written by workers
// beside the caller; Finish, which must be called, waits for them.
type Tree struct {
	// Files counts all but directories, Bytes what is in regular files.
	Files int
	Bytes int64

	top   *os.File
	times []unix.Timespec // of every file and directory
	mask  uint32          // our umask, which takes bits from new files

	stack []*openDir
	made  map[string]bool
	late  []lateDir

	jobs    chan []job
	batch   []job // not yet given to a worker
	waiting int64 // bytes in it
	workers sync.WaitGroup
	pending sync.WaitGroup
	failed  atomic.Pointer[error]
	mu      sync.Mutex
	stats   map[string]unix.Statx_t
}

// openDir is a directory that jobs may still need when the walk has left it.
type openDir struct {
	fd   int
	path string
	refs atomic.Int32
}

func (d *openDir) release() {
	if d.refs.Add(-1) == 0 {
		unix.Close(d.fd)
	}
}

// lateDir is a directory that gets its mode and time when it is full.
type lateDir struct {
	path string
	mode uint32
}

type job struct {
	dir  *openDir
	e    *Entry
	data []byte
}

// smallFile is what a worker gets whole; more is streamed by the caller.
const smallFile = 1 << 20

const unpackers = 2

const maxBatch = 64

// NewTree begins in top. Every file and directory gets the time when.
func NewTree(top *os.File, when time.Time) *Tree {
	ts := unix.NsecToTimespec(when.UnixNano())
	t := &Tree{
		top: top, times: []unix.Timespec{ts, ts}, mask: umask(),
		made: make(map[string]bool), jobs: make(chan []job, 16), stats: make(map[string]unix.Statx_t),
	}
	for range unpackers {
		t.workers.Go(t.work)
	}
	return t
}

func (t *Tree) work() {
	for batch := range t.jobs {
		for _, j := range batch {
			if t.failure() == nil {
				t.fail(t.write(j.dir.fd, j.e, func(n int64) (b []byte, _ error) { b, j.data = j.data[:n], j.data[n:]; return b, nil }))
			}
			j.dir.release()
		}
		t.pending.Done()
	}
}

// umask reads ours: umask(2) cannot without setting it for every thread.
func umask() uint32 {
	b, _ := os.ReadFile("/proc/self/status") // unreadable: as if it took everything
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "Umask:"); ok {
			mask := uint32(0)
			for _, c := range strings.TrimSpace(v) {
				mask = mask<<3 | uint32(c-'0')&7
			}
			return mask
		}
	}
	return 0o777
}

func (t *Tree) fail(err error) {
	if err != nil {
		t.failed.CompareAndSwap(nil, &err)
	}
}

func (t *Tree) failure() error {
	if p := t.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// Entry makes one entry of a workspace, whose directories have come before.
func (t *Tree) Entry(e *Entry, content io.Reader) error { return t.add(e, content, false) }

// GitFile makes a file or symbolic link of a git tree, and its directories.
func (t *Tree) GitFile(p PlacedFile, size int64, content io.Reader) error {
	if p.Mode&modeType == modeSymlink {
		target, err := io.ReadAll(io.LimitReader(content, maxTarget+1))
		if err != nil {
			return err
		}
		return t.gitSymlink(p, target)
	}
	return t.add(gitFile(p, size), content, true)
}

// GitBlob is GitFile with the content in memory, which is not to change afterwards.
func (t *Tree) GitBlob(p PlacedFile, data []byte) error {
	if p.Mode&modeType == modeSymlink {
		return t.gitSymlink(p, data)
	}
	e := gitFile(p, int64(len(data)))
	dir, err := t.place(e, true)
	if err == nil {
		t.later(dir, e, data)
	}
	return err
}

func (t *Tree) gitSymlink(p PlacedFile, target []byte) error {
	e := &Entry{Type: Symlink, Path: p.Path, Target: string(target[:min(len(target), maxTarget+1)])}
	if err := checkEntry(e); err != nil {
		return err
	}
	return t.add(e, nil, true)
}

func gitFile(p PlacedFile, size int64) *Entry {
	e := &Entry{Type: File, Path: p.Path, Mode: 0o644, Size: size}
	if p.Mode&0o100 != 0 {
		e.Mode = 0o755
	}
	return e
}

// GitLink makes a submodule's empty directory.
func (t *Tree) GitLink(p string) error {
	_, err := t.dir(p, true)
	return err
}

func (t *Tree) add(e *Entry, content io.Reader, parents bool) error {
	dir, err := t.place(e, parents)
	if err != nil {
		return err
	}
	switch e.Type {
	case Dir:
		return t.explicitDir(dir, e)
	case Symlink:
		return t.symlink(dir.fd, e)
	case HardLink:
		return t.link(dir.fd, e)
	}
	if e.Size > smallFile {
		buf := make([]byte, contentBlock)
		return t.write(dir.fd, e, func(n int64) ([]byte, error) {
			_, err := io.ReadFull(content, buf[:n])
			return buf[:n], err
		})
	}
	data := make([]byte, e.Size)
	if _, err := io.ReadFull(content, data); err != nil {
		return err
	}
	own := *e // valid until the next one only
	t.later(dir, &own, data)
	return nil
}

// place opens the directory that an entry is made in, and counts it.
func (t *Tree) place(e *Entry, parents bool) (*openDir, error) {
	if err := t.failure(); err != nil {
		return nil, err
	}
	up := path.Dir(e.Path)
	if up == "." {
		up = ""
	}
	dir, err := t.dir(up, parents)
	if err == nil && e.Type != Dir {
		t.Files++
		t.Bytes += e.Size
	}
	return dir, err
}

// later leaves a small file to a worker. A batch ends with its directory where that
// is not too far: two workers in one would wait for each other.
func (t *Tree) later(dir *openDir, e *Entry, data []byte) {
	if n := len(t.batch); n >= maxBatch && t.batch[n-1].dir != dir || n >= 4*maxBatch || t.waiting >= smallFile {
		t.flush()
	}
	dir.refs.Add(1)
	t.batch = append(t.batch, job{dir, e, data})
	t.waiting += e.Size
}

// flush gives the batch to a worker: to wake one for every small file would cost
// as much as to write it.
func (t *Tree) flush() {
	if len(t.batch) == 0 {
		return
	}
	t.pending.Add(1)
	t.jobs <- t.batch
	t.batch, t.waiting = nil, 0
}

// dir opens the directory p through the ones that the last entry was in. With
// parents, those that were not made before are.
func (t *Tree) dir(p string, parents bool) (*openDir, error) {
	if len(t.stack) == 0 {
		if err := t.push(int(t.top.Fd()), ".", ""); err != nil {
			return nil, err
		}
	}
	for {
		last := t.stack[len(t.stack)-1]
		if last.path == p {
			return last, nil
		}
		if last.path != "" && !strings.HasPrefix(p, last.path+"/") {
			t.stack = t.stack[:len(t.stack)-1]
			last.release()
			continue
		}
		rest := strings.TrimPrefix(p[len(last.path):], "/")
		name, _, _ := strings.Cut(rest, "/")
		next := p[:len(p)-len(rest)+len(name)]
		if parents && !t.made[next] {
			if err := t.mkdir(last, next, 0o755); err != nil {
				return nil, err
			}
		}
		if err := t.push(last.fd, name, next); err != nil {
			return nil, err
		}
	}
}

const openDirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

func (t *Tree) push(parent int, name, p string) error {
	fd, err := unix.Openat(parent, name, openDirFlags, 0)
	if err != nil {
		return unpackError(p, err)
	}
	d := &openDir{fd: fd, path: p}
	d.refs.Store(1)
	t.stack = append(t.stack, d)
	return nil
}

// mkdir makes a directory that we can fill; its mode comes at the end.
func (t *Tree) mkdir(parent *openDir, p string, mode uint32) error {
	if err := unix.Mkdirat(parent.fd, path.Base(p), 0o700); err != nil {
		return unpackError(p, err)
	}
	t.made[p] = true
	t.late = append(t.late, lateDir{p, mode})
	return nil
}

func (t *Tree) explicitDir(parent *openDir, e *Entry) error {
	if err := t.mkdir(parent, e.Path, e.Mode); err != nil || len(e.Xattrs) == 0 {
		return err
	}
	d, err := t.dir(e.Path, false)
	if err != nil {
		return err
	}
	return setXattrs(d.fd, e)
}

func (t *Tree) symlink(dir int, e *Entry) error {
	name := path.Base(e.Path)
	if err := unix.Symlinkat(e.Target, dir, name); err != nil {
		return unpackError(e.Path, err)
	}
	if err := unix.UtimesNanoAt(dir, name, t.times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return unpackError(e.Path, err)
	}
	return t.note(dir, name, unix.AT_SYMLINK_NOFOLLOW, e.Path)
}

func (t *Tree) link(dir int, e *Entry) error {
	t.flush()
	t.pending.Wait() // the file may still be with a worker
	from, err := t.descend(path.Dir(e.Target))
	if err != nil {
		return unpackError(e.Target, err)
	}
	defer unix.Close(from)
	if err := unix.Linkat(from, path.Base(e.Target), dir, path.Base(e.Path), 0); err != nil {
		return unpackError(e.Path, err)
	}
	delete(t.stats, e.Target) // link(2) has moved its ctime
	return nil
}

// descend opens a directory from the top one component at a time: the path may
// be longer than PATH_MAX.
func (t *Tree) descend(dir string) (int, error) {
	fd, err := unix.Openat(int(t.top.Fd()), ".", openDirFlags, 0)
	if dir == "." || err != nil {
		return fd, err
	}
	for name := range strings.SplitSeq(dir, "/") {
		next, err := unix.Openat(fd, name, openDirFlags, 0)
		unix.Close(fd)
		if err != nil {
			return -1, err
		}
		fd = next
	}
	return fd, nil
}

// write makes one regular file.
func (t *Tree) write(dir int, e *Entry, content func(int64) ([]byte, error)) error {
	fd, err := unix.Openat(dir, path.Base(e.Path), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, e.Mode|0o200)
	if err != nil {
		return unpackError(e.Path, err)
	}
	defer unix.Close(fd)
	if err := writeContent(fd, e, content); err != nil {
		return err
	}
	if err := setXattrs(fd, e); err != nil {
		return err
	}
	if e.Mode&t.mask != 0 || e.Mode&0o200 == 0 {
		if err := unix.Fchmod(fd, e.Mode); err != nil {
			return unpackError(e.Path, err)
		}
	}
	if err := unix.UtimesNanoAt(fd, "", t.times, unix.AT_EMPTY_PATH); err != nil {
		return unpackError(e.Path, err)
	}
	return t.note(fd, "", unix.AT_EMPTY_PATH, e.Path)
}

const contentBlock = 64 << 10

// writeContent writes what next gives, so many bytes at a time, and leaves a hole for
// each block of zeroes of a large file.
func writeContent(fd int, e *Entry, next func(int64) ([]byte, error)) error {
	for at := int64(0); at < e.Size; at += contentBlock {
		b, err := next(min(contentBlock, e.Size-at))
		if err != nil {
			return err
		}
		if len(b) == contentBlock && allZero(b) {
			continue
		}
		for off := at; len(b) > 0; {
			n, err := unix.Pwrite(fd, b, off)
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				return unpackError(e.Path, err)
			}
			b, off = b[n:], off+int64(n)
		}
	}
	if e.Size >= contentBlock {
		if err := unix.Ftruncate(fd, e.Size); err != nil {
			return unpackError(e.Path, err)
		}
	}
	return nil
}

var zeroes [contentBlock]byte

func allZero(b []byte) bool { return bytes.Equal(b, zeroes[:len(b)]) }

func setXattrs(fd int, e *Entry) error {
	for _, x := range e.Xattrs {
		if err := unix.Fsetxattr(fd, x.Name, x.Value, 0); err != nil {
			if err == unix.EOPNOTSUPP {
				return policy.Errorf(policy.CodeSnapshotInvalid, opUnpack, "the snapshot holds extended attributes, which the Runtime root's file system does not take").
					With("path", policy.Printable(e.Path)).Because(err)
			}
			return unpackError(e.Path, err)
		}
	}
	return nil
}

// note keeps the final stat data for the index.
func (t *Tree) note(dir int, name string, flags int, p string) error {
	var st unix.Statx_t
	if err := unix.Statx(dir, name, flags, unix.STATX_BASIC_STATS, &st); err != nil {
		return unpackError(p, err)
	}
	t.mu.Lock()
	t.stats[p] = st
	t.mu.Unlock()
	return nil
}

// Finish ends the writing and gives the directories their modes and times. The
// result is the stat data of every file that has one name only, by path.
func (t *Tree) Finish(ctx context.Context) (map[string]unix.Statx_t, error) {
	t.flush()
	close(t.jobs)
	t.workers.Wait()
	for _, d := range t.stack {
		d.release()
	}
	t.stack = nil
	if err := t.failure(); err != nil {
		return nil, err
	}
	for i := len(t.late) - 1; i >= 0; i-- {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := t.finishDir(t.late[i]); err != nil {
			return nil, unpackError(t.late[i].path, err)
		}
	}
	return t.stats, nil
}

func (t *Tree) finishDir(d lateDir) error {
	fd, err := t.descend(d.path)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.UtimesNanoAt(fd, "", t.times, unix.AT_EMPTY_PATH); err != nil {
		return err
	}
	return unix.Fchmod(fd, d.mode)
}

func unpackError(p string, err error) error {
	d := func(code policy.Code, message string) error {
		return policy.Errorf(code, opUnpack, "%s", message).With("path", policy.Printable(p)).Because(err)
	}
	var known *policy.Diagnostic
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return d(policy.CodeDiskFull, "the disk is full")
	case errors.Is(err, unix.EEXIST), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return d(policy.CodePathCaseCollision, "the snapshot has two names that are one to this file system")
	case errors.Is(err, unix.ENAMETOOLONG):
		return d(policy.CodePathTooLong, "a name of the snapshot is too long for this file system")
	}
	return d(policy.CodeCopyFailed, "a file of the snapshot cannot be written")
}
