package gitcache

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

const expireNow = time.Nanosecond

func (f *fixture) bare(id string) string { return f.path("repository-cache/git/" + id + "/bare.git") }

func (f *fixture) has(id, oid string) bool {
	cmd := exec.Command("git", "--git-dir="+f.bare(id), "rev-list", "--objects", "--quiet", oid)
	return cmd.Run() == nil
}

// forcePush makes upstream forget its last commit, in refs, reflogs and objects.
func forcePush(t *testing.T, repo testenv.Repo) {
	t.Helper()
	repo.Git(t, "reset", "--quiet", "--hard", "HEAD~1")
	repo.Git(t, "tag", "-d", "v2")
	repo.Git(t, "reflog", "expire", "--expire=now", "--all")
	repo.Git(t, "gc", "--quiet", "--prune=now")
}

func TestPinOutlivesEverything(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoSmall(t)
	src := f.source(repo.Dir)
	p := f.resolve(src, "HEAD")
	if err := f.Pin(t.Context(), p, "ws-1"); err != nil {
		t.Fatal(err)
	}
	if held := f.journal.list(); len(held) != 1 || !strings.HasPrefix(held[0], "cache_reference ") {
		t.Errorf("held: %q", held)
	}
	forcePush(t, repo)
	if exec.Command("git", "-C", repo.Dir, "cat-file", "-e", p.CommitID).Run() == nil {
		t.Fatal("upstream still has the commit")
	}
	for range 2 {
		if _, err := f.Fetch(t.Context(), src); err != nil {
			t.Fatal(err)
		}
		if !exists(filepath.Join(f.bare("small"), pinRef("ws-1", p.CommitID))) {
			t.Error("prune reached the pin")
		}
		if _, err := f.GC(t.Context(), src.ID, GCOptions{UnusedFor: expireNow, Expire: expireNow}); err != nil {
			t.Fatal(err)
		}
		run(t, "git", "--git-dir="+f.bare("small"), "gc", "--quiet", "--prune=now") // not even by hand
	}
	if !f.has("small", p.CommitID) {
		t.Fatal("the pinned commit is lost")
	}
	checkClean(t, f, p)

	if err := f.Unpin(t.Context(), p.RepositoryID, p.CommitID, "ws-1"); err != nil {
		t.Fatal(err)
	}
	if err := f.Unpin(t.Context(), p.RepositoryID, p.CommitID, "ws-1"); err != nil {
		t.Errorf("not idempotent: %v", err)
	}
	if held := f.journal.list(); len(held) != 0 {
		t.Errorf("held: %q", held)
	}
	rep, err := f.GC(t.Context(), src.ID, GCOptions{UnusedFor: expireNow, Expire: expireNow})
	if err != nil || rep.PointsDropped != 1 {
		t.Errorf("%+v, %v", rep, err)
	}
	if f.has("small", p.CommitID) {
		t.Error("nothing is ever dropped: the test above proves nothing")
	}
	wantCode(t, f.Pin(t.Context(), p, "ws-2"), policy.CodeConflict)
	if held := f.journal.list(); len(held) != 0 {
		t.Errorf("held after a refused pin: %q", held)
	}
}

func checkClean(t *testing.T, f *fixture, p policy.RepositoryPoint) {
	t.Helper()
	if out := inSandbox(t, f, p, f.workspace(p, GitDirOptions{}))("status", "--porcelain"); out != "" {
		t.Errorf("status: %s", out)
	}
}

// A workspace's packed-refs names other branches too; its git must be able to
// read them for as long as it lives, though upstream has moved them since.
func TestListedRefsOutliveForcePush(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoSmall(t)
	src := f.source(repo.Dir)
	base := f.resolve(src, "HEAD~2")
	if err := f.Pin(t.Context(), base, "ws-1"); err != nil {
		t.Fatal(err)
	}
	ws := f.workspace(base, GitDirOptions{})
	tip := repo.Commit
	forcePush(t, repo)
	if _, err := f.Fetch(t.Context(), src); err != nil {
		t.Fatal(err)
	}
	gc := func() {
		t.Helper()
		if _, err := f.GC(t.Context(), src.ID, GCOptions{UnusedFor: expireNow, Expire: expireNow}); err != nil {
			t.Fatal(err)
		}
	}
	gc()
	git := inSandbox(t, f, base, ws)
	git("fsck", "--full")
	if got := strings.TrimSpace(git("rev-parse", "origin/main")); got != tip {
		t.Errorf("origin/main is %s, want %s", got, tip)
	}
	git("gc", "--quiet")
	if err := f.Unpin(t.Context(), base.RepositoryID, base.CommitID, "ws-1"); err != nil {
		t.Fatal(err)
	}
	gc()
	if f.has("small", tip) {
		t.Error("the old tip is kept for nobody")
	}
}

func TestPruneAndNewRefs(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoSmall(t)
	src := f.source(repo.Dir)
	f.resolve(src, "HEAD")
	repo.Git(t, "branch", "-m", "topic", "topic-was-a-file/now-a-directory")
	repo = testenv.Commit(t, repo, "more", map[string]*testenv.Entry{"x": {Data: "x"}})
	rep, err := f.Fetch(t.Context(), src)
	if err != nil || rep.Created || rep.Shared || rep.Refs != 4 {
		t.Errorf("%+v, %v", rep, err)
	}
	ws := f.workspace(f.resolve(src, "HEAD"), GitDirOptions{})
	refs, err := os.ReadFile(filepath.Join(ws, ".git/packed-refs"))
	if err != nil || strings.Contains(string(refs), "origin/topic\n") || !strings.Contains(string(refs), repo.Commit+" refs/remotes/origin/main\n") {
		t.Errorf("packed-refs: %v\n%s", err, refs)
	}
}

func TestFsckOnFetch(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoSmall(t)
	blob := repo.Git(t, "rev-parse", "HEAD:README.md")
	evil := repo.Git(t, "commit-tree", "-m", "x", rawTree(t, repo.Dir, "40000", ".git", rawTree(t, repo.Dir, "100644", "config", blob)))
	repo.Git(t, "branch", "evil", evil)
	_, err := f.Fetch(t.Context(), f.source(repo.Dir))
	wantCode(t, err, policy.CodeObjectsInvalid)
	if exists(f.bare("small")) || len(f.journal.list()) != 0 {
		t.Errorf("left behind: mirror %v, ledger %q", exists(f.bare("small")), f.journal.list())
	}
}

func TestSourceGone(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoSmall(t)
	src := f.source(repo.Dir)
	f.resolve(src, "HEAD")
	if err := os.Rename(repo.Dir, repo.Dir+".gone"); err != nil {
		t.Fatal(err)
	}
	_, err := f.Fetch(t.Context(), src)
	wantCode(t, err, policy.CodeSourceUnreadable)
	_, _, err = f.Resolve(t.Context(), src, policy.Selector{}, ResolveOptions{})
	wantCode(t, err, policy.CodeSourceUnreadable)
	wantCode(t, f.CheckClean(t.Context(), src), policy.CodeSourceUnreadable)
}

func TestIDBelongsToOneSource(t *testing.T) {
	f := newFixture(t)
	src := f.source(testenv.RepoSmall(t).Dir)
	f.resolve(src, "HEAD")
	other := f.source(testenv.RepoSmall(t).Dir)
	_, err := f.Fetch(t.Context(), other)
	wantCode(t, err, policy.CodeRepositoryExists)
}

func TestCorruption(t *testing.T) {
	packs := func(f *fixture, suffix string) []string {
		m, err := filepath.Glob(f.bare("small") + "/objects/pack/*" + suffix)
		if err != nil || len(m) == 0 {
			f.t.Fatalf("no packs: %v", err)
		}
		return m
	}
	for name, damage := range map[string]func(f *fixture) error{
		"truncated pack": func(f *fixture) error { return os.Truncate(packs(f, ".pack")[0], 100) },
		"lost pack":      func(f *fixture) error { return os.Remove(packs(f, ".pack")[0]) },
		"lost index":     func(f *fixture) error { return os.Remove(packs(f, ".idx")[0]) },
		"garbage HEAD":   func(f *fixture) error { return os.WriteFile(f.bare("small")+"/HEAD", []byte("\x00junk"), 0o644) },
		"no refs":        func(f *fixture) error { return os.RemoveAll(f.bare("small") + "/refs") },
		"bit rot": func(f *fixture) error {
			for _, p := range packs(f, ".pack") {
				b, err := os.ReadFile(p)
				if err != nil {
					return err
				}
				for i := 12; i < len(b)-20; i++ {
					b[i] ^= 0x55
				}
				os.Chmod(p, 0o644)
				if err := os.WriteFile(p, b, 0o444); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			repo := testenv.RepoSmall(t)
			src := f.source(repo.Dir)
			p := f.resolve(src, "HEAD")
			if err := f.Pin(t.Context(), p, "ws-1"); err != nil {
				t.Fatal(err)
			}
			if err := damage(f); err != nil {
				t.Fatal(err)
			}
			if q := f.resolve(src, "HEAD"); q.CommitID != p.CommitID {
				t.Errorf("commit %s", q.CommitID)
			}
			checkClean(t, f, p)
			run(t, "git", "--git-dir="+f.bare("small"), "fsck")
			if refs := testenv.Git(t, f.bare("small"), "for-each-ref", "refs/yoi/pins"); !strings.Contains(refs, "ws-1/"+p.CommitID) {
				t.Errorf("the pin is gone: %s", refs)
			}
		})
	}
}

// The source has forgotten the pinned commit, and the mirror loses another pack.
func TestCorruptionKeepsWhatOnlyTheCacheHas(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoSmall(t)
	src := f.source(repo.Dir)
	p := f.resolve(src, "HEAD")
	if err := f.Pin(t.Context(), p, "ws-1"); err != nil {
		t.Fatal(err)
	}
	before, err := packFiles(f.bare("small"))
	if err != nil {
		t.Fatal(err)
	}
	forcePush(t, repo)
	testenv.Commit(t, testenv.Repo{Dir: repo.Dir, Commit: repo.Git(t, "rev-parse", "HEAD")}, "new", map[string]*testenv.Entry{"new": {Data: "new"}})
	if _, err := f.Fetch(t.Context(), src); err != nil {
		t.Fatal(err)
	}
	after, err := packFiles(f.bare("small"))
	if err != nil {
		t.Fatal(err)
	}
	for name := range after {
		if _, old := before[name]; !old && strings.HasSuffix(name, ".pack") {
			if err := os.Truncate(filepath.Join(f.bare("small"), "objects/pack", name), 50); err != nil {
				t.Fatal(err)
			}
		}
	}
	f.resolve(src, "HEAD")
	if !f.has("small", p.CommitID) {
		t.Error("the pinned commit is lost")
	}
	checkClean(t, f, p)
}

func TestCorruptAndSourceGone(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoSmall(t)
	src := f.source(repo.Dir)
	p := f.resolve(src, "HEAD")
	packs, _ := filepath.Glob(f.bare("small") + "/objects/pack/*.pack")
	for _, pack := range packs {
		b, _ := os.ReadFile(pack)
		for i := 12; i < len(b)-20; i++ {
			b[i] ^= 0x55
		}
		os.Chmod(pack, 0o644)
		if err := os.WriteFile(pack, b, 0o444); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(repo.Dir, repo.Dir+".gone"); err != nil {
		t.Fatal(err)
	}
	_, _, err := f.Pristine(t.Context(), p)
	wantCode(t, err, policy.CodeCacheCorrupt)
	if err := os.Rename(repo.Dir+".gone", repo.Dir); err != nil {
		t.Fatal(err)
	}
	f.resolve(src, "HEAD")
	checkClean(t, f, p)
}

func TestUnshallow(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoShallow(t)
	src := f.source(repo.Dir)
	p := f.resolve(src, "HEAD")
	ws := f.workspace(p, GitDirOptions{})
	if !exists(filepath.Join(ws, ".git/shallow")) {
		t.Error("the workspace is not shallow")
	}
	repo.Git(t, "fetch", "--quiet", "--unshallow")
	if _, err := f.Fetch(t.Context(), src); err != nil {
		t.Fatal(err)
	}
	_, warnings, err := f.Resolve(t.Context(), src, policy.Selector{}, ResolveOptions{})
	if err != nil || len(warnings) != 0 {
		t.Errorf("warnings %v, %v", warnings, err)
	}
	if n := len(strings.Fields(inSandbox(t, f, p, f.workspace(p, GitDirOptions{}))("rev-list", "HEAD"))); n != 3 {
		t.Errorf("%d commits, want 3", n)
	}
}

func TestProgress(t *testing.T) {
	root := t.TempDir()
	phases := map[string]bool{}
	c, err := Open(Options{Root: root, Progress: func(p Progress) { phases[p.Phase] = true }})
	if err != nil {
		t.Fatal(err)
	}
	src, err := ParseSource(testenv.RepoFiles(t, 1000).Dir, "/")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Fetch(t.Context(), src); err != nil {
		t.Fatal(err)
	}
	if !phases["Receiving objects"] || !phases["Counting objects"] {
		t.Errorf("phases %v", phases)
	}
	for line, want := range map[string]Progress{
		"Receiving objects:  12% (3/25), 1.50 MiB | 2.30 MiB/s": {Phase: "Receiving objects", Done: 3, Total: 25, Bytes: 3 << 19},
		"remote: Enumerating objects: 18, done.":                {Phase: "Enumerating objects", Done: 18},
		"Updating files: 100% (4/4), done.":                     {Phase: "Updating files", Done: 4, Total: 4},
	} {
		if got, ok := parseProgress(line); !ok || got != want {
			t.Errorf("%q: %+v %v", line, got, ok)
		}
	}
	for _, line := range []string{"fatal: bad", "error: 12% (x/y)", "X:", "", "Receiving objects: lots"} {
		if p, ok := parseProgress(line); ok {
			t.Errorf("%q is no progress, got %+v", line, p)
		}
	}
}
