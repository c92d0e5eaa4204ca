package index

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// worked is a checked-out repository whose index is older than none of its files.
func worked(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	git(t, "/", "init", "-q", dir)
	put := func(name, content string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 40 {
		put(fmt.Sprintf("d%d/e%d/f%d", i%3, i%5, i), strings.Repeat("x", i))
		put(fmt.Sprintf("d%d/g%d", i%3, i), "y")
	}
	put("top", "t")
	put("odd \xff\n", "o")
	if err := os.Symlink("top", filepath.Join(dir, "d0/link")); err != nil {
		t.Fatal(err)
	}
	git(t, dir, "add", ".")
	old := time.Now().Add(-time.Hour)
	err := filepath.WalkDir(dir, func(p string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && !strings.Contains(p, "/.git/") {
			err = os.Chtimes(p, old, old)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	git(t, dir, "update-index", "--refresh")
	git(t, dir, "commit", "-q", "-m", "x")
	return dir
}

// differing asks about a repository's working tree.
func differingIn(t *testing.T, dir string, x *Index, most int) (paths []string, ok bool) {
	t.Helper()
	tree, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	st, err := os.Stat(filepath.Join(dir, ".git/index"))
	if err != nil {
		t.Fatal(err)
	}
	list, ok := x.Differing(context.Background(), tree, st.ModTime(), most)
	for _, p := range list {
		paths = append(paths, string(p))
	}
	slices.Sort(paths)
	return paths, ok
}

// change does something to the working tree that a Worker might do.
func change(t *testing.T, dir string, r *rand.Rand, n int) {
	t.Helper()
	d := filepath.Join(dir, fmt.Sprintf("d%d", r.IntN(3)))
	sub := filepath.Join(d, fmt.Sprintf("e%d", r.IntN(5)))
	i := r.IntN(40)
	file := filepath.Join(dir, fmt.Sprintf("d%d/e%d/f%d", i%3, i%5, i))
	flat := filepath.Join(dir, fmt.Sprintf("d%d/g%d", i%3, i))
	fresh := filepath.Join(d, fmt.Sprintf("new%d", n))
	switch r.IntN(12) {
	case 0: // the same size, its time put back
		if st, err := os.Stat(flat); err == nil && st.Mode().IsRegular() {
			_ = os.WriteFile(flat, []byte("z"), 0o644)
			_ = os.Chtimes(flat, st.ModTime(), st.ModTime())
		}
	case 1:
		_ = os.WriteFile(file, []byte("longer than it was before, by far enough"), 0o644)
	case 2:
		_ = os.Remove(flat)
	case 3:
		_ = os.RemoveAll(sub)
	case 4:
		_ = os.Rename(sub, filepath.Join(d, fmt.Sprintf("moved%d", n)))
	case 5: // a directory where a file was
		_ = os.RemoveAll(flat)
		_ = os.MkdirAll(filepath.Join(flat, "in"), 0o755)
		_ = os.WriteFile(filepath.Join(flat, "in", "it"), []byte("new"), 0o644)
	case 6: // a file where a directory was
		_ = os.RemoveAll(sub)
		_ = os.WriteFile(sub, []byte("a file"), 0o644)
	case 7:
		_ = os.Remove(file)
		_ = os.Symlink("/etc/passwd", file)
	case 8:
		_ = os.WriteFile(fresh, []byte("fresh"), 0o644)
	case 9:
		_ = os.MkdirAll(fresh+"/a/b", 0o755)
		_ = os.WriteFile(fresh+"/a/b/c", []byte("deep"), 0o755)
	case 10:
		_ = os.Chmod(file, 0o755)
	case 11:
		_ = os.RemoveAll(flat)
		_ = os.Mkdir(flat, 0o755) // empty
	}
}

// TestDiffering changes working trees in every way, and has git stage just what is
// named: that makes the tree that `git add -A` makes.
func TestDiffering(t *testing.T) {
	for seed := range uint64(24) {
		dir := worked(t)
		x := parseFile(t, dir, 0)
		if paths, ok := differingIn(t, dir, x, 100); !ok || len(paths) > 0 {
			t.Fatalf("an untouched tree differs at %q, %v", paths, ok)
		}
		r := rand.New(rand.NewPCG(seed, 1))
		for n := range 1 + r.IntN(4) {
			change(t, dir, r, n)
		}
		paths, ok := differingIn(t, dir, x, 100)
		if !ok {
			t.Fatalf("seed %d: not told", seed)
		}
		few := filepath.Join(t.TempDir(), "index")
		b, err := os.ReadFile(filepath.Join(dir, ".git/index"))
		if err == nil {
			err = os.WriteFile(few, b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("git", "-C", dir, "update-index", "-z", "--add", "--remove", "--replace", "--stdin")
		cmd.Env = append(os.Environ(), "GIT_INDEX_FILE="+few)
		cmd.Stdin = strings.NewReader(strings.Join(append(paths, ""), "\x00"))
		if out, err := cmd.CombinedOutput(); err != nil {
			if strings.Contains(string(out), "beyond a symbolic link") { // who asked then looks at every file
				continue
			}
			t.Fatalf("seed %d: %q: %v\n%s", seed, paths, err, out)
		}
		cmd = exec.Command("git", "-C", dir, "write-tree")
		cmd.Env = append(os.Environ(), "GIT_INDEX_FILE="+few)
		got, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		git(t, dir, "add", "-A")
		if want := git(t, dir, "write-tree"); string(got) != want {
			t.Errorf("seed %d: with %q the tree is %s, by git add -A %s%s", seed, paths, got, want, git(t, dir, "status", "--porcelain"))
		}
	}
}

// TestDifferingIsTheList names exactly what was touched.
func TestDifferingIsTheList(t *testing.T) {
	dir := worked(t)
	x := parseFile(t, dir, 0)
	for _, err := range []error{
		os.WriteFile(filepath.Join(dir, "top"), []byte("u"), 0o644), os.Remove(filepath.Join(dir, "d1/g1")),
		os.WriteFile(filepath.Join(dir, "d2/new"), nil, 0o644), os.Remove(filepath.Join(dir, "odd \xff\n")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	paths, ok := differingIn(t, dir, x, 4)
	if want := []string{"d1/g1", "d2/new", "odd \xff\n", "top"}; !ok || !slices.Equal(paths, want) {
		t.Errorf("%q, %v; want %q", paths, ok, want)
	}
	if _, ok := differingIn(t, dir, x, 3); ok {
		t.Error("a list that is too long is told")
	}
}

// TestDifferingGivesUp: what is odd is never "no difference".
func TestDifferingGivesUp(t *testing.T) {
	for name, do := range map[string]func(dir string) error{
		"a pipe":            func(d string) error { return unix.Mkfifo(d+"/d0/pipe", 0o644) },
		"a socket":          func(d string) error { return unix.Mknod(d+"/d0/socket", unix.S_IFSOCK|0o644, 0) },
		"a nested .git":     func(d string) error { return os.Mkdir(d+"/d0/.git", 0o755) },
		"a .git far below":  func(d string) error { return os.MkdirAll(d+"/d0/new/repo/.git", 0o755) },
		"a .git file":       func(d string) error { return os.WriteFile(d+"/d0/.git", []byte("gitdir: /"), 0o644) },
		"very many names":   func(d string) error { return many(d+"/d1", 200) },
		"many new names":    func(d string) error { return errors.Join(os.Mkdir(d+"/n", 0o755), many(d+"/n", 200)) },
		"many directories":  func(d string) error { return chain(d+"/deep", 150) },
		"many gone entries": func(d string) error { return os.RemoveAll(d + "/d0") },
	} {
		dir := worked(t)
		x := parseFile(t, dir, 0)
		if err := do(dir); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if paths, ok := differingIn(t, dir, x, 20); ok {
			t.Errorf("with %s it is told: %q", name, paths)
		}
	}
	dir := worked(t) // a link in a directory's place leads nowhere
	x := parseFile(t, dir, 0)
	outside := t.TempDir()
	if err := errors.Join(os.Rename(dir+"/d0/e0", outside+"/e0"), os.Symlink(outside+"/e0", dir+"/d0/e0")); err != nil {
		t.Fatal(err)
	}
	paths, ok := differingIn(t, dir, x, 100)
	if !ok || !slices.Contains(paths, "d0/e0") || !slices.Contains(paths, "d0/e0/f0") {
		t.Errorf("a link where a directory was: %q, %v", paths, ok)
	}
}

// TestDifferingWithASubmodule: an empty directory is as it was checked out.
func TestDifferingWithASubmodule(t *testing.T) {
	dir := worked(t)
	head := strings.TrimSpace(git(t, dir, "rev-parse", "HEAD"))
	git(t, dir, "update-index", "--add", "--cacheinfo", "160000,"+head+",d0/sub")
	x := parseFile(t, dir, 0)
	if paths, ok := differingIn(t, dir, x, 10); !ok || !slices.Equal(paths, []string{"d0/sub"}) {
		t.Errorf("a missing one: %q, %v", paths, ok)
	}
	if err := os.Mkdir(dir+"/d0/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	if paths, ok := differingIn(t, dir, x, 10); !ok || len(paths) > 0 {
		t.Errorf("an empty one: %q, %v", paths, ok)
	}
	if err := os.WriteFile(dir+"/d0/sub/file", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, ok := differingIn(t, dir, x, 10); ok {
		t.Error("a populated one is told")
	}
}

func many(dir string, n int) error {
	for i := range n {
		if err := os.WriteFile(fmt.Sprintf("%s/many%d", dir, i), nil, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func chain(dir string, n int) error {
	return os.MkdirAll(dir+string(bytes.Repeat([]byte("/d"), n)), 0o755)
}
