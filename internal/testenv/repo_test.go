package testenv

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestReposAreClean(t *testing.T) {
	for name, make := range map[string]func(testing.TB) Repo{
		"small": RepoSmall, "odd": RepoOddNames, "bytes": RepoNonUTF8, "shallow": RepoShallow,
		"worktree": RepoWorktree, "submodules": RepoSubmodules, "lfs": RepoLFS, "real": RepoReal,
	} {
		t.Run(name, func(t *testing.T) {
			r := make(t)
			if s := r.Git(t, "status", "--porcelain"); s != "" {
				t.Errorf("not clean:\n%s", s)
			}
			if len(r.Commit) != 40 || len(r.Tree) != 40 {
				t.Errorf("%+v", r)
			}
			if out, err := tryGit(r.Dir, nil, "fsck", "--strict", "--no-progress"); err != nil {
				t.Errorf("fsck: %v\n%s", err, out)
			}
		})
	}
}

func TestRepoNames(t *testing.T) {
	for name, c := range map[string]struct {
		make  func(testing.TB) Repo
		names []string
	}{"odd": {RepoOddNames, OddNames()}, "bytes": {RepoNonUTF8, NonUTF8Names()}} {
		t.Run(name, func(t *testing.T) {
			r := c.make(t)
			listed := strings.Split(r.Git(t, "ls-files", "-z"), "\x00")
			for _, n := range c.names {
				if !slices.Contains(listed, n) {
					t.Errorf("%q is not in the index", n)
				}
				if _, err := os.Lstat(filepath.Join(r.Dir, n)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestRepoFiles(t *testing.T) {
	for _, n := range []int{1000, 10000} {
		r := RepoFiles(t, n)
		if got := strings.Count(r.Git(t, "ls-tree", "-r", "--name-only", "HEAD")+"\n", "\n"); got != n {
			t.Errorf("%d files, want %d", got, n)
		}
		if got := r.Git(t, "rev-list", "--count", "HEAD"); got != "2" {
			t.Errorf("%s commits", got)
		}
	}
	a, b := RepoFiles(t, 1000), RepoFilesCheckedOut(t, 1000)
	if a.Commit != b.Commit || a.Dir == b.Dir {
		t.Errorf("%+v %+v", a, b)
	}
}

func TestRepoKinds(t *testing.T) {
	if out, err := tryGit(RepoEmpty(t).Dir, nil, "rev-parse", "--verify", "HEAD"); err == nil {
		t.Errorf("the empty one has a commit: %s", out)
	}
	if got := RepoShallow(t).Git(t, "rev-parse", "--is-shallow-repository"); got != "true" {
		t.Error("not shallow")
	}
	if got := RepoBare(t).Git(t, "rev-parse", "--is-bare-repository"); got != "true" {
		t.Error("not bare")
	}
	if st, err := os.Lstat(filepath.Join(RepoWorktree(t).Dir, ".git")); err != nil || !st.Mode().IsRegular() {
		t.Errorf("a linked worktree's .git is a file: %v %v", st, err)
	}
	sub := RepoSubmodules(t)
	if got := sub.Git(t, "submodule", "status"); !strings.Contains(got, "-") || !strings.Contains(got, " sub ") {
		t.Errorf("submodules:\n%s", got)
	}
	real := RepoReal(t)
	if got := real.Git(t, "tag"); got != "v0.1.0\nv0.2.0\nv0.3.0" {
		t.Errorf("tags %q", got)
	}
	if got := real.Git(t, "diff", "--name-status", "-M", "v0.2.0", "v0.3.0", "--", "README.md", "docs"); !strings.HasPrefix(got, "R100") {
		t.Errorf("no rename: %q", got)
	}
}

func TestCommit(t *testing.T) {
	r := RepoSmall(t)
	n := Commit(t, r, "more", map[string]*Entry{"new": {Data: "n"}, "Makefile": nil})
	if got := n.Git(t, "rev-parse", "HEAD^"); got != r.Commit {
		t.Errorf("parent %s, want %s", got, r.Commit)
	}
	if got := n.Git(t, "show", "--name-status", "--format=", "HEAD"); got != "D\tMakefile\nA\tnew" {
		t.Errorf("%q", got)
	}
	if n.Git(t, "status", "--porcelain") != "" {
		t.Error("not clean")
	}
	if e := Commit(t, RepoEmpty(t), "first", map[string]*Entry{"f": {}}); len(e.Commit) != 40 {
		t.Errorf("%+v", e)
	}
}
