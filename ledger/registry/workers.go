package registry

import (
	"context"
	"database/sql"
	"slices"

	"yoi.dev/yoi-runtime/policy"
)

const getWorker = "SELECT doc FROM workers WHERE id = ?"

func unknownWorker(id policy.WorkerID) *policy.Diagnostic {
	return policy.Errorf(policy.CodeWorkerUnknown, "registry.worker", "there is no worker %q", policy.Printable(string(id)))
}

var workerMoves = map[WorkerStatus][]WorkerStatus{
	WorkerStarting: {WorkerRunning, WorkerExited, WorkerLost, WorkerFailed},
	WorkerRunning:  {WorkerExited, WorkerLost},
	WorkerExited:   nil,
	WorkerLost:     nil,
	WorkerFailed:   nil,
}

// PutWorker records a new Worker. An id that is taken is CodeConflict.
func (r *Registry) PutWorker(ctx context.Context, v Worker) error {
	const op = "registry.worker"
	if _, ok := workerMoves[v.Status]; !ok {
		return policy.Errorf(policy.CodeBadRequest, op, "%q is no status of a worker", v.Status)
	}
	doc, err := encode(v)
	if err != nil {
		return dbError(op, err)
	}
	return r.write(ctx, op, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, "INSERT OR IGNORE INTO workers VALUES (?, ?, ?, ?, ?, ?)",
			string(v.ID), string(v.AllocationID), string(v.WorkspaceID), string(v.Status), nanos(v.CreatedAt), doc)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil {
			return err
		} else if n == 0 {
			return policy.Errorf(policy.CodeConflict, op, "the worker %s is recorded already", v.ID)
		}
		return nil
	})
}

// GetWorker returns a Worker, or CodeWorkerUnknown.
func (r *Registry) GetWorker(ctx context.Context, id policy.WorkerID) (Worker, error) {
	return get[Worker](ctx, r.db, getWorker, string(id), unknownWorker(id))
}

// ListWorkers returns a page, newest first.
func (r *Registry) ListWorkers(ctx context.Context, f Filter) (Page[Worker], error) {
	q, limit, err := f.build()
	if err != nil {
		return Page[Worker]{}, err
	}
	if f.AllocationID != "" {
		q.and("allocation_id = ?", string(f.AllocationID))
	}
	if f.RepositoryID != "" {
		q.and("allocation_id IN (SELECT allocation_id FROM allocation_repositories WHERE repository_id = ?)", string(f.RepositoryID))
	}
	s, args := q.sql("workers", limit)
	items, err := list[Worker](ctx, r.db, s, args...)
	return page(items, limit, func(w Worker) (int64, string) { return nanos(w.CreatedAt), string(w.ID) }), err
}

// UpdateWorker reads, changes and writes in one transaction. A Worker that has
// ended does not change any more: another status is CodeConflict.
func (r *Registry) UpdateWorker(ctx context.Context, id policy.WorkerID, change func(*Worker) error) (v Worker, err error) {
	const op = "registry.worker"
	err = r.write(ctx, op, func(tx *sql.Tx) error {
		if v, err = get[Worker](ctx, tx, getWorker, string(id), unknownWorker(id)); err != nil {
			return err
		}
		was := v
		if err := change(&v); err != nil {
			return err
		}
		v.ID, v.AllocationID, v.WorkspaceID, v.CreatedAt = was.ID, was.AllocationID, was.WorkspaceID, was.CreatedAt
		if v.Status != was.Status && !slices.Contains(workerMoves[was.Status], v.Status) {
			return policy.Errorf(policy.CodeConflict, op, "%s is %s and cannot become %s", id, was.Status, v.Status)
		}
		doc, err := encode(v)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE workers SET status = ?, doc = ? WHERE id = ?", string(v.Status), doc, string(id))
		return err
	})
	return v, err
}
