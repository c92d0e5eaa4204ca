//go:build manpage

package main

import (
	"fmt"
	"os"

	"yoi.dev/yoi-runtime/internal/manpage"
)

func init() {
	dir, ok := manpage.Wanted()
	if !ok {
		return
	}
	if err := manpage.Commands(command(new(flags), new(bool)), "8", dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
