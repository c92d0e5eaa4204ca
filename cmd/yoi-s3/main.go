// Command yoi-s3 moves snapshot archives to and from S3-compatible object stores
// for the other programs, which start it on demand: see package snapshot/store.
package main

import (
	"os"

	"yoi.dev/yoi-runtime/snapshot/store/s3"
)

func main() { os.Exit(s3.Main()) }
