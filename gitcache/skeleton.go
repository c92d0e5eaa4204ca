package gitcache

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

const opRepository = "gitcache.repository"

// openSource returns the repository of src.ID, and ties the id to the URL the
// first time it is seen. The caller calls done at the end: a source that was
// refused before it had a mirror leaves nothing behind.
func (c *Cache) openSource(ctx context.Context, src Source) (r *repo, done func(), err error) {
	nothing := func() {}
	if r, err = c.repo(src.ID); err != nil {
		return nil, nothing, err
	}
	if err := errors.Join(c.allowed(src), src.checkFilter()); err != nil {
		return nil, nothing, err
	}
	known, err := r.checkOrigin(src)
	if err != nil {
		return nil, nothing, err
	}
	if known && r.exists() {
		return r, nothing, nil
	}
	l, err := r.makeSkeleton(ctx, src)
	if err != nil {
		return nil, nothing, err
	}
	return r, func() { r.dropSkeleton(l) }, nil
}

// checkOrigin reports whether the repository is recorded, with this source.
func (r *repo) checkOrigin(src Source) (known bool, err error) {
	have, err := r.readOrigin()
	if err == nil && (have.URL != src.URL || have.Filter != src.Filter) {
		return true, policy.Errorf(policy.CodeRepositoryExists, opRepository, "the id %s belongs to another source", r.id)
	}
	return err == nil, nil
}

var skeletonDirs = []string{"trees", "points", "refs", "holds", "pending"}

// makeSkeleton makes what a repository has beside its mirror. The lock it
// returns is shared by all who are about to make the mirror: whoever leaves
// last, with still no mirror there, takes the skeleton away.
func (r *repo) makeSkeleton(ctx context.Context, src Source) (*lockFile, error) {
	var l *lockFile
	for l == nil {
		if err := os.MkdirAll(r.dir, 0o700); err != nil {
			return nil, diskError(opRepository, "the cache directory cannot be created", err)
		}
		var err error
		l, err = lock(ctx, r.path("source.lock"), unix.LOCK_SH)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // not there: taken away just now
			return nil, diskError(opRepository, "the cache directory cannot be locked", err)
		}
	}
	err := r.fillSkeleton(src)
	if err != nil {
		r.dropSkeleton(l)
		return nil, err
	}
	return l, nil
}

func (r *repo) fillSkeleton(src Source) error {
	var err error
	for _, dir := range skeletonDirs {
		err = errors.Join(err, os.MkdirAll(r.path(dir), 0o700))
	}
	if err != nil {
		return diskError(opRepository, "the cache directory cannot be created", err)
	}
	// Made here once, so that a worktree that fails leaves no trace.
	if f, err := os.OpenFile(r.path("worktree.lock"), os.O_CREATE|os.O_RDONLY|unix.O_NOFOLLOW, 0o600); err == nil {
		f.Close()
	}
	known, err := r.checkOrigin(src)
	if err != nil || known {
		return err
	}
	b, err := json.Marshal(origin{URL: src.URL, Filter: src.Filter})
	if err == nil {
		err = writeFile(r.path("source.json"), b, 0o600, true)
	}
	if err != nil {
		return diskError(opRepository, "the source cannot be recorded", err)
	}
	return nil
}

// dropSkeleton ends a use that makeSkeleton began.
func (r *repo) dropSkeleton(l *lockFile) {
	defer l.unlock()
	// flock(2) converts a lock by dropping it first. Of several that leave at
	// once all but one may fail here, never all.
	if r.exists() || unix.Flock(int(l.f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return
	}
	// A git whose parent was killed may still hold this one.
	m, err := lock(context.Background(), r.path("lock"), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		return
	}
	defer m.unlock()
	if !r.isSkeleton() {
		return
	}
	if err := r.moveAway(context.Background()); err != nil {
		r.c.log.Warn("an unused cache directory is left behind", "repository", r.id, "error", err)
	}
}

// dropUnused takes a skeleton away that a process left which was killed before
// it had a mirror.
func (r *repo) dropUnused(ctx context.Context) {
	if !exists(r.path("source.lock")) {
		return
	}
	if l, err := lock(ctx, r.path("source.lock"), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		r.dropSkeleton(l)
	}
}

// isSkeleton reports whether nothing of value is there: a mirror that was set
// aside may hold the only copy of a pinned commit.
func (r *repo) isSkeleton() bool {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return false
	}
	for _, e := range entries {
		switch e.Name() {
		case "view", "lookup", "source.json", "state.json", "lock", "source.lock", "pins.lock", "worktree.lock":
			continue
		case "trees", "points", "refs", "holds", "pending", "whole", snapshotsDir:
			if inside, err := os.ReadDir(r.path(e.Name())); err == nil && len(inside) == 0 {
				continue
			}
		}
		return false
	}
	return true
}

// moveAway takes the whole repository out of sight before it is deleted: half
// a repository is never found under its name.
func (r *repo) moveAway(ctx context.Context) error {
	away := filepath.Join(r.c.dir, policy.NewID(removedPrefix))
	res := Resource{Kind: "directory", Owner: string(r.id), Path: filepath.Join(cacheDir, filepath.Base(away))}
	if err := r.c.journal.Intend(ctx, res); err != nil {
		return err
	}
	if err := errors.Join(os.Rename(r.dir, away), r.c.removeRepository(ctx, away)); err != nil {
		return diskError(opRepository, "the repository cannot be removed", err)
	}
	return r.c.journal.Release(res)
}
