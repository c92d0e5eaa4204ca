// Command mkbpf writes what go generate keeps of the seccomp profiles: the
// embedded filters and the table of the documentation.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"yoi.dev/yoi-runtime/policy/seccomp"
	"yoi.dev/yoi-runtime/policy/seccomp/compile"
)

func main() {
	bpf := flag.String("bpf", "", "directory of the filters")
	doc := flag.String("doc", "", "file of the table")
	flag.Parse()
	if err := run(*bpf, *doc); err != nil {
		fmt.Fprintln(os.Stderr, "mkbpf:", err)
		os.Exit(1)
	}
}

func run(bpf, doc string) error {
	for _, p := range append(seccomp.Profiles(), seccomp.Egress()) {
		b, err := seccomp.Assemble(p, compile.Native())
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(bpf, string(p.Name)+".bpf"), b, 0o644); err != nil {
			return err
		}
	}
	digests, err := seccomp.Digests()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(bpf, "DIGESTS"), []byte(digests), 0o644); err != nil {
		return err
	}
	return os.WriteFile(doc, []byte(seccomp.Markdown()), 0o644)
}
