package gitcache

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

// scribble turns a file's bytes, without changing its size.
func scribble(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 12; i < len(b); i++ {
		b[i] ^= 0x55
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	write(t, path, string(b))
}

var treeDamage = map[string]func(t *testing.T, tree string){
	"no git directory": func(t *testing.T, tree string) { discard(t, tree+"/.git") },
	"no index":         func(t *testing.T, tree string) { discard(t, tree+"/.git/index") },
	"garbled index":    func(t *testing.T, tree string) { scribble(t, tree+"/.git/index") },
	"other HEAD":       func(t *testing.T, tree string) { write(t, tree+"/.git/HEAD", "ref: refs/heads/x\n") },
	"other alternates": func(t *testing.T, tree string) { write(t, tree+"/.git/objects/info/alternates", "/\n") },
	"config is a link": func(t *testing.T, tree string) {
		discard(t, tree+"/.git/config")
		if err := os.Symlink("/dev/null", tree+"/.git/config"); err != nil {
			t.Fatal(err)
		}
	},
	"no marker": func(t *testing.T, tree string) { discard(t, tree+".json") },
}

func discard(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

func TestDamagedTreeIsRebuilt(t *testing.T) {
	for name, damage := range treeDamage {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			p := f.resolve(f.source(testenv.RepoSmall(t).Dir), "HEAD")
			tree, _, err := f.Pristine(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			if err := tree.Acquire(t.Context(), "ws-1"); err != nil { // a copy: it needs the tree no more
				t.Fatal(err)
			}
			tree.Close()
			damage(t, f.path(tree.RelPath))
			checkClean(t, f, p)
			if err := tree.Release(t.Context(), "ws-1"); err != nil {
				t.Fatal(err)
			}
			noLeftovers(t, f)
		})
	}
}

func TestDamagedLowerLayerStays(t *testing.T) {
	for name, damage := range treeDamage {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			p := f.resolve(f.source(testenv.RepoSmall(t).Dir), "HEAD")
			tree, _, err := f.Pristine(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			if err := tree.Acquire(t.Context(), "ws-1"); err != nil {
				t.Fatal(err)
			}
			tree.Close()
			layers := f.path("execution-workspaces/ws-1/mounts/small")
			write(t, filepath.Join(layers, "upper/x"), "")
			damage(t, f.path(tree.RelPath))
			before := listing(t, f.path(tree.RelPath))
			_, _, err = f.Pristine(t.Context(), p)
			wantCode(t, err, policy.CodeCacheCorrupt)
			if after := listing(t, f.path(tree.RelPath)); after != before {
				t.Errorf("the lower layer changed: %s\nwas %s", after, before)
			}
			discard(t, f.path("execution-workspaces/ws-1"))
			checkClean(t, f, p)
		})
	}
}

func listing(t *testing.T, dir string) string {
	t.Helper()
	return strings.TrimSpace(run(t, "find", dir, "-printf", "%P %i %s %T@\n"))
}

// What a crash in an eviction leaves is in no ledger, so the next one takes it.
func TestEvictSweepsUnmarkedTrees(t *testing.T) {
	f := newFixture(t)
	src := f.source(testenv.RepoSmall(t).Dir)
	for i, rev := range []string{"HEAD", "HEAD~1"} {
		tree, _, err := f.Pristine(t.Context(), f.resolve(src, rev))
		if err != nil {
			t.Fatal(err)
		}
		tree.Close()
		if i == 0 {
			discard(t, f.path(tree.RelPath)+".json")
			defer func() {
				if exists(f.path(tree.RelPath)) {
					t.Error("the unmarked tree is still there")
				}
			}()
		}
	}
	if rep, err := f.Evict(t.Context(), 1<<40, false); err != nil || len(rep.Removed) != 0 {
		t.Errorf("%+v, %v", rep, err)
	}
}
