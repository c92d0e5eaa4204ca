package gitcache

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// Cache is the repository cache of one Runtime root. Its methods may be called
// from several goroutines, and several processes may have the same root open.
type Cache struct {
	opts    Options
	git     string
	dir     string // <root>/repository-cache/git
	rules   atomic.Pointer[rules]
	journal Journal
	log     *slog.Logger
	stall   time.Duration // how long a server may send nothing
	spawns  atomic.Int64  // git processes started, for tests and -v
}

const cacheDir = "repository-cache/git"

// Open opens the cache below o.Root, which must exist. It starts no git.
func Open(o Options) (*Cache, error) {
	const op = "gitcache.open"
	root, err := filepath.Abs(o.Root)
	if err != nil || o.Root == "" {
		return nil, policy.Errorf(policy.CodeRuntimeRootInvalid, op, "the Runtime root is not a path").Because(err)
	}
	o.Root = root
	git, err := findGit(o.Git)
	if err != nil {
		return nil, policy.Errorf(policy.CodeGitMissing, op, "no git program was found").Because(err)
	}
	c := &Cache{opts: o, git: git, dir: filepath.Join(root, cacheDir), journal: o.Ledger, log: o.Log, stall: 2 * time.Minute}
	for _, p := range o.AllowProtocols {
		if p != "file" && p != "https" && p != "ssh" {
			return nil, policy.Errorf(policy.CodeProtocolRefused, op, "the protocol %q cannot be allowed", policy.Printable(p))
		}
	}
	c.Reconfigure(o.AllowProtocols, o.SnapshotLimits)
	if c.journal == nil {
		c.journal = noJournal{}
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return nil, diskError(op, "the repository cache cannot be created", err)
	}
	return c, nil
}

// rules are the options that may change under a running daemon.
type rules struct {
	protocols []string
	limits    policy.SnapshotLimits
}

// Reconfigure replaces AllowProtocols, which the caller has checked, and
// SnapshotLimits, for what begins from now on.
func (c *Cache) Reconfigure(protocols []string, limits policy.SnapshotLimits) {
	if protocols == nil {
		protocols = []string{"file", "https", "ssh"}
	}
	c.rules.Store(&rules{protocols, limits})
}

type noJournal struct{}

func (noJournal) Intend(context.Context, ...Resource) error { return nil }
func (noJournal) Later(context.Context, ...Resource) (func() error, error) {
	return func() error { return nil }, nil
}
func (noJournal) Done(Resource, uint64, uint64) error { return nil }
func (noJournal) Release(Resource) error              { return nil }

// repo is one repository's part of the cache:
//
//	bare.git/            the mirror
//	trees/               pristine trees
//	points/<commit>      commits known to be whole in the mirror
//	refs/<generation>    listings of refs, in packed-refs form
//	holds/<holder>/<commit>  a pin, and the listing that it relies on
//	snapshots/<digest>[.json]  a workspace's archive; what an imported one held
//	view/                the private git directory that stands for the source
//	state.json           generation and health of the mirror
//	source.json          where it comes from
//	lock pins.lock worktree.lock
type repo struct {
	c   *Cache
	id  policy.RepositoryID
	dir string
}

func (c *Cache) repo(id policy.RepositoryID) (*repo, error) {
	if err := policy.CheckID("repository", string(id)); err != nil {
		return nil, err
	}
	return &repo{c: c, id: id, dir: filepath.Join(c.dir, string(id))}, nil
}

func (r *repo) path(elem ...string) string { return filepath.Join(append([]string{r.dir}, elem...)...) }
func (r *repo) bare(elem ...string) string {
	return filepath.Join(append([]string{r.dir, "bare.git"}, elem...)...)
}

// rel is path relative to the Runtime root, as the ledger has it.
func (r *repo) rel(elem ...string) string {
	return filepath.Join(append([]string{cacheDir, string(r.id)}, elem...)...)
}

func (r *repo) exists() bool { return isDir(r.bare()) }

// ObjectsPath is the mirror's objects directory, relative to the Runtime root:
// what is bound read-only at /run/yoi/objects/<repo> inside a sandbox.
func (c *Cache) ObjectsPath(id policy.RepositoryID) string {
	return filepath.Join(cacheDir, string(id), "bare.git", "objects")
}

// bareCommand is a git command on the mirror.
func (r *repo) bareCommand(args ...string) command {
	return command{args: args, env: []string{"GIT_DIR=" + r.bare()}}
}

func isDir(path string) bool {
	st, err := os.Lstat(path)
	return err == nil && st.IsDir()
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// diskError types a file system error of our own directories.
func diskError(op, message string, err error) error {
	code := policy.CodeInternal
	switch {
	case noSpace(err) != "":
		code = noSpace(err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		code = policy.CodeRuntimeRootInvalid
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		code = policy.CodeCanceled
	}
	return policy.Errorf(code, op, "%s", message).Because(err)
}

// gitFailure types an error of run that has no better meaning.
func gitFailure(op, message string, err error) error {
	var d *policy.Diagnostic
	switch {
	case errors.As(err, &d):
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return policy.Errorf(policy.CodeCanceled, op, "the operation was canceled").Because(err)
	case noSpace(err) != "":
		return policy.Errorf(noSpace(err), op, "%s", fullMessage(noSpace(err))).Because(err)
	}
	return policy.Errorf(policy.CodeGitFailed, op, "%s", message).Because(err)
}

// writeFile replaces path atomically. With sync it is durable on return.
func writeFile(path string, data []byte, mode os.FileMode, sync bool) (err error) {
	tmp := path + ".tmp-" + policy.NewID("")
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, mode)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp)
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil && sync {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err = os.Rename(tmp, path); err == nil && sync {
		err = syncDir(filepath.Dir(path))
	}
	return err
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// removeTemporary removes what an earlier process left under the prefix in
// dir. The caller holds the lock without which nobody makes such names.
func (c *Cache) removeTemporary(ctx context.Context, dir, prefix string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if len(e.Name()) > len(prefix) && e.Name()[:len(prefix)] == prefix {
			err = errors.Join(err, c.removeTop(ctx, filepath.Join(dir, e.Name())))
		}
	}
	return err
}

func (c *Cache) removeTop(ctx context.Context, dir string) error {
	if c.opts.RemoveTop != nil && isDir(dir) {
		return c.opts.RemoveTop(ctx, dir)
	}
	return os.RemoveAll(dir)
}

func (c *Cache) allowed(src Source) error {
	if src.isSnapshot() && c.opts.OpenSnapshot != nil {
		if src.Filter != "" {
			return policy.Errorf(policy.CodeSourceInvalid, "gitcache.source", "a snapshot store takes no filter: a snapshot holds every object of its tree")
		}
		return nil
	}
	if slices.Contains(c.rules.Load().protocols, src.protocol()) {
		return nil
	}
	return policy.Errorf(policy.CodeProtocolRefused, "gitcache.source", "the protocol %q is not allowed here", policy.Printable(src.protocol()))
}
