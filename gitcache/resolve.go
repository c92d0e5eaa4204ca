package gitcache

import (
	"context"
	"errors"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

// Resolve turns a selector into a point whose commit is wholly in the cache.
//
// For a local source that the cache already knows the commit of, it costs one
// `git rev-parse` in the source, and for HEAD mostly two files; for a whole commit
// id that the cache knows, nothing and no network; for a remote, a fetch.
func (c *Cache) Resolve(ctx context.Context, src Source, sel policy.Selector, o ResolveOptions) (policy.RepositoryPoint, []policy.Diagnostic, error) {
	none := policy.RepositoryPoint{}
	sel = sel.Normalize()
	if err := sel.Validate(); err != nil {
		return none, nil, err
	}
	r, done, err := c.openSource(ctx, src)
	if err != nil {
		return none, nil, err
	}
	defer done()
	if src.isSnapshot() || sel.Kind == policy.SelectSnapshot {
		return r.resolveSnapshot(ctx, src, sel, o)
	}
	commit, m, err := r.resolve(ctx, src, sel, o)
	if err != nil {
		return none, nil, err
	}
	p := r.point(commit, m, sel, o.Scope)
	if err := r.checkScope(ctx, p); err != nil {
		return none, nil, err
	}
	return p, r.pointWarnings(), nil
}

func (r *repo) resolve(ctx context.Context, src Source, sel policy.Selector, o ResolveOptions) (string, mark, error) {
	if policy.ValidOID(sel.Value) && (sel.Kind == policy.SelectCommit || sel.Kind == policy.SelectRevision) && r.healthy() {
		if m, ok := r.readMark(sel.Value); ok {
			return sel.Value, m, nil
		}
	}
	if sel.Kind == policy.SelectCollected {
		return r.resolveCollected(ctx, sel.Value)
	}
	if src.isLocal() {
		return r.resolveLocal(ctx, src, sel, o)
	}
	return r.resolveRemote(ctx, src, sel, o)
}

// resolveLocal asks the source itself, so that HEAD~3, a linked worktree's
// detached HEAD and commits that no ref names mean what they mean there.
func (r *repo) resolveLocal(ctx context.Context, src Source, sel policy.Selector, o ResolveOptions) (string, mark, error) {
	d, err := discover(src.URL)
	if err != nil {
		return "", mark{}, err
	}
	if sel.Kind == policy.SelectRevision && sel.Value == "HEAD" {
		// What most runs ask for, where two files say it and the cache knows it, takes
		// no git process.
		if commit := d.headCommit(); commit != "" && r.healthy() {
			if m, ok := r.readMark(commit); ok {
				return commit, m, nil
			}
		}
	}
	v, err := r.openView(d)
	if err != nil {
		return "", mark{}, unreadable(opResolve, err)
	}
	w := where{c: r.c, command: v.command, partial: d.config.partialClone}
	commit, err := w.revParse(ctx, sel)
	if err != nil {
		return "", mark{}, err
	}
	if m, ok := r.readMark(commit); ok && r.healthy() {
		return commit, m, nil
	}
	if o.NoFetch {
		return "", mark{}, policy.Errorf(policy.CodeSelectorMissing, opResolve, "commit %s is not in the cache", commit)
	}
	m, err := r.ensureCommit(ctx, src, commit)
	return commit, m, err
}

func (r *repo) resolveRemote(ctx context.Context, src Source, sel policy.Selector, o ResolveOptions) (string, mark, error) {
	if o.NoFetch && !r.exists() {
		return "", mark{}, policy.Errorf(policy.CodeSelectorMissing, opResolve, "the repository is not in the cache")
	}
	if !o.NoFetch {
		if _, err := r.fetchShared(ctx, src); err != nil {
			return "", mark{}, err
		}
	}
	w := where{c: r.c, command: r.bareCommand}
	commit, err := w.revParse(ctx, sel)
	if errors.Is(err, policy.CodeSelectorMissing) && policy.ValidOID(sel.Value) && !o.NoFetch {
		commit, err = sel.Value, nil // no ref leads to it, but the server may give it
	}
	if err != nil {
		return "", mark{}, err
	}
	if m, ok := r.readMark(commit); ok && r.healthy() {
		return commit, m, nil
	}
	if o.NoFetch {
		return "", mark{}, policy.Errorf(policy.CodeSelectorMissing, opResolve, "commit %s is not wholly in the cache", commit)
	}
	m, err := r.ensureCommit(ctx, src, commit)
	return commit, m, err
}

// checkScope refuses a scope with a directory that the tree has not. A pristine
// tree of that scope proves that it has been checked.
func (r *repo) checkScope(ctx context.Context, p policy.RepositoryPoint) error {
	if len(p.Scope) == 0 || exists(r.treePath(p.TreeKey()+".json")) {
		return nil
	}
	args := append([]string{"ls-tree", "-d", "-z", "--name-only", "--full-tree", p.TreeID, "--"}, p.Scope...)
	cmd := r.bareCommand(args...)
	cmd.env = append(cmd.env, "GIT_LITERAL_PATHSPECS=1")
	out, err := r.c.run(ctx, cmd)
	if err != nil {
		return gitFailure(opResolve, "the tree could not be read", err)
	}
	have := make(map[string]bool)
	for name := range strings.SplitSeq(string(out), "\x00") {
		have[name] = true
	}
	for _, dir := range p.Scope {
		if !have[dir] {
			return policy.Errorf(policy.CodeScopeEmpty, opResolve, "%q is not a directory of the tree", policy.Printable(dir))
		}
	}
	return nil
}

// pointWarnings says what of the mirror every point of it shares.
func (r *repo) pointWarnings() []policy.Diagnostic {
	if !exists(r.bare("shallow")) {
		return nil
	}
	return []policy.Diagnostic{*policy.Warnf(policy.CodeShallowSource, opResolve, "the source of %s is a shallow clone: its history is cut", r.id)}
}
