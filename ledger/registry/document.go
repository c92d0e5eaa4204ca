package registry

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"

	"yoi.dev/yoi-runtime/policy"
)

// get reads one document; a missing one is the diagnostic missing.
func get[T any](ctx context.Context, q querier, query, id string, missing *policy.Diagnostic) (T, error) {
	var v T
	var doc string
	err := q.QueryRowContext(ctx, query, id).Scan(&doc)
	if errors.Is(err, sql.ErrNoRows) {
		return v, missing
	}
	if err == nil {
		err = json.Unmarshal([]byte(doc), &v)
	}
	return v, dbError("registry.get", err)
}

// list reads the documents of a query's first column.
func list[T any](ctx context.Context, db *sql.DB, query string, args ...any) ([]T, error) {
	const op = "registry.list"
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, dbError(op, err)
	}
	defer rows.Close()
	var out []T
	for rows.Next() {
		var doc string
		var v T
		if err := rows.Scan(&doc); err != nil {
			return nil, dbError(op, err)
		}
		if err := json.Unmarshal([]byte(doc), &v); err != nil {
			return nil, dbError(op, err)
		}
		out = append(out, v)
	}
	return out, dbError(op, rows.Err())
}

func encode(v any) (string, error) {
	b, err := json.Marshal(v)
	return string(b), err
}
