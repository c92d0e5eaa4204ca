package gitcache

import (
	"context"
	"os"

	"yoi.dev/yoi-runtime/gitcache/index"
	"yoi.dev/yoi-runtime/policy"
)

// Cache is the repository cache of one Runtime root. Its methods may be called
// from several goroutines, and several processes may have the same root open.
type Cache struct {
	opts Options
}

func Open(o Options) (*Cache, error) { return &Cache{opts: o}, nil }

func (c *Cache) Resolve(ctx context.Context, src Source, sel policy.Selector, o ResolveOptions) (policy.RepositoryPoint, []policy.Diagnostic, error) {
	panic("x")
}
func (c *Cache) Fetch(ctx context.Context, src Source) (FetchReport, error) { panic("x") }
func (c *Cache) CheckClean(ctx context.Context, src Source) error           { panic("x") }
func (c *Cache) Pin(ctx context.Context, p policy.RepositoryPoint, holder string) error {
	panic("x")
}
func (c *Cache) Unpin(ctx context.Context, repo policy.RepositoryID, commit, holder string) error {
	panic("x")
}
func (c *Cache) Pristine(ctx context.Context, p policy.RepositoryPoint) (*Pristine, []policy.Diagnostic, error) {
	panic("x")
}
func (c *Cache) WriteGitDir(ctx context.Context, tree *os.File, p policy.RepositoryPoint, o GitDirOptions) error {
	panic("x")
}

// PatchIndex writes the stat data of tree's files into tree/.git/index. stat may be nil: then every entry is fstatat'ed.
func (c *Cache) PatchIndex(ctx context.Context, tree *os.File, stat func(path string) (index.Stat, bool)) error {
	panic("x")
}
func (c *Cache) AddWorktree(ctx context.Context, p policy.RepositoryPoint, allocation policy.AllocationID, dir string) (Tree, []policy.Diagnostic, error) {
	panic("x")
}
func (c *Cache) RemoveWorktree(ctx context.Context, repo policy.RepositoryID, allocation policy.AllocationID) error {
	panic("x")
}

// ObjectsPath is the mirror's objects directory, relative to the Runtime root: bound read-only at /run/yoi/objects/<repo>.
func (c *Cache) ObjectsPath(repo policy.RepositoryID) string                { panic("x") }
func (c *Cache) List(ctx context.Context) ([]RepositoryInfo, error)         { panic("x") }
func (c *Cache) Remove(ctx context.Context, repo policy.RepositoryID) error { panic("x") }
func (c *Cache) GC(ctx context.Context, repo policy.RepositoryID, o GCOptions) (GCReport, error) {
	panic("x")
}
func (c *Cache) Evict(ctx context.Context, keepBytes int64) (EvictReport, error) { panic("x") }

func ParseSource(s, cwd string) (Source, error) { panic("x") }

// Pristine is a complete checked-out tree in the cache. While it is not closed
// it cannot be evicted.
type Pristine struct {
	Repo    policy.RepositoryID
	Key     string // <tree-id>[.<scope-key>]
	RelPath string // relative to the Runtime root
	Tree
	lock *os.File
}

// Acquire marks the tree as in use by holder until ReleasePristine, whatever
// becomes of this process.
func (p *Pristine) Acquire(ctx context.Context, holder string) error { panic("x") }
func (p *Pristine) Release(ctx context.Context, holder string) error { panic("x") }
func (p *Pristine) Close() error                                     { panic("x") }

// ReleasePristine is Release for a holder of an earlier process. Idempotent.
func (c *Cache) ReleasePristine(ctx context.Context, repo policy.RepositoryID, key, holder string) error {
	panic("x")
}
