package helper

import (
	"bytes"
	"context"
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
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
// behind fits no file, and makes the next look read them all. Where the kernel
// limits both, see exchangeWhole. A live Worker on either is refused.
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
	limits, err := l.limitsOf(req)
	if err != nil {
		return err
	}
	if limits[0].byKernel() && limits[1].byKernel() {
		return l.exchangeWhole(ctx, req, limits)
	}
	files := "root"
	if req.Strategy == policy.StrategyOverlay {
		files = "mounts"
	}
	for _, name := range []string{files, "index"} {
		err := l.exchange(req, name)
		if errors.Is(err, unix.EXDEV) {
			return policy.Errorf(policy.CodeStrategyUnsupported, op, "the kernel limits only one of %s and %s: their files cannot be exchanged", req.AllocationID, req.With).
				WithHint("Switch the file system's quotas on again, or fork the snapshot instead: yoi ws fork.").Because(err)
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

func (l *Local) limitsOf(req ExchangeRequest) (r [2]quotaRecord, err error) {
	for i, id := range []policy.AllocationID{req.AllocationID, req.With} {
		if r[i], err = l.quotaOf(id); err != nil {
			return r, err
		}
	}
	return r, nil
}

// staying is what does not go with an allocation's files: what a Worker has beside
// them, and what is known about the allocation.
var (
	stayingTrees = []string{"scratch", buildCacheDir}
	stayingFiles = []string{"quota.json", "caches.json", "materialization.json"}
)

// byKernel says that the allocation's directory is a subvolume or a project.
func (r quotaRecord) byKernel() bool {
	return r.QuotaEvidence.Bytes == policy.QuotaBtrfs || r.Project != 0
}

// exchangeWhole is Exchange for two allocations that are subvolumes or projects, each
// with a limit: nothing moves between them, so they are exchanged themselves. Before,
// the other is given copies of what stays with the allocation, sharing their
// blocks; nobody works there, so that a crash on the way there does no harm. After
// a crash behind the exchange it still has what the allocation had there, which
// goes with it.
func (l *Local) exchangeWhole(ctx context.Context, req ExchangeRequest, limits [2]quotaRecord) error {
	const op = "helper.exchange"
	parent, err := l.root.OpenDir(rootdir.Workspaces)
	if err != nil {
		return diskError(op, err)
	}
	defer parent.Close()
	for _, name := range stayingTrees {
		if err := l.copyStaying(ctx, req, name); err != nil {
			return err
		}
	}
	theirs := make(map[string][]byte, len(stayingFiles))
	for _, name := range stayingFiles {
		if theirs[name], err = l.overwrite(req.With, name, req.AllocationID, nil); err != nil {
			return diskError(op, err)
		}
	}
	if err := unix.Syncfs(int(parent.Fd())); err != nil {
		return diskError(op, err)
	}
	if err := unix.Renameat2(int(parent.Fd()), string(req.AllocationID), int(parent.Fd()), string(req.With), unix.RENAME_EXCHANGE); err != nil {
		return diskError(op, err)
	}
	if err := parent.Sync(); err != nil {
		return diskError(op, err)
	}
	for _, name := range stayingFiles {
		if _, err := l.overwrite(req.With, name, "", theirs[name]); err != nil {
			return diskError(op, err)
		}
	}
	if limits[0].Project == limits[1].Project {
		return nil
	}
	// The directories took their projects along.
	limits[0].Project, limits[1].Project = limits[1].Project, limits[0].Project
	limits[0].Base, limits[1].Base = limits[1].Base, limits[0].Base
	return errors.Join(l.writeQuota(req.AllocationID, limits[0]), l.writeQuota(req.With, limits[1]))
}

// overwrite gives an allocation's file the content of another's, or content, and
// returns what it had.
func (l *Local) overwrite(id policy.AllocationID, name string, from policy.AllocationID, content []byte) (old []byte, err error) {
	const most = 16 << 20
	read := func(id policy.AllocationID) ([]byte, error) {
		b, err := l.root.ReadFile(rootdir.Workspace(id)+"/"+name, most)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return b, err
	}
	if old, err = read(id); err != nil {
		return nil, err
	}
	if from != "" {
		if content, err = read(from); err != nil {
			return nil, err
		}
	}
	if bytes.Equal(old, content) {
		return old, nil
	}
	if err := l.root.WriteFile(rootdir.Workspace(id)+"/"+name, content, 0o600); err != nil {
		return nil, err
	}
	// What is in an allocation is its owner's, whoever wrote it.
	f, err := l.root.OpenFile(rootdir.Workspace(id)+"/"+name, unix.O_RDONLY, 0)
	if err == nil {
		err = errors.Join(f.Chown(l.root.UID, l.root.GID), f.Close())
	}
	return old, err
}

// copyStaying replaces the other's directory by a clone of the allocation's.
func (l *Local) copyStaying(ctx context.Context, req ExchangeRequest, name string) error {
	const op = "helper.exchange"
	source, err := l.root.OpenDir(rootdir.Workspace(req.AllocationID) + "/" + name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return diskError(op, err)
	}
	defer source.Close()
	target, err := l.root.OpenDir(rootdir.Workspace(req.With))
	if err != nil {
		return diskError(op, err)
	}
	defer target.Close()
	if err := cow.RemoveTree(ctx, target, name, cow.RemoveOptions{Log: l.log}); err != nil {
		return err
	}
	_, err = cow.ByName(policy.StrategyReflink).Materialize(ctx, cow.Request{Source: source, TargetParent: target, TargetName: name, Layer: true, Log: l.log})
	return err
}
