package gitcache

import (
	"context"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

const opRefs = "gitcache.refs"

// Ref is a branch or a tag of a source, and the commit it leads to: for an
// annotated tag the tagged one.
type Ref struct {
	Name     string // "refs/heads/main"
	CommitID string
}

// Refs lists a source's branches, then its tags, whose names without refs/heads/ or
// refs/tags/ hold part, at most limit. more says that there are others. A local
// source is asked itself, a remote one's mirror as the last fetch left it.
func (c *Cache) Refs(ctx context.Context, src Source, part string, limit int) (list []Ref, more bool, err error) {
	if src.isSnapshot() {
		return nil, false, nil // a store has digests, no names
	}
	r, done, err := c.openSource(ctx, src)
	if err != nil {
		return nil, false, err
	}
	defer done()
	command := r.bareCommand
	if src.isLocal() {
		d, err := discover(src.URL)
		if err != nil {
			return nil, false, err
		}
		v, err := r.openView(d)
		if err != nil {
			return nil, false, unreadable(opRefs, err)
		}
		command = v.command
	} else if !r.exists() {
		if _, err := r.fetchShared(ctx, src); err != nil {
			return nil, false, err
		}
	}
	out, err := c.run(ctx, command("for-each-ref", "--format=%(objectname) %(*objectname) %(refname)", "refs/heads/", "refs/tags/"))
	if err != nil {
		return nil, false, gitFailure(opRefs, "the refs could not be listed", err)
	}
	list, more = parseRefs(string(out), part, limit)
	return list, more, nil
}

func parseRefs(lines, part string, limit int) (list []Ref, more bool) {
	part = strings.ToLower(part)
	for line := range strings.Lines(lines) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 3)
		if len(f) != 3 {
			continue
		}
		name := strings.TrimPrefix(strings.TrimPrefix(f[2], "refs/heads/"), "refs/tags/")
		// A name that no selector can have is no offer.
		if !strings.Contains(strings.ToLower(name), part) || (policy.Selector{Kind: policy.SelectRef, Value: f[2]}).Validate() != nil {
			continue
		}
		if len(list) == limit {
			return list, true
		}
		ref := Ref{Name: f[2], CommitID: f[0]}
		if f[1] != "" {
			ref.CommitID = f[1]
		}
		list = append(list, ref)
	}
	return list, false
}
