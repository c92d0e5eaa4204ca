package cow

import (
	"sync"

	"golang.org/x/sys/unix"
)

// linkTable finds the names of one inode. The first name that the walk meets
// is made as a file; the others wait until it is complete and are linked to it.
// Waiting cannot lock up: who makes the first name waits for nobody.
type linkTable struct {
	mu     sync.Mutex
	inodes map[linkID]*linkGroup
	groups []*linkGroup // every group, also those that were full
}

// linkID is an inode and, where the source may change meanwhile, which version
// of it: names that were met before and after a change are not made one file.
type linkID struct {
	inode
	version unix.StatxTimestamp
}

func (w *walk) linkID(st *unix.Statx_t) linkID {
	id := linkID{inode: inodeOf(st)}
	if w.live {
		id.version = st.Ctime
	}
	return id
}

type linkGroup struct {
	ready chan struct{} // closed when the first name is complete or has failed
	ok    bool
	dir   *dirNode
	name  cname
	names []string // all names, for OnFile at the end: each link(2) changes ctime
}

// claim returns the inode's group, and whether the caller has to make its file.
// full is a group that takes no more names (EMLINK; ext4 allows 65000): the
// next one after it is wanted.
func (t *linkTable) claim(id linkID, full *linkGroup, n *dirNode, name cname) (g *linkGroup, first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if g = t.inodes[id]; g != nil && g != full {
		return g, false
	}
	if t.inodes == nil {
		t.inodes = make(map[linkID]*linkGroup)
	}
	g = &linkGroup{ready: make(chan struct{}), dir: n, name: append(cname(nil), name...)}
	t.inodes[id] = g
	t.groups = append(t.groups, g)
	return g, true
}

func (t *linkTable) named(g *linkGroup, rel string) {
	t.mu.Lock()
	g.names = append(g.names, rel)
	t.mu.Unlock()
}

func (w *worker) linkedFile(src int, st *unix.Statx_t, n *dirNode, name cname) error {
	return w.linked(st, n, name, func() error { return w.newFile(src, st, n, name, false) }, &w.res.Files)
}

func (w *worker) linkedSymlink(st *unix.Statx_t, n *dirNode, name cname) error {
	return w.linked(st, n, name, func() error { return w.newSymlink(st, n, name, false) }, &w.res.Symlinks)
}

func (w *worker) linked(st *unix.Statx_t, n *dirNode, name cname, create func() error, count *int64) error {
	var full *linkGroup
	for {
		g, first := w.links.claim(w.linkID(st), full, n, name)
		if first {
			err := create()
			if err == nil {
				w.links.named(g, n.rel(name))
			}
			g.ok = err == nil
			close(g.ready)
			return err
		}
		<-g.ready
		if !g.ok {
			return canceled(w.op, nil) // the failure itself is reported by who met it
		}
		switch err := w.link2(g, n, name); err {
		case nil:
			*count++
			w.links.named(g, n.rel(name))
			return nil
		case unix.EMLINK:
			full = g
		default:
			return w.fail(onTarget, n, name, err)
		}
	}
}

// link2 links name to the group's first name, whose directory may be closed.
func (w *worker) link2(g *linkGroup, n *dirNode, name cname) error {
	top, names := g.dir.fromTop()
	dir, err := openDown(top.dst, names)
	if err != nil {
		return err
	}
	defer closeFd(dir)
	return linkat(dir, g.name, n.dst, name)
}

// report calls OnFile for hard links, when no ctime can change any more.
func (t *linkTable) report(w *walk) error {
	if w.req.OnFile == nil {
		return nil
	}
	for _, g := range t.groups {
		top, names := g.dir.fromTop()
		dir, err := openDown(top.dst, names)
		if err != nil {
			return w.fail(onTarget, g.dir, g.name, err)
		}
		var st unix.Statx_t
		err = statxAt(dir, g.name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS, &st)
		closeFd(dir)
		if err != nil {
			return w.fail(onTarget, g.dir, g.name, err)
		}
		for _, rel := range g.names {
			w.req.OnFile(rel, &st)
		}
	}
	return nil
}
