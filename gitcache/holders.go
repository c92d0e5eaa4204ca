package gitcache

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// An allocation whose workspace is an overlay needs its pristine tree when no
// process of ours runs, so beside the flock of a Pristine there are holder
// files: trees/<key>.use/<holder>. That directory comes and goes with its tree,
// under the tree's exclusive lock: holders, who share the lock, could not come
// while the last of the others takes the directory away.

func (r *repo) useResource(key, holder string) Resource {
	return Resource{
		Kind: "cache_reference", Owner: holder, Path: r.rel("trees", key+".use", holder),
		Attrs: map[string]string{"repository": string(r.id), "tree": key},
	}
}

// Acquire keeps the tree from eviction until Release or ReleasePristine,
// whatever becomes of this process.
func (p *Pristine) Acquire(ctx context.Context, holder string) error {
	if err := policy.CheckID("holder", holder); err != nil {
		return err
	}
	if err := p.r.c.journal.Intend(ctx, p.r.useResource(p.Key, holder)); err != nil {
		return err
	}
	return p.r.use(p.Key, holder)
}

// use makes the mark that the ledger has been told of. The caller has the tree.
func (r *repo) use(key, holder string) error {
	f, err := os.OpenFile(r.treePath(key+".use")+"/"+holder, os.O_CREATE|os.O_RDONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return diskError(opPristine, "the tree cannot be marked as in use", err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return diskError(opPristine, "the tree cannot be marked as in use", err)
	}
	return r.c.journal.Done(r.useResource(key, holder), st.Dev, st.Ino)
}

// Release ends a holder's use.
func (p *Pristine) Release(ctx context.Context, holder string) error {
	return p.r.c.ReleasePristine(ctx, p.Repo, p.Key, holder)
}

// ReleasePristine is Release for a tree that an earlier process acquired. It is
// idempotent.
func (c *Cache) ReleasePristine(ctx context.Context, id policy.RepositoryID, key, holder string) error {
	r, err := c.repo(id)
	if err != nil {
		return err
	}
	if err := errors.Join(policy.CheckID("holder", holder), checkKey(key)); err != nil {
		return err
	}
	if err := r.unuse(key, holder); err != nil {
		return diskError(opPristine, "the tree's mark cannot be removed", err)
	}
	if err := r.dropSnapshot(ctx, key); err != nil {
		return err
	}
	return c.journal.Release(r.useResource(key, holder))
}

func (r *repo) unuse(key, holder string) error {
	err := os.Remove(r.treePath(key+".use") + "/" + holder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func checkKey(key string) error {
	tree, scope, _ := cutKey(key)
	if !policy.ValidOID(tree) || (scope != "" && len(scope) != 16) {
		return policy.Errorf(policy.CodeIDInvalid, opPristine, "%q is not a tree's key", policy.Printable(key))
	}
	return nil
}

func cutKey(key string) (tree, scope string, scoped bool) {
	for i := range key {
		if key[i] == '.' {
			return key[:i], key[i+1:], true
		}
	}
	return key, "", false
}

func (r *repo) inUse(key string) bool {
	entries, err := os.ReadDir(r.treePath(key + ".use"))
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	return err != nil || len(entries) > 0
}
