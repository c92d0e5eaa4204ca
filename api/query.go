package api

import (
	"net/url"
	"slices"
	"strconv"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// query is a request's parameters, each known and given once.
type query struct {
	values url.Values
	err    error // the first parameter that does not parse
}

// parseQuery refuses what url.Values would silently drop or double.
func parseQuery(raw string, known []string) (*query, error) {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return nil, badRequest("the query is malformed").Because(err)
	}
	for name, vs := range values {
		if !slices.Contains(known, name) {
			return nil, badRequest("there is no such parameter").With("parameter", join("", name))
		}
		if len(vs) != 1 {
			return nil, badRequest("a parameter is given twice").With("parameter", name)
		}
	}
	return &query{values: values}, nil
}

func (q *query) fail(name, want string) {
	if q.err == nil {
		q.err = badRequest("a parameter is not %s", want).With("parameter", name)
	}
}

func (q *query) text(name string) string { return q.values.Get(name) }

func (q *query) flag(name string) bool {
	switch q.values.Get(name) {
	case "":
		if q.values.Has(name) {
			q.fail(name, "true or false")
		}
	case "true":
		return true
	case "false":
	default:
		q.fail(name, "true or false")
	}
	return false
}

// number reads a decimal from 0 to most.
func (q *query) number(name string, most int64) int64 {
	if !q.values.Has(name) {
		return 0
	}
	n, err := strconv.ParseUint(q.values.Get(name), 10, 63)
	if err != nil || int64(n) > most {
		q.fail(name, "a number from 0 to "+strconv.FormatInt(most, 10))
		return 0
	}
	return int64(n)
}

// id reads an optional id.
func (q *query) id(name string) string {
	s := q.values.Get(name)
	if q.values.Has(name) && q.err == nil {
		q.err = policy.CheckID(name, s)
	}
	return s
}

const maxPage = 1000

// filter reads the parameters that listings share.
func (q *query) filter() (runtime.ListFilter, error) {
	f := runtime.ListFilter{
		WorkspaceID:  policy.WorkspaceID(q.id("workspace_id")),
		AllocationID: policy.AllocationID(q.id("allocation_id")),
		RepositoryID: policy.RepositoryID(q.id("repository_id")),
		Status:       q.text("status"),
		Limit:        int(q.number("limit", maxPage)),
		After:        q.text("after"),
	}
	return f, q.err
}
