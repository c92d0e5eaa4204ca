package nsexec

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/mounts"
)

// MinLog is the least limit of a log.
const MinLog = 1 << 20

// pipe is how a log gets what the Worker writes: by way of PID 1, which is there as
// long as the Worker is, so that no process of ours has to be, and which holds the
// log to its limit. A Worker with the file itself could write as much as it liked.
type pipe struct{ read, write *os.File }

// logged tells whether the Worker's descriptor is a log's.
func (b *script) logged(i int) bool { return b.pipes[i].write != nil }

// openPipes makes the pipes. They are the Worker's, so that it can open /dev/stdout.
func (l *launching) openPipes() error {
	s := l.spec
	if s.Logs.Dir == (mounts.Source{}) || s.Terminal {
		return nil
	}
	for i, name := range []string{"", s.Logs.Stdout, s.Logs.Stderr} {
		if name == "" || s.Stdio[i] != nil {
			continue
		}
		var fds [2]int
		if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			return failed("pipe2", err)
		}
		l.pipes[i] = pipe{os.NewFile(uintptr(fds[0]), "log"), os.NewFile(uintptr(fds[1]), "log")}
		// Of PID 1's end only: it must not wait for a Worker that reads from the pipe
		// itself, by /proc.
		if _, err := unix.FcntlInt(uintptr(fds[0]), unix.F_SETFL, unix.O_NONBLOCK); err != nil {
			return failed("fcntl", err)
		}
		if s.ownID() {
			continue
		}
		if err := unix.Fchown(fds[1], outside(s.UIDMap, s.uid()), outside(s.GIDMap, s.gid())); err != nil {
			return failed("fchown", err)
		}
	}
	return nil
}

// outside is the host's id of one of the sandbox's, -1 (nobody's) for none.
func outside(maps []IDMap, id uint32) int {
	for _, m := range maps {
		if id >= m.Inside && id-m.Inside < m.Count {
			return int(m.Outside + id - m.Inside)
		}
	}
	return -1
}

func (l *launching) closePipes() {
	for i, p := range l.pipes {
		if p.write != nil {
			p.read.Close()
			p.write.Close()
			l.pipes[i] = pipe{}
		}
	}
}

// logLimit is the environment of the init.
func (b *script) logLimit() []string {
	if n := b.spec.Logs.Limit; n > 0 && (b.spec.Resident || b.logged(1) || b.logged(2)) {
		return []string{strconv.FormatUint(n, 10)}
	}
	return nil
}

// LogGap is what is missing of a log that reached its limit: the bytes from one
// offset to another, which a reader would see as zeros. It only grows while the Worker
// lives; without one both are 0. The file's offset is moved.
func LogGap(f *os.File) (from, to int64, err error) {
	size, err := f.Seek(0, unix.SEEK_END)
	if err != nil || size == 0 {
		return 0, 0, err
	}
	from, err = f.Seek(0, unix.SEEK_HOLE)
	if err != nil || from >= size {
		return 0, 0, err
	}
	to, err = f.Seek(from, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) { // a hole to the end: nothing was written behind it
		return from, size, nil
	}
	return from, to, err
}
