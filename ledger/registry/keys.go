package registry

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"yoi.dev/yoi-runtime/policy"
)

// claimTimeout is after how long a key whose first request never answered (its
// process died) may be claimed again.
const claimTimeout = 10 * time.Minute

// ClaimKey takes an idempotency key. first is true for the caller who is to do
// the work and then AnswerKey or ForgetKey. An answered key returns its
// response; the same key with another digest, or one still under way, is
// CodeConflict.
func (r *Registry) ClaimKey(ctx context.Context, key, digest string) (k IdempotencyKey, first bool, err error) {
	const op = "registry.idempotency"
	err = r.write(ctx, op, func(tx *sql.Tx) error {
		var response sql.NullString
		var created int64
		k = IdempotencyKey{Key: key}
		err := tx.QueryRowContext(ctx, "SELECT digest, response, created_at FROM idempotency_keys WHERE key = ?", key).Scan(&k.Digest, &response, &created)
		now := time.Now()
		switch {
		case errors.Is(err, sql.ErrNoRows):
		case err != nil:
			return err
		case k.Digest != digest:
			return policy.Errorf(policy.CodeConflict, op, "the idempotency key was used for another request")
		case response.Valid:
			k.Response, k.CreatedAt = json.RawMessage(response.String), time.Unix(0, created)
			return nil
		case now.Sub(time.Unix(0, created)) < claimTimeout:
			return policy.Errorf(policy.CodeConflict, op, "the first request with this idempotency key is still under way")
		}
		k.Digest, k.CreatedAt, first = digest, now, true
		_, err = tx.ExecContext(ctx, "INSERT OR REPLACE INTO idempotency_keys VALUES (?, ?, NULL, ?)", key, digest, now.UnixNano())
		return err
	})
	if err != nil {
		return IdempotencyKey{}, false, err
	}
	return k, first, nil
}

// AnswerKey stores the response to a key as ClaimKey returned it. A claim that
// was taken over meanwhile is left to its new holder.
func (r *Registry) AnswerKey(ctx context.Context, k IdempotencyKey, response []byte) error {
	return r.exec(ctx, "UPDATE idempotency_keys SET response = ? WHERE key = ? AND created_at = ? AND response IS NULL",
		string(response), k.Key, k.CreatedAt.UnixNano())
}

// ForgetKey frees a claimed key, as after a failed request.
func (r *Registry) ForgetKey(ctx context.Context, k IdempotencyKey) error {
	return r.exec(ctx, "DELETE FROM idempotency_keys WHERE key = ? AND created_at = ? AND response IS NULL", k.Key, k.CreatedAt.UnixNano())
}

// ForgetKeysBefore frees the keys that were claimed before t.
func (r *Registry) ForgetKeysBefore(ctx context.Context, t time.Time) (int, error) {
	res, err := r.db.ExecContext(ctx, "DELETE FROM idempotency_keys WHERE created_at < ?", t.UnixNano())
	if err != nil {
		return 0, dbError("registry.idempotency", err)
	}
	n, err := res.RowsAffected()
	return int(n), dbError("registry.idempotency", err)
}

func (r *Registry) exec(ctx context.Context, q string, args ...any) error {
	_, err := r.db.ExecContext(ctx, q, args...)
	return dbError("registry.idempotency", err)
}
