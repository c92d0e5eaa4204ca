package gitcache

import (
	"context"
	"hash"
	"io"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// Options configure a Cache.
type Options struct {
	// Root is the Runtime root.
	Root string
	// Git is the git program; "" finds it in the fixed PATH.
	Git string
	// Ledger is told of every resource before it is made. nil records nothing.
	Ledger Journal
	// Progress is called, from one goroutine per operation, while git works.
	Progress func(Progress)
	Log      *slog.Logger
	// OpenSnapshot opens an archive of the store at a location; see package
	// snapshot. The cache checks what it gives. nil allows no such sources.
	OpenSnapshot func(ctx context.Context, location, digest string) (io.ReadCloser, error)
	// SnapshotLimits bound what is unpacked from it.
	SnapshotLimits policy.SnapshotLimits
	// AllowProtocols is a subset of file, https and ssh; nil allows all three.
	AllowProtocols []string
	// MakeTop makes the top directory of a tree (a subvolume on btrfs), SealTop
	// makes a finished one read-only, RemoveTop removes one with all it holds.
	// nil means plain directories.
	MakeTop, SealTop, RemoveTop func(ctx context.Context, dir string) error
	// Measure says how many bytes of the disk the tree at rel, below Root, has to
	// itself, for Evict's report. nil takes the size of its files' content.
	Measure func(ctx context.Context, rel string) (int64, error)
	// CopyLive copies a directory that others may be writing to, so that the copy
	// is what it was at one moment, and says how many rounds that took; package
	// cow's Live. DigestTree is its Digest. Only HoldSnapshot needs them.
	CopyLive func(ctx context.Context, source, target *os.File, filter func(dir string) func(name string, isDir bool) bool,
		progress func(files int64)) (rounds int, warnings []policy.Diagnostic, err error)
	DigestTree func(ctx context.Context, tree *os.File, skip string, hash func(rel string, size int64) hash.Hash,
		done func(rel string, st *unix.Statx_t, h hash.Hash)) (digest string, files, bytes int64, err error)
}

// Resource is one thing in the cache that must not be forgotten after a crash.
// Kind and Path identify it while it is held.
type Resource struct {
	// Kind is a ledger kind: directory, cache_reference, worktree_admin or pristine_tree.
	Kind string
	// Owner is the holder (allocation) or the repository id.
	Owner string
	// Path is relative to the Runtime root.
	Path  string
	Attrs map[string]string
}

// Journal is the part of the cleanup ledger that the cache writes. Intend
// returns when all of the records are durable, for the price of one. A caller that has already written the
// record in a batch of its own may make Intend do nothing for it.
type Journal interface {
	Intend(ctx context.Context, rs ...Resource) error
	// Later is Intend that does not wait: the records go with the next commit that
	// somebody waits for, and wait, to be called once, returns when they are durable.
	Later(ctx context.Context, rs ...Resource) (wait func() error, err error)
	Done(r Resource, dev, ino uint64) error
	Release(r Resource) error
}

// Source is a registered repository: its id and where it is.
type Source struct {
	ID policy.RepositoryID
	// URL is a clean absolute path, a file, https or ssh URL, or "snapshot+" and
	// the location of a snapshot store.
	URL string
	// Filter makes the mirror a partial clone. It goes with the repository: a
	// second source of the same id has the same.
	Filter policy.ObjectFilter
}

// Progress is how far a long operation has come. Total and Bytes are 0 while unknown.
type Progress struct {
	Repo  policy.RepositoryID
	Phase string // git's own words: "Receiving objects", "Updating files", …
	Done  int64
	Total int64
	Bytes int64
}

// ResolveOptions tune Resolve.
type ResolveOptions struct {
	// NoFetch answers from the cache alone.
	NoFetch bool
	// Scope is put into the point, and must name directories of its tree.
	Scope policy.Scope
}

// FetchReport says what a fetch did.
type FetchReport struct {
	FetchedAt time.Time
	Refs      int
	// Shared is true when another caller's fetch, begun after this call, served it.
	Shared bool
	// Created is true when the mirror did not exist or had to be rebuilt.
	Created bool
}

// Tree says what a checked-out tree holds.
type Tree struct {
	Entries int   `json:"entries"` // files, symbolic links and submodule directories
	Bytes   int64 `json:"bytes"`   // of regular files
}

// GitDirOptions tune WriteGitDir.
type GitDirOptions struct {
	// Branch makes HEAD a branch of that name at the point; "" detaches HEAD.
	Branch string
}

// RepositoryInfo describes one cached repository.
type RepositoryInfo struct {
	ID         policy.RepositoryID
	Source     string // without credentials
	FetchedAt  time.Time
	CacheBytes int64 // of the mirror
	Trees      int
	TreeBytes  int64
	Pins       int
}

// GCOptions tune GC.
type GCOptions struct {
	// Keep are commits to keep beside the pinned ones.
	Keep []string
	// UnusedFor is how long a resolved but unpinned point is kept; 0 is a week.
	UnusedFor time.Duration
	// Expire is how old an unreachable object must be; 0 is two weeks.
	Expire time.Duration
}

// GCReport says what GC did.
type GCReport struct {
	PointsDropped int
	BytesBefore   int64
	BytesAfter    int64
}

// EvictReport says what Evict removed, or would remove.
type EvictReport struct {
	Removed      []string // paths relative to the Runtime root
	Freed        []int64  // the disk that each of them had to itself
	BytesLeft    int64
	InUseSkipped int
}
