//go:build !amd64

package seccomp

import "embed"

// Other architectures have no filters compiled beforehand: Filter refuses.
var builtin embed.FS

const builtinDir = ""
