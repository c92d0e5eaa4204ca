package replay

import (
	"os"
	"unsafe"
)

// Program is a list of system calls under construction. Errors of allocation
// are kept and returned by Start.
type Program struct {
	mem    arena
	ops    []op
	tags   []int
	tag    int
	forks  []fork
	err    error
	st     *state
	placed []op     // the list as the child sees it, in mem
	memory *os.File // of a detached program
}

type fork struct{ at, to int }

// New returns an empty program.
func New() *Program {
	free.Lock()
	defer free.Unlock()
	if n := len(free.programs); n > 0 {
		p := free.programs[n-1]
		free.programs = free.programs[:n-1]
		return p
	}
	return &Program{ops: make([]op, 0, 256), tags: make([]int, 0, 256)}
}

// Release gives the memory back. Nobody may run the program any more.
func (p *Program) Release() {
	if p.memory != nil {
		p.mem.destroy()
		p.memory.Close()
		return
	}
	p.mem.reset()
	*p = Program{mem: p.mem, ops: p.ops[:0], tags: p.tags[:0], forks: p.forks[:0]}
	free.Lock()
	defer free.Unlock()
	if len(free.programs) < maxFree {
		free.programs = append(free.programs, p)
		return
	}
	p.mem.destroy()
}

// Tag marks the operations from here on, for the caller's own bookkeeping:
// a Failure carries the tag of its operation.
func (p *Program) Tag(tag int) { p.tag = tag }

// Add appends a system call.
func (p *Program) Add(nr uintptr, args ...Arg) Call {
	p.ops = append(p.ops, op{nr: uint64(nr)})
	p.tags = append(p.tags, p.tag)
	o := &p.ops[len(p.ops)-1]
	for i, a := range args {
		o.args[i], o.slots[i] = a.v, a.slot
	}
	return Call{o}
}

// Next is the index that the next added operation will have.
func (p *Program) Next() int { return len(p.ops) }

// Fork appends a clone(2) call whose child goes on at the operation that a
// later Child call stands before.
func (p *Program) Fork(nr uintptr, args ...Arg) int {
	p.Add(nr, args...).o.flags |= flagFork
	p.forks = append(p.forks, fork{at: len(p.ops) - 1})
	return len(p.forks) - 1
}

// Child lets fork's child go on here.
func (p *Program) Child(fork int) { p.forks[fork].to = len(p.ops) }

// Mark notes, when reached, that the fork's child no longer uses this memory.
func (p *Program) Mark() { p.Add(0).o.flags |= flagMark }

// Bytes copies b into the program's memory and returns its address.
func (p *Program) Bytes(b []byte) Arg {
	mem := p.Space(len(b))
	if p.err == nil {
		copy(unsafe.Slice((*byte)(p.pointer(mem)), len(b)), b)
	}
	return mem
}

// Str is Bytes of a NUL-terminated string.
func (p *Program) Str(s string) Arg {
	mem := p.Space(len(s) + 1)
	if p.err == nil {
		copy(unsafe.Slice((*byte)(p.pointer(mem)), len(s)), s)
	}
	return mem
}

// Strs is a NULL-terminated array of strings, as execve takes it.
func (p *Program) Strs(ss []string) Arg {
	mem := p.Space(8 * (len(ss) + 1))
	for i, s := range ss {
		a := p.Str(s)
		if p.err != nil {
			return mem
		}
		unsafe.Slice((*uint64)(p.pointer(mem)), len(ss)+1)[i] = a.v
	}
	return mem
}

// Join is Bytes of parts one behind the other.
func (p *Program) Join(parts ...[]byte) Arg {
	n := 0
	for _, b := range parts {
		n += len(b)
	}
	mem := p.Space(n)
	if p.err == nil {
		to := unsafe.Slice((*byte)(p.pointer(mem)), n)
		for _, b := range parts {
			to = to[copy(to, b):]
		}
	}
	return mem
}

// Pointers is a NULL-terminated array of addresses.
func (p *Program) Pointers(list []Arg) Arg {
	mem := p.Space(8 * (len(list) + 1))
	if p.err == nil {
		to := unsafe.Slice((*uint64)(p.pointer(mem)), len(list)+1)
		for i, a := range list {
			to[i] = a.v
		}
	}
	return mem
}

// Struct copies v, which must hold no Go pointer, into the program's memory.
func Struct[T any](p *Program, v T) Arg {
	mem := p.Space(int(unsafe.Sizeof(v)))
	if p.err == nil {
		*(*T)(p.pointer(mem)) = v
	}
	return mem
}

// Space is zeroed memory of n bytes.
func (p *Program) Space(n int) Arg {
	if p.err != nil {
		return Arg{}
	}
	ptr, err := p.mem.alloc(n)
	if err != nil {
		p.err = err
		return Arg{}
	}
	return Arg{v: uint64(uintptr(ptr))}
}

// At is the address off bytes into mem, a result of Space or Bytes.
func At(mem Arg, off int) Arg { return Arg{v: mem.v + uint64(off)} }

// Address is mem's address as a number, to be stored in a struct.
func Address(mem Arg) uint64 { return mem.v }

// pointer is mem as a pointer. The address is of memory outside Go's heap, so
// the round trip through an integer hides nothing from the collector.
func (p *Program) pointer(mem Arg) unsafe.Pointer {
	for _, c := range p.mem.chunks {
		base := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(c))))
		if mem.v >= base && mem.v < base+uint64(len(c)) {
			return unsafe.Pointer(&c[mem.v-base])
		}
	}
	return nil
}

// Result is what the kernel returned to the operation at index: a value, or a
// negative errno. It is zero if the operation was not reached.
func (p *Program) Result(index int) int64 {
	if index < len(p.placed) {
		return p.placed[index].result
	}
	return 0
}

// Put writes v over the start of mem.
func Put[T any](p *Program, mem Arg, v T) {
	if p.err == nil {
		*(*T)(p.pointer(mem)) = v
	}
}
