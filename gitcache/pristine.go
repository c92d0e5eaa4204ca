package gitcache

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

const opPristine = "gitcache.pristine"

// Pristine is a complete checked-out tree in the cache. Until it is closed it
// cannot be evicted; after that, only while a holder has acquired it.
type Pristine struct {
	Repo    policy.RepositoryID
	Key     string // <tree-id>[.<scope-key>]
	RelPath string // relative to the Runtime root
	Tree
	r       *repo
	lock    *lockFile
	settled bool
}

// marker is the file beside a tree that says it is complete. A tree without
// one is garbage.
type marker struct {
	Tree
	Commit   string              `json:"commit"` // the first it was built for
	Scope    policy.Scope        `json:"scope,omitempty"`
	BuiltAt  time.Time           `json:"built_at"`
	BuildFor time.Duration       `json:"build_nanoseconds"`
	Warnings []policy.Diagnostic `json:"warnings,omitempty"`
	// Snapshot says that the tree was taken of a working tree, and goes with its
	// last holder.
	Snapshot bool `json:"snapshot,omitempty"`
	// Boot is set until the tree is known to be durable: see settle.go.
	Boot string            `json:"boot,omitempty"`
	Git  map[string]fileID `json:"git"`
}

func (r *repo) treePath(name string) string { return r.path("trees", name) }

// Pristine returns the point's checked-out tree, building it the first time.
// Callers that come together, in whatever processes, share one build.
func (c *Cache) Pristine(ctx context.Context, p policy.RepositoryPoint) (*Pristine, []policy.Diagnostic, error) {
	r, err := c.repo(p.RepositoryID)
	if err == nil {
		err = checkTree(p)
	}
	if err != nil {
		return nil, nil, err
	}
	return r.pristine(ctx, p)
}

func checkTree(p policy.RepositoryPoint) error {
	if !policy.ValidOID(p.TreeID) || !policy.ValidOID(p.CommitID) {
		return policy.Errorf(policy.CodeSelectorInvalid, opPristine, "the point has no tree id")
	}
	return nil
}

func (r *repo) pristine(ctx context.Context, p policy.RepositoryPoint) (*Pristine, []policy.Diagnostic, error) {
	key := p.TreeKey()
	lockPath := r.treePath(key + ".lock")
	for {
		l, err := lock(ctx, lockPath, unix.LOCK_SH)
		if err != nil {
			return nil, nil, r.lockError(err)
		}
		if m, ok := r.sound(key); ok {
			now := time.Now()
			_ = os.Chtimes(lockPath, now, now) // for eviction: when it was last wanted
			t := &Pristine{Repo: r.id, Key: key, RelPath: r.rel("trees", key), Tree: m.Tree, r: r, lock: l, settled: m.Boot == ""}
			return t, m.Warnings, nil
		}
		l.unlock()
		// flock(2) gives no atomic upgrade, so after building we come round again.
		if l, err = lock(ctx, lockPath, unix.LOCK_EX); err != nil {
			return nil, nil, r.lockError(err)
		}
		if _, ok := r.sound(key); !ok && !r.survived(ctx, key) {
			err = r.buildPristine(ctx, p, key, l)
		}
		l.unlock()
		if err != nil {
			return nil, nil, err
		}
	}
}

func (r *repo) lockError(err error) error {
	if !isDir(r.path("trees")) {
		return policy.Errorf(policy.CodeRepositoryUnknown, opPristine, "the repository %s is not in the cache", r.id).Because(err)
	}
	return gitFailure(opPristine, "the tree could not be locked", err)
}

func (r *repo) readMarker(key string) (marker, bool) {
	var m marker
	b, err := os.ReadFile(r.treePath(key + ".json"))
	if err != nil || json.Unmarshal(b, &m) != nil || !isDir(r.treePath(key)) {
		return marker{}, false
	}
	return m, true
}

// buildPristine builds under a temporary name, renames it, and only then writes the
// marker. Whoever needs the tree to outlive a power failure settles it. The caller
// holds the tree's lock.
func (r *repo) buildPristine(ctx context.Context, p policy.RepositoryPoint, key string, l *lockFile) error {
	start := time.Now()
	res, name, err := r.newTree(ctx, key)
	if err != nil {
		return err
	}
	m, err := r.buildTree(ctx, p, r.treePath(name), l)
	if err == nil {
		m.BuiltAt, m.BuildFor = start.UTC(), time.Since(start)
		err = r.publish(ctx, name, key, m, false)
	}
	if err != nil {
		if r.c.removeTop(context.WithoutCancel(ctx), r.treePath(name)) == nil {
			_ = r.c.journal.Release(res)
		}
		return err
	}
	return r.c.journal.Release(res)
}

// newTree makes room for a tree and writes down the temporary name under which
// it will be made. The caller holds the tree's lock.
func (r *repo) newTree(ctx context.Context, key string) (Resource, string, error) {
	if err := r.clear(key); err != nil {
		return Resource{}, "", err
	}
	prefix := treePrefix(key)
	err := errors.Join(r.c.removeTemporary(ctx, r.path("trees"), prefix), r.c.removeTop(ctx, r.treePath(key)))
	if err != nil {
		return Resource{}, "", diskError(opPristine, "a leftover cannot be removed", err)
	}
	name := policy.NewID(prefix)
	res := Resource{Kind: "pristine_tree", Owner: string(r.id), Path: r.rel("trees", name)}
	return res, name, r.c.journal.Intend(ctx, res)
}

// buildTree checks the point out. If git fails on a mirror that proves to be
// damaged, the mirror is built anew and the checkout tried once more.
func (r *repo) buildTree(ctx context.Context, p policy.RepositoryPoint, dir string, l *lockFile) (marker, error) {
	return r.mending(ctx, p.CommitID, func() (marker, error) {
		if err := r.c.removeTop(ctx, dir); err != nil {
			return marker{}, diskError(opPristine, "a leftover cannot be removed", err)
		}
		return r.checkoutNew(ctx, p, dir, l)
	})
}

func (r *repo) checkoutNew(ctx context.Context, p policy.RepositoryPoint, dir string, l *lockFile) (marker, error) {
	if err := r.makeTop(ctx, dir); err != nil {
		return marker{}, err
	}
	if p.Snapshot != "" {
		return r.unpackKept(ctx, p, dir, l)
	}
	return r.checkout(ctx, p, dir, l)
}

func (r *repo) makeTop(ctx context.Context, dir string) error {
	mk := r.c.opts.MakeTop
	if mk == nil {
		mk = func(_ context.Context, dir string) error { return os.Mkdir(dir, 0o755) }
	}
	if err := mk(ctx, dir); err != nil {
		return diskError(opPristine, "the tree's directory cannot be made", err)
	}
	return nil
}

// publish puts a tree in place, and the directory of its holders, and says that it is
// complete. It is durable before that if it is asked for, or replaces one that has
// holders, since they may outlive a power failure; else its marker names this boot, and
// it is settled later.
func (r *repo) publish(ctx context.Context, name, key string, m marker, durable bool) error {
	tmp, final := r.treePath(name), r.treePath(key)
	holders, err := os.ReadDir(final + ".use")
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if !durable && len(holders) == 0 {
		m.Boot = bootID()
	}
	if err == nil && m.Boot == "" {
		err = syncFS(tmp)
	}
	if err == nil && r.c.opts.SealTop != nil {
		err = r.c.opts.SealTop(ctx, tmp)
	}
	if err == nil {
		err = os.Rename(tmp, final)
	}
	if err == nil {
		if err = os.Mkdir(final+".use", 0o700); errors.Is(err, fs.ErrExist) {
			err = nil // holders of the tree that this one replaces
		}
	}
	if err == nil { // the ledger is about to forget the temporary name
		err = syncDir(filepath.Dir(final))
	}
	b, jsonErr := json.Marshal(m)
	if err = errors.Join(err, jsonErr); err == nil {
		err = writeFile(final+".json", b, 0o600, m.Boot == "")
	}
	if err != nil {
		return diskError(opPristine, "the tree cannot be put in place", err)
	}
	return nil
}

// Close ends this process's use of the tree.
func (p *Pristine) Close() error {
	p.lock.unlock()
	return nil
}
