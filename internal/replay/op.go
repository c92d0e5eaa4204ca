package replay

import "unsafe"

// op is one system call, as the assembly reads it. Keep in step with
// replay_amd64.s.
type op struct {
	nr       uint64    // 0
	args     [6]uint64 // 8
	slots    [6]uint8  // 56: nonzero: the argument is that slot's value
	save     uint8     // 62: nonzero: the result goes to that slot
	flags    uint8     // 63
	tolerate [4]uint16 // 64: errnos that are no failure
	skip     uint32    // 72: operations to leave out after a tolerated errno
	_        uint32    // 76
	expect   uint64    // 80: flagCheck: the result must be this; flagFork: the child's operation
	result   int64     // 88: what the kernel returned
}

const (
	flagCheck    = 1 << iota // a result other than expect is a failure, errno 0
	flagFork                 // in the child of this call go on at expect
	flagRetry                // try again on EAGAIN and EINTR
	flagTolerant             // every errno is tolerated
	flagMark                 // no call: note that the fork's child has left the memory; end if it failed
	flagStore                // the result also goes to the 32 bits at address expect
)

// state is the rest of what the interpreter reads and writes.
type state struct {
	all     uint64     // 0: a signal mask with every signal
	saved   uint64     // 8: the caller's mask
	failed  uint64     // 16: address of the operation that failed
	errno   uint64     // 24
	tid     uint32     // 32: cleared by the kernel when the child leaves the memory
	pidfd   int32      // 36
	retries uint64     // 40: left for flagRetry
	marked  uint64     // 48
	slots   [64]uint64 // 56
}

// cloneArgs is struct clone_args, CLONE_ARGS_SIZE_VER2 (Linux 5.7).
type cloneArgs struct {
	flags, pidfd, childTid, parentTid, exitSignal, stack, stackSize, tls, setTid, setTidSize, cgroup uint64
}

const (
	opSize    = unsafe.Sizeof(op{})
	stateSize = unsafe.Sizeof(state{})
	argsSize  = unsafe.Sizeof(cloneArgs{})
)

// Arg is a literal or a reference to the result of an earlier call.
type Arg struct {
	v    uint64
	slot uint8
}

// N is a literal argument.
func N[T ~int | ~uint | ~uint32 | ~uint64 | ~uintptr | ~int32 | ~int64](v T) Arg {
	return Arg{v: uint64(v)}
}

// Slot holds a result for later arguments.
type Slot uint8

// Arg refers to the slot's value at the time of the call.
func (s Slot) Arg() Arg { return Arg{slot: uint8(s)} }

// Call is the operation that was added last, to be refined.
type Call struct{ o *op }

// Save keeps the result in s.
func (c Call) Save(s Slot) Call { c.o.save = uint8(s); return c }

// Tolerate makes up to four errnos no failure.
func (c Call) Tolerate(errnos ...uint16) Call { copy(c.o.tolerate[:], errnos); return c }

// Tolerant makes every errno no failure.
func (c Call) Tolerant() Call { c.o.flags |= flagTolerant; return c }

// Skip leaves out the next n operations after a tolerated errno.
func (c Call) Skip(n int) Call { c.o.skip = uint32(n); return c }

// Expect makes any other result a failure with errno 0.
func (c Call) Expect(v uint64) Call { c.o.flags |= flagCheck; c.o.expect = v; return c }

// Store writes the result to the 32 bits at off in mem as well.
func (c Call) Store(mem Arg, off int) Call {
	c.o.flags |= flagStore
	c.o.expect = mem.v + uint64(off)
	return c
}

// Retry repeats the call on EAGAIN and EINTR, a bounded number of times.
func (c Call) Retry() Call { c.o.flags |= flagRetry; return c }
