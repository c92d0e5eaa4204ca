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
	root := newApp().command()
	root.InitDefaultCompletionCmd()
	if err := manpage.Commands(root, "1", dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
