// Package replay runs a prepared list of raw system calls in a process that
// shares the caller's memory, and nothing else of it.
//
// It exists because the steps between clone(2) and execve(2) of a sandbox
// cannot be Go: a forked copy of a Go process has one thread and no runtime.
// Starting a second Go program instead costs as much as all of bubblewrap. So
// the caller writes the whole set-up down as data (Program), and an interpreter
// of about a hundred lines of assembly carries it out. It allocates nothing,
// calls nothing, and does not even use a stack; so it is the same under -race,
// cgo and every compiler flag.
//
// # Memory
//
// The list, its strings and its results live in an Arena: anonymous memory that
// Go's garbage collector does not know. Between clone and exec the child reads
// and writes that memory only. The caller's threads go on running meanwhile:
// clone3(2) is used with CLONE_VM but without CLONE_VFORK, because the caller
// has work to do (writing id maps, making a scope) and because a Go thread that
// is suspended inside clone would hold up the garbage collector. The end of the
// shared time is told by the kernel itself through CLONE_CHILD_CLEARTID.
//
// # What it does not promise
//
// The list is trusted completely. There is no interpreter for other
// architectures than amd64: Start returns ErrUnsupported there.
package replay
