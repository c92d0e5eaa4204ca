package cow

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// walk is one materialization that looks at every file.
type walk struct {
	op    string
	clone bool
	// ficlone is the system call; tests put refusals in its place.
	ficlone func(dst, src int) error
	req     *Request
	me      identity
	// strangeGroup: the mount or the target's parent hands down its own group
	// (grpid, set-group-ID), so that no created file can be assumed to have ours.
	strangeGroup bool
	live         bool // the source may change meanwhile: live_linux.go
	top          *dirNode
	dev          devID // the source's device; a btrfs subvolume has its own
	target       inode // the target's top, in case it lies inside the source
	pool         *pool
	links        linkTable
	openNodes    atomic.Int32
	maxNodes     int32
	stop         atomic.Bool
	noXattrs     atomic.Bool
	lostXattrs   sync.Once
	lateModes    lateModes
	warnings     warnings
}

type devID struct{ major, minor uint32 }

type inode struct {
	dev devID
	ino uint64
}

func devOf(st *unix.Statx_t) devID   { return devID{st.Dev_major, st.Dev_minor} }
func inodeOf(st *unix.Statx_t) inode { return inode{devOf(st), st.Ino} }

// worker is one goroutine's buffers and counts.
type worker struct {
	*walk
	dir         *dirReader
	list, value []byte // attribute names, one attribute's value
	data        []byte // copied content
	link        []byte // a symbolic link's target
	prefix      []byte // the present directory's path and a slash, for OnFile
	from, to    Statx  // of the present file, before and after
	children    []*dirNode
	chmodded    bool
	res         Result
}

// maxOpenDirs bounds the directories kept open, each with two descriptors.
const maxOpenDirs = 256

func openDirBudget() int32 {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return 32
	}
	return int32(min(maxOpenDirs, lim.Cur/8+1))
}

// run walks with the given number of workers and returns the summed counts.
func (w *walk) run(ctx context.Context, workers int) (Result, error) {
	defer context.AfterFunc(ctx, func() { w.stop.Store(true) })()
	w.pool = newPool(w.top)
	if w.maxNodes == 0 {
		w.maxNodes = openDirBudget()
	}
	results := make([]Result, workers)
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			wk := &worker{walk: w, dir: newDirReader(), list: make([]byte, 1024), link: make([]byte, unix.PathMax)}
			wk.loop()
			results[i] = wk.res
		})
	}
	wg.Wait()
	var sum Result
	for _, r := range results {
		sum.add(r)
	}
	err := w.pool.err
	w.closeLeft()
	if err == nil {
		err = w.links.report(w)
	}
	if err == nil {
		err = w.lateModes.apply(w)
	}
	if cerr := ctxErr(ctx, w.op); cerr != nil {
		err = cerr // what failed on the way failed because of it
	}
	sum.Warnings = w.warnings.list()
	return sum, err
}

func (r *Result) add(o Result) {
	r.Files += o.Files
	r.Directories += o.Directories
	r.Symlinks += o.Symlinks
	r.Bytes += o.Bytes
	r.Cloned += o.Cloned
	r.Copied += o.Copied
}

func (w *worker) loop() {
	for {
		n := w.pool.next()
		if n == nil {
			return
		}
		w.children = nil
		err := w.directory(n)
		w.pool.done(n, w.children, err)
		if err != nil {
			w.stop.Store(true)
		}
	}
}

// closeLeft closes what a failure left open on the stack.
func (w *walk) closeLeft() {
	for _, n := range w.pool.stack {
		for ; n.parent != nil; n = n.parent {
			w.shut(n)
		}
	}
}

func (w *walk) shut(n *dirNode) {
	if n.src >= 0 {
		closeFd(n.src)
		closeFd(n.dst)
		n.src, n.dst = -1, -1
		w.openNodes.Add(-1)
	}
}

// open opens n in both trees: through its parent while that is open, else from
// the top.
func (w *walk) open(n *dirNode) error {
	if n.parent == nil {
		return nil // opened by the caller, for the whole walk
	}
	var err error
	if p := n.parent; p.src >= 0 {
		n.src, err = openBeneath(p.src, n.name, openDir)
		if err != nil {
			n.src = -1
			return w.fail(onSource, n, nil, err)
		}
		n.dst, err = openBeneath(p.dst, n.name, openDir)
	} else {
		top, names := n.fromTop()
		n.src, err = openDown(top.src, names)
		if err != nil {
			n.src = -1
			return w.fail(onSource, n, nil, err)
		}
		n.dst, err = openDown(top.dst, names)
	}
	if err != nil {
		closeFd(n.src)
		n.src = -1
		return w.fail(onTarget, n, nil, err)
	}
	w.openNodes.Add(1)
	return nil
}

// fail makes the diagnostic of a system call's failure at name inside n.
func (w *walk) fail(s side, n *dirNode, name cname, err error) error {
	return diagnose(w.op, s, n.rel(name), err)
}

func (w *walk) warnOnce(once *sync.Once, d *policy.Diagnostic) {
	once.Do(func() { w.warnings.add(w.req, *d) })
}

// defaultWorkers is what was measured on two cores. On xfs the allocation
// groups have locks of their own, so that 10,000 files take with two workers
// half the time that they take with one; four gain another tenth at 100,000,
// where some wait for the log, and lose nothing before. On btrfs all workers
// meet at the subvolume tree's root node and lose.
func defaultWorkers(fs string) int {
	switch fs {
	case "xfs":
		return 4
	case "tmpfs", "ext4":
		return min(4, max(2, runtime.NumCPU()))
	}
	return 1
}
