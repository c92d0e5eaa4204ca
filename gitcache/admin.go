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

const opAdmin = "gitcache.admin"

// List describes every repository of the cache, by id.
func (c *Cache) List(ctx context.Context) ([]RepositoryInfo, error) {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return nil, diskError(opAdmin, "the repository cache cannot be read", err)
	}
	var out []RepositoryInfo
	for _, e := range entries {
		if ctx.Err() != nil {
			return nil, gitFailure(opAdmin, "", ctx.Err())
		}
		r, err := c.repo(policy.RepositoryID(e.Name()))
		if err != nil {
			continue
		}
		src, err := r.readOrigin()
		if err != nil {
			continue
		}
		info := RepositoryInfo{ID: r.id, Source: src.Redacted(), FetchedAt: r.readState().FetchedAt, CacheBytes: diskUsage(r.bare())}
		trees, err := r.trees()
		if err != nil {
			return nil, err
		}
		info.Trees = len(trees)
		for _, t := range trees {
			info.TreeBytes += t.bytes
		}
		if pins, err := r.pins(); err == nil {
			info.Pins = len(pins)
		}
		out = append(out, info)
	}
	return out, nil
}

// Remove deletes a repository from the cache: CodeRepositoryInUse while a
// holder has a pin or a tree of it. Absent is fine.
func (c *Cache) Remove(ctx context.Context, id policy.RepositoryID) error {
	r, err := c.repo(id)
	if err != nil {
		return err
	}
	if !exists(r.dir) {
		return nil
	}
	var held []*lockFile
	defer func() {
		for _, l := range held {
			l.unlock()
		}
	}()
	for _, name := range []string{"lock", "pins.lock", "worktree.lock"} {
		l, err := lock(ctx, r.path(name), unix.LOCK_EX)
		if err != nil {
			return gitFailure(opAdmin, "the repository could not be locked", err)
		}
		held = append(held, l)
	}
	if err := r.refuseInUse(); err != nil {
		return err
	}
	trees, err := r.trees()
	if err != nil {
		return err
	}
	for _, t := range trees {
		if _, _, err := r.evict(ctx, t, false); err != nil {
			if errors.Is(err, errLocked) {
				return policy.Errorf(policy.CodeRepositoryInUse, opAdmin, "a tree of %s is in use", r.id)
			}
			return err
		}
	}
	return r.moveAway(ctx)
}

// removeRepository takes trees away with the hook: they may be subvolumes.
func (c *Cache) removeRepository(ctx context.Context, dir string) error {
	entries, err := os.ReadDir(filepath.Join(dir, "trees"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if e.IsDir() && !strings.HasSuffix(e.Name(), ".use") {
			if err := c.removeTop(ctx, filepath.Join(dir, "trees", e.Name())); err != nil {
				return err
			}
		}
	}
	return os.RemoveAll(dir)
}

func (r *repo) refuseInUse() error {
	pins, err := r.pins()
	if err != nil {
		return diskError(opAdmin, "the pins cannot be read", err)
	}
	worktrees := 0
	if err := r.eachEntry(func(_, reason string, _ bool) error {
		if strings.HasPrefix(reason, worktreeReason) {
			worktrees++
		}
		return nil
	}); err != nil {
		return diskError(opAdmin, "the worktrees cannot be read", err)
	}
	recs, err := r.collected()
	if err != nil {
		return diskError(opAdmin, "the records of collected commits cannot be read", err)
	}
	if len(recs) > 0 {
		return policy.Errorf(policy.CodeRepositoryInUse, opAdmin, "%d names for collected commits are in the cache of %s alone", len(recs), r.id).
			WithHint("See yoi repo collected %s; take them out and drop them.", r.id)
	}
	if len(pins)+worktrees > 0 {
		return policy.Errorf(policy.CodeRepositoryInUse, opAdmin, "%d holders still stand on %s", max(len(pins), worktrees), r.id)
	}
	return nil
}

// diskUsage sums the sizes of regular files; what vanishes meanwhile counts 0.
func diskUsage(dir string) int64 {
	var n int64
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if st, err := d.Info(); err == nil {
				n += st.Size()
			}
		}
		return nil
	})
	return n
}
