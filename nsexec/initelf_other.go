//go:build !amd64

package nsexec

import "unsafe"

// initAddr is never called: Launch refuses first.
func initAddr() unsafe.Pointer { return nil }
