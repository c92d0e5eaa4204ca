package gitcache

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

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
		if _, err := r.evict(ctx, t); err != nil {
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
	if len(pins)+worktrees > 0 {
		return policy.Errorf(policy.CodeRepositoryInUse, opAdmin, "%d holders still stand on %s", max(len(pins), worktrees), r.id)
	}
	return nil
}

// cachedTree is a complete pristine tree on disk.
type cachedTree struct {
	r     *repo
	key   string
	bytes int64
	used  time.Time
}

func (r *repo) trees() ([]cachedTree, error) {
	entries, err := os.ReadDir(r.path("trees"))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, diskError(opAdmin, "the trees cannot be read", err)
	}
	var out []cachedTree
	for _, e := range entries {
		key, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok {
			continue
		}
		m, ok := r.readMarker(key)
		if !ok {
			continue
		}
		t := cachedTree{r: r, key: key, bytes: m.Bytes, used: m.BuiltAt}
		if st, err := os.Stat(r.treePath(key + ".lock")); err == nil {
			t.used = st.ModTime()
		}
		out = append(out, t)
	}
	return out, nil
}

// Evict removes pristine trees, the least recently used first, until at most
// keepBytes of file content are left. One in use is never removed.
func (c *Cache) Evict(ctx context.Context, keepBytes int64) (EvictReport, error) {
	var rep EvictReport
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return rep, diskError(opAdmin, "the repository cache cannot be read", err)
	}
	var all []cachedTree
	for _, e := range entries {
		r, err := c.repo(policy.RepositoryID(e.Name()))
		if err != nil {
			continue
		}
		trees, err := r.trees()
		if err != nil {
			return rep, err
		}
		all = append(all, trees...)
	}
	slices.SortFunc(all, func(a, b cachedTree) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.key, b.key)) })
	for _, t := range all {
		rep.BytesLeft += t.bytes
	}
	for _, t := range all {
		if rep.BytesLeft <= keepBytes {
			break
		}
		rel, err := t.r.evict(ctx, t)
		if errors.Is(err, errLocked) {
			rep.InUseSkipped++
			continue
		}
		if err != nil {
			return rep, err
		}
		rep.Removed = append(rep.Removed, rel)
		rep.BytesFreed += t.bytes
		rep.BytesLeft -= t.bytes
	}
	return rep, nil
}

// evict removes one tree, or returns errLocked. The marker goes first.
func (r *repo) evict(ctx context.Context, t cachedTree) (string, error) {
	lockPath := r.treePath(t.key + ".lock")
	l, err := lock(ctx, lockPath, unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		if errors.Is(err, errLocked) {
			return "", err
		}
		return "", gitFailure(opAdmin, "a tree could not be locked", err)
	}
	defer l.unlock()
	if r.inUse(t.key) {
		return "", errLocked
	}
	if err = r.dropMarker(t.key); err == nil {
		err = r.c.removeTop(ctx, r.treePath(t.key))
	}
	if err == nil {
		err = os.Remove(lockPath) // waiters see that the name is gone, and begin again
	}
	if err != nil {
		return "", diskError(opAdmin, "a tree cannot be removed", err)
	}
	return r.rel("trees", t.key), nil
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
