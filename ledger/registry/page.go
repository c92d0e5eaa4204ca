package registry

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

const (
	defaultLimit = 100
	maxLimit     = 1000
)

// query is a SELECT under construction.
type query struct {
	where []string
	args  []any
}

func (q *query) and(cond string, args ...any) {
	q.where = append(q.where, cond)
	q.args = append(q.args, args...)
}

// sql is the statement for one page of table, newest first, and one row more:
// its presence tells that there is a next page.
func (q *query) sql(table string, limit int) (string, []any) {
	s := "SELECT doc FROM " + table
	if len(q.where) > 0 {
		s += " WHERE " + strings.Join(q.where, " AND ")
	}
	return s + " ORDER BY created_at DESC, id DESC LIMIT ?", append(q.args, limit+1)
}

// build puts the parts of a filter that both tables have into a query.
func (f Filter) build() (*query, int, error) {
	q := &query{}
	if f.WorkspaceID != "" {
		q.and("workspace_id = ?", string(f.WorkspaceID))
	}
	if len(f.Status) > 0 {
		marks := strings.TrimSuffix(strings.Repeat("?,", len(f.Status)), ",")
		args := make([]any, len(f.Status))
		for i, s := range f.Status {
			args[i] = s
		}
		q.and("status IN ("+marks+")", args...)
	}
	if f.After != "" {
		at, id, err := parseToken(f.After)
		if err != nil {
			return nil, 0, err
		}
		q.and("(created_at, id) < (?, ?)", at, id)
	}
	limit := f.Limit
	switch {
	case limit < 0 || limit > maxLimit:
		return nil, 0, policy.Errorf(policy.CodeBadRequest, "registry.list", "a page has 1 to %d entries", maxLimit)
	case limit == 0:
		limit = defaultLimit
	}
	return q, limit, nil
}

// token names the last entry of a page. It is opaque to callers.
func token(createdAt int64, id string) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d %s", createdAt, id))
}

func parseToken(s string) (createdAt int64, id string, err error) {
	bad := policy.Errorf(policy.CodeBadRequest, "registry.list", "the page token is malformed").WithHint("Use the next of the page before.")
	b, derr := base64.RawURLEncoding.Strict().DecodeString(s)
	at, id, ok := strings.Cut(string(b), " ")
	if derr != nil || !ok || !policy.ValidID(id) {
		return 0, "", bad
	}
	if createdAt, err = strconv.ParseInt(at, 10, 64); err != nil || strconv.FormatInt(createdAt, 10) != at {
		return 0, "", bad
	}
	return createdAt, id, nil
}

// page cuts the extra row off.
func page[T any](items []T, limit int, last func(T) (int64, string)) Page[T] {
	if len(items) <= limit {
		return Page[T]{Items: items}
	}
	items = items[:limit]
	return Page[T]{Items: items, Next: token(last(items[limit-1]))}
}
