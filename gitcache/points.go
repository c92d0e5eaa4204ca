package gitcache

import (
	"context"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"yoi.dev/yoi-runtime/policy"
)

// mark says that a commit and all it reaches is in the mirror, and is held
// there by refs/yoi/points/<commit>. It is written after the ref, and removed
// before it, so its presence alone answers without starting git.
type mark struct {
	Tree        string `json:"tree"`
	CommittedAt int64  `json:"committed_at"`
	Subject     string `json:"subject"`
}

func (r *repo) markPath(commit string) string { return r.path("points", commit) }
func pointRef(commit string) string           { return "refs/yoi/points/" + commit }

func (r *repo) readMark(commit string) (mark, bool) {
	var m mark
	b, err := os.ReadFile(r.markPath(commit))
	if err != nil || json.Unmarshal(b, &m) != nil || !policy.ValidOID(m.Tree) {
		return mark{}, false
	}
	return m, true
}

// point makes the evidence, and remembers that the commit was wanted just now.
func (r *repo) point(commit string, m mark, sel policy.Selector, scope policy.Scope) policy.RepositoryPoint {
	now := time.Now()
	_ = os.Chtimes(r.markPath(commit), now, now)
	return policy.RepositoryPoint{
		RepositoryID: r.id,
		CommitID:     commit,
		TreeID:       m.Tree,
		Selector:     sel,
		ResolvedAt:   now.UTC(),
		CommittedAt:  time.Unix(m.CommittedAt, 0).UTC(),
		Subject:      m.Subject,
		Scope:        scope,
	}
}

// writeMark records that commit is whole. The caller holds the mirror's lock
// and has checked it.
func (r *repo) writeMark(ctx context.Context, commit string) (mark, error) {
	m, err := r.readCommit(ctx, commit)
	if err != nil {
		return mark{}, err
	}
	return m, r.keepMark(commit, m, true)
}

// keepMark is writeMark for a caller that has read the commit. Without sync a
// power failure may take the mark again.
func (r *repo) keepMark(commit string, m mark, sync bool) error {
	if err := r.writeRef(pointRef(commit), commit); err != nil {
		return diskError(opResolve, "the point could not be recorded", err)
	}
	b, err := json.Marshal(m)
	if err == nil {
		err = os.MkdirAll(r.path("points"), 0o700)
	}
	if err == nil {
		err = writeFile(r.markPath(commit), b, 0o600, sync)
	}
	if err != nil {
		return diskError(opResolve, "the point could not be recorded", err)
	}
	return nil
}

// readCommit reads the commit object itself: its header has no encoding
// questions, and nothing in it is interpreted by a pretty-printer.
func (r *repo) readCommit(ctx context.Context, commit string) (mark, error) {
	out, err := r.c.run(ctx, r.bareCommand("cat-file", "commit", commit))
	if err != nil {
		return mark{}, gitFailure(opResolve, "the commit could not be read", err)
	}
	return parseCommit(string(out)), nil
}

func parseCommit(text string) mark {
	header, body, _ := strings.Cut(text, "\n\n")
	var m mark
	for line := range strings.Lines(header) {
		line = strings.TrimSuffix(line, "\n")
		if tree, ok := strings.CutPrefix(line, "tree "); ok && m.Tree == "" {
			m.Tree = tree
		}
		if who, ok := strings.CutPrefix(line, "committer "); ok && m.CommittedAt == 0 {
			if _, when, ok := strings.Cut(who, "> "); ok {
				sec, _, _ := strings.Cut(when, " ")
				m.CommittedAt, _ = strconv.ParseInt(sec, 10, 64)
			}
		}
	}
	subject, _, _ := strings.Cut(strings.TrimLeft(body, "\n"), "\n")
	if !utf8.ValidString(subject) {
		subject = strings.ToValidUTF8(subject, "\uFFFD")
	}
	if len(subject) > 200 {
		subject = strings.ToValidUTF8(subject[:200], "")
	}
	m.Subject = policy.Printable(subject)
	return m
}
