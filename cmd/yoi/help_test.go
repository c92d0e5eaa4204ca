package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"yoi.dev/yoi-runtime/policy"
)

// walk calls f for every command of ours; cobra's own two come at execution.
func walk(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, child := range c.Commands() {
		walk(child, f)
	}
}

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	n := 0
	walk(newApp().command(), func(c *cobra.Command) {
		n++
		switch {
		case c.Short == "":
			t.Errorf("%s: no summary", c.CommandPath())
		case c.Example == "":
			t.Errorf("%s: no example", c.CommandPath())
		}
		for line := range strings.Lines(c.Example) {
			checkExample(t, c, strings.TrimSpace(line))
		}
	})
	if n < 30 {
		t.Errorf("only %d commands", n)
	}
}

// checkExample parses an example's flags with the command that it names, which
// must be the one it belongs to or one below.
func checkExample(t *testing.T, c *cobra.Command, line string) {
	t.Helper()
	line, _, _ = strings.Cut(line, " > ") // the shell's
	words := strings.Fields(line)
	if len(words) == 0 || words[0] != "yoi" {
		t.Errorf("%s: the example %q is no command line of yoi", c.CommandPath(), line)
		return
	}
	root := newApp().command()
	found, rest, err := root.Find(words[1:])
	if err != nil {
		t.Errorf("%s: %q: %v", c.CommandPath(), line, err)
		return
	}
	if !strings.HasPrefix(found.CommandPath(), c.CommandPath()) {
		t.Errorf("%s: the example %q is of %s", c.CommandPath(), line, found.CommandPath())
	}
	if err := found.ParseFlags(rest); err != nil {
		t.Errorf("%s: %q: %v", c.CommandPath(), line, err)
	}
	if err := found.ValidateArgs(found.Flags().Args()); err != nil {
		t.Errorf("%s: %q: %v", c.CommandPath(), line, err)
	}
}

// TestUsageErrors is every command with a flag and with arguments that it does
// not have: 2, or for run and exec 125, a usage line, and nothing done.
func TestUsageErrors(t *testing.T) {
	root := filepath.Join(t.TempDir(), "rt")
	walk(newApp().command(), func(c *cobra.Command) {
		path := strings.Fields(c.CommandPath())[1:]
		tries := [][]string{append(path, "--no-such-flag")}
		if c.Args != nil && c.Args(c, nil) != nil {
			tries = append(tries, path)
		}
		if c.Name() != "run" && c.ValidateArgs(many()) != nil {
			tries = append(tries, append(path, many()...))
		}
		for _, args := range tries {
			code, out, errOut := call(t, append([]string{"--runtime-root", root}, args...)...)
			want := exitUsage
			if ownCode(c) {
				want = 125
			}
			if code != want || out != "" || !strings.Contains(errOut, "\nusage: yoi") || !strings.Contains(errOut, "--help") {
				t.Errorf("%v: exit %d, stdout %q, stderr %q", args, code, out, errOut)
			}
		}
	})
	if _, err := os.Stat(root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a usage error made the Runtime root: %v", err)
	}
}

func many() []string { return []string{"x", "x", "x", "x"} }

// call runs the program in this process.
func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var files [2]*os.File
	for i := range files {
		f, err := os.CreateTemp(t.TempDir(), "out")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files[i] = f
	}
	a := &app{stdout: files[0], stderr: files[1], progress: newProgress(files[1])}
	code = a.main(args)
	var texts [2]string
	for i, f := range files {
		b, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = string(b)
	}
	return code, texts[0], texts[1]
}

// TestHintsNameCommandsThatExist: what a diagnostic tells to run must be there.
func TestHintsNameCommandsThatExist(t *testing.T) {
	re := regexp.MustCompile(`\byoi((?: [a-z]+)+)`)
	n := 0
	for _, i := range policy.Catalog() {
		for _, m := range re.FindAllStringSubmatch(i.Hint, -1) {
			n++
			root := newApp().command()
			found, rest, err := root.Find(strings.Fields(m[1]))
			if err != nil || found == root || found.HasSubCommands() && len(rest) > 0 {
				t.Errorf("%s: its hint %q names no command: %v", i.Code, i.Hint, err)
			}
		}
	}
	if n < 15 {
		t.Errorf("only %d commands in hints", n)
	}
}
