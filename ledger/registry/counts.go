package registry

import "context"

// Counts counts allocations that are not removed, and Workers that have not ended, by
// status.
func (r *Registry) Counts(ctx context.Context) (map[AllocationStatus]int, map[WorkerStatus]int, error) {
	allocations, workers := make(map[AllocationStatus]int), make(map[WorkerStatus]int)
	err := r.countBy(ctx, "SELECT status, count(*) FROM allocations WHERE status != ? GROUP BY status",
		[]any{string(AllocationRemoved)}, func(s string, n int) { allocations[AllocationStatus(s)] = n })
	if err == nil {
		err = r.countBy(ctx, "SELECT status, count(*) FROM workers WHERE status IN (?, ?) GROUP BY status",
			[]any{string(WorkerStarting), string(WorkerRunning)}, func(s string, n int) { workers[WorkerStatus(s)] = n })
	}
	return allocations, workers, err
}

func (r *Registry) countBy(ctx context.Context, query string, args []any, got func(string, int)) error {
	const op = "registry.count"
	rows, err := r.db.QueryContext(ctx, query, args...)
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
