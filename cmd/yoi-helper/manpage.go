//go:build manpage

package main

import "yoi.dev/yoi-runtime/internal/manpage"

func init() { manpage.Text("yoi-helper", "8", "privileged side of yoi-runtime", usageText()) }
