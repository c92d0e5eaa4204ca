// Command gotest runs `go test` with its arguments and says what matters: the
// closing line of each package, everything about what failed, and every skip
// with its reason. It exists because `go test` passes a package whose tests
// were all skipped: under CI (the variable CI is set) a skip that does not name
// a missing kernel feature fails the run.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"yoi.dev/yoi-runtime/internal/testenv"
)

func main() {
	args := append([]string{"test", "-json", "-count=1"}, os.Args[1:]...)
	cmd := exec.Command("go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		os.Exit(2)
	}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		os.Exit(2)
	}
	r := newRun(os.Stdout, testenv.CI())
	if err := r.read(out); err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		os.Exit(2)
	}
	err = cmd.Wait()
	if !r.close() || err != nil {
		os.Exit(1)
	}
}

// event is what `go test -json` prints: see `go doc test2json`.
type event struct {
	Action, Package, ImportPath, Test, Output string
}

type run struct {
	w                       io.Writer
	strict                  bool
	text                    map[string]*strings.Builder // by package and test
	passed, failed, skipped int
	skips                   []string        // what CI does not accept
	blamed                  map[string]bool // packages with a failed test
}

func newRun(w io.Writer, strict bool) *run {
	return &run{w: w, strict: strict, text: map[string]*strings.Builder{}, blamed: map[string]bool{}}
}

func (r *run) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				r.w.Write(line) // not an event: a message of the go command
			} else {
				r.handle(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *run) handle(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.w, e.Output)
	case "output":
		if e.Test == "" && closing(e.Output) {
			fmt.Fprint(r.w, e.Output)
			return
		}
		if r.text[key] == nil {
			r.text[key] = &strings.Builder{}
		}
		r.text[key].WriteString(e.Output)
	case "pass", "fail", "skip":
		r.end(e, key)
	}
}

// closing says whether a package's line is one that people and CI read.
func closing(line string) bool {
	return strings.HasPrefix(line, "ok  \t") || strings.HasPrefix(line, "FAIL\t") || strings.HasPrefix(line, "?   \t")
}

func (r *run) end(e event, key string) {
	said := ""
	if b := r.text[key]; b != nil {
		said = b.String()
	}
	delete(r.text, key)
	if e.Test == "" {
		// What belongs to no test: leaks, panics, a package that does not build.
		if e.Action == "fail" {
			fmt.Fprint(r.w, said)
			if !r.blamed[e.Package] {
				r.failed++
			}
		}
		return
	}
	switch e.Action {
	case "pass":
		r.passed++
	case "fail":
		r.failed++
		r.blamed[e.Package] = true
		fmt.Fprint(r.w, said)
	case "skip":
		r.skipped++
		reason := strings.Join(strings.Fields(said), " ")
		fmt.Fprintf(r.w, "skipped: %s %s: %s\n", e.Package, e.Test, reason)
		if r.strict && !strings.Contains(said, testenv.SkipMarker) {
			r.skips = append(r.skips, e.Package+" "+e.Test)
		}
	}
}

// close prints the summary and says whether the run was good. Text that is
// left belongs to tests that never ended: their process died.
func (r *run) close() bool {
	for _, key := range slices.Sorted(mapKeys(r.text)) {
		if !strings.HasSuffix(key, " ") {
			r.failed++
			fmt.Fprintf(r.w, "never ended: %s\n%s", key, r.text[key])
		}
	}
	for _, s := range r.skips {
		fmt.Fprintf(r.w, "skipped under CI without naming a missing kernel feature: %s\n", s)
	}
	fmt.Fprintf(r.w, "%d passed, %d failed, %d skipped\n", r.passed, r.failed+len(r.skips), r.skipped)
	return r.failed == 0 && len(r.skips) == 0 && r.passed > 0
}

func mapKeys(m map[string]*strings.Builder) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}
