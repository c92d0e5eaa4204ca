package cow

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

const opLive = "cow.live"

// LiveRequest says which tree to copy while others may be writing to it.
type LiveRequest struct {
	// Source and Target are directories, open for reading. What Target holds
	// already stays, as long as the source has no entry of that name.
	Source, Target *os.File
	// Filter is asked once a round for each directory, by its path below the top
	// ("" for the top), and its answer once for each name in it. A nil answer
	// takes everything, a nil Filter too. What is not taken is not even opened.
	Filter func(dir string) func(name string, isDir bool) bool
	// Progress is told now and then how many files have been looked at. May be nil.
	Progress func(files int64)
	Log      *slog.Logger
}

// LiveResult says what was made.
type LiveResult struct {
	Cloned, Copied int64 // files, each time one was copied
	// Rounds is how often the tree was walked; 2 for one that stood still.
	Rounds   int
	Warnings []policy.Diagnostic
}

const (
	// maxLiveRounds ends the race against somebody who never stops writing.
	maxLiveRounds = 10
	// settled is how long a change must be past before a file is read: more than
	// one tick of the clock that the kernel takes ctime from (10 ms at HZ=100), so
	// that a later change cannot leave the same ctime. Kernels from 6.13 on tell
	// the two apart in any case (multigrain timestamps).
	settled = 20 * time.Millisecond
	// maxSettling is how often a file is waited for in one round.
	maxSettling = 3
)

// Live copies a tree, and goes on until it has seen every entry unchanged from
// before it was copied until after the last one was: then the copy is the tree
// as it was at the moment when the last round began. Entries that changed are
// copied again, in rounds; after maxLiveRounds it gives up with source_changed.
//
// A change is seen by ctime, which no program can set, inode, size, mode and
// owner. It follows that a change is not seen that the kernel gives no new ctime:
// stores through a shared mapping between two write-backs (mmap(2), "MAP_SHARED"),
// and one that a clock set back hides.
//
// Files arrive as by the copy strategies, but never with an owner other than the
// caller, and are cloned where the two file systems can.
func Live(ctx context.Context, r LiveRequest) (LiveResult, error) {
	if r.Source == nil || r.Target == nil {
		return LiveResult{}, policy.Errorf(policy.CodeInternal, opLive, "the request has no source or no target")
	}
	defer runtime.KeepAlive(r)
	w := &walk{op: opLive, clone: true, live: true, ficlone: ficlone, req: &Request{}, me: whoAmI()}
	w.me.chown = false
	defer context.AfterFunc(ctx, func() { w.stop.Store(true) })()
	l := &liveCopy{
		worker: &worker{walk: w, dir: newDirReader(), list: make([]byte, 1024), link: make([]byte, unix.PathMax)},
		r:      r, skipped: make(map[string]bool),
	}
	res, err := l.copy(ctx)
	if cerr := ctxErr(ctx, opLive); cerr != nil {
		err = cerr
	}
	res.Cloned, res.Copied, res.Warnings = l.res.Cloned, l.res.Copied, w.warnings.list()
	if r.Log != nil {
		r.Log.LogAttrs(ctx, slog.LevelDebug, "live tree copied", slog.Int("rounds", res.Rounds), slog.Int64("cloned", res.Cloned), slog.Int64("copied", res.Copied))
	}
	return res, err
}

// liveCopy is one call of Live.
type liveCopy struct {
	*worker
	r     LiveRequest
	round int
	// changes counts what this round found different from the last; changed names
	// the first of them.
	changes int
	changed []string
	looked  int64
	skipped map[string]bool // special files that there was a warning about
}

// liveDir is a directory of the tree as it was seen last.
type liveDir struct {
	node    *dirNode
	version version
	entries map[string]*liveEntry
}

type liveEntry struct {
	version version  // before it was copied
	dir     *liveDir // nil for what is no directory
	round   int      // in which it was seen last
}

// version is what two looks at a name have in common if they saw the same inode
// with no change in between.
type version struct {
	inode
	ctime, mtime unix.StatxTimestamp
	size         uint64
	uid, gid     uint32
	nlink        uint32
	mode         uint16
}

func versionOf(st *unix.Statx_t) version {
	return version{inodeOf(st), st.Ctime, st.Mtime, st.Size, st.Uid, st.Gid, st.Nlink, st.Mode}
}

func (l *liveCopy) copy(ctx context.Context) (LiveResult, error) {
	src, err := openBeneath(fd(l.r.Source), cname(".\x00"), openDir)
	if err != nil {
		return LiveResult{}, diagnose(opLive, onSource, "", err)
	}
	defer closeFd(src)
	dst, err := openBeneath(fd(l.r.Target), cname(".\x00"), openDir)
	if err != nil {
		return LiveResult{}, diagnose(opLive, onTarget, "", err)
	}
	defer closeFd(dst)
	var st unix.Statx_t
	if err := statxFd(src, dirMask, &st); err != nil {
		return LiveResult{}, diagnose(opLive, onSource, "", err)
	}
	l.dev = devOf(&st)
	if err := statxFd(dst, dirMask, &st); err != nil {
		return LiveResult{}, diagnose(opLive, onTarget, "", err)
	}
	l.target, l.strangeGroup = inodeOf(&st), st.Gid != l.me.gid
	l.top = &dirNode{src: src, dst: dst}
	top := &liveDir{node: l.top, entries: make(map[string]*liveEntry)}
	for l.round = 1; ; l.round++ {
		l.changes, l.changed = 0, nil
		if err := l.walkAll(ctx, top); err != nil {
			return LiveResult{Rounds: l.round}, err
		}
		if l.changes == 0 {
			break
		}
		if l.round == maxLiveRounds {
			return LiveResult{Rounds: l.round}, l.restless()
		}
	}
	// A directory before those in it, as apply has it.
	slices.SortFunc(l.lateModes.dirs, func(a, b lateMode) int { return a.n.depth() - b.n.depth() })
	return LiveResult{Rounds: l.round}, l.lateModes.apply(l.walk)
}

func (n *dirNode) depth() int {
	d := 0
	for ; n.parent != nil; n = n.parent {
		d++
	}
	return d
}

// restless is the diagnostic of a source that did not stand still.
func (l *liveCopy) restless() error {
	d := policy.Errorf(policy.CodeSourceChanged, opLive, "the working tree went on changing while it was read, %d times over", maxLiveRounds).
		WithHint("Stop what writes to the files that are named, or exclude them by policy, and try again.").
		With("changes", strconv.Itoa(l.changes))
	names := make([]string, len(l.changed))
	for i, n := range l.changed {
		names[i] = policy.Printable(n)
	}
	return d.With("paths", strings.Join(names, ", "))
}

// note counts one difference.
func (l *liveCopy) note(n *dirNode, name cname) {
	l.changes++
	if len(l.changed) < 10 {
		l.changed = append(l.changed, cmp.Or(n.rel(name), "."))
	}
}

func (l *liveCopy) walkAll(ctx context.Context, top *liveDir) error {
	stack := []*liveDir{top}
	for len(stack) > 0 {
		if err := ctxErr(ctx, opLive); err != nil {
			return err
		}
		d := stack[len(stack)-1]
		below, err := l.enter(d)
		if err != nil {
			return err
		}
		stack = append(stack[:len(stack)-1], below...)
	}
	return nil
}

// enter opens a directory in both trees, brings the copy up to date and returns
// the directories in it.
func (l *liveCopy) enter(d *liveDir) ([]*liveDir, error) {
	n := d.node
	if n.parent != nil {
		// Also from the top each time: as many descriptors for any depth.
		top, names := n.fromTop()
		var err error
		if n.src, err = openDown(top.src, names); err != nil {
			n.src = -1
			return nil, l.vanished(n, nil, err)
		}
		defer func() { closeFd(n.src); n.src = -1 }()
		if n.dst, err = openDown(top.dst, names); err != nil {
			n.dst = -1
			return nil, l.fail(onTarget, n, nil, err)
		}
		defer func() { closeFd(n.dst); n.dst = -1 }()
	} else if _, err := unix.Seek(n.src, 0, unix.SEEK_SET); err != nil {
		return nil, l.fail(onSource, n, nil, err)
	}
	var st unix.Statx_t
	ok, err := l.settle(&st, func(st *unix.Statx_t) error { return statxFd(n.src, liveMask, st) })
	if err != nil {
		return nil, l.fail(onSource, n, nil, err)
	}
	if err := l.checkDirectory(n, &st); err != nil {
		return nil, err
	}
	before, seen := l.changes, version{}
	if ok {
		seen = versionOf(&st)
	}
	if !ok || d.version != seen {
		l.note(n, nil)
	}
	below, err := l.list(d)
	if err != nil {
		return nil, err
	}
	if l.changes > before {
		l.lateModes.dirs = slices.DeleteFunc(l.lateModes.dirs, func(m lateMode) bool { return m.n == n })
		if err := l.finish(n, &st); err != nil {
			return nil, err
		}
	}
	d.version = seen
	return below, nil
}

const liveMask = fileMask | unix.STATX_CTIME

// settle looks at an inode, and again until its last change is past long enough.
// It is false for one that keeps changing.
func (l *liveCopy) settle(st *unix.Statx_t, look func(*unix.Statx_t) error) (bool, error) {
	for range maxSettling {
		if err := look(st); err != nil {
			return false, err
		}
		age := sinceChange(st)
		if age >= settled || age < -time.Second { // a ctime ahead of the clock says nothing
			return true, nil
		}
		time.Sleep(settled - max(age, 0))
	}
	return false, nil
}

func sinceChange(st *unix.Statx_t) time.Duration {
	return time.Since(time.Unix(st.Ctime.Sec, int64(st.Ctime.Nsec)))
}

// vanished makes nothing but a change of a source entry that is not what it was
// when it was listed.
func (l *liveCopy) vanished(n *dirNode, name cname, err error) error {
	err = l.fail(onSource, n, name, err)
	if errors.Is(err, policy.CodeSourceChanged) {
		l.note(n, name)
		return nil
	}
	return err
}

// list compares a directory's names with those of the last round.
func (l *liveCopy) list(d *liveDir) (below []*liveDir, err error) {
	n := d.node
	var take func(string, bool) bool
	if l.r.Filter != nil {
		take = l.r.Filter(n.rel(nil))
	}
	for {
		more, err := l.dir.fill(n.src)
		if err != nil {
			return nil, l.vanished(n, nil, err)
		}
		if !more {
			break
		}
		for {
			name, typ, ok, err := l.dir.next()
			if err != nil {
				return nil, l.fail(onSource, n, nil, err)
			}
			if !ok {
				break
			}
			if l.stop.Load() {
				return nil, canceled(opLive, nil)
			}
			sub, err := l.look(d, name, typ, take)
			if err != nil {
				return nil, err
			}
			if sub != nil {
				below = append(below, sub)
			}
		}
	}
	for name, e := range d.entries {
		if e.round != l.round {
			l.note(n, newCname(name))
			if err := l.drop(d, name, e); err != nil {
				return nil, err
			}
		}
	}
	return below, nil
}

// look brings one entry up to date, and returns it if it is a directory.
func (l *liveCopy) look(d *liveDir, name cname, typ byte, take func(string, bool) bool) (*liveDir, error) {
	n, key := d.node, string(name.bytes())
	if typ == unix.DT_DIR && take != nil && !take(key, true) {
		return nil, nil
	}
	var st unix.Statx_t
	if err := statxAt(n.src, name, unix.AT_SYMLINK_NOFOLLOW, liveMask, &st); err != nil {
		return nil, l.vanished(n, name, err)
	}
	kind := st.Mode & unix.S_IFMT
	isDir := kind == unix.S_IFDIR
	if take != nil && (typ != unix.DT_DIR || !isDir) && !take(key, isDir) {
		return nil, nil
	}
	if l.looked++; l.looked%1024 == 0 && l.r.Progress != nil {
		l.r.Progress(l.looked)
	}
	e := d.entries[key]
	if e != nil && e.dir != nil && isDir {
		e.round = l.round
		return e.dir, nil
	}
	if e != nil && e.dir == nil && !isDir && e.version == versionOf(&st) {
		e.round = l.round
		return nil, nil
	}
	if e != nil {
		l.note(n, name)
		if err := l.drop(d, key, e); err != nil {
			return nil, err
		}
	}
	switch kind {
	case unix.S_IFREG, unix.S_IFLNK:
		if e == nil {
			l.note(n, name)
		}
		return nil, l.take(d, name, &st)
	case unix.S_IFDIR: // the directory itself is noted when it is entered
		if err := mkdirat(n.dst, name, 0o700); err != nil {
			return nil, l.fail(onTarget, n, name, err)
		}
		sub := &liveDir{node: &dirNode{parent: n, name: append(cname(nil), name...), src: -1, dst: -1}, entries: make(map[string]*liveEntry)}
		d.entries[key] = &liveEntry{dir: sub, round: l.round}
		return sub, nil
	}
	if rel := n.rel(name); !l.skipped[rel] {
		l.skipped[rel] = true
		l.warnings.add(l.req, *policy.Warnf(policy.CodeFileSkipped, opLive, "a %s was left out", specialKind(byte(st.Mode>>12))).With("path", rel))
	}
	return nil, nil
}

// take copies a file or a symbolic link. What cannot be copied because it is
// changing just now is left to the next round.
func (l *liveCopy) take(d *liveDir, name cname, st *unix.Statx_t) error {
	n := d.node
	var made bool
	var err error
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		made, err = l.takeLink(n, name, st)
	} else {
		made, err = l.takeFile(n, name, st)
	}
	if errors.Is(err, policy.CodeSourceChanged) {
		return l.unmake(n, name)
	}
	if err != nil || !made {
		return err
	}
	d.entries[string(name.bytes())] = &liveEntry{version: versionOf(st), round: l.round}
	return nil
}

func (l *liveCopy) takeFile(n *dirNode, name cname, st *unix.Statx_t) (bool, error) {
	// O_NONBLOCK: see worker.file.
	src, err := openBeneath(n.src, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return false, l.fail(onSource, n, name, err)
	}
	defer closeFd(src)
	ok, err := l.settle(st, func(st *unix.Statx_t) error { return statxFd(src, liveMask, st) })
	if err != nil {
		return false, l.fail(onSource, n, name, err)
	}
	switch {
	case !ok || st.Mode&unix.S_IFMT != unix.S_IFREG:
		return false, nil
	case st.Nlink > 1:
		return true, l.linkedFile(src, st, n, name)
	}
	return true, l.newFile(src, st, n, name, false)
}

func (l *liveCopy) takeLink(n *dirNode, name cname, st *unix.Statx_t) (bool, error) {
	ok, err := l.settle(st, func(st *unix.Statx_t) error {
		return statxAt(n.src, name, unix.AT_SYMLINK_NOFOLLOW, liveMask, st)
	})
	if err != nil {
		return false, l.fail(onSource, n, name, err)
	}
	switch {
	case !ok || st.Mode&unix.S_IFMT != unix.S_IFLNK:
		return false, nil
	case st.Nlink > 1:
		return true, l.linkedSymlink(st, n, name)
	}
	return true, l.newSymlink(st, n, name, false)
}

// unmake removes a file that was made of a source that changed meanwhile.
func (l *liveCopy) unmake(n *dirNode, name cname) error {
	if err := unlinkat(n.dst, name, 0); err != nil && err != unix.ENOENT {
		return l.fail(onTarget, n, name, err)
	}
	return nil
}

// drop removes an entry from the copy.
func (l *liveCopy) drop(d *liveDir, name string, e *liveEntry) error {
	delete(d.entries, name)
	if e.dir == nil {
		l.forget(d.node, name, e)
		return l.unmake(d.node, newCname(name))
	}
	l.forgetAll(e.dir)
	l.lateModes.dirs = slices.DeleteFunc(l.lateModes.dirs, func(m lateMode) bool { return m.n.below(e.dir.node) })
	own, err := unix.FcntlInt(uintptr(d.node.dst), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return l.fail(onTarget, d.node, newCname(name), err)
	}
	parent := os.NewFile(uintptr(own), name)
	defer parent.Close()
	return RemoveTree(context.Background(), parent, name, RemoveOptions{Log: l.r.Log})
}

// below reports whether n is dir or lies in it.
func (n *dirNode) below(dir *dirNode) bool {
	for ; n != nil; n = n.parent {
		if n == dir {
			return true
		}
	}
	return false
}

// forget keeps later names of a hard link from being linked to one that is gone.
func (l *liveCopy) forget(n *dirNode, name string, e *liveEntry) {
	id := linkID{e.version.inode, e.version.ctime}
	if g := l.links.inodes[id]; g != nil && g.dir == n && string(g.name.bytes()) == name {
		delete(l.links.inodes, id)
	}
}

func (l *liveCopy) forgetAll(d *liveDir) {
	for name, e := range d.entries {
		if e.dir != nil {
			l.forgetAll(e.dir)
		} else {
			l.forget(d.node, name, e)
		}
	}
}
