package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"yoi.dev/yoi-runtime/api"
	"yoi.dev/yoi-runtime/policy"
)

// printJSON prints one indented document.
func (a *app) printJSON(v any) error {
	return a.encode(v, "  ")
}

// encode writes one document and a newline, as the API has it.
func (a *app) encode(v any, indent string) error {
	a.progress.clear()
	b, err := api.Marshal(v)
	if err != nil {
		return policy.AsDiagnostic(err)
	}
	var buf bytes.Buffer
	if indent == "" {
		buf.Write(b)
	} else if err := json.Indent(&buf, b, "", indent); err != nil {
		return policy.AsDiagnostic(err)
	}
	buf.WriteByte('\n')
	_, err = a.stdout.Write(buf.Bytes())
	return err
}

// removed says what is no longer there.
func (a *app) removed(name string) error {
	if a.json {
		return a.printJSON(map[string]string{"removed": name})
	}
	fmt.Fprintf(a.stdout, "%s removed\n", policy.Printable(name))
	return nil
}

// printLine prints one line of a JSON stream.
func (a *app) printLine(v any) error {
	return a.encode(v, "")
}

// printError prints a refusal: for people, or as a problem document.
func (a *app) printError(err error) {
	a.progress.clear()
	d := policy.AsDiagnostic(err)
	if a.verbose && d.Cause != nil {
		fmt.Fprintf(a.stderr, "cause: %s\n", policy.Printable(d.Cause.Error()))
	}
	if a.json {
		a.printProblem(d)
		return
	}
	fmt.Fprintf(a.stderr, "yoi: %s\n", policy.Printable(d.Message))
	if list := d.Fields["paths"]; list != "" {
		fmt.Fprintf(a.stderr, "  %s\n", policy.Printable(list))
	}
	for i, it := range d.Items {
		if i == maxItemLines {
			fmt.Fprintf(a.stderr, "  and more: see --json\n")
			break
		}
		fmt.Fprintf(a.stderr, "  %s %s\n", policy.Printable(it.Kind), policy.Printable(it.Name))
	}
	if d.Hint != "" {
		fmt.Fprintf(a.stderr, "hint: %s\n", policy.Printable(d.Hint))
	}
	fmt.Fprintf(a.stderr, "code: %s\n", policy.Printable(string(d.Code)))
}

// maxItemLines is how many things of a refusal are listed for people.
const maxItemLines = 20

// printProblem prints a refusal as the API has it.
func (a *app) printProblem(d *policy.Diagnostic) {
	b, err := api.Marshal(api.ProblemOf(d))
	if err != nil { // strings and a number always encode
		panic(err)
	}
	fmt.Fprintf(a.stderr, "%s\n", b)
}

func (a *app) printUsage(cmd *cobra.Command, err error) {
	if a.json {
		a.printProblem(policy.Errorf(policy.CodeBadRequest, "yoi.usage", "%s", policy.Printable(err.Error())).WithHint("See %s --help.", cmd.CommandPath()))
		return
	}
	fmt.Fprintf(a.stderr, "yoi: %s\nusage: %s\nhint: %s --help\n", policy.Printable(err.Error()), cmd.UseLine(), cmd.CommandPath())
}

// printWarnings prints what stopped nothing.
func (a *app) printWarnings(ws []policy.Diagnostic) {
	a.progress.clear()
	for _, w := range ws {
		at := ""
		if path := w.Fields["path"]; path != "" {
			at = ": " + path
		}
		fmt.Fprintf(a.stderr, "yoi: warning: %s%s (%s)\n", policy.Printable(w.Message), policy.Printable(at), policy.Printable(string(w.Code)))
		if w.Hint != "" && a.verbose {
			fmt.Fprintf(a.stderr, "hint: %s\n", policy.Printable(w.Hint))
		}
	}
}

// table prints rows in columns. Every cell is made printable: names come from
// repositories and Workers.
func (a *app) table(header []string, rows [][]string) error {
	a.progress.clear()
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	line := func(cells []string) {
		out := make([]string, len(cells))
		for i, c := range cells {
			if out[i] = policy.Printable(c); out[i] == "" {
				out[i] = "-"
			}
		}
		fmt.Fprintln(w, strings.TrimRight(strings.Join(out, "\t"), "\t"))
	}
	line(header)
	for _, r := range rows {
		line(r)
	}
	return w.Flush()
}

// pairs prints name and value lines, leaving out what is empty.
func (a *app) pairs(kv ...string) error {
	a.progress.clear()
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	for i := 0; i+1 < len(kv); i += 2 {
		if kv[i+1] != "" {
			fmt.Fprintf(w, "%s\t%s\n", kv[i], policy.Printable(kv[i+1]))
		}
	}
	return w.Flush()
}

// ago is a time for people: how long past.
func ago(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	d := time.Since(t)
	switch {
	case d < time.Second:
		return "now"
	case d < time.Minute:
		return fmt.Sprintf("%ds ago", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh ago", int(d.Hours()))
	}
	return fmt.Sprintf("%dd ago", int(d.Hours()/24))
}

// size is a number of bytes for people.
func size(n int64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 10<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 10<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

func short(oid string) string {
	if len(oid) > 12 {
		return oid[:12]
	}
	return oid
}

// count is a number of things in words: "1 tree", "2 trees".
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	if strings.HasSuffix(thing, "ch") {
		thing += "e"
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// brokenPipe reports whether a write failed only because nobody reads any more.
func brokenPipe(err error) bool {
	return errors.Is(err, io.ErrClosedPipe) || errors.Is(err, errPipe)
}
