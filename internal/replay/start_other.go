//go:build !amd64

package replay

import "unsafe"

// Supported: this architecture has an interpreter.
const Supported = false

func start(*cloneArgs, uintptr, *op, *state) uintptr { panic("replay: not supported") }

func interpretAddr() unsafe.Pointer { panic("replay: not supported") }
