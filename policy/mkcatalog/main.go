// Command mkcatalog writes systemd/yoi.catalog, the journal's message catalog
// (journalctl -x), from the table of events of package policy.
package main

import (
	"bytes"
	"fmt"
	"os"

	"yoi.dev/yoi-runtime/policy"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: mkcatalog FILE")
		os.Exit(2)
	}
	if err := os.WriteFile(os.Args[1], render(policy.Events()), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, "mkcatalog:", err)
		os.Exit(1)
	}
}

const preface = `# Made by "go generate ./policy" from policy/events.go; do not edit.
# The journal's message catalog: see journalctl(1), -x, and "journalctl --update-catalog".
`

// render is the whole catalog. An entry ends where the next begins, with "-- ID".
func render(events []policy.EventInfo) []byte {
	var b bytes.Buffer
	b.WriteString(preface)
	for _, e := range events {
		fmt.Fprintf(&b, "\n-- %s\nSubject: %s\nDefined-By: yoi-runtime\nSupport: https://yoi.dev/yoi-runtime\nDocumentation: man:yoi(1)\n\n%s\n\nWhat to do: %s\n",
			e.MessageID, e.Title, e.Means, e.Next)
	}
	return b.Bytes()
}
