package gitcache

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

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
// keepBytes of file content are left. One in use is never removed. With dryRun
// nothing is removed: the report says what would be.
func (c *Cache) Evict(ctx context.Context, keepBytes int64, dryRun bool) (EvictReport, error) {
	var rep EvictReport
	all, err := c.allTrees(ctx, dryRun)
	if err != nil {
		return rep, err
	}
	slices.SortFunc(all, func(a, b cachedTree) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.key, b.key)) })
	for _, t := range all {
		rep.BytesLeft += t.bytes
	}
	for _, t := range all {
		if rep.BytesLeft <= keepBytes {
			break
		}
		rel, freed, err := t.r.evict(ctx, t, dryRun)
		if errors.Is(err, errLocked) {
			rep.InUseSkipped++
			continue
		}
		if err != nil {
			return rep, err
		}
		rep.Removed = append(rep.Removed, rel)
		rep.Freed = append(rep.Freed, freed)
		rep.BytesLeft -= t.bytes
	}
	return rep, nil
}

// Size counts the complete pristine trees, and the bytes of their files.
func (c *Cache) Size(ctx context.Context) (trees int, bytes int64, err error) {
	all, err := c.allTrees(ctx, true)
	for _, t := range all {
		bytes += t.bytes
	}
	return len(all), bytes, err
}

func (c *Cache) allTrees(ctx context.Context, dryRun bool) ([]cachedTree, error) {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return nil, diskError(opAdmin, "the repository cache cannot be read", err)
	}
	var all []cachedTree
	for _, e := range entries {
		r, err := c.repo(policy.RepositoryID(e.Name()))
		if err != nil {
			continue
		}
		if !dryRun {
			if err := r.sweep(ctx); err != nil {
				return nil, err
			}
			if !r.exists() {
				r.dropUnused(ctx)
			}
		}
		trees, err := r.trees()
		if err != nil {
			return nil, err
		}
		all = append(all, trees...)
	}
	return all, nil
}

// sweep removes trees without a marker: a crash in the middle of an eviction,
// or right before a new tree's marker was written, leaves one that the ledger
// does not know.
func (r *repo) sweep(ctx context.Context) error {
	entries, err := os.ReadDir(r.path("trees"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return diskError(opAdmin, "the trees cannot be read", err)
	}
	for _, e := range entries {
		if checkKey(e.Name()) != nil {
			continue
		}
		if err := r.dropUnmarked(ctx, e.Name()); err != nil && !errors.Is(err, errLocked) {
			return err
		}
	}
	return nil
}

// dropUnmarked removes a tree if it has no marker, or returns errLocked.
func (r *repo) dropUnmarked(ctx context.Context, key string) error {
	m, ok := r.readMarker(key)
	if ok && m.Snapshot && !r.inUse(key) { // its last holder was in the way when it went
		return r.dropSnapshot(ctx, key)
	}
	if ok || !exists(r.treePath(key)) {
		return nil
	}
	return r.withTree(ctx, key, func(lockPath string) error {
		if _, ok := r.readMarker(key); ok { // built meanwhile
			return nil
		}
		return r.removeTree(ctx, key, lockPath)
	})
}

// evict measures and removes one tree, or returns errLocked.
func (r *repo) evict(ctx context.Context, t cachedTree, dryRun bool) (rel string, freed int64, err error) {
	rel, freed = r.rel("trees", t.key), t.bytes
	err = r.withTree(ctx, t.key, func(lockPath string) error {
		if m := r.c.opts.Measure; m != nil {
			var err error
			if freed, err = m(ctx, rel); err != nil {
				return err
			}
		}
		if dryRun {
			return nil
		}
		return r.removeTree(ctx, t.key, lockPath)
	})
	return rel, freed, err
}

// withTree calls f with the tree's lock held, or returns errLocked if the tree
// is in use.
func (r *repo) withTree(ctx context.Context, key string, f func(lockPath string) error) error {
	lockPath := r.treePath(key + ".lock")
	l, err := lock(ctx, lockPath, unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		if errors.Is(err, errLocked) {
			return err
		}
		return gitFailure(opAdmin, "a tree could not be locked", err)
	}
	defer l.unlock()
	if r.inUse(key) {
		return errLocked
	}
	return f(lockPath)
}

// removeTree removes the marker first, so that a tree that is half gone is
// nobody's, then the empty directory of its holders, which no sweep would find
// without the tree, and the lock last: waiters see that its name is gone, and
// begin again.
func (r *repo) removeTree(ctx context.Context, key, lockPath string) error {
	err := r.dropMarker(key)
	if err == nil {
		if err = os.Remove(r.treePath(key + ".use")); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err == nil {
		err = r.c.removeTop(ctx, r.treePath(key))
	}
	if err == nil {
		err = os.Remove(lockPath)
	}
	if err != nil {
		return diskError(opAdmin, "a tree cannot be removed", err)
	}
	return nil
}
