package gitcache

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

func TestRefusedSourceLeavesNothing(t *testing.T) {
	f := newFixture(t)
	small := testenv.RepoSmall(t)
	plain := t.TempDir()
	for name, c := range map[string]struct {
		url, rev string
		code     policy.Code
	}{
		"empty":          {testenv.RepoEmpty(t).Dir, "", policy.CodeRepositoryEmpty},
		"no repository":  {plain, "", policy.CodeSourceNotRepository},
		"gone":           {plain + "/gone", "", policy.CodeSourceUnreadable},
		"failing fetch":  {"file://" + plain, "", policy.CodeSourceNotRepository},
		"no such branch": {small.Dir, "nothing", policy.CodeSelectorMissing},
	} {
		_, _, err := f.Resolve(t.Context(), Source{ID: "x", URL: c.url}, policy.Selector{Value: c.rev}, ResolveOptions{})
		wantCode(t, err, c.code)
		if left := f.cached(); len(left) != 0 {
			t.Errorf("%s: left behind: %q", name, left)
		}
	}
	if held := f.journal.list(); len(held) != 0 {
		t.Errorf("held: %q", held)
	}
}

// cached lists the cache's directory.
func (f *fixture) cached() []string {
	f.t.Helper()
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		f.t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// A refused caller must not take the directory away from one that is about to
// fill it.
func TestRefusedBesideAccepted(t *testing.T) {
	repo := testenv.RepoSmall(t)
	for range 20 {
		f := newFixture(t)
		src := f.source(repo.Dir)
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				sel, want := policy.Selector{}, policy.Code("")
				if i%2 == 0 {
					sel, want = policy.Selector{Value: "nothing"}, policy.CodeSelectorMissing
				}
				_, _, err := f.Resolve(t.Context(), src, sel, ResolveOptions{})
				if want == "" && err != nil {
					t.Errorf("resolve: %v", err)
				} else if want != "" && policy.AsDiagnostic(err).Code != want {
					t.Errorf("resolve: %v, want %s", err, want)
				}
			})
		}
		wg.Wait()
		if got := f.cached(); len(got) != 1 || !isDir(filepath.Join(f.dir, got[0], "bare.git")) {
			t.Errorf("cached: %q", got)
		}
	}
}

// A damaged mirror that was set aside is no skeleton: it may hold what nobody
// else has.
func TestSetAsideMirrorIsNoSkeleton(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoSmall(t)
	src := f.source(repo.Dir)
	f.resolve(src, "HEAD")
	r, err := f.repo(src.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.setAside(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(repo.Dir, repo.Dir+".gone"); err != nil {
		t.Fatal(err)
	}
	_, err = f.Fetch(t.Context(), src)
	wantCode(t, err, policy.CodeSourceUnreadable)
	if broken, err := r.setAsides(); err != nil || len(broken) != 1 {
		t.Errorf("%q, %v", broken, err)
	}
	if held := f.journal.list(); len(held) != 0 {
		t.Errorf("held: %q", held)
	}
}
