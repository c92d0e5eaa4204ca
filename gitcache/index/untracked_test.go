package index

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// cached gives a repository's index an untracked cache, as a workspace gets it.
func cached(t *testing.T, dir string) {
	t.Helper()
	x := parseFile(t, dir, 0)
	top, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	if err := x.AddUntracked(top, dir, uint32(os.Getuid()), uint32(os.Getgid())); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".git/index"), x.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	if !parseFile(t, dir, 0).HasUntracked() {
		t.Fatal("what was written is not read")
	}
}

// ignoring is a repository with an old working tree, ignored and odd names in it.
func ignoring(t *testing.T, format string) string {
	t.Helper()
	dir := t.TempDir()
	git(t, "/", "init", "-q", "--object-format="+format, dir)
	for name, content := range map[string]string{
		"top": "t", ".gitignore": "*.o\n", "a/f": "f", "a-b/f": "f", "a.b/f": "f", "a/b/c/d/e/f": "f", "a/.gitignore": "",
		"z/.gitignore": "!x.o\n", "z/deep/f": "f", "odd \xff\n/f": "f", "build/kept": "k", "build/.gitignore": "*\n!kept\n",
	} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 200 { // more than the bits of a word
		name := fmt.Sprintf("many/%d/f", i)
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("z", filepath.Join(dir, "a/link")); err != nil {
		t.Fatal(err)
	}
	oid := strings.Repeat("1", map[string]int{"sha1": 40, "sha256": 64}[format])
	if err := os.MkdirAll(filepath.Join(dir, "third/party"), 0o755); err != nil {
		t.Fatal(err)
	}
	git(t, dir, "add", "-f", ".")
	git(t, dir, "update-index", "--add", "--cacheinfo", "160000,"+oid+",third/party")
	git(t, dir, "commit", "-q", "-m", "x")
	if err := os.WriteFile(filepath.Join(dir, ".git/info/exclude"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	err := filepath.WalkDir(dir, func(p string, e os.DirEntry, err error) error {
		if err == nil && e.Type()&os.ModeSymlink == 0 {
			err = os.Chtimes(p, old, old)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	git(t, dir, "update-index", "--refresh")
	return dir
}

var openedDirs = regexp.MustCompile(`opendir:(\d+)`)

// opened is what git status says, and how many directories it lists for that.
func opened(t *testing.T, dir string) (string, int) {
	t.Helper()
	trace := filepath.Join(t.TempDir(), "trace")
	cmd := exec.Command("git", "-C", dir, "status", "--porcelain")
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_TRACE2_PERF="+trace)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	m := openedDirs.FindSubmatch(b)
	if m == nil {
		t.Fatalf("git uses no untracked cache:\n%s\n%s", out, b)
	}
	n, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return string(out), n
}

// TestUntracked: git takes the cache for its own, lists no directory that is as it was,
// and says of changes what it says without.
func TestUntracked(t *testing.T) {
	for _, format := range []string{"sha1", "sha256"} {
		t.Run(format, func(t *testing.T) {
			dir := ignoring(t, format)
			cached(t, dir)
			if out, n := opened(t, dir); out != "" || n != 0 {
				t.Errorf("nothing has changed, but git lists %d directories and says %q", n, out)
			}
			if err := os.WriteFile(filepath.Join(dir, "a/b/c/new"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			if out, n := opened(t, dir); out != "?? a/b/c/new\n" || n != 1 {
				t.Errorf("of one new file git lists %d directories and says %q", n, out)
			}
			if out := git(t, dir, "-c", "core.untrackedCache=false", "status", "--porcelain"); out != "?? a/b/c/new\n" {
				t.Errorf("without the cache git says %q", out)
			}
		})
	}
}

// TestUntrackedIsNeverStale makes changes of every kind, one after another, and asks
// git with the cache and without.
func TestUntrackedIsNeverStale(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 1))
	dir := ignoring(t, "sha1")
	cached(t, dir)
	dirs := []string{".", "a", "a-b", "a/b", "a/b/c/d/e", "z", "z/deep", "build", "many/7", "third/party", "fresh", "fresh/er", "odd \xff\n"}
	names := []string{"new", "x.o", "f", ".gitignore", "kept", "sub"}
	for step := range 150 {
		name := filepath.Join(dir, dirs[r.IntN(len(dirs))], names[r.IntN(len(names))])
		var err error
		switch r.IntN(6) {
		case 0, 1:
			if err = os.MkdirAll(filepath.Dir(name), 0o755); err == nil {
				err = os.WriteFile(name, []byte("*.o\nf\n"), 0o644)
			}
		case 2:
			err = os.Remove(name)
		case 3:
			err = os.MkdirAll(name, 0o755)
		case 4:
			err = os.Rename(filepath.Dir(name), filepath.Join(dir, "many", strconv.Itoa(r.IntN(300))))
		case 5:
			_ = exec.Command("git", "-C", dir, "add", name).Run() // ignored, or not there
		}
		_ = err // not every step is possible: there is a directory, or nothing
		plain := git(t, dir, "--no-optional-locks", "-c", "core.untrackedCache=false", "status", "--porcelain")
		with := git(t, dir, "status", "--porcelain")
		if plain != with {
			t.Fatalf("seed %d, step %d: with the cache git says\n%s\nand without\n%s", seed, step, with, plain)
		}
	}
}

// TestUntrackedNeedsEveryFile: where the index does not tell what is in the tree there is no cache.
func TestUntrackedNeedsEveryFile(t *testing.T) {
	for name, change := range map[string][]string{
		"sparse":   {"update-index", "--skip-worktree", "a/f"},
		"conflict": {"update-index", "--index-info"},
	} {
		dir := ignoring(t, "sha1")
		cmd := exec.Command("git", append([]string{"-C", dir}, change...)...)
		cmd.Stdin = strings.NewReader("100644 " + strings.Repeat("2", 40) + " 1\tconflict\n")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		x := parseFile(t, dir, 0)
		top, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := x.AddUntracked(top, dir, 0, 0); err != nil || x.untracked != nil {
			t.Errorf("%s: %v, a cache of %d bytes", name, err, len(x.untracked))
		}
		top.Close()
	}
}
