//go:build !amd64

package replay

// Supported: this architecture has an interpreter.
const Supported = false

func start(*cloneArgs, uintptr, *op, *state) uintptr { panic("replay: not supported") }
