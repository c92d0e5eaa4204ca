package replay

import (
	"bytes"
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A detached program runs in a process whose memory is not the caller's, where
// the process must not be within the caller's reach or the other way round: one
// that joins a sandbox shares namespaces, a control group and a uid with a hostile
// Worker, and what becomes of it (an out-of-memory kill, a core dump, both of which
// the kernel extends to all who share the memory) must not become of the caller.
// That process executes the stage, a static program of a few hundred bytes: the
// interpreter, and before it what maps the program's memory, which is a memfd, at
// the addresses that it has here.

// detachedSize is what a detached program may need: argv and the environment are at
// most 6 MiB (execve(2)). Pages that are not touched cost nothing.
const detachedSize = 16 << 20

// NewDetached returns an empty program for the stage.
func NewDetached() (*Program, error) {
	if !Supported {
		return nil, ErrUnsupported
	}
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("yoi-program", flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("yoi-program", flags)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "yoi-program")
	mem, err := mapDetached(f)
	if err != nil {
		f.Close()
		return nil, err
	}
	p := &Program{memory: f}
	p.mem.chunks, p.mem.fixed = [][]byte{mem}, true
	p.Space(int(headerSize))
	return p, nil
}

func mapDetached(f *os.File) ([]byte, error) {
	if err := f.Truncate(detachedSize); err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, detachedSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err == nil {
		err = unix.Madvise(mem, unix.MADV_DONTDUMP) // as for the other arenas
	}
	return mem, os.NewSyscallError("mmap", err)
}

// header is what the stage reads at the start of the memory.
type header struct{ address, size, first, state uint64 }

const headerSize = unsafe.Sizeof(header{})

// Detach finishes a detached program and returns its memory, which the stage
// expects as descriptor 0. It stays the program's.
func (p *Program) Detach() (*os.File, error) {
	if err := p.place(); err != nil {
		return nil, err
	}
	base := unsafe.Pointer(unsafe.SliceData(p.mem.chunks[0]))
	*(*header)(base) = header{
		address: uint64(uintptr(base)), size: detachedSize,
		first: uint64(uintptr(unsafe.Pointer(&p.placed[0]))), state: uint64(uintptr(unsafe.Pointer(p.st))),
	}
	return p.memory, nil
}

// SetArg replaces an argument of a placed operation that has not been reached.
func (p *Program) SetArg(index, i int, a Arg) {
	p.placed[index].args[i] = a.v
}

// Get32 reads 32 bits of mem that a system call has written.
func (p *Program) Get32(mem Arg) uint32 {
	if p.err != nil {
		return 0
	}
	return *(*uint32)(p.pointer(mem))
}

var (
	stageMark = []byte("yoi-stage\xf1\xf2\xf3\xf4\xf5\xf6\xf7")
	stageEnd  = []byte("yoi-end.\xf1\xf2\xf3\xf4\xf5\xf6\xf7\xf8")
)

// Stage is the machine code that runs a detached program, and the offset at which
// it is entered. It needs no data and may lie anywhere.
func Stage() (code []byte, entry int, err error) {
	if !Supported {
		return nil, 0, ErrUnsupported
	}
	window := unsafe.Slice((*byte)(interpretAddr()), 2048)
	mark := bytes.Index(window, stageMark)
	end := bytes.Index(window, stageEnd)
	if mark < 0 || end < mark {
		return nil, 0, errors.New("replay: the stage has no marks")
	}
	return window[:end], mark + len(stageMark), nil
}
