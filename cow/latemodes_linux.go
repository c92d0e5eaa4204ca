package cow

import "sync"

// lateModes are directories whose owner may not read, write or search them.
// They get that mode when everything is done: an unprivileged walker could not
// go in afterwards, for their subdirectories or to link to a file of theirs.
type lateModes struct {
	mu   sync.Mutex
	dirs []lateMode
}

type lateMode struct {
	n    *dirNode
	mode uint32
}

func (l *lateModes) add(n *dirNode, mode uint32) {
	l.mu.Lock()
	l.dirs = append(l.dirs, lateMode{n, mode})
	l.mu.Unlock()
}

// apply sets the modes, a directory always after those inside it: the walk
// lists a parent before its children.
func (l *lateModes) apply(w *walk) error {
	for i := len(l.dirs) - 1; i >= 0; i-- {
		d := l.dirs[i]
		top, names := d.n.fromTop()
		fd, err := openDown(top.dst, names)
		if err == nil {
			err = fchmod(fd, d.mode)
			closeFd(fd)
		}
		if err != nil {
			return w.fail(onTarget, d.n, nil, err)
		}
	}
	return nil
}
