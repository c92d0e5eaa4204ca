package registry

import (
	"bytes"
	"context"
	"database/sql"
	"errors"

	"yoi.dev/yoi-runtime/policy"
)

const getRepository = "SELECT doc FROM repositories WHERE id = ?"

func unknownRepository(id policy.RepositoryID) *policy.Diagnostic {
	return policy.Errorf(policy.CodeRepositoryUnknown, "registry.repository", "there is no repository %q", policy.Printable(string(id)))
}

// PutRepository registers a repository. The same id with the same source and
// options is no change; with others it is CodeRepositoryExists.
func (r *Registry) PutRepository(ctx context.Context, v Repository) error {
	const op = "registry.repository"
	return r.write(ctx, op, func(tx *sql.Tx) error {
		old, err := get[Repository](ctx, tx, getRepository, string(v.ID), unknownRepository(v.ID))
		if err == nil {
			switch {
			case old.Source == v.Source && bytes.Equal(old.Options, v.Options):
				return nil
			case old.Source == v.Source:
				return policy.Errorf(policy.CodeRepositoryExists, op, "the repository %s is registered with other options", v.ID).
					WithHint("Remove it first: yoi repo remove %s.", v.ID)
			}
			return policy.Errorf(policy.CodeRepositoryExists, op, "the repository id %s is taken by another source", v.ID)
		}
		if !errors.Is(err, policy.CodeRepositoryUnknown) {
			return err
		}
		doc, err := encode(v)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO repositories VALUES (?, ?, ?)", string(v.ID), v.Source, doc)
		return err
	})
}

// GetRepository returns a repository, or CodeRepositoryUnknown.
func (r *Registry) GetRepository(ctx context.Context, id policy.RepositoryID) (Repository, error) {
	return get[Repository](ctx, r.db, getRepository, string(id), unknownRepository(id))
}

// ListRepositories returns all repositories by id.
func (r *Registry) ListRepositories(ctx context.Context) ([]Repository, error) {
	return list[Repository](ctx, r.db, "SELECT doc FROM repositories ORDER BY id")
}

// UpdateRepository reads, changes and writes in one transaction. The id and the
// source stay.
func (r *Registry) UpdateRepository(ctx context.Context, id policy.RepositoryID, change func(*Repository) error) (v Repository, err error) {
	err = r.write(ctx, "registry.repository", func(tx *sql.Tx) error {
		if v, err = get[Repository](ctx, tx, getRepository, string(id), unknownRepository(id)); err != nil {
			return err
		}
		source := v.Source
		if err := change(&v); err != nil {
			return err
		}
		v.ID, v.Source = id, source
		doc, err := encode(v)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "UPDATE repositories SET doc = ? WHERE id = ?", doc, string(id))
		return err
	})
	return v, err
}

// DeleteRepository forgets a repository. While an allocation that is not removed
// stands on it, it is CodeRepositoryInUse.
func (r *Registry) DeleteRepository(ctx context.Context, id policy.RepositoryID) error {
	const op = "registry.repository"
	return r.write(ctx, op, func(tx *sql.Tx) error {
		var users int
		err := tx.QueryRowContext(ctx, `SELECT count(*) FROM allocation_repositories JOIN allocations ON id = allocation_id
			WHERE repository_id = ? AND status != ?`, string(id), string(AllocationRemoved)).Scan(&users)
		if err != nil {
			return err
		}
		if users > 0 {
			return policy.Errorf(policy.CodeRepositoryInUse, op, "%d execution workspaces stand on %s", users, id)
		}
		res, err := tx.ExecContext(ctx, "DELETE FROM repositories WHERE id = ?", string(id))
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, unknownRepository(id))
		}
		return nil
	})
}
