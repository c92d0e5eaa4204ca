package gitcache

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/gitcache/index"
	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

func TestCheckClean(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(t *testing.T, r testenv.Repo)
		want []string // in the diagnostic; nil means clean
	}{
		{"untouched", func(*testing.T, testenv.Repo) {}, nil},
		{"touched", func(t *testing.T, r testenv.Repo) {
			now := time.Now().Add(-time.Hour)
			if err := os.Chtimes(filepath.Join(r.Dir, "README.md"), now, now); err != nil {
				t.Fatal(err)
			}
		}, nil},
		{"ignored", func(t *testing.T, r testenv.Repo) {
			write(t, filepath.Join(r.Dir, ".git/info/exclude"), "junk\n")
			write(t, filepath.Join(r.Dir, "junk"), "x")
		}, nil},
		{"unstaged", func(t *testing.T, r testenv.Repo) { write(t, filepath.Join(r.Dir, "README.md"), "changed") }, []string{"1 unstaged", "unstaged README.md"}},
		{"same size and time", func(t *testing.T, r testenv.Repo) {
			path := filepath.Join(r.Dir, "README.md")
			st, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(1100 * time.Millisecond) // git compares whole seconds of the change time
			write(t, path, strings.Repeat("x", int(st.Size())))
			if err := os.Chtimes(path, st.ModTime(), st.ModTime()); err != nil {
				t.Fatal(err)
			}
		}, []string{"unstaged README.md"}},
		{"racy and clean", func(t *testing.T, r testenv.Repo) { racy(t, r) }, nil},
		{"racy and changed", func(t *testing.T, r testenv.Repo) {
			path := filepath.Join(r.Dir, "README.md")
			st, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			write(t, path, strings.Repeat("x", int(st.Size())))
			racy(t, r)
			entry := readEntry(t, r.Dir, "README.md")
			var now unix.Statx_t
			if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BASIC_STATS, &now); err != nil {
				t.Fatal(err)
			}
			entry(index.FromStatx(&now)) // the index says the changed file is what it saw
			racy(t, r)
		}, []string{"unstaged README.md"}},
		{"untracked deep", func(t *testing.T, r testenv.Repo) { write(t, filepath.Join(r.Dir, "src/new"), "x") }, []string{"untracked src/new"}},
		{"replaced", func(t *testing.T, r testenv.Repo) {
			os.Remove(filepath.Join(r.Dir, "Makefile"))
			write(t, filepath.Join(r.Dir, "makefile"), "x")
		}, []string{"unstaged Makefile", "untracked makefile"}},
		{"directory for a link", func(t *testing.T, r testenv.Repo) {
			os.Rename(filepath.Join(r.Dir, "src"), filepath.Join(r.Dir, ".git/src"))
			os.Symlink(".git/src", filepath.Join(r.Dir, "src"))
		}, []string{"unstaged src/main.c"}},
		{"staged and undone", func(t *testing.T, r testenv.Repo) {
			write(t, filepath.Join(r.Dir, "README.md"), "x")
			r.Git(t, "add", "README.md")
			r.Git(t, "show", "HEAD:README.md")
			os.WriteFile(filepath.Join(r.Dir, "README.md"), []byte(r.Git(t, "show", "HEAD:README.md")+"\n"), 0o644)
		}, []string{"staged README.md"}},
		{"other branch's index", func(t *testing.T, r testenv.Repo) { r.Git(t, "symbolic-ref", "HEAD", "refs/heads/topic") }, []string{"staged"}},
		{"deleted", func(t *testing.T, r testenv.Repo) { os.Remove(filepath.Join(r.Dir, "README.md")) }, []string{"unstaged README.md"}},
		{"mode", func(t *testing.T, r testenv.Repo) { os.Chmod(filepath.Join(r.Dir, "README.md"), 0o755) }, []string{"unstaged README.md"}},
		{"staged", func(t *testing.T, r testenv.Repo) {
			write(t, filepath.Join(r.Dir, "new"), "x")
			r.Git(t, "add", "new")
		}, []string{"1 staged", "staged new"}},
		{"untracked", func(t *testing.T, r testenv.Repo) {
			write(t, filepath.Join(r.Dir, "a\x1b[31m\nb"), "x")
		}, []string{"1 untracked", `untracked a\x1b[31m\nb`}},
		{"many", func(t *testing.T, r testenv.Repo) {
			for i := range 130 {
				write(t, filepath.Join(r.Dir, fmt.Sprintf("f%03d", i)), "x")
			}
		}, []string{"130 untracked", "untracked f019"}},
		{"staged and changed again", func(t *testing.T, r testenv.Repo) {
			write(t, filepath.Join(r.Dir, "README.md"), "x")
			r.Git(t, "add", "README.md")
			write(t, filepath.Join(r.Dir, "README.md"), "y")
		}, []string{"1 staged", "1 unstaged", "staged README.md", "unstaged README.md"}},
		{"conflict", func(t *testing.T, r testenv.Repo) {
			r.Git(t, "checkout", "-q", "-b", "left")
			write(t, filepath.Join(r.Dir, "README.md"), "left")
			r.Git(t, "commit", "-qam", "left")
			r.Git(t, "checkout", "-q", "main")
			write(t, filepath.Join(r.Dir, "README.md"), "right")
			r.Git(t, "commit", "-qam", "right")
			exec.Command("git", "-C", r.Dir, "merge", "left").Run()
		}, []string{"1 conflicted", "merge in progress"}},
		{"cherry-pick", func(t *testing.T, r testenv.Repo) { write(t, filepath.Join(r.Dir, ".git/CHERRY_PICK_HEAD"), "x") }, []string{"operation cherry-pick"}},
		{"am", func(t *testing.T, r testenv.Repo) { write(t, filepath.Join(r.Dir, ".git/rebase-apply/applying"), "") }, []string{"operation am"}},
		{"bisect", func(t *testing.T, r testenv.Repo) { r.Git(t, "bisect", "start") }, []string{"bisect in progress"}},
		{"rebase", func(t *testing.T, r testenv.Repo) { os.Mkdir(filepath.Join(r.Dir, ".git/rebase-merge"), 0o755) }, []string{"rebase in progress"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			repo := testenv.RepoSmall(t)
			src := f.source(repo.Dir)
			f.resolve(src, "HEAD") // or the fast answer could not be wrong
			old := time.Now().Add(-time.Hour)
			for _, name := range strings.Fields(repo.Git(t, "ls-files")) {
				if err := os.Chtimes(filepath.Join(repo.Dir, name), old, old); err != nil {
					t.Fatal(err)
				}
			}
			repo.Git(t, "update-index", "--refresh")
			c.make(t, repo)
			err := f.CheckClean(t.Context(), src)
			if c.want == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			d := wantCode(t, err, policy.CodeSourceDirty)
			for _, w := range c.want {
				if !strings.Contains(d.Message+"\n"+items(d), w) {
					t.Errorf("%q is not in %q %v", w, d.Message, d.Items)
				}
			}
			if len(d.Items) == 0 || len(d.Items) > 100 {
				t.Errorf("%d things are listed", len(d.Items))
			}
		})
	}
}

// items is a diagnostic's list, one thing to a line.
func items(d *policy.Diagnostic) string {
	var b strings.Builder
	for _, i := range d.Items {
		b.WriteString(i.Kind + " " + i.Name + "\n")
	}
	return b.String()
}

// racy makes the index as old as the oldest file, so that stat data proves nothing.
func racy(t *testing.T, r testenv.Repo) {
	t.Helper()
	old := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(filepath.Join(r.Dir, ".git/index"), old, old); err != nil {
		t.Fatal(err)
	}
}

// readEntry returns a function that replaces an entry's stat data.
func readEntry(t *testing.T, dir, path string) func(index.Stat) {
	t.Helper()
	return func(s index.Stat) {
		top, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer top.Close()
		x, err := readIndex(top)
		if err != nil {
			t.Fatal(err)
		}
		x.Patch(func(e index.Entry) (index.Stat, bool) { return s, string(e.Path) == path })
		if err := writeIndex(top, x); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCheckCleanKinds(t *testing.T) {
	for name, make := range map[string]func(testing.TB) testenv.Repo{
		"bare": testenv.RepoBare, "worktree": testenv.RepoWorktree, "submodules": testenv.RepoSubmodules, "lfs": testenv.RepoLFS,
		"odd": testenv.RepoOddNames, "bytes": testenv.RepoNonUTF8, "sha256": repoSHA256, "shallow": testenv.RepoShallow, "empty": testenv.RepoEmpty,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			if err := f.CheckClean(t.Context(), f.source(make(t).Dir)); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("linked worktree dirty", func(t *testing.T) {
		f := newFixture(t)
		repo := testenv.RepoWorktree(t)
		write(t, filepath.Join(repo.Dir, "README.md"), "changed")
		wantCode(t, f.CheckClean(t.Context(), f.source(repo.Dir)), policy.CodeSourceDirty)
	})
}

// stale makes every index entry of the repository's need a comparison.
func stale(t *testing.T, dir string) {
	t.Helper()
	now := time.Now()
	if err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Name() == ".git" {
			return filepath.SkipDir
		}
		if err == nil && d.Type().IsRegular() {
			return os.Chtimes(path, now, now)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func TestCheckCleanFiltered(t *testing.T) {
	f := newFixture(t)
	content := strings.Repeat("big\n", 1000)
	pointer, err := lfsPointer(strings.NewReader(content), int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	repo := testenv.RepoSmall(t)
	repo = testenv.Commit(t, repo, "filtered", map[string]*testenv.Entry{
		".gitattributes": {Data: "*.bin filter=lfs diff=lfs merge=lfs -text\n*.txt text eol=crlf\n"},
		"big.bin":        {Data: string(pointer)},
		"dos.txt":        {Data: "one\ntwo\n"},
		"plain.c":        {Data: "one\ntwo\n"},
	})
	src := f.source(repo.Dir)
	write(t, filepath.Join(repo.Dir, "big.bin"), content) // as git-lfs's smudge filter would
	stale(t, repo.Dir)
	if err := f.CheckClean(t.Context(), src); err != nil {
		t.Errorf("LFS content that matches its pointer: %v", err)
	}
	write(t, filepath.Join(repo.Dir, "big.bin"), content+"more")
	wantCode(t, f.CheckClean(t.Context(), src), policy.CodeSourceDirty)
	write(t, filepath.Join(repo.Dir, "big.bin"), content)
	write(t, filepath.Join(repo.Dir, "plain.c"), "one\r\ntwo\r\n")
	wantCode(t, f.CheckClean(t.Context(), src), policy.CodeSourceDirty) // nothing says that this is the same
}

// A user whose global autocrlf is true has CRLF in the tree and LF in the
// blobs, and says so nowhere in the repository.
func TestCheckCleanGlobalAutoCRLF(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoSmall(t)
	dir := filepath.Join(t.TempDir(), "clone")
	testenv.Git(t, "", "-c", "core.autocrlf=true", "clone", "--quiet", repo.Dir, dir)
	if b, _ := os.ReadFile(filepath.Join(dir, "README.md")); !strings.Contains(string(b), "\r\n") {
		t.Fatal("the clone has no CRLF")
	}
	for range 2 {
		if err := f.CheckClean(t.Context(), f.source(dir)); err != nil {
			t.Error(err)
		}
		// Racy: the index is not younger than the files.
		st, err := os.Stat(filepath.Join(dir, "README.md"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(filepath.Join(dir, ".git/index"), st.ModTime(), st.ModTime()); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "README.md"), "# other\r\n")
	wantCode(t, f.CheckClean(t.Context(), f.source(dir)), policy.CodeSourceDirty)
}

// Sources whose index is of another kind are clean too, and dirty when they are.
func TestCheckCleanIndexKinds(t *testing.T) {
	for name, make := range map[string]func(t *testing.T, r testenv.Repo){
		"version 4":       func(t *testing.T, r testenv.Repo) { r.Git(t, "update-index", "--index-version", "4") },
		"split":           func(t *testing.T, r testenv.Repo) { r.Git(t, "update-index", "--split-index") },
		"untracked cache": func(t *testing.T, r testenv.Repo) { r.Git(t, "update-index", "--untracked-cache") },
		"sparse":          func(t *testing.T, r testenv.Repo) { r.Git(t, "sparse-checkout", "set", "--cone", "doc") },
		"sparse index": func(t *testing.T, r testenv.Repo) {
			r.Git(t, "sparse-checkout", "set", "--cone", "--sparse-index", "doc")
		},
		"assume valid": func(t *testing.T, r testenv.Repo) { r.Git(t, "update-index", "--assume-unchanged", "Makefile") },
		"no index": func(t *testing.T, r testenv.Repo) {
			r.Git(t, "rm", "-rq", "--cached", ".")
			r.Git(t, "reset", "-q", "--mixed")
		},
		"packed refs":   func(t *testing.T, r testenv.Repo) { r.Git(t, "pack-refs", "--all") },
		"detached HEAD": func(t *testing.T, r testenv.Repo) { r.Git(t, "checkout", "-q", "--detach") },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			repo := testenv.Commit(t, testenv.RepoSmall(t), "doc", map[string]*testenv.Entry{"doc/x": {Data: "x"}, "other/y": {Data: "y"}})
			src := f.source(repo.Dir)
			make(t, repo)
			for range 2 { // before and after the cache knows HEAD
				if err := f.CheckClean(t.Context(), src); err != nil {
					t.Error(err)
				}
				f.resolve(src, "HEAD")
			}
			write(t, filepath.Join(repo.Dir, "README.md"), "changed")
			wantCode(t, f.CheckClean(t.Context(), src), policy.CodeSourceDirty)
		})
	}
}
