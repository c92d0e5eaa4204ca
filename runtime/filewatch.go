package runtime

import (
	"encoding/binary"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// fileWatch tells who asked for it that a file was written to, by one inotify(7)
// instance: a user may have 128 of them, and there are more Workers.
type fileWatch struct {
	events *os.File

	mu     sync.Mutex
	wakers map[int][]chan struct{} // by watch: a file that is watched twice has one
}

func newFileWatch() (*fileWatch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	return &fileWatch{events: os.NewFile(uintptr(fd), "inotify"), wakers: make(map[int][]chan struct{})}, nil
}

// add has wake sent to whenever f was written to.
func (w *fileWatch) add(f *os.File, wake chan struct{}) (watch int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	conn, err := w.events.SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := conn.Control(func(fd uintptr) {
		watch, err = unix.InotifyAddWatch(int(fd), "/proc/self/fd/"+strconv.Itoa(int(f.Fd())), unix.IN_MODIFY)
	})
	if cerr != nil {
		return 0, cerr
	}
	if err != nil {
		return 0, os.NewSyscallError("inotify_add_watch", err)
	}
	w.wakers[watch] = append(w.wakers[watch], wake)
	return watch, nil
}

func (w *fileWatch) remove(watch int, wake chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var rest []chan struct{}
	for _, c := range w.wakers[watch] {
		if c != wake {
			rest = append(rest, c)
		}
	}
	if len(rest) > 0 {
		w.wakers[watch] = rest
		return
	}
	delete(w.wakers, watch)
	if conn, err := w.events.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(watch)) }) // gone with its file already
	}
}

// run passes events on until close.
func (w *fileWatch) run() {
	buf := make([]byte, 64*unix.SizeofInotifyEvent)
	for {
		n, err := w.events.Read(buf)
		if err != nil {
			return
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			watch, mask := int(int32(binary.NativeEndian.Uint32(b))), binary.NativeEndian.Uint32(b[4:])
			w.wake(watch, mask&unix.IN_Q_OVERFLOW != 0)
			b = b[min(len(b), unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:]))):]
		}
	}
}

func (w *fileWatch) wake(watch int, all bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k, wakers := range w.wakers {
		if !all && k != watch {
			continue
		}
		for _, c := range wakers {
			select {
			case c <- struct{}{}:
			default: // it is told already
			}
		}
	}
}

func (w *fileWatch) close() { w.events.Close() }
