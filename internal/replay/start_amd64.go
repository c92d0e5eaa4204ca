package replay

// Supported: this architecture has an interpreter.
const Supported = true

//go:noescape
func start(args *cloneArgs, size uintptr, prog *op, st *state) (pid uintptr)
