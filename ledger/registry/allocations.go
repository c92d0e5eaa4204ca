package registry

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"yoi.dev/yoi-runtime/policy"
)

const getAllocation = "SELECT doc FROM allocations WHERE id = ?"

func unknownAllocation(id policy.AllocationID) *policy.Diagnostic {
	return policy.Errorf(policy.CodeAllocationUnknown, "registry.allocation", "there is no execution workspace %q", policy.Printable(string(id)))
}

// allocationMoves is the state machine. A status may always stay as it is.
var allocationMoves = map[AllocationStatus][]AllocationStatus{
	AllocationActive:         {AllocationStopped, AllocationFailed, AllocationCleanupPending, AllocationRemoved},
	AllocationStopped:        {AllocationFailed, AllocationCleanupPending},
	AllocationFailed:         {AllocationCleanupPending},
	AllocationCleanupPending: {AllocationRemoved},
	AllocationRemoved:        nil,
}

// PutAllocation records a new allocation. An id that is taken is CodeConflict.
func (r *Registry) PutAllocation(ctx context.Context, v Allocation) error {
	const op = "registry.allocation"
	if _, ok := allocationMoves[v.Status]; !ok {
		return policy.Errorf(policy.CodeBadRequest, op, "%q is no status of an allocation", v.Status)
	}
	doc, err := encode(v)
	if err != nil {
		return dbError(op, err)
	}
	return r.write(ctx, op, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, "INSERT OR IGNORE INTO allocations VALUES (?, ?, ?, ?, ?, ?)",
			string(v.ID), string(v.WorkspaceID), string(v.Status), nanos(v.CreatedAt), nanos(v.CleanupDeadline), doc)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil {
			return err
		} else if n == 0 {
			return policy.Errorf(policy.CodeConflict, op, "the execution workspace %s is recorded already", v.ID)
		}
		for _, p := range v.RepositoryPoints {
			if _, err := tx.ExecContext(ctx, "INSERT OR IGNORE INTO allocation_repositories VALUES (?, ?)", string(p.RepositoryID), string(v.ID)); err != nil {
				return err
			}
		}
		return nil
	})
}

// GetAllocation returns an allocation, or CodeAllocationUnknown.
func (r *Registry) GetAllocation(ctx context.Context, id policy.AllocationID) (Allocation, error) {
	return get[Allocation](ctx, r.db, getAllocation, string(id), unknownAllocation(id))
}

// ListAllocations returns a page, newest first.
func (r *Registry) ListAllocations(ctx context.Context, f Filter) (Page[Allocation], error) {
	q, limit, err := f.build()
	if err != nil {
		return Page[Allocation]{}, err
	}
	if f.AllocationID != "" {
		q.and("id = ?", string(f.AllocationID))
	}
	if f.RepositoryID != "" {
		q.and("id IN (SELECT allocation_id FROM allocation_repositories WHERE repository_id = ?)", string(f.RepositoryID))
	}
	s, args := q.sql("allocations", limit)
	items, err := list[Allocation](ctx, r.db, s, args...)
	return page(items, limit, func(a Allocation) (int64, string) { return nanos(a.CreatedAt), string(a.ID) }), err
}

// UpdateAllocation reads, changes and writes in one transaction. The id, the
// points and the time of creation stay, and the status may only move as the
// states allow: else CodeConflict.
func (r *Registry) UpdateAllocation(ctx context.Context, id policy.AllocationID, change func(*Allocation) error) (v Allocation, err error) {
	err = r.write(ctx, "registry.allocation", func(tx *sql.Tx) error {
		v, err = r.updateAllocation(ctx, tx, id, change)
		return err
	})
	return v, err
}

func (r *Registry) updateAllocation(ctx context.Context, tx *sql.Tx, id policy.AllocationID, change func(*Allocation) error) (Allocation, error) {
	v, err := get[Allocation](ctx, tx, getAllocation, string(id), unknownAllocation(id))
	if err != nil {
		return v, err
	}
	was := v
	if err := change(&v); err != nil {
		return was, err
	}
	v.ID, v.RepositoryPoints, v.CreatedAt = was.ID, was.RepositoryPoints, was.CreatedAt
	if v.Status != was.Status && !slices.Contains(allocationMoves[was.Status], v.Status) {
		return was, policy.Errorf(policy.CodeConflict, "registry.allocation", "%s is %s and cannot become %s", id, was.Status, v.Status)
	}
	doc, err := encode(v)
	if err != nil {
		return was, err
	}
	_, err = tx.ExecContext(ctx, "UPDATE allocations SET status = ?, cleanup_deadline = ?, doc = ? WHERE id = ?",
		string(v.Status), nanos(v.CleanupDeadline), doc, string(id))
	return v, err
}

// SetAllocationStatus moves an allocation from one of the states from to to. In
// none of them it is CodeConflict.
func (r *Registry) SetAllocationStatus(ctx context.Context, id policy.AllocationID, to AllocationStatus, from ...AllocationStatus) (Allocation, error) {
	return r.UpdateAllocation(ctx, id, func(v *Allocation) error {
		if !slices.Contains(from, v.Status) {
			return policy.Errorf(policy.CodeConflict, "registry.allocation", "%s is %s", id, v.Status)
		}
		v.Status = to
		return nil
	})
}

// ExpiredAllocations returns the stopped and failed allocations whose cleanup
// deadline has passed, the most overdue first.
func (r *Registry) ExpiredAllocations(ctx context.Context, now time.Time) ([]Allocation, error) {
	return list[Allocation](ctx, r.db, `SELECT doc FROM allocations
		WHERE status IN (?, ?) AND cleanup_deadline > 0 AND cleanup_deadline <= ? ORDER BY cleanup_deadline`,
		string(AllocationStopped), string(AllocationFailed), nanos(now))
}
