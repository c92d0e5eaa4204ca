// Command yoi-layers unpacks and deletes the layers of container images for the
// other programs, which start it on demand: see package cow/layers.
package main

import (
	"os"

	"yoi.dev/yoi-runtime/cow/layers/inside"
)

func main() { os.Exit(inside.Main()) }
