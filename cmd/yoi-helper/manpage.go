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
	err := manpage.Text("yoi-helper", "8", "privileged side of yoi-runtime", usageText(), dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
