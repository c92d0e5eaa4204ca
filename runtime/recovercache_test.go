package runtime

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/gitcache"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/policy"
)

// cacheProcess is as much of a Runtime as the repository cache needs. Closing
// its ledger without a release is what a crash looks like to the next process.
func cacheProcess(t *testing.T, dir string) *Runtime {
	t.Helper()
	cacheIDs.Clear() // of the process before
	r := &Runtime{log: slog.New(slog.DiscardHandler), now: time.Now}
	r.settings.Store(new(settings))
	var err error
	if r.root, err = rootdir.Open(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.root.Close() })
	if err := r.openLedger(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r.cache, err = gitcache.Open(r.cacheOptions(nil)); err != nil {
		t.Fatal(err)
	}
	return r
}

func crash(t *testing.T, r *Runtime) {
	t.Helper()
	if err := r.ledger.Close(); err != nil {
		t.Fatal(err)
	}
	r.ledgerDir.Close()
}

// TestRecoverEveryCacheResource has a process die right before or after each
// step that the cache takes, and the next one recover.
func TestRecoverEveryCacheResource(t *testing.T) {
	const repo, holder = "small", "ws-1"
	source := testenv.RepoSmall(t).Dir
	for name, step := range map[string]func(t *testing.T, r *Runtime, p policy.RepositoryPoint, git string){
		"held": func(t *testing.T, r *Runtime, p policy.RepositoryPoint, _ string) {
			tree, _, err := r.cache.Hold(t.Context(), p, holder)
			if err != nil {
				t.Fatal(err)
			}
			tree.Close()
		},
		"held, not begun": func(t *testing.T, r *Runtime, p policy.RepositoryPoint, _ string) {
			for _, path := range []string{"bare.git/refs/yoi/pins/" + holder + "/" + p.CommitID, "trees/" + p.TreeID + ".use/" + holder} {
				attrs := map[string]string{"repository": repo, "commit": p.CommitID}
				if strings.HasPrefix(path, "trees/") {
					attrs = map[string]string{"repository": repo, "tree": p.TreeID}
				}
				intend(t, r, "cache_reference", holder, repo+"/"+path, attrs)
			}
		},
		"pin half written": func(t *testing.T, r *Runtime, p policy.RepositoryPoint, git string) {
			intend(t, r, "cache_reference", holder, repo+"/bare.git/refs/yoi/pins/"+holder+"/"+p.CommitID, map[string]string{"repository": repo, "commit": p.CommitID})
			put(t, git+"/small/holds/"+holder+"/"+p.CommitID)
			put(t, git+"/small/pending/pin-"+holder+"~0")
		},
		"worktree": func(t *testing.T, r *Runtime, p policy.RepositoryPoint, _ string) {
			if _, _, err := r.cache.AddWorktree(t.Context(), p, holder, filepath.Join(t.TempDir(), "w")); err != nil {
				t.Fatal(err)
			}
		},
		"worktree half added": func(t *testing.T, r *Runtime, _ policy.RepositoryPoint, git string) {
			intend(t, r, "worktree_admin", holder, repo+"/bare.git/worktrees/"+holder, map[string]string{"repository": repo})
			put(t, git+"/small/bare.git/worktrees/w/locked")
			put(t, git+"/small/pending/wt-0/HEAD")
		},
		"mirror half made": func(t *testing.T, r *Runtime, _ policy.RepositoryPoint, git string) {
			intend(t, r, "directory", repo, repo+"/.tmp-mirror-0", nil)
			put(t, git+"/small/.tmp-mirror-0/objects/pack/tmp_pack_x")
		},
		"mirror renamed": func(t *testing.T, r *Runtime, _ policy.RepositoryPoint, _ string) {
			intend(t, r, "directory", repo, repo+"/.tmp-mirror-0", nil)
		},
		"first mirror half made": func(t *testing.T, r *Runtime, _ policy.RepositoryPoint, git string) {
			intend(t, r, "directory", "other", "other/.tmp-mirror-0", nil)
			put(t, git+"/other/.tmp-mirror-0/HEAD")
			put(t, git+"/other/source.json")
			put(t, git+"/other/source.lock")
		},
		"tree half made": func(t *testing.T, r *Runtime, p policy.RepositoryPoint, git string) {
			intend(t, r, "pristine_tree", repo, repo+"/trees/.tmp-"+p.TreeID+"-0", nil)
			put(t, git+"/small/trees/.tmp-"+p.TreeID+"-0/README.md")
		},
		"tree renamed": func(t *testing.T, r *Runtime, p policy.RepositoryPoint, git string) {
			other := strings.Repeat("a", 40)
			intend(t, r, "pristine_tree", repo, repo+"/trees/.tmp-"+other+"-0", nil)
			put(t, git+"/small/trees/"+other+"/README.md")
			put(t, git+"/small/trees/"+other+".lock")
		},
		"tree complete": func(t *testing.T, r *Runtime, p policy.RepositoryPoint, _ string) {
			intend(t, r, "pristine_tree", repo, repo+"/trees/.tmp-"+p.TreeID+"-0", nil)
		},
		"removal begun": func(t *testing.T, r *Runtime, _ policy.RepositoryPoint, git string) {
			intend(t, r, "directory", "other", ".removed-0", nil)
			put(t, git+"/.removed-0/trees/x/y")
		},
		"removal not begun": func(t *testing.T, r *Runtime, _ policy.RepositoryPoint, _ string) {
			intend(t, r, "directory", repo, ".removed-0", nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			git := filepath.Join(dir, rootdir.GitCache)
			dead := cacheProcess(t, dir)
			p := warm(t, dead, source)
			before := everything(t, git)
			step(t, dead, p, git)
			crash(t, dead)

			r := cacheProcess(t, dir)
			defer crash(t, r)
			state, err := ledger.Scan(t.Context(), r.ledgerDir)
			if err != nil || len(state.Leftovers()) == 0 {
				t.Fatalf("no leftovers: %v", err)
			}
			var rep RecoveryReport
			if err := r.recoverCache(t.Context(), state, &rep); err != nil || len(rep.Diagnostics) != 0 {
				t.Fatalf("%v %v", err, rep.Diagnostics)
			}
			if state, err = ledger.Scan(t.Context(), r.ledgerDir); err != nil || len(state.Held) != 0 {
				t.Errorf("still held: %+v, %v", state.Held, err)
			}
			if after := everything(t, git); after != before {
				t.Errorf("the cache holds\n%s\nwant\n%s", after, before)
			}
			if tree, _, err := r.cache.Pristine(t.Context(), p); err != nil {
				t.Error(err)
			} else {
				tree.Close()
			}
		})
	}
}

// warm makes a mirror and its tree, all released.
func warm(t *testing.T, r *Runtime, source string) policy.RepositoryPoint {
	t.Helper()
	src, err := gitcache.ParseSource(source, "/")
	if err != nil {
		t.Fatal(err)
	}
	p, _, err := r.cache.Resolve(t.Context(), src, policy.Selector{}, gitcache.ResolveOptions{})
	if err != nil {
		t.Fatal(err)
	}
	tree, _, err := r.cache.Pristine(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	tree.Close()
	return p
}

func intend(t *testing.T, r *Runtime, kind, owner, path string, attrs map[string]string) {
	t.Helper()
	res := gitcache.Resource{Kind: kind, Owner: owner, Path: rootdir.GitCache + "/" + path, Attrs: attrs}
	if err := (*journal)(r).Intend(context.Background(), res); err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

// everything lists the names below a directory but for those that stay for
// good once a feature was used.
func everything(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, path)
		if name := filepath.Base(rel); !strings.HasSuffix(name, "pins.lock") && rel != "small/bare.git/refs/yoi/pins" {
			b.WriteString(rel + "\n")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
