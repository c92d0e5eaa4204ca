package replay

import (
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrUnsupported: no interpreter exists for this architecture.
var ErrUnsupported = errors.New("replay: no interpreter for this architecture")

// Failure says which operation of a program failed.
type Failure struct {
	// Index is the operation's, Tag its tag.
	Index, Tag int
	NR         uintptr
	// Errno is 0 if the call worked with another result than was expected.
	Errno syscall.Errno
}

// Child is a process that runs a program.
type Child struct {
	Pid   int
	Pidfd int
	prog  *Program
}

// maxRetries bounds flagRetry over a whole program.
const maxRetries = 1 << 16

// Start clones a child with the CLONE_ flags (CLONE_VM and the rest that the
// interpreter needs are added) and lets it run p. cgroup is a directory of
// cgroup2 for CLONE_INTO_CGROUP, or -1.
func (p *Program) Start(flags uint64, cgroup int) (*Child, error) {
	if !Supported {
		return nil, ErrUnsupported
	}
	if err := p.place(); err != nil {
		return nil, err
	}
	args := Struct(p, cloneArgs{
		flags: flags | unix.CLONE_VM | unix.CLONE_PIDFD | unix.CLONE_PARENT_SETTID |
			unix.CLONE_CHILD_CLEARTID | unix.CLONE_CLEAR_SIGHAND,
		exitSignal: uint64(unix.SIGCHLD),
	})
	if p.err != nil {
		return nil, p.err
	}
	ca := (*cloneArgs)(p.pointer(args))
	tid := uint64(uintptr(unsafe.Pointer(&p.st.tid)))
	// The kernel writes the tid before the child can run (CLONE_PARENT_SETTID) and
	// clears it when the child has left the memory, so zero means left, always.
	ca.parentTid, ca.childTid = tid, tid
	ca.pidfd = uint64(uintptr(unsafe.Pointer(&p.st.pidfd)))
	if cgroup >= 0 {
		ca.flags |= unix.CLONE_INTO_CGROUP
		ca.cgroup = uint64(cgroup)
	}
	pid := start(ca, argsSize, &p.placed[0], p.st)
	if int(pid) < 0 {
		return nil, os.NewSyscallError("clone3", syscall.Errno(-int(pid)))
	}
	return &Child{Pid: int(pid), Pidfd: int(p.st.pidfd), prog: p}, nil
}

// place copies the list into the arena, where it cannot move.
func (p *Program) place() error {
	mem := p.Space(int(opSize) * len(p.ops))
	st := p.Space(int(stateSize))
	if p.err != nil {
		return p.err
	}
	p.placed = unsafe.Slice((*op)(p.pointer(mem)), len(p.ops))
	copy(p.placed, p.ops)
	for _, f := range p.forks {
		p.placed[f.at].expect = uint64(uintptr(unsafe.Pointer(&p.placed[f.to])))
	}
	p.st = (*state)(p.pointer(st))
	p.st.all = ^uint64(0)
	p.st.retries = maxRetries
	p.st.pidfd = -1
	return nil
}

// Wait returns when the child no longer shares the caller's memory: it has
// exec'd or ended.
func (c *Child) Wait() {
	word := &c.prog.st.tid
	for {
		v := atomic.LoadUint32(word)
		if v == 0 {
			return
		}
		// Not FUTEX_PRIVATE_FLAG: the kernel's wake-up on exit is a shared one.
		_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), 0, uintptr(v), 0, 0, 0)
	}
}

// Marked reports whether the program reached its Mark.
func (c *Child) Marked() bool { return atomic.LoadUint64(&c.prog.st.marked) != 0 }

// Failure returns the operation that failed, or nil. Call it after Wait.
func (c *Child) Failure() *Failure { return c.prog.Failure() }

// Failure is Child.Failure for a detached program, of which nobody runs any more.
func (p *Program) Failure() *Failure {
	st := p.st
	at := atomic.LoadUint64(&st.failed)
	if at == 0 {
		return nil
	}
	first := uint64(uintptr(unsafe.Pointer(&p.placed[0])))
	i := int((at - first) / uint64(opSize))
	return &Failure{Index: i, Tag: p.tags[i], NR: uintptr(p.ops[i].nr), Errno: syscall.Errno(st.errno)}
}
