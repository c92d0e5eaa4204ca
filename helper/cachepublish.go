package helper

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/depcache"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/policy"
)

// PublishRequest asks for what a Worker left in an allocation to become shared
// caches. Whether the Worker is trusted with that is the caller's to know.
type PublishRequest struct {
	AllocationID policy.AllocationID `json:"allocation_id"`
	Repositories []RepositoryTree    `json:"repositories"`
	// DependencyBytes and BuildBytes bound one entry of either kind.
	DependencyBytes int64 `json:"dependency_bytes"`
	BuildBytes      int64 `json:"build_bytes"`
}

func (r PublishRequest) validate() error {
	if err := policy.CheckID("allocation", string(r.AllocationID)); err != nil {
		return err
	}
	return validateTrees(r.Repositories)
}

// PublishedCache says what became of one cache.
type PublishedCache struct {
	policy.CacheUse
	Bytes     int64 `json:"bytes,omitempty"`
	Published bool  `json:"published"`
	// Reason is why not.
	Reason string `json:"reason,omitempty"`
}

// PublishResult lists the caches of an allocation.
type PublishResult struct {
	Caches []PublishedCache `json:"caches"`
}

// Publish makes shared caches out of an allocation's directories, each whole or
// not at all. It holds the allocation's lock, so that no Worker writes meanwhile.
func (l *Local) Publish(ctx context.Context, req PublishRequest) (PublishResult, error) {
	var res PublishResult
	if err := req.validate(); err != nil {
		return res, err
	}
	if err := l.awaitTeardown(ctx, req.AllocationID); err != nil {
		return res, err
	}
	lock, err := l.occupyAllocation(req.AllocationID)
	if err != nil {
		return res, err
	}
	defer unlock(lock)
	uses, err := l.cacheUsesOf(req.AllocationID)
	if err != nil || uses == nil {
		return res, err
	}
	for _, u := range uses.Dependencies {
		for _, t := range req.Repositories {
			if t.RepositoryID != u.RepositoryID {
				continue
			}
			c, err := l.publishDependencies(ctx, req, t, u.CacheUse)
			if err != nil {
				return res, err
			}
			res.Caches = append(res.Caches, c)
		}
	}
	if uses.Build != nil {
		c, err := l.publishBuild(ctx, req, *uses.Build)
		if err != nil {
			return res, err
		}
		res.Caches = append(res.Caches, c)
	}
	return res, nil
}

// publishDependencies publishes one directory. Only one that the Worker filled
// from nothing is taken: on top of a base, its upper layer is half of it.
func (l *Local) publishDependencies(ctx context.Context, req PublishRequest, t RepositoryTree, u policy.CacheUse) (PublishedCache, error) {
	const op = "helper.publish"
	c := PublishedCache{CacheUse: u}
	no := func(reason string) (PublishedCache, error) {
		c.Reason = reason
		return c, nil
	}
	switch {
	case u.Warm:
		return no("the workspace began with it")
	case u.Digest == "":
		return no("a key file does not exist at the workspace's point")
	}
	base := ownTree(req.AllocationID, t)
	digest, err := depcache.Digest(policy.DependencyCache{Path: u.Path, Key: u.Key}, l.keyReaderIn(base, t))
	if err != nil {
		return c, diskError(op, err)
	}
	if digest != u.Digest {
		return no("the worker changed a key file")
	}
	dir, err := l.root.OpenDir(base + "/" + u.Path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
		return no("the worker made no such directory")
	}
	if err != nil {
		return c, diskError(op, err)
	}
	defer dir.Close()
	size, err := l.sizeOf(ctx, base+"/"+u.Path)
	if err != nil {
		return c, err
	}
	if c.Bytes = size; size > req.DependencyBytes {
		return no("it is larger than the configuration allows")
	}
	store := l.caches()
	k := depcache.Key{Set: depcache.DependencySet(t.RepositoryID), Name: u.Digest}
	c.Published, err = store.Publish(ctx, k, depcache.Marker{Directory: u.Path, Allocation: req.AllocationID}, func(ctx context.Context, staging *os.File) error {
		return store.FillDependencies(ctx, staging, u.Path, dir)
	})
	if err == nil && !c.Published {
		return no("another workspace has published it")
	}
	return c, err
}

// publishBuild makes the next generation of a build cache. If that would be too
// large, it begins anew with what this workspace added.
func (l *Local) publishBuild(ctx context.Context, req PublishRequest, b buildCacheUse) (PublishedCache, error) {
	const op = "helper.publish"
	c := PublishedCache{CacheUse: policy.CacheUse{Path: buildCacheAt, Warm: b.Generation != ""}}
	upperPath := rootdir.Workspace(req.AllocationID) + "/" + buildCacheDir
	upper, err := l.root.OpenDir(upperPath)
	if err != nil {
		return c, diskError(op, err)
	}
	defer upper.Close()
	if names, err := upper.Readdirnames(1); len(names) == 0 {
		_ = err // io.EOF: an empty directory
		c.Reason = "the worker added nothing"
		return c, nil
	}
	if c.Bytes, err = l.sizeOf(ctx, upperPath); err != nil {
		return c, err
	}
	if c.Bytes > req.BuildBytes {
		c.Reason = "it is larger than the configuration allows"
		return c, nil
	}
	store := l.caches()
	set := depcache.BuildSet(b.WorkspaceID)
	before, ok, err := store.Newest(set)
	if err != nil {
		return c, err
	}
	var base *os.File
	if m, found := store.Read(before); ok && found && m.Bytes+c.Bytes <= req.BuildBytes {
		release, held, err := store.Hold(before)
		if err != nil {
			return c, err
		}
		if held {
			defer release()
			if base, err = l.root.OpenDir(before.BuildPath()); err != nil {
				return c, diskError(op, err)
			}
			defer base.Close()
		}
	}
	k := depcache.Key{Set: set, Name: depcache.NewGeneration()}
	c.Digest = k.Name
	c.Published, err = store.Publish(ctx, k, depcache.Marker{Allocation: req.AllocationID}, func(ctx context.Context, staging *os.File) error {
		return store.FillBuild(ctx, staging, upper, base)
	})
	return c, err
}

// unlock gives a lock back before it closes the file: a child of a launch that is
// just being cloned has a copy of the descriptor for a moment.
func unlock(f *os.File) {
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN) // closing does it too, a moment later
	f.Close()
}

// ownTree is where an allocation's own files of a repository lie.
func ownTree(id policy.AllocationID, t RepositoryTree) string {
	if t.Strategy == policy.StrategyOverlay {
		return rootdir.Layers(id, t.RepositoryID) + "/upper"
	}
	return rootdir.Repository(id, t.RepositoryID)
}

// keyReaderIn reads key files as the Worker left them: of an overlay, the upper
// layer's where it has any entry of that name, else the pristine tree's.
func (l *Local) keyReaderIn(base string, t RepositoryTree) func(string) ([]byte, bool, error) {
	own := l.keyReader(base)
	if t.Strategy != policy.StrategyOverlay {
		return own
	}
	below := l.keyReader(rootdir.Tree(t.RepositoryID, t.TreeKey))
	return func(name string) ([]byte, bool, error) {
		if there, err := l.root.Exists(base + "/" + name); err == nil && !there {
			return below(name)
		}
		return own(name)
	}
}

// sizeOf is what a directory of the Runtime root occupies.
func (l *Local) sizeOf(ctx context.Context, rel string) (int64, error) {
	dir, name := splitPath(rel)
	parent, err := l.root.OpenDir(dir)
	if err != nil {
		return 0, diskError("helper.publish", err)
	}
	defer parent.Close()
	m := cow.NewMeter()
	err = m.Add(ctx, parent, name)
	return m.Usage().Referenced, err
}

// EvictRequest frees shared caches that no workspace uses, the least recently
// used first, until at most KeepBytes are left. With Repository, it drops that
// repository's altogether.
type EvictRequest struct {
	KeepBytes  int64               `json:"keep_bytes"`
	DryRun     bool                `json:"dry_run,omitempty"`
	Repository policy.RepositoryID `json:"repository,omitempty"`
}

// EvictResult says what was removed, or would be.
type EvictResult struct {
	Removed []EvictedCache `json:"removed"`
	InUse   int            `json:"in_use"`
}

// EvictedCache is one entry. Name holds no host path.
type EvictedCache struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	Inodes int64  `json:"inodes"`
}

// EvictCaches implements Helper.
func (l *Local) EvictCaches(ctx context.Context, req EvictRequest) (EvictResult, error) {
	res := EvictResult{Removed: []EvictedCache{}}
	store := l.caches()
	if req.Repository != "" {
		if err := policy.CheckID("repository", string(req.Repository)); err != nil {
			return res, err
		}
		return res, store.Drop(ctx, depcache.DependencySet(req.Repository))
	}
	ev, err := store.Evict(ctx, max(0, req.KeepBytes), req.DryRun, l.usedCaches())
	res.InUse = ev.InUse
	for _, e := range ev.Removed {
		res.Removed = append(res.Removed, EvictedCache{Name: e.Set + "/" + e.Name, Bytes: e.Bytes, Inodes: e.Inodes})
	}
	return res, err
}
