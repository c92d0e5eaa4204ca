package nsexec

import "unsafe"

// initAddr is where init_amd64.s's code lies.
func initAddr() unsafe.Pointer
