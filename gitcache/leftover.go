package gitcache

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

const opLeftover = "gitcache.leftover"

// RemoveLeftover ends a directory or pristine_tree that a dead process had in
// the ledger: a half-made mirror, tree or removal. Usually it was renamed into
// place right before the crash, or removed, and nothing has that name. Other
// kinds end with Unpin, ReleasePristine and RemoveWorktree.
//
// It waits for the lock that the dead process's git may still hold.
func (c *Cache) RemoveLeftover(ctx context.Context, res Resource) error {
	foreign := policy.Errorf(policy.CodeLeftoverForeign, opLeftover, "the ledger names something in the cache that the cache never makes")
	rel, ok := strings.CutPrefix(res.Path, cacheDir+"/")
	if !ok || path.Clean(rel) != rel {
		return foreign
	}
	dir, name := path.Split(rel)
	parts := strings.Split(dir, "/") // the last is ""
	var err error
	switch {
	case len(parts) == 1 && strings.HasPrefix(name, removedPrefix):
		err = c.removeRepository(ctx, filepath.Join(c.dir, name))
	case len(parts) == 2 && (strings.HasPrefix(name, mirrorPrefix) || strings.HasPrefix(name, importPrefix)):
		err = c.removeHalfMirror(ctx, policy.RepositoryID(parts[0]), name)
	case len(parts) == 2 && strings.HasPrefix(name, quarantinePrefix):
		err = c.removeQuarantine(policy.RepositoryID(parts[0]), name)
	case len(parts) == 3 && parts[1] == "trees" && strings.HasPrefix(name, tmpPrefix):
		err = c.removeHalfTree(ctx, policy.RepositoryID(parts[0]), name)
	default:
		return foreign
	}
	if err != nil {
		return diskError(opLeftover, "a leftover of the cache cannot be removed", err)
	}
	return c.journal.Release(res)
}

const (
	removedPrefix = ".removed-"
	tmpPrefix     = ".tmp-"
	mirrorPrefix  = tmpPrefix + "mirror-"
	importPrefix  = tmpPrefix + "import-"
)

func treePrefix(key string) string { return tmpPrefix + key + "-" }

func (c *Cache) removeHalfMirror(ctx context.Context, id policy.RepositoryID, name string) error {
	r, err := c.repo(id)
	if err != nil {
		return err
	}
	l, err := lock(ctx, r.path("lock"), unix.LOCK_EX)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	err = os.RemoveAll(r.path(name))
	l.unlock()
	if err == nil && !r.exists() {
		r.dropUnused(ctx)
	}
	return err
}

// removeQuarantine needs no lock: git dies with the process that started it, and
// nobody else knows the name.
func (c *Cache) removeQuarantine(id policy.RepositoryID, name string) error {
	r, err := c.repo(id)
	if err != nil {
		return err
	}
	return os.RemoveAll(r.path(name))
}

// removeHalfTree also removes the tree itself if it has no marker: it was
// renamed and the process died before it could say that it is complete.
func (c *Cache) removeHalfTree(ctx context.Context, id policy.RepositoryID, name string) error {
	r, err := c.repo(id)
	if err != nil {
		return err
	}
	key := strings.TrimPrefix(name, tmpPrefix)
	if i := strings.LastIndexByte(key, '-'); i >= 0 {
		key = key[:i]
	}
	if err := checkKey(key); err != nil {
		return err
	}
	l, err := lock(ctx, r.treePath(key+".lock"), unix.LOCK_EX)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer l.unlock()
	if err := c.removeTop(ctx, r.treePath(name)); err != nil {
		return err
	}
	if _, ok := r.readMarker(key); ok || r.inUse(key) {
		return nil
	}
	return r.removeTree(ctx, key, r.treePath(key+".lock"))
}
