package gitcache

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

func TestHold(t *testing.T) {
	f := newFixture(t)
	src := f.source(testenv.RepoSmall(t).Dir)
	p := f.resolve(src, "HEAD")
	f.pristine(p)
	before := f.journal.syncs
	tree, _, err := f.Hold(t.Context(), p, "ws-1")
	if err != nil {
		t.Fatal(err)
	}
	if n := f.journal.syncs - before; n != 1 {
		t.Errorf("%d intents, want 1", n)
	}
	if held := f.journal.list(); len(held) != 2 {
		t.Errorf("held: %q", held)
	}
	if !exists(f.bare("small")+"/"+pinRef("ws-1", p.CommitID)) || !exists(f.path(tree.RelPath)+".use/ws-1") {
		t.Error("the pin or the mark is missing")
	}
	tree.Close()
	if err := f.ReleasePristine(t.Context(), src.ID, tree.Key, "ws-1"); err != nil {
		t.Fatal(err)
	}
	if err := f.Unpin(t.Context(), src.ID, p.CommitID, "ws-1"); err != nil {
		t.Fatal(err)
	}
	noLeftovers(t, f)
}

// The last holder of a tree may go in the middle of another's coming.
func TestHoldersComeAndGoTogether(t *testing.T) {
	f := newFixture(t)
	src := f.source(testenv.RepoSmall(t).Dir)
	tree, _ := f.pristine(f.resolve(src, "HEAD"))
	var wg sync.WaitGroup
	for i := range 4 {
		holder := "ws-" + strconv.Itoa(i)
		wg.Go(func() {
			for range 500 {
				if err := tree.Acquire(t.Context(), holder); err != nil {
					t.Errorf("acquire: %v", errors.Unwrap(err))
					return
				}
				if err := tree.Release(t.Context(), holder); err != nil {
					t.Errorf("release: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	tree.Close()
	if _, err := f.Evict(t.Context(), 0, false); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(f.path("repository-cache/git/small/trees")); err != nil || len(entries) != 0 {
		t.Errorf("after eviction: %v, %v", entries, err)
	}
}

// Whatever step fails, the steps before it are taken back.
func TestFailedHoldHoldsNothing(t *testing.T) {
	f := newFixture(t)
	src := f.source(testenv.RepoSmall(t).Dir)
	p := f.resolve(src, "HEAD")
	for name, c := range map[string]struct {
		change func(*policy.RepositoryPoint)
		code   policy.Code
	}{
		"unknown repository": {func(p *policy.RepositoryPoint) { p.RepositoryID = "other" }, policy.CodeRepositoryUnknown},
		"unresolved commit":  {func(p *policy.RepositoryPoint) { p.CommitID = strings.Repeat("a", 40) }, policy.CodeConflict},
		"no tree":            {func(p *policy.RepositoryPoint) { p.TreeID = "" }, policy.CodeSelectorInvalid},
		"missing tree":       {func(p *policy.RepositoryPoint) { p.TreeID = strings.Repeat("b", 40) }, policy.CodeGitFailed},
	} {
		q := p
		c.change(&q)
		_, _, err := f.Hold(t.Context(), q, "ws-1")
		wantCode(t, err, c.code)
		if exists(f.bare("small")+"/refs/yoi/pins/ws-1") || exists(f.path("repository-cache/git/small/holds/ws-1")) {
			t.Errorf("%s: a pin is left", name)
		}
		noLeftovers(t, f)
	}
}

// Recovery unpins for the dead while a fetch mends what the crash may have
// emptied: a pin that is gone stays gone.
func TestUnpinWhileMending(t *testing.T) {
	f := newFixture(t)
	src := f.source(testenv.RepoSmall(t).Dir)
	p := f.resolve(src, "HEAD")
	r, err := f.repo(src.ID)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		holder := "ws-" + strconv.Itoa(i)
		if err := f.Pin(t.Context(), p, holder); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if err := r.mendRefs(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		if err := f.Unpin(t.Context(), src.ID, p.CommitID, holder); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if exists(f.bare("small") + "/" + pinRef(holder, p.CommitID)) {
			t.Fatalf("the pin of %s is back", holder)
		}
	}
	noLeftovers(t, f)
}
