package cow

import (
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// dirNode is a directory of the walk, in the source and in the target at once.
// Its descriptors are open while children wait that will be opened through
// them. When too many are open already, they are closed after the listing and
// the children are found again from the top, name by name, so that neither
// depth nor breadth of a tree can use up the descriptors.
type dirNode struct {
	parent   *dirNode
	name     cname // nil for the top
	src, dst int   // -1 when closed
	waiting  atomic.Int32
}

// appendPath appends the slash-separated path below the top, "" for the top.
func (n *dirNode) appendPath(b []byte) []byte {
	if n.parent == nil {
		return b
	}
	if b = n.parent.appendPath(b); len(b) > 0 {
		b = append(b, '/')
	}
	return append(b, n.name.bytes()...)
}

func (n *dirNode) rel(name cname) string {
	b := n.appendPath(nil)
	if name != nil {
		if len(b) > 0 {
			b = append(b, '/')
		}
		b = append(b, name.bytes()...)
	}
	return string(b)
}

// fromTop returns the top, whose descriptors stay open for the whole walk, and
// the names that lead from there to n.
func (n *dirNode) fromTop() (top *dirNode, names []cname) {
	for ; n.parent != nil; n = n.parent {
		names = append(names, n.name)
	}
	slices.Reverse(names)
	return n, names
}

// maxChunk keeps the paths of openDown below PATH_MAX with its NUL.
const maxChunk = 4000

// openDown opens the directory that names lead to from dir, in as few
// openat2(2) as PATH_MAX allows. It follows no symbolic link and crosses no mount.
func openDown(dir int, names []cname) (int, error) {
	cur, path := dir, make([]byte, 0, maxChunk+257)
	step := func(flags uint64) error {
		next, err := openBeneath(cur, append(path, 0), flags)
		if cur != dir {
			closeFd(cur)
		}
		cur, path = next, path[:0]
		return err
	}
	for _, name := range names {
		if len(path) > maxChunk-256 {
			if err := step(unix.O_PATH | unix.O_DIRECTORY); err != nil {
				return -1, err
			}
		}
		if len(path) > 0 {
			path = append(path, '/')
		}
		path = append(path, name.bytes()...)
	}
	if len(path) == 0 {
		path = append(path, '.')
	}
	if err := step(openDir); err != nil {
		return -1, err
	}
	return cur, nil
}
