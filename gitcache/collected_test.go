package gitcache

import (
	"bytes"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

// worker is a repository that stands for a workspace: a clone with commits of
// its own.
type worker struct {
	f    *fixture
	repo testenv.Repo
	src  Source
	base policy.RepositoryPoint
}

func newWorker(t *testing.T, f *fixture) worker {
	t.Helper()
	upstream := testenv.RepoSmall(t)
	src := f.source(upstream.Dir)
	dir := filepath.Join(t.TempDir(), "work")
	testenv.Git(t, "", "clone", "--quiet", upstream.Dir, dir)
	return worker{f, testenv.Repo{Dir: dir}, src, f.resolve(src, "HEAD")}
}

// commit makes a commit of a file and returns its id.
func (w worker) commit(t *testing.T, name string) string {
	t.Helper()
	write(t, filepath.Join(w.repo.Dir, name), strings.Repeat(name+"\n", 50))
	w.repo.Git(t, "add", "-A")
	w.repo.Git(t, "-c", "user.name=W", "-c", "user.email=w@example.com", "commit", "--quiet", "-m", name)
	return w.repo.Git(t, "rev-parse", "HEAD")
}

// pack is a thin pack of tip, on what the cache has.
func (w worker) pack(t *testing.T, tip string) []byte {
	t.Helper()
	cmd := exec.Command("git", "-C", w.repo.Dir, "pack-objects", "-q", "--revs", "--thin", "--stdout")
	cmd.Stdin = strings.NewReader(tip + "\n^" + w.base.CommitID + "\n")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (w worker) collect(t *testing.T, name, tip string, pack []byte, force bool) (Collected, error) {
	return w.f.Collect(t.Context(), w.base.RepositoryID, CollectOptions{
		Name: name, CommitID: tip, BaseID: w.base.CommitID, Holder: "ws-1", Commits: 1, MaxBytes: 1 << 20, Force: force,
	}, bytes.NewReader(pack))
}

func TestCollectedCommitsOutliveEverything(t *testing.T) {
	f := newFixture(t)
	w := newWorker(t, f)
	first := w.commit(t, "one")
	if _, err := w.collect(t, "fix/a", first, w.pack(t, first), false); err != nil {
		t.Fatal(err)
	}
	second := w.commit(t, "two")
	rec, err := w.collect(t, "fix/a", second, w.pack(t, second), false)
	if err != nil || rec.CommitID != second || rec.TreeID != w.repo.Git(t, "rev-parse", second+"^{tree}") {
		t.Fatalf("%+v, %v", rec, err)
	}
	// A name beside and below another.
	if _, err := w.collect(t, "fix/a/b", first, w.pack(t, first), false); err != nil {
		t.Fatal(err)
	}
	if _, err := w.collect(t, "fix/a", first, w.pack(t, first), false); err == nil {
		t.Error("a name went back without force")
	} else {
		wantCode(t, err, policy.CodeCollectedExists)
	}
	old := time.Now().Add(-30 * 24 * time.Hour)
	for _, oid := range []string{first, second} {
		if err := os.Chtimes(f.path("repository-cache/git/"+string(w.base.RepositoryID)+"/points/"+oid), old, old); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.Fetch(t.Context(), w.src); err != nil {
		t.Fatal(err)
	}
	if _, err := f.GC(t.Context(), w.base.RepositoryID, GCOptions{UnusedFor: time.Second, Expire: time.Nanosecond}); err != nil {
		t.Fatal(err)
	}
	// A damaged mirror is built anew, with what only it had.
	for _, p := range f.packs(string(w.base.RepositoryID)) {
		if strings.HasSuffix(p, ".idx") {
			discard(t, p)
			break
		}
	}
	p, _, err := f.Resolve(t.Context(), w.src, policy.Selector{Kind: policy.SelectCollected, Value: "fix/a"}, ResolveOptions{})
	if err != nil || p.CommitID != second {
		t.Fatalf("%+v, %v", p, err)
	}
	list, err := f.Collected(w.base.RepositoryID)
	if err != nil || len(list) != 2 || list[0].Name != "fix/a" || list[1].Name != "fix/a/b" {
		t.Fatalf("%+v, %v", list, err)
	}
	bundle := filepath.Join(t.TempDir(), "bundle")
	out, err := os.Create(bundle)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if err := f.ExportCollected(t.Context(), w.base.RepositoryID, "fix/a", out); err != nil {
		t.Fatal(err)
	}
	if heads := testenv.Git(t, "", "bundle", "list-heads", bundle); heads != second+" refs/heads/fix/a" {
		t.Errorf("the bundle has %q", heads)
	}
	wantCode(t, f.Remove(t.Context(), w.base.RepositoryID), policy.CodeRepositoryInUse)
	for _, name := range []string{"fix/a", "fix/a/b"} {
		if err := f.DropCollected(t.Context(), w.base.RepositoryID, name); err != nil {
			t.Fatal(err)
		}
	}
	_, _, err = f.Resolve(t.Context(), w.src, policy.Selector{Kind: policy.SelectCollected, Value: "fix/a"}, ResolveOptions{})
	wantCode(t, err, policy.CodeSelectorMissing)
	if left := f.journal.list(); len(left) != 0 {
		t.Errorf("the ledger still holds %q", left)
	}
	if err := f.Remove(t.Context(), w.base.RepositoryID); err != nil {
		t.Error(err)
	}
}

// TestCollectRefuses leaves the mirror and its refs as they were.
func TestCollectRefuses(t *testing.T) {
	f := newFixture(t)
	w := newWorker(t, f)
	tip := w.commit(t, "one")
	good := w.pack(t, tip)
	evil := rawTree(t, w.repo.Dir, "100644", ".git", w.repo.Git(t, "rev-parse", "HEAD:one"))
	evilCommit := w.repo.Git(t, "-c", "user.name=W", "-c", "user.email=w@example.com", "commit-tree", "-p", tip, "-m", "evil", evil)
	write(t, filepath.Join(w.repo.Dir, ".gitmodules"), "[submodule \"x\"]\n\tpath = x\n\turl = -uevil\n")
	modules := w.commit(t, "modules")
	lacking := w.commit(t, "lacking")
	cut := exec.Command("git", "-C", w.repo.Dir, "pack-objects", "-q", "--stdout")
	cut.Stdin = strings.NewReader(lacking + "\n")
	alone, err := cut.Output()
	if err != nil {
		t.Fatal(err)
	}
	w.repo.Git(t, "reset", "--quiet", "--hard", tip)
	noise := make([]byte, 2<<20)
	_, _ = rand.Read(noise) // never fails
	write(t, filepath.Join(w.repo.Dir, "noise"), string(noise))
	large := w.commit(t, "large")
	before := listing(t, f.bare(string(w.base.RepositoryID)))
	for name, c := range map[string]struct {
		tip  string
		pack []byte
		name string
		code policy.Code
	}{
		"nothing":               {tip, nil, "n", policy.CodeObjectsInvalid},
		"cut off":               {tip, good[:len(good)-30], "n", policy.CodeObjectsInvalid},
		"garbage":               {tip, bytes.Repeat([]byte("PACK\x00\x00\x00\x02\xff"), 100), "n", policy.CodeObjectsInvalid},
		"another commit":        {strings.Repeat("1", 40), good, "n", ""},
		"a tree with .git":      {evilCommit, w.pack(t, evilCommit), "n", policy.CodeObjectsInvalid},
		"a hostile .gitmodules": {modules, w.pack(t, modules), "n", policy.CodeObjectsInvalid},
		"a commit without tree": {lacking, alone, "n", policy.CodeObjectsInvalid},
		"too large":             {large, w.pack(t, large), "n", policy.CodeResultTooLarge},
		"name with ..":          {tip, good, "a/../b", policy.CodeSelectorInvalid},
		"name of an object":     {tip, good, "x/" + tip, policy.CodeSelectorInvalid},
		"no name":               {tip, good, "", policy.CodeSelectorInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.collect(t, c.name, c.tip, c.pack, false)
			if c.code != "" {
				wantCode(t, err, c.code)
			} else if err == nil {
				t.Error("it is collected")
			}
			if after := listing(t, f.bare(string(w.base.RepositoryID))); after != before {
				t.Errorf("the mirror changed:\n%s\nbefore\n%s", after, before)
			}
			if left := f.journal.list(); len(left) != 0 {
				t.Errorf("the ledger still holds %q", left)
			}
		})
	}
	if list, err := f.Collected(w.base.RepositoryID); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}
