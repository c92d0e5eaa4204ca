package ledger

import (
	"errors"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// checkOlder checks the segments before the last one: they are not needed for
// the state, but a disk that damages one of them is not to be trusted with the
// others, and somebody should look.
func checkOlder(dir *os.File, name string, last *loaded) error {
	numbers, err := segmentNumbers(dir)
	if err != nil {
		return err
	}
	var before *parsed
	for i, n := range numbers {
		if n > last.number {
			break
		}
		p := last.parsed
		if n < last.number {
			p, err = older.parse(dir, n)
			if errors.Is(err, fs.ErrNotExist) {
				before = nil // dropped meanwhile, with all before it
				continue
			}
			if err != nil {
				return err
			}
		}
		if b := follows(before, p, numbers, i); b != nil {
			at := *b // the cache's own stays as it is
			at.Stream, at.Segment = name, segmentName(n)
			return broken("ledger.verify", &at)
		}
		before = p
	}
	return nil
}

// older remembers which segments this process has checked: they do not change
// any more, and a process start that opens and scans the ledger pays once.
var older = segmentCache{known: map[segmentID]*parsed{}}

type segmentID struct {
	dev, ino    uint64
	size, mtime int64
}

type segmentCache struct {
	mu    sync.Mutex
	known map[segmentID]*parsed
}

// maxKnown bounds the cache of a long-lived daemon, whose segments come and go.
const maxKnown = 1024

func (c *segmentCache) parse(dir *os.File, number uint64) (*parsed, error) {
	var st unix.Stat_t
	err := retry(func() error {
		return unix.Fstatat(int(dir.Fd()), segmentName(number), &st, unix.AT_SYMLINK_NOFOLLOW)
	})
	if err != nil {
		return nil, os.NewSyscallError("fstatat", err)
	}
	id := segmentID{uint64(st.Dev), st.Ino, st.Size, st.Mtim.Nano()}
	c.mu.Lock()
	p := c.known[id]
	c.mu.Unlock()
	if p != nil {
		return p, nil
	}
	data, err := readSegment(dir, number)
	if err != nil {
		return nil, err
	}
	p = parseSegment(data, nil)
	if p.brk != nil || !p.sealed { // a seal may yet come, and damage is looked at anew
		return p, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.known) >= maxKnown {
		clear(c.known)
	}
	c.known[id] = p
	return p, nil
}
