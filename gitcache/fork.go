package gitcache

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// HoldLike prepares that holder holds what like holds of a point and the tree of
// that key: the commit, the refs listing that like's private git directory was
// given, and the tree, if like has one in use. The ledger's records go with the
// next commit, so that they cost none of their own; hold, to be called once after
// it, waits for them and does the rest. On an error the holder holds nothing, or
// the ledger still says what. ReleasePristine and Unpin end it.
func (c *Cache) HoldLike(ctx context.Context, p policy.RepositoryPoint, key, holder, like string) (hold func(context.Context) error, err error) {
	r, err := c.pinnable(p, holder)
	if err == nil {
		err = errors.Join(policy.CheckID("holder", like), checkKey(key))
	}
	if err != nil {
		return nil, err
	}
	pin, use := r.pinResource(holder, p.CommitID), r.useResource(key, holder)
	held := []Resource{pin}
	used := exists(r.treePath(key+".use") + "/" + like)
	if used {
		held = append(held, use)
	}
	wait, err := c.journal.Later(ctx, held...)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		if err := wait(); err != nil {
			return err
		}
		err := r.pinLike(ctx, holder, like, p.CommitID)
		if err == nil && used {
			err = r.useLike(ctx, key, holder, like)
		}
		if err == nil && used { // like may have been one that a power failure would have ended
			err = r.settleHeld(ctx, key)
		}
		if err == nil {
			return nil
		}
		undo := errors.Join(r.unuse(key, holder), r.unpin(context.WithoutCancel(ctx), holder, p.CommitID))
		for _, res := range held {
			if undo == nil {
				undo = c.journal.Release(res)
			}
		}
		if undo != nil {
			c.log.Warn("a failed hold is left to the ledger", "repository", r.id, "holder", holder, "error", undo)
		}
		return err
	}, nil
}

// pinLike pins with the listing of another holder's pin.
func (r *repo) pinLike(ctx context.Context, holder, like, commit string) error {
	b, err := os.ReadFile(r.path("holds", like, commit))
	if errors.Is(err, fs.ErrNotExist) {
		return policy.Errorf(policy.CodeConflict, opPin, "%s does not hold %s any more", like, commit)
	}
	hold := r.path("holds", holder, commit)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(hold), 0o700)
	}
	if err == nil {
		err = r.writePending(hold, pendingPin(holder), b, 0o600)
	}
	if err != nil {
		return diskError(opPin, "the pin cannot be written", err)
	}
	return r.pin(ctx, holder, commit)
}

// useLike marks a tree as in use while like's mark keeps it from eviction.
func (r *repo) useLike(ctx context.Context, key, holder, like string) error {
	l, err := lock(ctx, r.treePath(key+".lock"), unix.LOCK_SH)
	if err != nil {
		return r.lockError(err)
	}
	defer l.unlock()
	if !exists(r.treePath(key+".use") + "/" + like) {
		return policy.Errorf(policy.CodeConflict, opPristine, "%s does not use its tree any more", like)
	}
	if err := r.settle(key); err != nil {
		return err
	}
	return r.use(key, holder)
}
