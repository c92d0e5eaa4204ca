package gitcache

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

const opWorktree = "gitcache.worktree"

// An admin entry of ours is locked with this reason and the allocation's id, so
// that `worktree prune` leaves it alone and we can tell whose it is.
const worktreeReason = "yoi "

// worktreeResource names the entry by the allocation: git chooses the
// directory's own name, so recovery calls RemoveWorktree and removes no path.
func (r *repo) worktreeResource(allocation policy.AllocationID, p policy.RepositoryPoint) Resource {
	return Resource{
		Kind: "worktree_admin", Owner: string(allocation), Path: r.rel("bare.git/worktrees", string(allocation)),
		Attrs: map[string]string{"repository": string(r.id), "commit": p.CommitID},
	}
}

// AddWorktree runs `git worktree add --detach` of the point into dir, which
// must be absent or empty, then turns its .git pointer into a private git
// directory with a ready index. The admin entry stays in the mirror as a pin.
//
// Only the metadata step is under a lock: concurrent adds, and a prune beside
// an add, otherwise destroy each other's half-made entries.
func (c *Cache) AddWorktree(ctx context.Context, p policy.RepositoryPoint, allocation policy.AllocationID, dir string) (Tree, []policy.Diagnostic, error) {
	r, err := c.repo(p.RepositoryID)
	if err != nil {
		return Tree{}, nil, err
	}
	if err := policy.CheckID("allocation", string(allocation)); err != nil {
		return Tree{}, nil, err
	}
	if !policy.ValidOID(p.CommitID) || !policy.ValidOID(p.TreeID) || !filepath.IsAbs(dir) {
		return Tree{}, nil, policy.Errorf(policy.CodeSelectorInvalid, opWorktree, "the point or the directory is malformed")
	}
	if _, ok := r.readMark(p.CommitID); !ok {
		return Tree{}, nil, policy.Errorf(policy.CodeConflict, opWorktree, "commit %s is not resolved in the cache", p.CommitID).WithHint("Resolve the selector again.")
	}
	res := r.worktreeResource(allocation, p)
	if err := c.journal.Intend(ctx, res); err != nil {
		return Tree{}, nil, err
	}
	m, err := r.addWorktree(ctx, p, allocation, dir)
	if err != nil {
		if r.removeWorktree(context.WithoutCancel(ctx), allocation) == nil {
			_ = c.journal.Release(res)
		}
		return Tree{}, nil, err
	}
	return m.Tree, m.Warnings, c.journal.Done(res, 0, 0)
}

func (r *repo) addWorktree(ctx context.Context, p policy.RepositoryPoint, allocation policy.AllocationID, dir string) (marker, error) {
	added := false
	return r.mending(ctx, p.CommitID, func() (marker, error) {
		if !added {
			l, err := lock(ctx, r.path("worktree.lock"), unix.LOCK_EX)
			if err != nil {
				return marker{}, gitFailure(opWorktree, "the worktrees could not be locked", err)
			}
			err = r.addEntry(ctx, p, allocation, dir, l)
			l.unlock()
			if err != nil {
				return marker{}, err
			}
			added = true
		}
		if err := empty(dir); err != nil { // of the pointer to the entry, and of a failed checkout
			return marker{}, diskError(opWorktree, "the worktree cannot be emptied", err)
		}
		return r.checkout(ctx, p, dir, nil)
	})
}

// empty removes what is in dir, which no Worker has seen yet.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}

// addEntry is the metadata step. The caller holds worktree.lock.
func (r *repo) addEntry(ctx context.Context, p policy.RepositoryPoint, allocation policy.AllocationID, dir string, l *lockFile) error {
	if err := r.dropHalfMade(ctx); err != nil {
		return diskError(opWorktree, "a leftover entry cannot be removed", err)
	}
	cmd := r.bareCommand("worktree", "add", "--quiet", "--detach", "--no-checkout", "--lock", "--reason="+worktreeReason+string(allocation), "--", dir, p.CommitID)
	cmd.locks, cmd.writes, cmd.target = []*lockFile{l}, true, filepath.Dir(dir)
	if _, err := r.c.run(ctx, cmd); err != nil {
		return gitFailure(opWorktree, "the worktree could not be added", err)
	}
	return nil
}

// RemoveWorktree removes an allocation's admin entries. It is idempotent, never
// prunes, and never looks at the worktree itself, which a Worker wrote.
func (c *Cache) RemoveWorktree(ctx context.Context, id policy.RepositoryID, allocation policy.AllocationID) error {
	r, err := c.repo(id)
	if err != nil {
		return err
	}
	if err := policy.CheckID("allocation", string(allocation)); err != nil {
		return err
	}
	if err := r.removeWorktree(ctx, allocation); err != nil {
		return err
	}
	return c.journal.Release(r.worktreeResource(allocation, policy.RepositoryPoint{}))
}

func (r *repo) removeWorktree(ctx context.Context, allocation policy.AllocationID) error {
	if !r.exists() {
		return nil
	}
	l, err := lock(ctx, r.path("worktree.lock"), unix.LOCK_EX)
	if err != nil {
		return gitFailure(opWorktree, "the worktrees could not be locked", err)
	}
	defer l.unlock()
	if err := r.dropHalfMade(ctx); err != nil {
		return diskError(opWorktree, "a leftover entry cannot be removed", err)
	}
	err = r.eachEntry(func(dir, reason string, locked bool) error {
		if locked && reason == worktreeReason+string(allocation) {
			return r.dropEntry(dir)
		}
		return nil
	})
	_ = os.Remove(r.bare("worktrees")) // not empty while others have entries
	if err != nil {
		return diskError(opWorktree, "the worktree's entry cannot be removed", err)
	}
	return nil
}

// dropHalfMade removes what a killed `worktree add` left. Every entry of ours
// is locked from its first moment to its last, with "initializing" or our
// reason; under worktree.lock no add and no removal is running.
func (r *repo) dropHalfMade(ctx context.Context) error {
	if err := r.c.removeTemporary(ctx, r.path("pending"), awayPrefix); err != nil {
		return err
	}
	return r.eachEntry(func(dir, reason string, locked bool) error {
		if !locked || !strings.HasPrefix(reason, worktreeReason) {
			return r.dropEntry(dir)
		}
		return nil
	})
}

func (r *repo) eachEntry(f func(dir, reason string, locked bool) error) error {
	entries, err := os.ReadDir(r.bare("worktrees"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		dir := r.bare("worktrees", e.Name())
		reason, readErr := readSmall(filepath.Join(dir, "locked"), 4096)
		err = errors.Join(err, f(dir, strings.TrimSpace(string(reason)), readErr == nil))
	}
	return err
}

const awayPrefix = "wt-"

// dropEntry moves the entry out first: git never sees half of one.
func (r *repo) dropEntry(dir string) error {
	away := r.path("pending", policy.NewID(awayPrefix))
	if err := os.Rename(dir, away); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return os.RemoveAll(away)
}
