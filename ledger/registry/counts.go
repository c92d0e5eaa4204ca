package registry

import (
	"context"
	"database/sql"
	"errors"
)

// there are the states of allocations that are not removed, of which there may be many
// more: an index has these.
const there = "('active', 'stopped', 'cleanup_pending', 'failed')"

// Counts counts allocations that are not removed, and the Workers on them that have not
// ended, by status.
func (r *Registry) Counts(ctx context.Context) (map[AllocationStatus]int, map[WorkerStatus]int, error) {
	allocations, workers := make(map[AllocationStatus]int), make(map[WorkerStatus]int)
	err := r.countBy(ctx, "SELECT status, count(*) FROM allocations WHERE status IN "+there+" GROUP BY status",
		func(s string, n int) { allocations[AllocationStatus(s)] = n })
	if err == nil {
		err = r.countBy(ctx, `SELECT w.status, count(*) FROM allocations a JOIN workers w ON w.allocation_id = a.id
			WHERE a.status IN `+there+` AND w.status IN ('starting', 'running') GROUP BY w.status`,
			func(s string, n int) { workers[WorkerStatus(s)] = n })
	}
	return allocations, workers, err
}

func (r *Registry) countBy(ctx context.Context, query string, got func(string, int)) error {
	const op = "registry.count"
	rows, err := r.db.QueryContext(ctx, query)
	if err != nil {
		return dbError(op, err)
	}
	defer rows.Close()
	for rows.Next() {
		var s string
		var n int
		if err := rows.Scan(&s, &n); err != nil {
			return dbError(op, err)
		}
		got(s, n)
	}
	return dbError(op, rows.Err())
}

// Note is what SetNote wrote under a key, "" before.
func (r *Registry) Note(ctx context.Context, key string) (string, error) {
	var v string
	err := r.db.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = ?", "note:"+key).Scan(&v)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return v, dbError("registry.note", err)
}

// SetNote keeps a short text of the Runtime's own.
func (r *Registry) SetNote(ctx context.Context, key, value string) error {
	return r.write(ctx, "registry.note", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT OR REPLACE INTO meta VALUES (?, ?)", "note:"+key, value)
		return err
	})
}
