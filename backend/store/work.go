package store

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// CreationState is how far the making of an Execution Workspace is.
type CreationState string

const (
	CreationRunning CreationState = "running"
	CreationDone    CreationState = "done"
	CreationFailed  CreationState = "failed"
)

// Creation is one request for an Execution Workspace: on the disk before its
// Runtime is asked, so that a Backend that was killed in between asks again,
// under the same key, and nobody's workspace is forgotten.
type Creation struct {
	ID, Workspace, Actor string
	Request              string // JSON, the Backend's own
	State                CreationState
	Allocation           string // of a done one
	Problem              string // JSON, of a failed one
	CreatedAt            time.Time
}

// AddCreation records a creation that is about to begin.
func (s *Store) AddCreation(ctx context.Context, c Creation) error {
	_, err := s.exec(ctx, "INSERT INTO creations VALUES (?, ?, ?, ?, ?, '', '', ?)",
		c.ID, c.Workspace, c.Actor, c.Request, string(CreationRunning), nanos(c.CreatedAt))
	return err
}

// EndCreation records how one ended: an allocation, or a problem document.
func (s *Store) EndCreation(ctx context.Context, id, allocation, problem string) error {
	state := CreationDone
	if allocation == "" {
		state = CreationFailed
	}
	_, err := s.exec(ctx, "UPDATE creations SET state = ?, allocation = ?, problem = ? WHERE id = ?", string(state), allocation, problem, id)
	return err
}

const creationColumns = "SELECT id, workspace, actor, request, state, allocation, problem, created_at FROM creations "

func scanCreation(scan func(...any) error) (c Creation, err error) {
	var created int64
	err = scan(&c.ID, &c.Workspace, &c.Actor, &c.Request, &c.State, &c.Allocation, &c.Problem, &created)
	c.CreatedAt = timeOf(created)
	return c, err
}

// GetCreation returns a workspace's creation.
func (s *Store) GetCreation(ctx context.Context, workspace, id string) (Creation, error) {
	return first(many(ctx, s, creationColumns+"WHERE workspace = ? AND id = ?", []any{workspace, id}, scanCreation))
}

// CreationOf returns the creation that an allocation came from.
func (s *Store) CreationOf(ctx context.Context, workspace, allocation string) (Creation, error) {
	return first(many(ctx, s, creationColumns+"WHERE workspace = ? AND allocation = ?", []any{workspace, allocation}, scanCreation))
}

// Creations returns those in a state, the newest first; of every workspace for "".
func (s *Store) Creations(ctx context.Context, workspace string, state CreationState, limit int) ([]Creation, error) {
	return many(ctx, s, creationColumns+"WHERE (? = '' OR workspace = ?) AND state = ? ORDER BY created_at DESC LIMIT ?",
		[]any{workspace, workspace, string(state), limit}, scanCreation)
}

func first[T any](list []T, err error) (T, error) {
	if err == nil && len(list) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return *new(T), err
	}
	return list[0], nil
}

// Launch says who started a Worker.
type Launch struct {
	Worker, Workspace, Allocation, Actor string
	CreatedAt                            time.Time
}

// AddLaunch records a started Worker.
func (s *Store) AddLaunch(ctx context.Context, l Launch) error {
	_, err := s.exec(ctx, "INSERT OR IGNORE INTO launches VALUES (?, ?, ?, ?, ?)", l.Worker, l.Workspace, l.Allocation, l.Actor, nanos(l.CreatedAt))
	return err
}

// LaunchedBy returns who started a Worker, "" if that is not known.
func (s *Store) LaunchedBy(ctx context.Context, workspace, worker string) (string, error) {
	var actor string
	err := s.one(ctx, "SELECT actor FROM launches WHERE workspace = ? AND worker = ?", []any{workspace, worker}, &actor)
	if errors.Is(err, ErrNotFound) {
		return "", nil
	}
	return actor, err
}

// Answer is a stored answer to a request with an idempotency key.
type Answer struct {
	Status int
	Body   []byte
}

// keyLife is how long a key is remembered; claimLife how long one whose first
// request never answered, since its process died, blocks others.
const (
	keyLife   = 24 * time.Hour
	claimLife = 10 * time.Minute
)

// ClaimKey takes a key. nil means that the caller is the first, does the work, and
// calls AnswerKey or ForgetKey. Another request under the key is ErrConflict, the
// same one that is still under way ErrPending.
func (s *Store) ClaimKey(ctx context.Context, scope, key, digest string) (answer *Answer, err error) {
	now := s.now()
	err = s.write(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "DELETE FROM keys WHERE created_at < ? OR (status = 0 AND created_at < ?)",
			now.Add(-keyLife).UnixNano(), now.Add(-claimLife).UnixNano()); err != nil {
			return err
		}
		var had string
		var a Answer
		err := tx.QueryRowContext(ctx, "SELECT digest, status, answer FROM keys WHERE scope = ? AND key = ?", scope, key).Scan(&had, &a.Status, &a.Body)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			_, err = tx.ExecContext(ctx, "INSERT INTO keys VALUES (?, ?, ?, 0, NULL, ?)", scope, key, digest, now.UnixNano())
			return err
		case err != nil:
			return err
		case had != digest:
			return ErrConflict
		case a.Status == 0:
			return ErrPending
		}
		answer = &a
		return nil
	})
	return answer, err
}

// AnswerKey stores the answer to a claimed key.
func (s *Store) AnswerKey(ctx context.Context, scope, key string, a Answer) error {
	_, err := s.exec(ctx, "UPDATE keys SET status = ?, answer = ? WHERE scope = ? AND key = ?", a.Status, a.Body, scope, key)
	return err
}

// ForgetKey frees a claimed key, as after a failed request.
func (s *Store) ForgetKey(ctx context.Context, scope, key string) error {
	_, err := s.exec(ctx, "DELETE FROM keys WHERE scope = ? AND key = ? AND status = 0", scope, key)
	return err
}

// Act is a line of the audit: who did what to what, and how it ended.
type Act struct {
	Seq                                       int64
	At                                        time.Time
	Workspace, Actor, Action, Target, Outcome string
}

// Record appends to the audit.
func (s *Store) Record(ctx context.Context, a Act) error {
	_, err := s.exec(ctx, "INSERT INTO audit (at, workspace, actor, action, target, outcome) VALUES (?, ?, ?, ?, ?, ?)",
		s.now().UnixNano(), a.Workspace, a.Actor, a.Action, a.Target, a.Outcome)
	return err
}

// Audit returns a workspace's lines before the given one, newest first; 0 is from
// the newest.
func (s *Store) Audit(ctx context.Context, workspace string, before int64, limit int) ([]Act, error) {
	if before <= 0 {
		before = 1<<63 - 1
	}
	return many(ctx, s, `SELECT seq, at, workspace, actor, action, target, outcome FROM audit
		WHERE workspace = ? AND seq < ? ORDER BY seq DESC LIMIT ?`, []any{workspace, before, limit}, func(scan func(...any) error) (a Act, err error) {
		var at int64
		err = scan(&a.Seq, &at, &a.Workspace, &a.Actor, &a.Action, &a.Target, &a.Outcome)
		a.At = timeOf(at)
		return a, err
	})
}
