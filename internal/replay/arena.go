package replay

import (
	"errors"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// arena is memory outside Go's heap that only grows until it is reset. Its
// addresses are stable, so they may be handed to another process.
type arena struct {
	chunks [][]byte
	used   int  // in the last chunk
	fixed  bool // one chunk, which is all there is
}

// errFull: the program is larger than what a detached one may be.
var errFull = errors.New("replay: the program is too large")

const chunkSize = 128 << 10

// align keeps structs, and strings besides, at addresses the kernel likes.
const align = 16

func (a *arena) alloc(n int) (unsafe.Pointer, error) {
	n = (n + align - 1) &^ (align - 1)
	if a.fixed && a.used+n > len(a.chunks[0]) {
		return nil, errFull
	}
	if len(a.chunks) == 0 || a.used+n > len(a.chunks[len(a.chunks)-1]) {
		b, err := unix.Mmap(-1, 0, max(n, chunkSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return nil, os.NewSyscallError("mmap", err)
		}
		// No core dump of ours has a Worker's environment or secrets (madvise(2)).
		if err := unix.Madvise(b, unix.MADV_DONTDUMP); err != nil {
			_ = unix.Munmap(b) // nothing is in it
			return nil, os.NewSyscallError("madvise", err)
		}
		a.chunks, a.used = append(a.chunks, b), 0
	}
	p := unsafe.Pointer(&a.chunks[len(a.chunks)-1][a.used])
	a.used += n
	return p, nil
}

// reset keeps the first chunk for the next program. What was in it may be
// private (environment values): it is wiped.
func (a *arena) reset() {
	if len(a.chunks) == 0 {
		return
	}
	first := a.used
	if len(a.chunks) > 1 || len(a.chunks[0]) > chunkSize {
		first = len(a.chunks[0])
	}
	for _, c := range a.chunks[1:] {
		_ = unix.Munmap(c) // cannot fail for a whole mapping of ours
	}
	a.chunks = a.chunks[:1]
	clear(a.chunks[0][:first])
	a.used = 0
}

// free keeps the memory of ended programs, so that a launch need not fault in
// fresh pages. sync.Pool would drop arenas without unmapping them.
var free struct {
	sync.Mutex
	programs []*Program
}

const maxFree = 16

func (a *arena) destroy() {
	for _, c := range a.chunks {
		_ = unix.Munmap(c)
	}
	a.chunks = nil
}
