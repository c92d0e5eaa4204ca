package gitcache

import (
	"context"
	"errors"
	"os/exec"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

const opResolve = "gitcache.resolve"

// where is a place in which a revision can be looked up: the source's view or
// the mirror.
type where struct {
	c       *Cache
	command func(args ...string) command
	// partial is set for a partial clone: a missing object means something else.
	partial bool
}

// revParse turns a valid selector into a commit id with one git process where
// all is well; a refusal may take more to be named.
func (w where) revParse(ctx context.Context, sel policy.Selector) (string, error) {
	expr := sel.Value
	switch sel.Kind {
	case policy.SelectBranch:
		expr = "refs/heads/" + sel.Value
	case policy.SelectTag:
		expr = "refs/tags/" + sel.Value
	case policy.SelectCommit:
		if !policy.ValidOID(sel.Value) {
			return w.disambiguate(ctx, sel)
		}
	}
	ambiguous := false
	cmd := w.command("rev-parse", "--verify", "--end-of-options", expr+"^{commit}")
	cmd.onLine = func(line string) { ambiguous = ambiguous || strings.Contains(line, "is ambiguous") }
	out, err := w.c.run(ctx, cmd)
	oid := strings.TrimSpace(string(out))
	switch {
	case ambiguous:
		return "", policy.Errorf(policy.CodeSelectorAmbiguous, opResolve, "%q names more than one thing", policy.Printable(sel.Value)).Because(err)
	case err == nil && policy.ValidOID(oid):
		return oid, nil
	}
	return "", w.refusal(ctx, sel, expr, err)
}

// disambiguate finds the one commit whose id begins with the value. Objects of
// other types with the same prefix don't count, nor does a branch of that name.
func (w where) disambiguate(ctx context.Context, sel policy.Selector) (string, error) {
	out, err := w.c.run(ctx, w.command("rev-parse", "--disambiguate="+sel.Value))
	if err != nil {
		return "", gitFailure(opResolve, "the commit could not be looked up", err)
	}
	check := w.command("cat-file", "--batch-check=%(objecttype) %(objectname)")
	check.stdin = out
	if out, err = w.c.run(ctx, check); err != nil {
		return "", gitFailure(opResolve, "the commit could not be looked up", err)
	}
	var commits []string
	others := 0
	for line := range strings.Lines(string(out)) {
		if oid, ok := strings.CutPrefix(strings.TrimSpace(line), "commit "); ok {
			commits = append(commits, oid)
		} else {
			others++
		}
	}
	value := policy.Printable(sel.Value)
	switch {
	case len(commits) == 1:
		return commits[0], nil
	case len(commits) > 1:
		return "", policy.Errorf(policy.CodeSelectorAmbiguous, opResolve, "%d commits have ids that begin with %s", len(commits), value)
	case others > 0:
		return "", policy.Errorf(policy.CodeSelectorNotCommit, opResolve, "%s is not a commit", value)
	}
	return "", policy.Errorf(policy.CodeSelectorMissing, opResolve, "no commit id begins with %s", value)
}

// refusal finds out why expr is no commit.
func (w where) refusal(ctx context.Context, sel policy.Selector, expr string, cause error) error {
	var ge *gitError
	if !errors.As(cause, &ge) {
		if errors.Is(cause, exec.ErrNotFound) {
			return policy.Errorf(policy.CodeGitMissing, opResolve, "git could not be started").Because(cause)
		}
		return gitFailure(opResolve, "the selector could not be looked up", cause)
	}
	value := policy.Printable(sel.Value)
	out, err := w.c.run(ctx, w.command("rev-parse", "--verify", "--quiet", "--end-of-options", expr))
	if oid := strings.TrimSpace(string(out)); err == nil && policy.ValidOID(oid) {
		kind, err := w.c.run(ctx, w.command("cat-file", "-t", oid))
		switch {
		case err == nil && strings.TrimSpace(string(kind)) == "commit":
			// The first look failed for a reason of git's own: it was killed, say.
			return gitFailure(opResolve, "the selector could not be looked up", cause)
		case err == nil:
			return policy.Errorf(policy.CodeSelectorNotCommit, opResolve, "%q names a %s, not a commit", value, policy.Printable(strings.TrimSpace(string(kind)))).Because(cause)
		case w.partial:
			return policy.Errorf(policy.CodePartialCloneRefused, opResolve, "%q names an object that the partial clone lacks", value).Because(cause)
		case policy.ValidOID(sel.Value):
			return policy.Errorf(policy.CodeSelectorMissing, opResolve, "the repository has no commit %s", value).Because(cause)
		}
		return policy.Errorf(policy.CodeSourceUnreadable, opResolve, "%q names an object that cannot be read", value).Because(cause)
	}
	if empty, err := w.empty(ctx); err == nil && empty {
		return policy.Errorf(policy.CodeRepositoryEmpty, opResolve, "the repository has no commit").Because(cause)
	}
	return policy.Errorf(policy.CodeSelectorMissing, opResolve, "%q names nothing in the repository", value).Because(cause)
}

// empty reports whether there is no ref at all and HEAD is unborn.
func (w where) empty(ctx context.Context) (bool, error) {
	out, err := w.c.run(ctx, w.command("for-each-ref", "--count=1", "--format=%(objectname)"))
	if err != nil || len(out) > 0 {
		return false, err
	}
	_, err = w.c.run(ctx, w.command("rev-parse", "--verify", "--quiet", "HEAD"))
	return err != nil, nil
}
