package helper

import (
	"context"
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/ledger"
)

// Rebind is for a Runtime root that was restored from a backup: its directories have
// other inodes than those that the ledger wrote down, so removal would refuse them as
// somebody else's. It writes down what is at the recorded places now, and returns of how
// many. That they are the Runtime's is the operator's word; nobody else may be at work.
func (l *Local) Rebind(ctx context.Context) (int, error) {
	state, err := ledger.Scan(ctx, l.ledgerDir, l.roles...)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, h := range state.Held {
		r := h.Resource
		if r.Identity.Ino == 0 || (r.Kind != ledger.KindDirectory && r.Kind != ledger.KindSubvolume) {
			continue
		}
		now, err := l.identityAt(r.Path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return n, diskError("helper.rebind", err)
		}
		if now.Ino == r.Identity.Ino && now.Dev == r.Identity.Dev {
			continue
		}
		if err := l.ledger.Done(r.ID, now); err != nil {
			return n, err
		}
		n++
	}
	return n, l.ledger.Sync(ctx)
}

// identityAt is that of the directory at a place below the Runtime root.
func (l *Local) identityAt(rel string) (ledger.Identity, error) {
	f, err := l.root.OpenFile(rel, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return ledger.Identity{}, err
	}
	defer f.Close()
	return identify(f), nil
}
