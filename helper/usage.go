package helper

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/policy"
)

// UsageResult is what an allocation's own directories occupy: its trees, an
// overlay's upper layers and scratch; not what an overlay has below.
type UsageResult struct {
	Referenced int64 `json:"referenced"`
	Exclusive  int64 `json:"exclusive"`
	Inodes     int64 `json:"inodes"`
	// Partial says that something could not be looked at: the numbers are too small.
	Partial bool `json:"partial,omitempty"`
}

// Usage measures an allocation, whether a Worker is at work in it or not.
func (l *Local) Usage(ctx context.Context, id policy.AllocationID) (UsageResult, error) {
	const op = "helper.usage"
	if err := policy.CheckID("allocation", string(id)); err != nil {
		return UsageResult{}, err
	}
	top, err := l.root.OpenDir(rootdir.Workspace(id))
	if errors.Is(err, fs.ErrNotExist) {
		return UsageResult{}, policy.Errorf(policy.CodeAllocationUnknown, op, "there is no execution workspace %s", id).Because(err)
	}
	if err != nil {
		return UsageResult{}, diskError(op, err)
	}
	defer top.Close()
	m := cow.NewMeter()
	for _, name := range []string{"root", "scratch", buildCacheDir} {
		if err := m.Add(ctx, top, name); err != nil {
			return UsageResult{}, err
		}
	}
	// The upper layers one by one: beside them lie overlayfs's own work directories,
	// which an ordinary user may not read and no Worker can reach.
	if err := l.addUppers(ctx, m, top); err != nil {
		return UsageResult{}, err
	}
	u := m.Usage()
	return UsageResult{Referenced: u.Referenced, Exclusive: u.Exclusive, Inodes: u.Inodes, Partial: u.Partial}, nil
}

func (l *Local) addUppers(ctx context.Context, m *cow.Meter, top *os.File) error {
	const op = "helper.usage"
	layers, err := rootdir.OpenAt(top, "mounts", os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // being made, or removed
	}
	if err != nil {
		return diskError(op, err)
	}
	defer layers.Close()
	names, err := layers.Readdirnames(-1)
	if err != nil {
		return diskError(op, err)
	}
	for _, n := range names {
		if n == overlayWork {
			continue
		}
		dir, err := rootdir.OpenAt(layers, n, os.O_RDONLY, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return diskError(op, err)
		}
		err = m.Add(ctx, dir, "upper")
		dir.Close()
		if err != nil {
			return err
		}
	}
	return nil
}
