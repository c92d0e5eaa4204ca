package gitcache

import (
	"context"
	"hash"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

// TestSnapshotOfAMovingRepository changes the source's git state while its files
// are copied: once, and the snapshot is begun anew; each time, and it is given up;
// to another commit, and it is refused. Nothing is held afterwards.
func TestSnapshotOfAMovingRepository(t *testing.T) {
	add := func(t *testing.T, r testenv.Repo, n int) {
		write(t, filepath.Join(r.Dir, "new"), string(rune('a'+n)))
		r.Git(t, "add", "new")
	}
	for _, c := range []struct {
		name   string
		during func(t *testing.T, r testenv.Repo, n int)
		copies int
		code   policy.Code
	}{
		{"still", func(*testing.T, testenv.Repo, int) {}, 1, ""},
		{"refreshed only", func(t *testing.T, r testenv.Repo, _ int) { r.Git(t, "update-index", "--refresh") }, 1, ""},
		{"once", func(t *testing.T, r testenv.Repo, n int) {
			if n == 1 {
				add(t, r, n)
			}
		}, 2, ""},
		{"for ever", add, snapshotAttempts, policy.CodeSourceChanged},
		{"another commit", func(t *testing.T, r testenv.Repo, _ int) { r.Git(t, "commit", "-q", "--allow-empty", "-m", "x") }, 1, policy.CodeSourceChanged},
		{"an operation begins", func(t *testing.T, r testenv.Repo, n int) {
			write(t, filepath.Join(r.Dir, ".git", []string{"", "MERGE_HEAD", "REVERT_HEAD", "BISECT_LOG"}[n]), "x")
		}, snapshotAttempts, policy.CodeSourceChanged},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			repo := testenv.RepoSmall(t)
			src := f.source(repo.Dir)
			p := f.resolve(src, "HEAD")
			copies := 0
			f.opts.CopyLive = func(context.Context, *os.File, *os.File, func(string) func(string, bool) bool, func(int64)) (int, []policy.Diagnostic, error) {
				copies++
				c.during(t, repo, copies)
				return 2, nil, nil
			}
			f.opts.DigestTree = func(context.Context, *os.File, string, func(string, int64) hash.Hash, func(string, *unix.Statx_t, hash.Hash)) (string, int64, int64, error) {
				return "sha256:0", 1, 1, nil
			}
			tree, snap, _, err := f.HoldSnapshot(t.Context(), src, p, "holder", SnapshotOptions{})
			if copies != c.copies {
				t.Errorf("%d copies, want %d", copies, c.copies)
			}
			if c.code != "" {
				wantCode(t, err, c.code)
			} else if err != nil {
				t.Fatal(err)
			} else {
				if snap.Source.Head != "refs/heads/main" || snap.Digest == "" {
					t.Errorf("the snapshot is %+v", snap)
				}
				key := tree.Key
				if err := tree.Close(); err != nil {
					t.Fatal(err)
				}
				if err := f.ReleasePristine(t.Context(), p.RepositoryID, key, "holder"); err != nil {
					t.Error(err)
				}
				if err := f.Unpin(t.Context(), p.RepositoryID, p.CommitID, "holder"); err != nil {
					t.Error(err)
				}
			}
			if len(f.journal.held) > 0 {
				t.Errorf("held: %v", f.journal.held)
			}
			if left, _ := os.ReadDir(f.path("repository-cache/git/" + string(p.RepositoryID) + "/trees")); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}
