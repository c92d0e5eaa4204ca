//go:build manpage

package main

import (
	"github.com/spf13/cobra"

	"yoi.dev/yoi-runtime/internal/manpage"
)

func init() {
	manpage.Commands("8", func() *cobra.Command { return command(new(flags), new(bool)) })
}
