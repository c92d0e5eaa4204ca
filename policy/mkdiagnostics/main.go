// Command mkdiagnostics writes docs/diagnostics.md from the catalog of package
// policy, so that the document cannot say anything else than the programs.
package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: mkdiagnostics FILE")
		os.Exit(2)
	}
	if err := os.WriteFile(os.Args[1], render(policy.Catalog()), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, "mkdiagnostics:", err)
		os.Exit(1)
	}
}

const preface = `# Diagnostics

Made by ` + "`go generate ./policy`" + ` from policy/codes.go; do not edit.

Every refusal and every warning carries one of these codes: the last line that yoi
prints on stderr, ` + "`code`" + ` of the problem document with --json and of the API (RFC 9457;
its type is ` + "`urn:yoi:diagnostic:CODE`" + `). A code never changes its meaning and is never
given to another kind of failure. The hint is the usual one; a diagnostic may have
a better one. Status 200 marks a code that only warns.

| code | HTTP status | means | what to do |
|---|---|---|---|
`

// render is the whole document.
func render(catalog []policy.Info) []byte {
	var b bytes.Buffer
	b.WriteString(preface)
	for _, i := range catalog {
		fmt.Fprintf(&b, "| `%s` | %d | %s | %s |\n", i.Code, i.Status, cell(i.Title), cell(i.Hint))
	}
	return b.Bytes()
}

// cell is text that cannot end a table's cell.
func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
