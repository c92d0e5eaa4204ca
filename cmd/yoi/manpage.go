//go:build manpage

package main

import (
	"github.com/spf13/cobra"

	"yoi.dev/yoi-runtime/internal/manpage"
)

func init() {
	manpage.Commands("1", func() *cobra.Command {
		root := newApp().command()
		root.InitDefaultCompletionCmd()
		return root
	})
}
