package helper

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/depcache"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/policy"
)

// cacheUses is execution-workspaces/<id>/caches.json: which shared caches a
// workspace uses. It is all that keeps them from eviction, and goes with the
// workspace. No Worker can reach it.
type cacheUses struct {
	Dependencies []dependencyUse `json:"dependencies,omitempty"`
	Build        *buildCacheUse  `json:"build,omitempty"`
}

type dependencyUse struct {
	policy.CacheUse
	// Copied says that the directory is in the workspace's own tree, not a layer.
	Copied bool `json:"copied,omitempty"`
}

type buildCacheUse struct {
	WorkspaceID policy.WorkspaceID `json:"workspace_id"`
	// Generation is "" where the workspace began with an empty cache.
	Generation string `json:"generation,omitempty"`
}

const (
	maxCacheUses = 1 << 20
	maxKeyFile   = 64 << 20
	// cacheOwner owns the ledger's records of entries in the making.
	cacheOwner = "cache"
	// buildCacheAt is where a Worker finds its project's build cache; its upper
	// layer is the allocation's directory of that name.
	buildCacheAt  = "/cache"
	buildCacheDir = "cache"
	cacheWork     = ".cache"
)

func cacheUsesFile(id policy.AllocationID) string { return rootdir.Workspace(id) + "/caches.json" }

func (l *Local) caches() *depcache.Store {
	return &depcache.Store{Root: l.root, Journal: (*cacheJournal)(l)}
}

// cacheJournal writes entries in the making into the ledger.
type cacheJournal Local

func (j *cacheJournal) Intend(ctx context.Context, path string) (string, error) {
	r := newResource(ledger.KindDirectory, cacheOwner, path)
	return r.ID, (*Local)(j).intend(ctx, cacheOwner, r)
}

func (j *cacheJournal) Made(id string, dir *os.File) error { return j.ledger.Done(id, identify(dir)) }

func (j *cacheJournal) Release(id string) error {
	return (*Local)(j).release(cacheOwner, ledger.Resource{ID: id})
}

// useCaches settles which shared caches a new allocation begins with, and writes
// that down while they are held.
func (l *Local) useCaches(ctx context.Context, req MaterializeRequest, trees []RepositoryTree, top *os.File) ([]policy.CacheUse, error) {
	const op = "helper.caches"
	var uses cacheUses
	var out []policy.CacheUse
	store := l.caches()
	for _, t := range trees {
		for _, c := range t.Caches {
			u := dependencyUse{CacheUse: policy.CacheUse{RepositoryID: t.RepositoryID, Path: c.Path, Key: c.Key}, Copied: !layered(t.Strategy)}
			var err error
			if u.Digest, err = depcache.Digest(c, l.keyReader(rootdir.Tree(t.RepositoryID, t.TreeKey))); err != nil {
				return nil, diskError(op, err)
			}
			if u.Digest != "" {
				release, ok, err := store.Hold(depcache.Key{Set: depcache.DependencySet(t.RepositoryID), Name: u.Digest})
				if err != nil {
					return nil, err
				}
				if u.Warm = ok; ok {
					defer release()
				}
			}
			uses.Dependencies = append(uses.Dependencies, u)
			out = append(out, u.CacheUse)
		}
	}
	if req.BuildCache != "" {
		b := &buildCacheUse{WorkspaceID: req.BuildCache}
		release, err := l.holdBuildCache(store, b)
		if err != nil {
			return nil, err
		}
		defer release()
		d, err := l.root.MkdirAt(top, buildCacheDir, 0o700)
		if err != nil {
			return nil, diskError(op, err)
		}
		d.Close()
		uses.Build = b
		out = append(out, policy.CacheUse{Path: buildCacheAt, Digest: b.Generation, Warm: b.Generation != ""})
	}
	if len(out) == 0 {
		return nil, nil
	}
	b, err := json.Marshal(uses)
	if err != nil {
		return nil, policy.AsDiagnostic(err)
	}
	return out, diskError(op, l.root.WriteFile(cacheUsesFile(req.AllocationID), append(b, '\n'), 0o600))
}

// layered says whether a cache can lie below a tree. A btrfs snapshot is a
// subvolume of its own: overlayfs could not move anything from its work
// directory, which has to lie outside, into it (EXDEV).
// What an external command makes may be one.
func layered(s policy.StrategyName) bool {
	return s != policy.StrategyBtrfsSnapshot && s != policy.StrategyExternal
}

// copyCaches clones the warm caches of the given trees into those that cannot have
// a layer below. What an external command makes is not there yet: see Adopt.
func (l *Local) copyCaches(ctx context.Context, id policy.AllocationID, trees []RepositoryTree) error {
	uses, err := l.cacheUsesOf(id)
	if err != nil || uses == nil {
		return err
	}
	store := l.caches()
	for _, u := range uses.Dependencies {
		here := slices.ContainsFunc(trees, func(t RepositoryTree) bool {
			return t.RepositoryID == u.RepositoryID && t.Strategy != policy.StrategyExternal
		})
		if !u.Warm || !u.Copied || !here {
			continue
		}
		tree, err := l.root.OpenDir(rootdir.Repository(id, u.RepositoryID))
		if err != nil {
			return diskError("helper.caches", err)
		}
		err = store.CopyInto(ctx, depcache.Key{Set: depcache.DependencySet(u.RepositoryID), Name: u.Digest}, u.Path, tree)
		tree.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// holdBuildCache holds the newest generation of a project's build cache, if any.
func (l *Local) holdBuildCache(store *depcache.Store, b *buildCacheUse) (release func(), err error) {
	for range 8 { // a generation may be superseded and evicted between the two
		k, ok, err := store.Newest(depcache.BuildSet(b.WorkspaceID))
		if err != nil || !ok {
			return func() {}, err
		}
		if release, ok, err := store.Hold(k); err != nil || ok {
			b.Generation = k.Name
			return release, err
		}
	}
	return func() {}, nil
}

// keyReader reads key files below a directory of the Runtime root. What is not a
// regular file, or is reached by a link, does not exist.
func (l *Local) keyReader(dir string) func(string) ([]byte, bool, error) {
	return func(name string) ([]byte, bool, error) {
		b, err := l.root.ReadFile(dir+"/"+name, maxKeyFile)
		switch {
		case err == nil:
			return b, true, nil
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EFBIG), errors.Is(err, unix.ENXIO), errors.Is(err, unix.EACCES):
			return nil, false, nil
		}
		return nil, false, err
	}
}

// cacheUsesOf reads which caches an allocation uses; nil for none.
func (l *Local) cacheUsesOf(id policy.AllocationID) (*cacheUses, error) {
	b, err := l.root.ReadFile(cacheUsesFile(id), maxCacheUses)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	var u cacheUses
	if err == nil {
		err = json.Unmarshal(b, &u)
	}
	if err != nil {
		return nil, policy.Errorf(policy.CodeInternal, "helper.caches", "the caches of %s cannot be read", id).Because(err)
	}
	return &u, nil
}

// keys are the entries that a workspace stands on.
func (u *cacheUses) keys() []depcache.Key {
	var out []depcache.Key
	for _, d := range u.Dependencies {
		if d.Warm {
			out = append(out, depcache.Key{Set: depcache.DependencySet(d.RepositoryID), Name: d.Digest})
		}
	}
	if u.Build != nil && u.Build.Generation != "" {
		out = append(out, depcache.Key{Set: depcache.BuildSet(u.Build.WorkspaceID), Name: u.Build.Generation})
	}
	return out
}

// dependencyLayers are the warm caches of a repository, to lie below everything.
func (u *cacheUses) dependencyLayers(src sources, repo policy.RepositoryID) ([]mounts.Source, error) {
	if u == nil {
		return nil, nil
	}
	var out []mounts.Source
	for _, d := range u.Dependencies {
		if d.RepositoryID != repo || !d.Warm || d.Copied {
			continue
		}
		s, err := src.source(depcache.Key{Set: depcache.DependencySet(repo), Name: d.Digest}.Path(), mounts.Attr{ReadOnly: true, NoSuid: true, NoDev: true})
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// buildCacheOps mounts the project's build cache.
func (u *cacheUses) buildCacheOps(src sources, id policy.AllocationID) ([]mounts.Op, error) {
	if u == nil || u.Build == nil {
		return nil, nil
	}
	inside := mounts.Attr{NoSuid: true, NoDev: true}
	var lower []mounts.Source
	if g := u.Build.Generation; g != "" {
		s, err := src.source(depcache.Key{Set: depcache.BuildSet(u.Build.WorkspaceID), Name: g}.BuildPath(), mounts.Attr{ReadOnly: true, NoSuid: true, NoDev: true})
		if err != nil {
			return nil, err
		}
		lower = append(lower, s)
	}
	o, err := veiled(src, id, buildCacheAt, buildCacheDir, cacheWork, inside, true)
	o.Lower = lower
	return []mounts.Op{o}, err
}

// usedCaches returns whether any workspace stands on an entry.
func (l *Local) usedCaches() func(depcache.Key) (bool, error) {
	return func(k depcache.Key) (bool, error) {
		d, err := l.root.OpenDir(rootdir.Workspaces)
		if err != nil {
			return false, diskError("helper.caches", err)
		}
		defer d.Close()
		names, err := d.Readdirnames(-1)
		if err != nil {
			return false, diskError("helper.caches", err)
		}
		for _, n := range names {
			if !policy.ValidID(n) {
				continue
			}
			u, err := l.cacheUsesOf(policy.AllocationID(n))
			if err != nil {
				return true, err // one that cannot be read may name anything
			}
			if u == nil {
				continue
			}
			for _, used := range u.keys() {
				if used == k {
					return true, nil
				}
			}
		}
		return false, nil
	}
}
