package replay

import "unsafe"

// Supported: this architecture has an interpreter.
const Supported = true

//go:noescape
func start(args *cloneArgs, size uintptr, prog *op, st *state) (pid uintptr)

// interpretAddr is where the interpreter's code lies.
func interpretAddr() unsafe.Pointer
