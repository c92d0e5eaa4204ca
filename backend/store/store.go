package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	_ "modernc.org/sqlite" // the driver
)

// ErrNotFound is a record that is not there; ErrConflict one that is, and should not be.
var (
	ErrNotFound = errors.New("store: no such record")
	ErrConflict = errors.New("store: the record exists with other content")
	ErrPending  = errors.New("store: the first request with this key is under way")
)

const schemaVersion = 1

var migrations = [schemaVersion]string{`
CREATE TABLE actors (name TEXT PRIMARY KEY, password TEXT NOT NULL, created_at INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE roles (
	actor TEXT NOT NULL REFERENCES actors (name) ON DELETE CASCADE, workspace TEXT NOT NULL, role TEXT NOT NULL,
	PRIMARY KEY (actor, workspace)) WITHOUT ROWID;
CREATE TABLE sessions (
	hash TEXT PRIMARY KEY, actor TEXT NOT NULL REFERENCES actors (name) ON DELETE CASCADE,
	csrf TEXT NOT NULL, created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE tokens (
	id TEXT PRIMARY KEY, hash TEXT NOT NULL UNIQUE, label TEXT NOT NULL, workspace TEXT NOT NULL, role TEXT NOT NULL,
	created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE creations (
	id TEXT PRIMARY KEY, workspace TEXT NOT NULL, actor TEXT NOT NULL, request TEXT NOT NULL, state TEXT NOT NULL,
	allocation TEXT NOT NULL, problem TEXT NOT NULL, created_at INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX creations_page ON creations (workspace, created_at DESC);
CREATE INDEX creations_allocation ON creations (allocation);
CREATE TABLE launches (
	worker TEXT PRIMARY KEY, workspace TEXT NOT NULL, allocation TEXT NOT NULL, actor TEXT NOT NULL, created_at INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE keys (
	scope TEXT NOT NULL, key TEXT NOT NULL, digest TEXT NOT NULL, status INTEGER NOT NULL, answer BLOB,
	created_at INTEGER NOT NULL, PRIMARY KEY (scope, key)) WITHOUT ROWID;
CREATE TABLE audit (
	seq INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, workspace TEXT NOT NULL, actor TEXT NOT NULL,
	action TEXT NOT NULL, target TEXT NOT NULL, outcome TEXT NOT NULL);
CREATE INDEX audit_page ON audit (workspace, seq DESC);
`}

// Store is an open database. Its methods may be called from any goroutine.
type Store struct {
	db  *sql.DB
	now func() time.Time
}

// Open opens the database at path, making it with mode 0600 if needed.
func Open(ctx context.Context, path string) (*Store, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) // before SQLite would make it by the umask
	if err != nil {
		return nil, err
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	q := url.Values{"_pragma": {"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)"}, "_txlock": {"immediate"}}
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // SQLite has one writer; a queue here is fairer than its busy loop
	s := &Store{db: db, now: time.Now}
	if err := s.migrate(ctx); err != nil {
		db.Close()
		return nil, err
	}
	return s, nil
}

// Close closes the database.
func (s *Store) Close() error { return s.db.Close() }

func (s *Store) migrate(ctx context.Context) error {
	return s.write(ctx, func(tx *sql.Tx) error {
		var version int
		if err := tx.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
			return err
		}
		if version < 0 || version > schemaVersion {
			return fmt.Errorf("store: the database has schema version %d, this program knows %d", version, schemaVersion)
		}
		for ; version < schemaVersion; version++ {
			if _, err := tx.ExecContext(ctx, migrations[version]); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", schemaVersion))
		return err
	})
}

func (s *Store) write(ctx context.Context, do func(*sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// exec runs a statement and says whether it changed anything.
func (s *Store) exec(ctx context.Context, query string, args ...any) (bool, error) {
	res, err := s.db.ExecContext(ctx, query, args...)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

// one reads one row.
func (s *Store) one(ctx context.Context, query string, args []any, into ...any) error {
	err := s.db.QueryRowContext(ctx, query, args...).Scan(into...)
	if errors.Is(err, sql.ErrNoRows) {
		return ErrNotFound
	}
	return err
}

// many reads every row with scan.
func many[T any](ctx context.Context, s *Store, query string, args []any, scan func(func(...any) error) (T, error)) ([]T, error) {
	rows, err := s.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []T
	for rows.Next() {
		v, err := scan(rows.Scan)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func timeOf(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}
