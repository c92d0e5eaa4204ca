package gitcache

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

func contextWithTimeout(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}

func TestWorktree(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoSmall(t)
	src := f.source(repo.Dir)
	p := f.resolve(src, "HEAD")
	dir := filepath.Join(t.TempDir(), "small")
	tree, _, err := f.AddWorktree(t.Context(), p, "ws-1", dir)
	if err != nil || tree.Entries != strings.Count(repo.Git(t, "ls-files"), "\n")+1 {
		t.Fatalf("%+v, %v", tree, err)
	}
	if held := f.journal.list(); len(held) != 1 || !strings.HasPrefix(held[0], "worktree_admin ") {
		t.Errorf("held: %q", held)
	}
	top, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	if err := f.WriteGitDir(t.Context(), top, p, GitDirOptions{}); err != nil {
		t.Fatal(err)
	}
	if reads := contentReads(t, f, p, dir); len(reads) != 0 {
		t.Errorf("reads: %q", reads)
	}
	noHostPaths(t, f, dir)
	// The admin entry is a pin.
	forcePush(t, repo)
	if _, err := f.Fetch(t.Context(), src); err != nil {
		t.Fatal(err)
	}
	gc := func() {
		if _, err := f.GC(t.Context(), src.ID, GCOptions{UnusedFor: expireNow, Expire: expireNow}); err != nil {
			t.Fatal(err)
		}
	}
	gc()
	run(t, "git", "--git-dir="+f.bare("small"), "worktree", "prune", "--expire=now")
	if !f.has("small", p.CommitID) {
		t.Error("the worktree's commit is lost")
	}
	wantCode(t, f.Remove(t.Context(), src.ID), policy.CodeRepositoryInUse)
	// A Worker may have made anything of the tree.
	if err := os.RemoveAll(filepath.Join(dir, ".git")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, ".git"), "gitdir: /etc\n")
	for range 2 {
		if err := f.RemoveWorktree(t.Context(), src.ID, "ws-1"); err != nil {
			t.Fatal(err)
		}
	}
	if entries, _ := os.ReadDir(f.bare("small") + "/worktrees"); len(entries) != 0 || len(f.journal.list()) != 0 {
		t.Errorf("left: %v, %q", entries, f.journal.list())
	}
	gc()
	if f.has("small", p.CommitID) {
		t.Error("the commit is kept for nobody")
	}
}

func TestConcurrentWorktrees(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoSmall(t)
	p := f.resolve(f.source(repo.Dir), "HEAD")
	base := t.TempDir()
	var wg sync.WaitGroup
	for i := range 40 {
		id := policy.AllocationID(fmt.Sprintf("ws-%d", i))
		wg.Go(func() {
			if _, _, err := f.AddWorktree(t.Context(), p, id, filepath.Join(base, string(id), "small")); err != nil {
				t.Errorf("add %s: %v", id, err)
			}
			if i%3 == 0 {
				if err := f.RemoveWorktree(t.Context(), p.RepositoryID, id); err != nil {
					t.Errorf("remove %s: %v", id, err)
				}
			}
		})
	}
	wg.Wait()
	entries, err := os.ReadDir(f.bare("small") + "/worktrees")
	if err != nil || len(entries) != 26 {
		t.Errorf("%d entries, %v; want 26", len(entries), err)
	}
}

func TestHalfMadeWorktreeIsDropped(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoSmall(t)
	p := f.resolve(f.source(repo.Dir), "HEAD")
	half := f.bare("small") + "/worktrees/half"
	write(t, filepath.Join(half, "locked"), "initializing")
	write(t, filepath.Join(f.bare("small"), "worktrees/quarter/HEAD"), "junk")
	if _, _, err := f.AddWorktree(t.Context(), p, "ws-1", filepath.Join(t.TempDir(), "w")); err != nil {
		t.Fatal(err)
	}
	if entries, _ := os.ReadDir(f.bare("small") + "/worktrees"); len(entries) != 1 {
		t.Errorf("entries %v", entries)
	}
}

func TestEvict(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoSmall(t)
	src := f.source(repo.Dir)
	var trees []*Pristine
	for _, rev := range []string{"HEAD~2", "HEAD~1", "HEAD"} {
		tree, _, err := f.Pristine(t.Context(), f.resolve(src, rev))
		if err != nil {
			t.Fatal(err)
		}
		trees = append(trees, tree)
		time.Sleep(10 * time.Millisecond)
	}
	if err := trees[1].Acquire(t.Context(), "ws-1"); err != nil {
		t.Fatal(err)
	}
	trees[0].Close()
	trees[1].Close()
	dry, err := f.Evict(t.Context(), 0, true)
	if err != nil || !exists(f.path(trees[0].RelPath)) {
		t.Fatalf("a dry run removes: %v", err)
	}
	rep, err := f.Evict(t.Context(), 0, false) // 0 is free, 1 has a holder, 2 is open
	if err != nil || len(rep.Removed) != 1 || rep.InUseSkipped != 2 || !strings.HasSuffix(rep.Removed[0], trees[0].Key) {
		t.Errorf("%+v, %v", rep, err)
	}
	if !reflect.DeepEqual(dry, rep) {
		t.Errorf("the dry run says %+v", dry)
	}
	if exists(f.path(trees[0].RelPath)) || !exists(f.path(trees[1].RelPath)) || !exists(f.path(trees[2].RelPath)) {
		t.Error("the wrong tree is gone")
	}
	wantCode(t, f.Remove(t.Context(), src.ID), policy.CodeRepositoryInUse)
	for range 2 {
		if err := f.ReleasePristine(t.Context(), src.ID, trees[1].Key, "ws-1"); err != nil {
			t.Fatal(err)
		}
	}
	trees[2].Close()
	rep, err = f.Evict(t.Context(), trees[2].Bytes, false) // the least recently used goes
	if err != nil || len(rep.Removed) != 1 || !strings.HasSuffix(rep.Removed[0], trees[1].Key) {
		t.Errorf("%+v, %v", rep, err)
	}
	if len(f.journal.list()) != 0 {
		t.Errorf("held %q", f.journal.list())
	}
	f.pristine(f.resolve(src, "HEAD~2")) // and can be built again
	infos, err := f.List(t.Context())
	if err != nil || len(infos) != 1 || infos[0].Trees != 2 || infos[0].CacheBytes == 0 {
		t.Errorf("%+v, %v", infos, err)
	}
}

func TestRemoveRepository(t *testing.T) {
	f := newFixture(t)
	src := f.source(testenv.RepoSmall(t).Dir)
	tree, _, err := f.Pristine(t.Context(), f.resolve(src, "HEAD"))
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, f.Remove(t.Context(), src.ID), policy.CodeRepositoryInUse)
	tree.Close()
	for range 2 {
		if err := f.Remove(t.Context(), src.ID); err != nil {
			t.Fatal(err)
		}
	}
	if entries, _ := os.ReadDir(f.dir); len(entries) != 0 {
		t.Errorf("left: %v", entries)
	}
	if _, _, err := f.Pristine(t.Context(), policy.RepositoryPoint{RepositoryID: "small", CommitID: strings.Repeat("a", 40), TreeID: strings.Repeat("a", 40)}); err == nil {
		t.Error("a tree of nothing")
	}
}

// What git writes into a plain clone is what a pristine tree holds.
func TestSameAsPlainClone(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoSmall(t)
	repo = testenv.Commit(t, repo, "attributes", map[string]*testenv.Entry{
		".gitattributes": {Data: "*.crlf text eol=crlf\n*.id ident\n*.u16 working-tree-encoding=UTF-16LE\n*.lf text\n*.evil filter=evil\n"},
		"a.crlf":         {Data: "one\ntwo\n"}, "b.id": {Data: "$Id$\n"}, "c.u16": {Data: "x\n"}, "d.lf": {Data: "y\n"}, "e.evil": {Data: "z\n"},
		"dos": {Data: "kept\r\n"},
	})
	p := f.resolve(f.source(repo.Dir), "HEAD")
	ws := f.workspace(p, GitDirOptions{})
	clone := filepath.Join(t.TempDir(), "clone")
	testenv.Git(t, "", "clone", "--quiet", repo.Dir, clone)
	run(t, "diff", "-r", "--exclude=.git", clone, ws)
	if b, err := os.ReadFile(filepath.Join(ws, "a.crlf")); err != nil || string(b) != "one\r\ntwo\r\n" {
		t.Errorf("a.crlf is %q, %v", b, err)
	}
	if reads := contentReads(t, f, p, ws); len(reads) > 1 { // .gitattributes itself is read
		t.Errorf("reads %q", reads)
	}
}

func TestTreeModesAndTimes(t *testing.T) {
	f := newFixture(t)
	defer unix.Umask(unix.Umask(0o077)) // a daemon's must not reach the Worker's files
	repo := testenv.RepoOddNames(t)
	p := f.resolve(f.source(repo.Dir), "HEAD")
	tree, _ := f.pristine(p)
	err := filepath.WalkDir(f.path(tree.RelPath), func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Name() == ".git" {
			return filepath.SkipDir
		}
		st, err := os.Lstat(path)
		if err != nil {
			return err
		}
		if m := st.Mode(); m.IsRegular() && m.Perm() != 0o644 && m.Perm() != 0o755 || m.IsDir() && m.Perm() != 0o755 {
			t.Errorf("%q has mode %v", path, m)
		}
		if !st.ModTime().Equal(p.CommittedAt) {
			t.Errorf("%q is of %v, want %v", path, st.ModTime(), p.CommittedAt)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	// The objects are read by another user of the host, through a bind mount.
	for _, dir := range []string{f.bare("odd") + "/objects", f.path(tree.RelPath + "/.git")} {
		if out := run(t, "find", dir, "-not", "-perm", "-o=r"); out != "" {
			t.Errorf("not readable by others:\n%s", out)
		}
	}
}

func TestBranchNames(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "agent/one": true, "feature-1.2": true, "ü": true,
		"": false, "-x": false, "HEAD": false, "@": false, "a..b": false, "a//b": false, "/a": false, "a/": false, "a.lock": false,
		"a/.b": false, "a b": false, "a~1": false, "a^": false, "a:b": false, "a?": false, "a*": false, "a[": false, `a\b`: false,
		"a@{b": false, "a\n": false, "a.": false, "../../x": false,
	} {
		if validBranch(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
}
