package cow

import "golang.org/x/sys/unix"

// Statx is what OnFile receives: the kernel's own record.
type Statx = unix.Statx_t
