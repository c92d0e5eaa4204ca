package helper

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/policy"
)

// ExchangeRequest names two allocations of the same repositories by one strategy.
type ExchangeRequest struct {
	AllocationID policy.AllocationID `json:"allocation_id"`
	With         policy.AllocationID `json:"with"`
	Strategy     policy.StrategyName `json:"strategy"`
}

// Exchange gives each of two allocations the other's files. The exchange is one
// rename(2), RENAME_EXCHANGE: after a crash both have their own, or both the
// other's. The indexes that no Worker reaches follow; one that a crash leaves
// behind fits no file, and makes the next look read them all. A live Worker on
// either is refused.
func (l *Local) Exchange(ctx context.Context, req ExchangeRequest) error {
	const op = "helper.exchange"
	for _, id := range []policy.AllocationID{req.AllocationID, req.With} {
		if err := policy.CheckID("allocation", string(id)); err != nil {
			return err
		}
		if err := l.awaitTeardown(ctx, id); err != nil {
			return err
		}
		f, err := l.root.OpenFile(rootdir.Workspace(id)+"/lock", unix.O_RDWR|unix.O_CREAT, 0o600)
		if err != nil {
			return diskError(op, err)
		}
		defer f.Close()
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return policy.Errorf(policy.CodeAllocationInUse, op, "a live worker stands on %s", id)
		}
		if err != nil {
			return policy.Errorf(policy.CodeInternal, op, "the workspace's lock cannot be taken").Because(err)
		}
	}
	files := "root"
	if req.Strategy == policy.StrategyOverlay {
		files = "mounts"
	}
	for _, name := range []string{files, "index"} {
		err := l.exchange(req, name)
		if errors.Is(err, unix.EXDEV) {
			return policy.Errorf(policy.CodeStrategyUnsupported, op, "%s is a subvolume of its own, for its quota: its files cannot be exchanged", req.AllocationID).
				WithHint("Fork the snapshot instead: yoi ws fork.").Because(err)
		}
		if err != nil {
			return diskError(op, err)
		}
	}
	return nil
}

// exchange is durable on return.
func (l *Local) exchange(req ExchangeRequest, name string) error {
	a, err := l.root.OpenDir(rootdir.Workspace(req.AllocationID))
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := l.root.OpenDir(rootdir.Workspace(req.With))
	if err != nil {
		return err
	}
	defer b.Close()
	if err := unix.Renameat2(int(a.Fd()), name, int(b.Fd()), name, unix.RENAME_EXCHANGE); err != nil {
		return err
	}
	return errors.Join(a.Sync(), b.Sync())
}
