package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"time"
)

// Secret is 256 random bits as text, and Hash what is stored of it.
func Secret() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand.Read crashes the program instead
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// Hash is what is stored of a secret with full entropy.
func Hash(secret string) string {
	h := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(h[:])
}

// Actor is a person. Password is an encoded argon2id hash.
type Actor struct {
	Name, Password string
	CreatedAt      time.Time
	Roles          map[string]string // by workspace
}

// PutActor makes or replaces a person with their roles; an empty password leaves
// the one that there is. It ends their sessions.
func (s *Store) PutActor(ctx context.Context, a Actor) error {
	return s.write(ctx, func(tx *sql.Tx) error {
		if a.Password == "" {
			var n int
			if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM actors WHERE name = ?", a.Name).Scan(&n); err != nil {
				return err
			}
			if n == 0 {
				return ErrNotFound
			}
		} else if _, err := tx.ExecContext(ctx, `INSERT INTO actors VALUES (?, ?, ?)
			ON CONFLICT (name) DO UPDATE SET password = excluded.password`, a.Name, a.Password, s.now().UnixNano()); err != nil {
			return err
		}
		for _, q := range []string{"DELETE FROM sessions WHERE actor = ?", "DELETE FROM roles WHERE actor = ?"} {
			if _, err := tx.ExecContext(ctx, q, a.Name); err != nil {
				return err
			}
		}
		for w, r := range a.Roles {
			if _, err := tx.ExecContext(ctx, "INSERT INTO roles VALUES (?, ?, ?)", a.Name, w, r); err != nil {
				return err
			}
		}
		return nil
	})
}

// RemoveActor removes a person with their roles and sessions.
func (s *Store) RemoveActor(ctx context.Context, name string) error {
	ok, err := s.exec(ctx, "DELETE FROM actors WHERE name = ?", name)
	if err == nil && !ok {
		err = ErrNotFound
	}
	return err
}

// GetActor returns a person.
func (s *Store) GetActor(ctx context.Context, name string) (Actor, error) {
	a := Actor{Name: name}
	var created int64
	if err := s.one(ctx, "SELECT password, created_at FROM actors WHERE name = ?", []any{name}, &a.Password, &created); err != nil {
		return Actor{}, err
	}
	a.CreatedAt = timeOf(created)
	var err error
	a.Roles, err = s.rolesOf(ctx, name)
	return a, err
}

func (s *Store) rolesOf(ctx context.Context, name string) (map[string]string, error) {
	type pair struct{ w, r string }
	list, err := many(ctx, s, "SELECT workspace, role FROM roles WHERE actor = ?", []any{name}, func(scan func(...any) error) (p pair, err error) {
		return p, scan(&p.w, &p.r)
	})
	roles := make(map[string]string, len(list))
	for _, p := range list {
		roles[p.w] = p.r
	}
	return roles, err
}

// Session is a person's login in one browser.
type Session struct {
	Actor string
	CSRF  string
	Roles map[string]string
}

// AddSession begins a session and returns its secret, for the cookie.
func (s *Store) AddSession(ctx context.Context, actor string, life time.Duration) (string, error) {
	secret, now := Secret(), s.now()
	if _, err := s.exec(ctx, "DELETE FROM sessions WHERE expires_at <= ?", now.UnixNano()); err != nil {
		return "", err
	}
	_, err := s.exec(ctx, "INSERT INTO sessions VALUES (?, ?, ?, ?, ?)", Hash(secret), actor, Secret(), now.UnixNano(), now.Add(life).UnixNano())
	return secret, err
}

// GetSession returns the session of a cookie's secret while it lasts.
func (s *Store) GetSession(ctx context.Context, secret string) (Session, error) {
	var v Session
	err := s.one(ctx, "SELECT actor, csrf FROM sessions WHERE hash = ? AND expires_at > ?",
		[]any{Hash(secret), s.now().UnixNano()}, &v.Actor, &v.CSRF)
	if err != nil {
		return Session{}, err
	}
	v.Roles, err = s.rolesOf(ctx, v.Actor)
	return v, err
}

// RemoveSession ends a session.
func (s *Store) RemoveSession(ctx context.Context, secret string) error {
	_, err := s.exec(ctx, "DELETE FROM sessions WHERE hash = ?", Hash(secret))
	return err
}

// Token is a program's access to one workspace.
type Token struct {
	ID, Label, Workspace, Role string
	CreatedAt, ExpiresAt       time.Time // ExpiresAt zero: never
}

// AddToken records a token and returns its secret, which is not kept.
func (s *Store) AddToken(ctx context.Context, t Token) (string, error) {
	secret := "yoi_" + Secret()
	_, err := s.exec(ctx, "INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?)",
		t.ID, Hash(secret), t.Label, t.Workspace, t.Role, s.now().UnixNano(), nanos(t.ExpiresAt))
	return secret, err
}

const tokenColumns = "SELECT id, label, workspace, role, created_at, expires_at FROM tokens "

func scanToken(scan func(...any) error) (t Token, err error) {
	var created, expires int64
	err = scan(&t.ID, &t.Label, &t.Workspace, &t.Role, &created, &expires)
	t.CreatedAt, t.ExpiresAt = timeOf(created), timeOf(expires)
	return t, err
}

// GetToken returns the token of a secret while it lasts.
func (s *Store) GetToken(ctx context.Context, secret string) (Token, error) {
	return first(many(ctx, s, tokenColumns+"WHERE hash = ? AND (expires_at = 0 OR expires_at > ?)", []any{Hash(secret), s.now().UnixNano()}, scanToken))
}

// ListTokens returns every token, without its secret.
func (s *Store) ListTokens(ctx context.Context) ([]Token, error) {
	return many(ctx, s, tokenColumns+"ORDER BY created_at", nil, scanToken)
}

// RemoveToken revokes a token.
func (s *Store) RemoveToken(ctx context.Context, id string) error {
	ok, err := s.exec(ctx, "DELETE FROM tokens WHERE id = ?", id)
	if err == nil && !ok {
		err = ErrNotFound
	}
	return err
}
