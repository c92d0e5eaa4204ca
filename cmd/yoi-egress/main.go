// Command yoi-egress is the way out of one Worker's network; the other programs
// start it. See package egress.
package main

import (
	"os"

	"yoi.dev/yoi-runtime/egress/proxy"
)

func main() { os.Exit(proxy.Main()) }
