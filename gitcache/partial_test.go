package gitcache

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

// served is a bare repository with two commits and a few directories, behind an
// https server that filters.
func served(t *testing.T, name string) (*testenv.GitServer, testenv.Repo) {
	t.Helper()
	work := testenv.RepoSmall(t)
	work = testenv.Commit(t, work, "directories", map[string]*testenv.Entry{
		"src/lib/a.c": {Data: "a\n"}, "src/lib/deep/b.c": {Data: "b\n"}, "docs/one.md": {Data: "one\n"}, "docs/two.md": {Data: strings.Repeat("two\n", 1000)},
		"top.txt": {Data: "top\n"},
	})
	work = testenv.Commit(t, work, "docs only", map[string]*testenv.Entry{"docs/one.md": {Data: "uno\n"}})
	dir := t.TempDir()
	bare := filepath.Join(dir, name)
	testenv.Git(t, "", "clone", "--quiet", "--bare", work.Dir, bare)
	testenv.Git(t, bare, "config", "uploadpack.allowFilter", "true")
	srv := testenv.NewGitServer(t, dir)
	t.Setenv("GIT_SSL_CAINFO", srv.CA)
	return srv, testenv.Repo{Dir: bare, Commit: work.Commit, Tree: work.Tree, Bare: true}
}

func filtered(t *testing.T, f *fixture, url, filter string) Source {
	t.Helper()
	src := f.source(url)
	src.Filter = policy.ObjectFilter(filter)
	return src
}

// lacking counts the objects of the whole history that the mirror has not.
func lacking(t *testing.T, f *fixture, src Source, rev string) int {
	t.Helper()
	out, err := exec.Command("git", "-C", f.path("repository-cache/git/"+string(src.ID)+"/bare.git"), "rev-list", "--objects", "--missing=print", rev).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count("\n"+string(out), "\n?")
}

func TestPartialMirror(t *testing.T) {
	for _, filter := range []string{"blob:none", "tree:0", "blob:limit=1k"} {
		t.Run(filter, func(t *testing.T) {
			f := newFixture(t)
			srv, repo := served(t, "app.git")
			src := filtered(t, f, srv.URL+"/app.git", filter)
			scope, _ := policy.ParseScope([]string{"src/lib"})
			p, _, err := f.Resolve(t.Context(), src, policy.Selector{}, ResolveOptions{Scope: scope})
			if err != nil {
				t.Fatal(err)
			}
			if p.CommitID != repo.Commit || p.TreeID != repo.Tree {
				t.Fatalf("point %+v", p)
			}
			before := lacking(t, f, src, p.CommitID)
			if before == 0 {
				t.Fatal("the filter left nothing out")
			}
			n, err := f.Complete(t.Context(), src, p)
			if err != nil {
				t.Fatal(err)
			}
			want := 0
			if filter != "blob:limit=1k" {
				for name := range strings.Lines(repo.Git(t, "ls-tree", "-r", "--name-only", "HEAD")) {
					if dir, _, nested := strings.Cut(name, "/"); !nested || dir == "src" {
						want++
					}
				}
			}
			if n != want {
				t.Errorf("%d objects fetched, want %d", n, want)
			}
			// From here on the network is gone, and nobody may ask for it.
			srv.Down.Store(true)
			asked := srv.Requests.Load()
			if n, err := f.Complete(t.Context(), src, p); err != nil || n != 0 {
				t.Errorf("again: %d %v", n, err)
			}
			tree, _, err := f.Pristine(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			defer tree.Close()
			dir := f.path(tree.RelPath)
			for _, name := range []string{"top.txt", "src/main.c", "src/lib/a.c", "src/lib/deep/b.c"} {
				if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
					t.Error(err)
				}
			}
			if _, err := os.Stat(filepath.Join(dir, "docs")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("out of scope: %v", err)
			}
			whole := p
			whole.Scope = nil
			if filter != "blob:limit=1k" {
				if _, err := f.Complete(t.Context(), src, whole); !errors.Is(err, policy.CodeFetchFailed) {
					t.Errorf("without a server: %v", err)
				}
				asked = srv.Requests.Load()
			}
			if _, _, err := f.Resolve(t.Context(), src, policy.Selector{Kind: policy.SelectCommit, Value: p.CommitID}, ResolveOptions{}); err != nil {
				t.Errorf("a commit that is known: %v", err)
			}
			if filter != "blob:limit=1k" {
				if _, _, err := f.Pristine(t.Context(), whole); err == nil {
					t.Error("a tree was built of objects that are not there")
				}
			}
			if got := srv.Requests.Load(); got != asked {
				t.Errorf("%d requests without being asked", got-asked)
			}
			srv.Down.Store(false)
			if _, err := f.Complete(t.Context(), src, whole); err != nil {
				t.Error(err)
			}
			all, _, err := f.Pristine(t.Context(), whole)
			if err != nil {
				t.Fatal(err)
			}
			all.Close()
		})
	}
}

// The commit before is not known wholly: what tree:0 left out is fetched with it.
func TestPartialOlderCommit(t *testing.T) {
	f := newFixture(t)
	srv, _ := served(t, "app.git")
	src := filtered(t, f, srv.URL+"/app.git", "tree:0")
	p := f.resolve(src, "HEAD~1")
	if n, err := f.Complete(t.Context(), src, p); err != nil || n == 0 {
		t.Fatalf("%d %v", n, err)
	}
	tree, _ := f.pristine(p)
	if b, err := os.ReadFile(f.path(tree.RelPath + "/docs/one.md")); err != nil || string(b) != "one\n" {
		t.Errorf("%q %v", b, err)
	}
}

func TestPartialServerRefusals(t *testing.T) {
	for _, c := range []struct {
		name string
		bad  func(t *testing.T, srv *testenv.GitServer, repo testenv.Repo)
		want policy.Code
	}{
		{"no filters", func(t *testing.T, _ *testenv.GitServer, repo testenv.Repo) {
			repo.Git(t, "config", "uploadpack.allowFilter", "false")
		}, policy.CodeFilterRefused},
		{"truncated", func(_ *testing.T, srv *testenv.GitServer, _ testenv.Repo) { srv.CutAfter.Store(600) }, policy.CodeFetchFailed},
		{"vanishes", func(_ *testing.T, srv *testenv.GitServer, _ testenv.Repo) {
			srv.Vanish.Store(true)
			srv.CutAfter.Store(600)
		}, policy.CodeFetchFailed},
		{"gone", func(_ *testing.T, srv *testenv.GitServer, _ testenv.Repo) { srv.Down.Store(true) }, policy.CodeFetchFailed},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			srv, repo := served(t, "app.git")
			c.bad(t, srv, repo)
			src := filtered(t, f, srv.URL+"/app.git", "blob:none")
			_, _, err := f.Resolve(t.Context(), src, policy.Selector{}, ResolveOptions{})
			wantCode(t, err, c.want)
			if left, _ := os.ReadDir(f.path("repository-cache/git")); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
			if held := f.journal.list(); len(held) != 0 {
				t.Errorf("held: %v", held)
			}
		})
	}
}

// The same, when the mirror is there and single objects are wanted.
func TestPartialObjectsRefusals(t *testing.T) {
	f := newFixture(t)
	srv, repo := served(t, "app.git")
	src := filtered(t, f, srv.URL+"/app.git", "blob:none")
	p := f.resolve(src, "HEAD")
	packs := func() []string {
		names, err := filepath.Glob(f.path("repository-cache/git/app/bare.git/objects/pack/*"))
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	before := packs()
	for _, c := range []struct {
		name string
		cut  int64
		gone bool
	}{{"truncated", 60, false}, {"vanishes", 60, true}} {
		srv.Vanish.Store(c.gone)
		srv.CutAfter.Store(c.cut)
		_, err := f.Complete(t.Context(), src, p)
		wantCode(t, err, policy.CodeFetchFailed)
		if after := packs(); !slices.Equal(before, after) {
			t.Errorf("%s: left %v", c.name, after)
		}
	}
	srv.CutAfter.Store(0)
	dead := f.path("repository-cache/git/app/bare.git/objects/pack/tmp_pack_dead")
	if err := os.WriteFile(dead, []byte("half a pack"), 0o444); err != nil {
		t.Fatal(err)
	}
	// An object that the server has lost.
	blob := repo.Git(t, "rev-parse", "HEAD:top.txt")
	lose(t, repo, blob)
	_, err := f.Complete(t.Context(), src, p)
	wantCode(t, err, policy.CodeObjectsUnavailable)
	if f.isWhole(p) {
		t.Error("recorded as whole")
	}
	if _, err := os.Stat(dead); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what a killed fetch left: %v", err)
	}
}

// lose removes one object of a bare repository.
func lose(t *testing.T, repo testenv.Repo, oid string) {
	t.Helper()
	packs, err := filepath.Glob(filepath.Join(repo.Dir, "objects/pack/*.pack"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packs {
		away := filepath.Join(t.TempDir(), "pack")
		if err := os.Rename(p, away); err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(strings.TrimSuffix(p, ".pack") + ".idx")
		in, err := os.Open(away)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("git", "-C", repo.Dir, "unpack-objects", "-q")
		cmd.Stdin = in
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		in.Close()
	}
	if err := os.Remove(filepath.Join(repo.Dir, "objects", oid[:2], oid[2:])); err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) isWhole(p policy.RepositoryPoint) bool {
	_, err := os.Stat(f.path("repository-cache/git/" + string(p.RepositoryID) + "/whole/" + p.TreeKey()))
	return err == nil
}

// A server that stops answering is given up, not waited for.
func TestPartialStall(t *testing.T) {
	f := newFixture(t)
	srv, _ := served(t, "app.git")
	src := filtered(t, f, srv.URL+"/app.git", "blob:none")
	srv.Stall.Store(600)
	f.stall = time.Second
	_, _, err := f.Resolve(t.Context(), src, policy.Selector{}, ResolveOptions{})
	wantCode(t, err, policy.CodeFetchFailed)
}

// Callers that come together share one fetch of objects.
func TestPartialTogether(t *testing.T) {
	f := newFixture(t)
	srv, _ := served(t, "app.git")
	src := filtered(t, f, srv.URL+"/app.git", "blob:none")
	p := f.resolve(src, "HEAD")
	var wg sync.WaitGroup
	sum := make(chan int, 8)
	for range cap(sum) {
		wg.Go(func() {
			n, err := f.Complete(t.Context(), src, p)
			if err != nil {
				t.Error(err)
			}
			sum <- n
		})
	}
	wg.Wait()
	close(sum)
	some := 0
	for n := range sum {
		if n > 0 {
			some++
		}
	}
	if some != 1 {
		t.Errorf("%d callers fetched", some)
	}
}

// GC must keep what was fetched singly, and a damaged mirror is built anew with it.
func TestPartialKept(t *testing.T) {
	f := newFixture(t)
	srv, _ := served(t, "app.git")
	src := filtered(t, f, srv.URL+"/app.git", "tree:0")
	scope, _ := policy.ParseScope([]string{"src"})
	p, _, err := f.Resolve(t.Context(), src, policy.Selector{}, ResolveOptions{Scope: scope})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Complete(t.Context(), src, p); err != nil {
		t.Fatal(err)
	}
	if err := f.Pin(t.Context(), p, "ws-0000000000000001"); err != nil {
		t.Fatal(err)
	}
	srv.Down.Store(true)
	if _, err := f.GC(t.Context(), src.ID, GCOptions{Expire: time.Nanosecond, UnusedFor: time.Nanosecond}); err != nil {
		t.Fatal(err)
	}
	tree, _, err := f.Pristine(t.Context(), p)
	if err != nil {
		t.Fatal("after gc: ", err)
	}
	tree.Close()
	srv.Down.Store(false)
	// Damage what the refs need, not what was fetched singly.
	bare := f.path("repository-cache/git/app/bare.git")
	if err := os.WriteFile(filepath.Join(bare, "HEAD"), []byte("garbage"), 0o644); err != nil {
		t.Fatal(err)
	}
	damagePack(t, bare, p.CommitID)
	if _, err := f.Fetch(t.Context(), src); err != nil {
		t.Fatal("rebuild: ", err)
	}
	if n, err := f.Complete(t.Context(), src, p); err != nil {
		t.Errorf("after the rebuild: %d %v", n, err)
	}
	if err := f.Unpin(t.Context(), p.RepositoryID, p.CommitID, "ws-0000000000000001"); err != nil {
		t.Error(err)
	}
}

// damagePack cuts the pack that holds an object.
func damagePack(t *testing.T, bare, oid string) {
	t.Helper()
	idx, err := filepath.Glob(filepath.Join(bare, "objects/pack/*.idx"))
	if err != nil || len(idx) == 0 {
		t.Fatal(idx, err)
	}
	for _, x := range idx {
		out := testenv.Git(t, bare, "verify-pack", "-v", x)
		if strings.Contains(out, oid) {
			pack := strings.TrimSuffix(x, ".idx") + ".pack"
			if err := os.Chmod(pack, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(pack, 40); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestFilterOfPath(t *testing.T) {
	f := newFixture(t)
	src := filtered(t, f, testenv.RepoSmall(t).Dir, "blob:none")
	_, _, err := f.Resolve(t.Context(), src, policy.Selector{}, ResolveOptions{})
	wantCode(t, err, policy.CodeFilterInvalid)
	src = filtered(t, f, "https://example.org/x", "sparse:oid=main:filter")
	_, _, err = f.Resolve(t.Context(), src, policy.Selector{}, ResolveOptions{})
	wantCode(t, err, policy.CodeFilterInvalid)
}

// The cone is git's: what rev-list and sparse-checkout say of the same scope.
func TestCone(t *testing.T) {
	for _, c := range []struct {
		scope []string
		in    string
		out   string
	}{
		{nil, "a a/b a/b/c", ""},
		{[]string{"a"}, "top a/x a/b/x", "b/x ab/x b/a/x"},
		{[]string{"a/b"}, "top a/x a/b/x a/b/c/x", "a/c/x b/x a/bc/x"},
		{[]string{"a/b/c", "d"}, "top a/x a/b/x a/b/c/x d/x d/e/x", "a/c/x a/b/d/x e/x"},
	} {
		scope, err := policy.ParseScope(c.scope)
		if err != nil {
			t.Fatal(err)
		}
		cone := newCone(scope)
		for _, name := range strings.Fields(c.in) {
			if !cone.has(name) {
				t.Errorf("%v has not %s", c.scope, name)
			}
		}
		for _, name := range strings.Fields(c.out) {
			if cone.has(name) {
				t.Errorf("%v has %s", c.scope, name)
			}
		}
	}
}
