package cow

import (
	"context"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Usage is what trees occupy, by the file system's own account.
type Usage struct {
	// Referenced are the allocated bytes of all files and directories, each inode
	// once, whoever else shares them: what du(1) says.
	Referenced int64
	// Exclusive are the bytes that nothing outside these trees shares. An extent
	// that is shared only among them counts once, so that a file cloned onto its
	// neighbour does not vanish from the account; so does one that is shared with
	// the outside and occurs here twice.
	Exclusive int64
	// Inodes counts files, directories, links and everything else.
	Inodes int64
	// Partial says that the walk met a bound, so that the numbers are too small.
	Partial bool
}

const (
	// mostUsageDepth and mostUsageEntries bound a walk over what a Worker made:
	// the first far beyond PATH_MAX, the second some minutes of work.
	mostUsageDepth   = 8192
	mostUsageEntries = 20_000_000
	// mostTracked bounds the memory for hard links and for shared extents.
	mostTracked = 4_000_000
	// mostOpenLevels are kept open; directories below are found again from there.
	mostOpenLevels = 128
)

// Meter adds trees up. It may not be used from two goroutines at once.
type Meter struct {
	u       Usage
	entries int64
	links   map[inode]struct{} // files with several names, seen already
	shared  []byteRange
	dir     *dirReader
	extents []byte
}

type byteRange struct{ from, to uint64 }

// NewMeter returns an empty account.
func NewMeter() *Meter {
	return &Meter{links: make(map[inode]struct{}), dir: newDirReader(), extents: make([]byte, fiemapSize+fiemapBatch*extentSize)}
}

// Usage is the account so far.
func (m *Meter) Usage() Usage {
	u := m.u
	u.Exclusive += overlapping(m.shared)
	return u
}

// Add walks what is called name below parent: by descriptors, through no
// symbolic link and over no mount, opening nothing but directories and regular
// files. What changes meanwhile is seen or not; what is gone counts nothing.
func (m *Meter) Add(ctx context.Context, parent *os.File, name string) error {
	const op = "cow.usage"
	defer runtime.KeepAlive(parent)
	if err := checkName(op, name); err != nil {
		return err
	}
	top, err := openBeneath(fd(parent), newCname(name), openDir)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return diagnose(op, onSource, "", err)
	}
	defer closeFd(top)
	f := &usageFrame{fd: top, extents: sharesExtents(top)}
	if err := m.self(f, top); err != nil {
		return diagnose(op, onSource, "", err)
	}
	return m.walk(ctx, f)
}

// sharesExtents says whether files of this file system can have blocks in
// common. Elsewhere the count of blocks is the answer.
func sharesExtents(fd int) bool {
	switch fileSystemOf(fd) {
	case "btrfs", "xfs", "bcachefs":
		return true
	}
	return false
}

// usageFrame is a directory on the way down.
type usageFrame struct {
	name    cname
	fd      int // -1 where only the levels above are kept open
	names   []byte
	extents bool
	// since is when the subvolume was made, in nanoseconds; 0 for none.
	since int64
}

func (f *usageFrame) take() cname {
	t := frame{names: f.names}
	n := t.take()
	f.names = t.names
	return n
}

// walk goes depth first, reading each directory whole before its children.
func (m *Meter) walk(ctx context.Context, top *usageFrame) error {
	stack := []*usageFrame{top}
	defer func() {
		for _, f := range stack[1:] {
			if f.fd >= 0 {
				closeFd(f.fd)
			}
		}
	}()
	m.list(top, top.fd)
	for len(stack) > 0 {
		if err := ctxErr(ctx, "cow.usage"); err != nil {
			return err
		}
		f := stack[len(stack)-1]
		name := f.take()
		if name == nil || m.entries > mostUsageEntries {
			if len(stack) == 1 {
				return nil
			}
			if f.fd >= 0 {
				closeFd(f.fd)
			}
			stack = stack[:len(stack)-1]
			continue
		}
		if len(stack) > mostUsageDepth {
			m.u.Partial = true
			continue
		}
		child := &usageFrame{name: append(cname(nil), name...), fd: -1, extents: f.extents, since: f.since}
		dir, err := openUsage(stack, child.name)
		if err != nil {
			m.unseen(err)
			continue
		}
		err = m.self(child, dir)
		if err == nil {
			m.list(child, dir)
		} else {
			m.unseen(err)
		}
		if len(stack) < mostOpenLevels {
			child.fd = dir
		} else {
			closeFd(dir)
		}
		stack = append(stack, child)
	}
	return nil
}

// openUsage opens name in the last frame, from the deepest one that is open.
func openUsage(stack []*usageFrame, name cname) (int, error) {
	i := len(stack) - 1
	for stack[i].fd < 0 {
		i--
	}
	names := make([]cname, 0, len(stack)-i)
	for _, f := range stack[i+1:] {
		names = append(names, f.name)
	}
	return openDown(stack[i].fd, append(names, name))
}

// unseen judges why something could not be looked at: what went away does not
// count, anything else makes the account too small.
func (m *Meter) unseen(err error) {
	switch err {
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP:
	default:
		m.u.Partial = true
	}
}

const usageMask = unix.STATX_TYPE | unix.STATX_NLINK | unix.STATX_INO | unix.STATX_SIZE | unix.STATX_BLOCKS | unix.STATX_CTIME

// self counts the directory itself.
func (m *Meter) self(f *usageFrame, dir int) error {
	var st unix.Statx_t
	if err := statxFd(dir, usageMask, &st); err != nil {
		return err
	}
	if isSubvolume(dir, st.Ino) {
		f.since = subvolumeSince(dir)
	}
	m.u.Inodes++
	m.entries++
	m.u.Referenced += int64(st.Blocks) * 512
	m.u.Exclusive += int64(st.Blocks) * 512
	return nil
}

// list counts a directory's entries and keeps the names of those to enter.
func (m *Meter) list(f *usageFrame, dir int) {
	for m.entries <= mostUsageEntries {
		more, err := m.dir.fill(dir)
		if err != nil {
			m.unseen(err)
			return
		}
		if !more {
			return
		}
		for {
			name, typ, ok, err := m.dir.next()
			if err != nil {
				m.u.Partial = true
				return
			}
			if !ok {
				break
			}
			if typ == unix.DT_DIR {
				f.names = append(f.names, name...)
				continue
			}
			m.entry(f, dir, name)
		}
	}
	m.u.Partial = true
}

// entry counts what is not a directory.
func (m *Meter) entry(f *usageFrame, dir int, name cname) {
	m.entries++
	var st unix.Statx_t
	if err := statxAt(dir, name, unix.AT_SYMLINK_NOFOLLOW, usageMask, &st); err != nil {
		m.unseen(err)
		return
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR { // a file system that does not tell types, or a race
		f.names = append(f.names, name...)
		return
	}
	if st.Nlink > 1 && !m.first(inodeOf(&st)) {
		return
	}
	m.u.Inodes++
	blocks := int64(st.Blocks) * 512
	m.u.Referenced += blocks
	if !f.extents || blocks == 0 || st.Mode&unix.S_IFMT != unix.S_IFREG {
		m.u.Exclusive += blocks
		return
	}
	// O_NONBLOCK should it be swapped for a FIFO in between.
	file, err := openBeneath(dir, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		m.u.Exclusive += blocks // one that we may not read counts whole
		return
	}
	defer closeFd(file)
	// An inline extent lies in the tree's own leaf and has no reference count. In a
	// snapshot it is shared as long as its inode has not changed, and only the
	// kernel sets a ctime; no Worker runs in the tick of the snapshot itself.
	old := st.Ctime.Sec*1e9+int64(st.Ctime.Nsec) <= f.since
	if !m.file(file, old) {
		m.u.Exclusive += blocks
	}
}

// first reports whether an inode is met for the first time.
func (m *Meter) first(i inode) bool {
	if _, seen := m.links[i]; seen {
		return false
	}
	if len(m.links) < mostTracked {
		m.links[i] = struct{}{}
	}
	return true
}

// FIEMAP, linux/fiemap.h.
const (
	iocFiemap    = 0xc020660b
	fiemapSize   = 32
	extentSize   = 56
	fiemapBatch  = 128
	extentLast   = 0x0001
	extentInline = 0x0200
	extentShared = 0x2000
)

type (
	fiemap struct {
		start, length            uint64
		flags, mapped, count, _1 uint32
	}
	fiemapExtent struct {
		logical, physical, length uint64
		_                         [2]uint64
		flags                     uint32
		_                         [3]uint32
	}
)

// file adds a file's extents. False means that the file system does not list them.
func (m *Meter) file(f int, old bool) bool {
	const noEnd = ^uint64(0)
	for start := uint64(0); ; {
		h := (*fiemap)(unsafe.Pointer(&m.extents[0]))
		*h = fiemap{start: start, length: noEnd - start, count: fiemapBatch}
		if err := ioctlPtr(f, iocFiemap, unsafe.Pointer(h)); err != nil {
			return false
		}
		for i := range h.mapped {
			e := (*fiemapExtent)(unsafe.Pointer(&m.extents[fiemapSize+i*extentSize]))
			m.extent(e, old)
			if e.flags&extentLast != 0 {
				return true
			}
			start = e.logical + e.length
		}
		if h.mapped == 0 {
			return true
		}
	}
}

func (m *Meter) extent(e *fiemapExtent, old bool) {
	switch {
	case e.flags&extentInline != 0 && old:
	case e.flags&extentShared == 0:
		m.u.Exclusive += int64(e.length)
	case len(m.shared) < mostTracked:
		m.shared = append(m.shared, byteRange{e.physical, e.physical + e.length})
	default:
		m.u.Exclusive += int64(e.length) // never too little
	}
}

// overlapping is how many bytes lie in two or more of the ranges.
func overlapping(rs []byteRange) int64 {
	type edge struct {
		at    uint64
		begin int
	}
	edges := make([]edge, 0, 2*len(rs))
	for _, r := range rs {
		if r.from < r.to {
			edges = append(edges, edge{r.from, 1}, edge{r.to, -1})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int {
		switch {
		case a.at < b.at:
			return -1
		case a.at > b.at:
			return 1
		}
		return a.begin - b.begin // ends before beginnings
	})
	var sum int64
	depth := 0
	for i, e := range edges {
		if depth >= 2 {
			sum += int64(e.at - edges[i-1].at)
		}
		depth += e.begin
	}
	return sum
}
