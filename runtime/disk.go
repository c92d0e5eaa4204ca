package runtime

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// DiskUsage is what a workspace occupies, by the file system's own account.
type DiskUsage struct {
	AllocationID policy.AllocationID `json:"allocation_id"`
	// ReferencedBytes are all that the workspace can read, shared or not; of an
	// overlay the tree below counts whole. ExclusiveBytes are what its removal
	// would free.
	ReferencedBytes int64 `json:"referenced_bytes"`
	ExclusiveBytes  int64 `json:"exclusive_bytes"`
	Inodes          int64 `json:"inodes"`
	// Partial says that something could not be looked at: the numbers are too small.
	Partial    bool      `json:"partial,omitempty"`
	MeasuredAt time.Time `json:"measured_at"`
}

// WorkspaceDisk measures a workspace.
func (r *Runtime) WorkspaceDisk(ctx context.Context, id policy.AllocationID) (DiskUsage, error) {
	if err := policy.CheckID("allocation", string(id)); err != nil {
		return DiskUsage{}, err
	}
	a, err := r.registry.GetAllocation(ctx, id)
	if err != nil {
		return DiskUsage{}, err
	}
	out := DiskUsage{AllocationID: id, MeasuredAt: r.now()}
	if a.Status == registry.AllocationRemoved {
		return out, nil
	}
	u, err := r.helper.Usage(ctx, id)
	if err != nil {
		return DiskUsage{}, err
	}
	out.ReferencedBytes, out.ExclusiveBytes, out.Inodes, out.Partial = u.Referenced, u.Exclusive, u.Inodes, u.Partial
	if slices.ContainsFunc(a.Mounts, func(m registry.Mount) bool { return m.Strategy == policy.StrategyOverlay }) {
		var ev Evidence
		if err := json.Unmarshal(a.Evidence, &ev); err == nil {
			out.ReferencedBytes += ev.Bytes
		}
	}
	return out, nil
}
