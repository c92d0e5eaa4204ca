package seccomp

import "embed"

//go:generate go run ./compile/mkbpf -bpf bpf/amd64 -doc ../../docs/seccomp.md

//go:embed bpf/amd64
var builtin embed.FS

const builtinDir = "bpf/amd64/"
