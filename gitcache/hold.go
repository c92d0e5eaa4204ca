package gitcache

import (
	"context"
	"errors"

	"yoi.dev/yoi-runtime/policy"
)

// Hold is Pin, Pristine and Acquire for one holder. The tree's key follows from
// the point, so the ledger is told of both references at once: one fsync, and
// not two, for each new workspace. On an error the holder holds nothing, or the
// ledger still says what. Otherwise ReleasePristine and Unpin end it, and Close
// the tree when it has been copied.
func (c *Cache) Hold(ctx context.Context, p policy.RepositoryPoint, holder string) (*Pristine, []policy.Diagnostic, error) {
	r, err := c.pinnable(p, holder)
	if err == nil {
		err = checkTree(p)
	}
	if err != nil {
		return nil, nil, err
	}
	pin, use := r.pinResource(holder, p.CommitID), r.useResource(p.TreeKey(), holder)
	if err := c.journal.Intend(ctx, pin, use); err != nil {
		return nil, nil, err
	}
	tree, warnings, err := r.hold(ctx, p, holder)
	if err != nil {
		undo := errors.Join(r.unuse(p.TreeKey(), holder), r.unpin(context.WithoutCancel(ctx), holder, p.CommitID))
		if undo == nil {
			undo = errors.Join(c.journal.Release(use), c.journal.Release(pin))
		}
		if undo != nil {
			c.log.Warn("a failed hold is left to the ledger", "repository", r.id, "holder", holder, "error", undo)
		}
		return nil, nil, err
	}
	return tree, warnings, nil
}

func (r *repo) hold(ctx context.Context, p policy.RepositoryPoint, holder string) (*Pristine, []policy.Diagnostic, error) {
	if err := r.pin(ctx, holder, p.CommitID); err != nil { // first: it keeps the objects for the checkout
		return nil, nil, err
	}
	tree, warnings, err := r.pristine(ctx, p)
	if err != nil {
		return nil, nil, err
	}
	if err := r.use(tree.Key, holder); err != nil {
		return nil, nil, errors.Join(err, tree.Close())
	}
	return tree, warnings, nil
}
