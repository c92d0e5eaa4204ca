package registry

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"yoi.dev/yoi-runtime/policy"
)

// schemaVersion is PRAGMA user_version. migrations[i] leads from i to i+1.
const schemaVersion = 1

var migrations = [schemaVersion]string{`
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE repositories (id TEXT PRIMARY KEY, source TEXT NOT NULL, doc TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE allocations (
	id TEXT PRIMARY KEY, workspace_id TEXT NOT NULL, status TEXT NOT NULL,
	created_at INTEGER NOT NULL, cleanup_deadline INTEGER NOT NULL, doc TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX allocations_page ON allocations (created_at DESC, id DESC);
CREATE INDEX allocations_status ON allocations (status, created_at DESC, id DESC);
CREATE TABLE allocation_repositories (
	repository_id TEXT NOT NULL, allocation_id TEXT NOT NULL REFERENCES allocations (id) ON DELETE CASCADE,
	PRIMARY KEY (repository_id, allocation_id)) WITHOUT ROWID;
CREATE TABLE workers (
	id TEXT PRIMARY KEY, allocation_id TEXT NOT NULL, workspace_id TEXT NOT NULL, status TEXT NOT NULL,
	created_at INTEGER NOT NULL, doc TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX workers_page ON workers (created_at DESC, id DESC);
CREATE INDEX workers_allocation ON workers (allocation_id, created_at DESC, id DESC);
CREATE TABLE idempotency_keys (
	key TEXT PRIMARY KEY, digest TEXT NOT NULL, response TEXT, created_at INTEGER NOT NULL) WITHOUT ROWID;
`}

const busyTimeout = 10 * time.Second

// Registry is an open runtime.db. Its methods may be called from any goroutine.
type Registry struct {
	db *sql.DB
}

// Open opens the database at path, making it with mode 0600 if needed.
func Open(ctx context.Context, path string) (*Registry, error) {
	return open(ctx, path, "synchronous(FULL)", "wal_autocheckpoint(1000)")
}

// OpenRelaxed opens it for a process whose records need not survive power loss,
// since what they describe does not: they survive the process, and the database
// stays whole. Nothing waits for the disk, also not at the end: see Abandon.
func OpenRelaxed(ctx context.Context, path string) (*Registry, error) {
	return open(ctx, path, "synchronous(NORMAL)", "wal_autocheckpoint(100)")
}

// Abandon leaves the database to the end of the process. Close would write the
// log back into it and sync both; the next process to use it does, in its time.
func (r *Registry) Abandon() {}

func open(ctx context.Context, path string, pragmas ...string) (_ *Registry, err error) {
	const op = "registry.open"
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) // before SQLite would make it by the umask
	if err != nil {
		return nil, dbError(op, err)
	}
	if err := f.Close(); err != nil {
		return nil, dbError(op, err)
	}
	q := url.Values{
		// A cache of 512 KiB: the pages are in the kernel's anyway.
		"_pragma": {fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()), "journal_mode(WAL)", "foreign_keys(1)", "cache_size(-512)"},
		"_txlock": {"immediate"},
	}
	q["_pragma"] = append(q["_pragma"], pragmas...)
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String())
	if err != nil {
		return nil, dbError(op, err)
	}
	db.SetMaxOpenConns(1)
	r := &Registry{db: db}
	if err := r.connect(ctx); err != nil {
		db.Close()
		return nil, fullDisk(path, op, dbError(op, err))
	}
	if err := r.migrate(ctx); err != nil {
		db.Close()
		return nil, fullDisk(path, op, err)
	}
	return r, nil
}

// connect makes the first connection. Switching a new database to WAL takes an
// exclusive lock for which SQLite does not wait, whatever busy_timeout says
// (sqlite.org/wal.html, "sometimes SQLITE_BUSY"), so of several processes that
// open it for the first time all but one try again.
func (r *Registry) connect(ctx context.Context) error {
	deadline := time.Now().Add(busyTimeout)
	for {
		err := r.db.PingContext(ctx)
		var se *sqlite.Error
		if !errors.As(err, &se) || se.Code()&0xff != sqlite3.SQLITE_BUSY || time.Now().After(deadline) {
			return err
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// fullDisk replaces a failure by CodeDiskFull where the file system has nothing
// left: SQLite says only "unable to open" when it cannot make its -wal file.
func fullDisk(path, op string, err error) error {
	var st unix.Statfs_t
	if !errors.Is(err, policy.CodeRegistryFailed) || unix.Statfs(path, &st) != nil {
		return err
	}
	const least = 256 << 10
	if st.Bavail*uint64(st.Bsize) < least || (st.Files > 0 && st.Ffree == 0) {
		return policy.Errorf(policy.CodeDiskFull, op, "the disk is full: the registry cannot be opened").Because(err)
	}
	return err
}

// migrate brings the schema to schemaVersion. The warm path is one pragma.
func (r *Registry) migrate(ctx context.Context) error {
	const op = "registry.migrate"
	version, err := r.version(ctx, r.db)
	if err != nil {
		return dbError(op, err)
	}
	switch {
	case version == schemaVersion:
		return nil
	case version < 0:
		return policy.Errorf(policy.CodeRegistryFailed, op, "runtime.db has schema version %d, which no program writes", version)
	case version > schemaVersion:
		return policy.Errorf(policy.CodeRuntimeRootNewer, op, "runtime.db has schema version %d, this program knows %d", version, schemaVersion)
	}
	return r.write(ctx, op, func(tx *sql.Tx) error {
		version, err := r.version(ctx, tx) // another process may have been first
		if err != nil {
			return err
		}
		for ; version < schemaVersion; version++ {
			if _, err := tx.ExecContext(ctx, migrations[version]); err != nil {
				return err
			}
		}
		if _, err := tx.ExecContext(ctx, "INSERT OR IGNORE INTO meta VALUES ('runtime_id', ?)", policy.NewID("rt-")); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", schemaVersion))
		return err
	})
}

type querier interface {
	QueryRowContext(ctx context.Context, q string, args ...any) *sql.Row
}

func (r *Registry) version(ctx context.Context, q querier) (int, error) {
	var v int
	err := q.QueryRowContext(ctx, "PRAGMA user_version").Scan(&v)
	return v, err
}

// Close closes the database.
func (r *Registry) Close() error { return dbError("registry.close", r.db.Close()) }

// RuntimeID is the Runtime's identity, made with the database.
func (r *Registry) RuntimeID(ctx context.Context) (policy.RuntimeID, error) {
	var id policy.RuntimeID
	err := r.db.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = 'runtime_id'").Scan(&id)
	return id, dbError("registry.runtime_id", err)
}

// write runs f in an immediate transaction.
func (r *Registry) write(ctx context.Context, op string, f func(*sql.Tx) error) error {
	tx, err := r.db.BeginTx(ctx, nil)
	if err != nil {
		return dbError(op, err)
	}
	if err := f(tx); err != nil {
		_ = tx.Rollback() // the connection is thrown away if even that fails
		return dbError(op, err)
	}
	return dbError(op, tx.Commit())
}

// dbError makes a database's error a diagnostic; a diagnostic passes through.
func dbError(op string, err error) error {
	var d *policy.Diagnostic
	var se *sqlite.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &d):
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return policy.Errorf(policy.CodeCanceled, op, "the operation was canceled").Because(err)
	case errors.As(err, &se) && se.Code()&0xff == sqlite3.SQLITE_FULL:
		return policy.Errorf(policy.CodeDiskFull, op, "the disk is full: the registry takes no more").Because(err)
	}
	return policy.Errorf(policy.CodeRegistryFailed, op, "the allocation registry cannot be used").Because(err)
}

// nanos is a time as the database keeps it; the zero time is 0.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}
