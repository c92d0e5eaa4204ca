package helper

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestGitPrint changes a git directory in ways that a hostile Worker has, and in those
// that are no change.
func TestGitPrint(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"objects/aa", "refs/heads", "refs/tags", "logs/refs/heads", "worktrees/w"} {
		must(os.MkdirAll(in(d), 0o755))
	}
	for _, f := range []string{"HEAD", "config", "index", "objects/aa/b", "refs/heads/main", "logs/HEAD"} {
		must(os.WriteFile(in(f), []byte("one\n"), 0o644))
	}
	now := func() time.Time { return time.Now().Add(time.Hour) } // everything is old enough
	print := func(at time.Time) string {
		top, err := os.Open(dir)
		must(err)
		defer top.Close()
		return printOf(top, at)
	}
	last := print(now())
	if last == "" || print(now()) != last {
		t.Fatal("a git directory that nobody touches has no print, or several")
	}
	if got := print(time.Now()); got != "" {
		t.Error("what is changed just now is printed: the next change could have the same ctime")
	}
	old := time.Unix(1e9, 0)
	restore := func(name string) error { return os.Chtimes(in(name), old, old) }
	must(restore("refs/heads/main"))
	last = print(now())

	must(os.WriteFile(in("objects/aa/c"), nil, 0o644))
	must(os.WriteFile(in("index.lock"), []byte("two\n"), 0o644))
	must(os.Rename(in("index.lock"), in("index")))
	if print(now()) != last {
		t.Error("objects and the index count, which every git status writes")
	}

	for _, c := range []struct {
		name   string
		change func() error
	}{
		{"a ref in place, same size, mtime restored", func() error {
			f, err := os.OpenFile(in("refs/heads/main"), os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt([]byte("two"), 0)
			f.Close()
			if err == nil {
				err = restore("refs/heads/main")
			}
			return err
		}},
		{"a new branch", func() error { return os.WriteFile(in("refs/heads/new"), nil, 0o644) }},
		{"a branch renamed", func() error { return os.Rename(in("refs/heads/new"), in("refs/heads/old")) }},
		{"a branch removed", func() error { return os.Remove(in("refs/heads/old")) }},
		{"a reflog", func() error { return os.WriteFile(in("logs/refs/heads/main"), nil, 0o644) }},
		{"packed refs", func() error { return os.WriteFile(in("packed-refs"), nil, 0o644) }},
		{"a worktree's HEAD", func() error { return os.WriteFile(in("worktrees/w/HEAD"), nil, 0o644) }},
		{"a directory exchanged for a link", func() error {
			if err := os.Rename(in("refs/tags"), in("refs/away")); err != nil {
				return err
			}
			return os.Symlink("away", in("refs/tags"))
		}},
		{"a pipe", func() error { return unix.Mkfifo(in("refs/heads/pipe"), 0o644) }},
		{"a mode", func() error { return os.Chmod(in("config"), 0) }},
	} {
		must(c.change())
		if next := print(now()); next == last || next == "" {
			t.Errorf("%s is not seen", c.name)
		} else {
			last = next
		}
	}
	must(os.Mkdir(in("refs/heads/many"), 0o755))
	for i := range maxPrinted {
		must(os.WriteFile(in("refs/heads/many/"+time.Duration(i).String()), nil, 0o644))
	}
	if print(now()) != "" {
		t.Error("more files than are looked at are printed")
	}
}
