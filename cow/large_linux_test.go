package cow

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

// A hundred thousand files arrive and go, counted by the file system itself.
func TestHundredThousandFiles(t *testing.T) {
	testenv.Long(t)
	noLeaks(t)
	const dirs, each = 1000, 100
	fs := testenv.TmpFS(t, 1024)
	must(t, unix.Mount("", fs, "", unix.MS_REMOUNT, "nr_inodes=300000"))
	inodes := func() uint64 {
		var st unix.Statfs_t
		must(t, unix.Statfs(fs, &st))
		return st.Files - st.Ffree
	}
	empty := inodes()
	for d := range dirs {
		dir := filepath.Join(fs, "source", fmt.Sprint(d))
		must(t, os.MkdirAll(dir, 0o755))
		for f := range each {
			must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(f)), nil, 0o644))
		}
	}
	tree := inodes() - empty
	r := job(t, fs)
	res, err := treeCopy{}.Materialize(t.Context(), r)
	if err != nil || res.Files != dirs*each || res.Directories != dirs {
		t.Fatalf("%+v %v", res, err)
	}
	if got := inodes() - empty; got != 2*tree {
		t.Errorf("%d inodes, want twice %d", got, tree)
	}
	for _, name := range []string{"target", "source"} {
		must(t, RemoveTree(t.Context(), r.TargetParent, name, RemoveOptions{}))
	}
	must(t, r.Source.Close()) // the last inode is held by it
	if got := inodes(); got != empty {
		t.Errorf("%d inodes are left of %d", got-empty, 2*tree)
	}
}

// What the caller may not read is said by name, and what was made before it
// can be removed.
func TestUnreadableSource(t *testing.T) {
	testenv.AsUser(t, ordinary, func(t *testing.T) {
		for _, hidden := range []string{"a/file", "a"} {
			dir := t.TempDir()
			plant(t, dir, "source/a/file", "source/b/c")
			locked := filepath.Join(dir, "source", hidden)
			must(t, os.Chmod(locked, 0))
			r := job(t, dir)
			_, err := treeCopy{clone: true}.Materialize(t.Context(), r)
			d := policy.AsDiagnostic(err)
			if d == nil || d.Code != policy.CodeSourceUnreadable || d.Fields["path"] != hidden || !errors.Is(err, unix.EACCES) {
				t.Errorf("%s: got %v", hidden, err)
			}
			must(t, RemoveTree(t.Context(), r.TargetParent, "target", RemoveOptions{}))
			must(t, os.Chmod(locked, 0o700))
		}
	})
}

// The package's other platforms compile, with their tests.
func TestOtherPlatformsCompile(t *testing.T) {
	testenv.Long(t)
	goTool, err := exec.LookPath("go")
	must(t, err)
	cmd := exec.Command(goTool, "vet", ".", "./cowtest")
	cmd.Env = append(os.Environ(), "GOOS=darwin", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
