package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow/layers/imagetest"
)

// TestScripts runs the command line as a user would, on real repositories and
// in real sandboxes, as whoever runs the tests.
//
// Besides testscript's own commands there are
//
//	exits CODE COMMAND [ARG...]   run, and compare the exit code
//	capture NAME REGEXP FILE      set $NAME to the first group's match
//	makerepo DIR                  a repository of two commits and the tag v1
//	tree DIR FILE                 write a listing of DIR to FILE
//	makelayout DIR REF            an OCI layout with busybox in one layer
func TestScripts(t *testing.T) {
	layers := buildLayers(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Vars = append(e.Vars,
				"YOI_RUNTIME_ROOT="+filepath.Join(e.WorkDir, "rt"), "YOI_SOCKET=", "LANG=C.UTF-8", "YOI_LAYERS="+layers,
				"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
				"GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=C", "GIT_COMMITTER_EMAIL=c@example.com",
			)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "capture": capture, "makerepo": makerepo, "tree": tree,
			"makelayout": func(ts *testscript.TestScript, neg bool, args []string) { makelayout(t, ts, neg, args) },
		},
		Condition: func(cond string) (bool, error) {
			if cond == "root" {
				return os.Geteuid() == 0, nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
	})
}

// buildLayers builds the program that unpacks images, where every user can run it.
func buildLayers(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	out := filepath.Join(dir, "yoi-layers")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", out, "../yoi-layers")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building yoi-layers: %v\n%s", err, text)
	}
	return out
}

func makelayout(t *testing.T, ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: makelayout DIR REF")
	}
	img := imagetest.Image{Ref: args[1], Env: []string{"PATH=/bin"}, Compress: "gzip",
		Layers: [][]byte{imagetest.Layer(t, append(imagetest.Busybox(t), imagetest.File("etc/setuid", "x", 0o4755))...)}}
	for name, b := range imagetest.OCI(t, img) {
		file := filepath.Join(ts.MkAbs(args[0]), name)
		ts.Check(os.MkdirAll(filepath.Dir(file), 0o755))
		ts.Check(os.WriteFile(file, b, 0o644))
	}
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND [ARG...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var e *exec.ExitError
		if !errors.As(err, &e) {
			ts.Fatalf("%v", err)
		}
		got = e.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

func capture(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: capture NAME REGEXP FILE")
	}
	re, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	m := re.FindStringSubmatch(ts.ReadFile(args[2]))
	if len(m) < 2 {
		ts.Fatalf("%s does not match %q", args[2], args[1])
	}
	ts.Setenv(args[0], m[1])
}

func makerepo(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: makerepo DIR")
	}
	dir := ts.MkAbs(args[0])
	write := func(name, text string) {
		ts.Check(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		ts.Check(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	git := func(args ...string) {
		if err := ts.Exec("git", append([]string{"-C", dir}, args...)...); err != nil {
			ts.Fatalf("git %s: %v", args, err)
		}
	}
	ts.Check(os.MkdirAll(dir, 0o755))
	git("init", "-q", "-b", "main")
	write("a.txt", "one\n")
	write("src/b.c", "int b;\n")
	ts.Check(os.Symlink("/usr", filepath.Join(dir, "out")))
	git("add", ".")
	git("commit", "-q", "-m", "first commit")
	git("tag", "v1")
	write("a.txt", "two\n")
	git("commit", "-q", "-a", "-m", "second commit")
}

// tree writes one line per file: mode, size of what has one, name. Sizes of
// append-only files and of the database are left out; their names are not.
func tree(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: tree DIR FILE")
	}
	dir := ts.MkAbs(args[0])
	grows := regexp.MustCompile(`^(ledger/.*\.seg|runtime\.db.*|probe\.json|costs)$`)
	var lines []string
	ts.Check(filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if strings.HasPrefix(rel, "runtime.db-") {
			return nil // SQLite's own beside the database, which come and go
		}
		size := st.Size
		if d.IsDir() || grows.MatchString(rel) {
			size = 0
		}
		lines = append(lines, fmt.Sprintf("%06o %d %d %d %s", st.Mode, st.Uid, st.Nlink, size, rel))
		return nil
	}))
	slices.Sort(lines)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(strings.Join(lines, "\n")+"\n"), 0o644))
}
