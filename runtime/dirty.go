package runtime

import (
	"bytes"
	"context"
	"errors"
	"strings"

	"yoi.dev/yoi-runtime/gitcache"
	"yoi.dev/yoi-runtime/gitcache/patch"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// checkDirty is the part of checkPolicy that is about uncommitted changes.
func (c *creation) checkDirty() error {
	const op = "runtime.create"
	patches := 0
	for _, repo := range c.repos {
		if repo.patch != nil {
			patches++
		}
	}
	switch c.dirty {
	case policy.CleanPointOnly:
	case policy.PatchArtifact:
		if patches == 0 {
			return policy.Errorf(policy.CodePolicyInvalid, op, "patch_artifact takes a stored patch for at least one repository").
				WithHint("Name one: yoi run --patch FILE, or a digest that yoi patch list shows.")
		}
	case policy.DirectLegacyMount:
		if len(c.repos) != 1 || !isLocal(c.repos[0].source) || len(c.repos[0].scope) > 0 || c.repos[0].branch != "" {
			return policy.Errorf(policy.CodePolicyInvalid, op, "direct_legacy_mount takes one whole local repository")
		}
	case policy.CurrentWorktreeSnapshot:
		if err := c.checkSnapshot(); err != nil {
			return err
		}
	}
	if patches > 0 && c.dirty != policy.PatchArtifact {
		return policy.Errorf(policy.CodePolicyInvalid, op, "a patch goes with the dirty-state policy patch_artifact, not with %s", c.dirty)
	}
	return nil
}

// checkSnapshot refuses what has no working tree, and strategies that make the
// tree from the commit instead of copying one.
func (c *creation) checkSnapshot() error {
	const op = "runtime.create"
	for _, repo := range c.repos {
		if !isLocal(repo.source) {
			return policy.Errorf(policy.CodeDirtyPolicyUnsupported, op, "%s is a remote repository: it has no working tree here", repo.source.ID)
		}
	}
	if checksOut(c.strategy) {
		return policy.Errorf(policy.CodeStrategyUnsupported, op, "%s checks a commit out and cannot take a working tree as it is", c.strategy).
			WithHint("Use --strategy auto.")
	}
	return nil
}

// mustBeClean says whether a source is refused for its uncommitted changes.
func (c *creation) mustBeClean(repo *creationRepo) bool {
	if !isLocal(repo.source) {
		return false
	}
	return c.dirty == policy.CleanPointOnly || (c.dirty == policy.PatchArtifact && repo.patch == nil)
}

// applyScript applies the patch on its standard input. It runs in a sandbox of
// its own on the new workspace, before any Worker: what a hostile patch could do
// to git itself stays in a workspace that is thrown away. git applies all of a
// patch or nothing, and checks each path: none leaves the tree, goes through a
// symbolic link (also one that the patch makes) or into .git.
const applyScript = `exec 2>&1
exec git -c core.hooksPath=/dev/null -c core.fsmonitor=false -c core.protectHFS=true -c core.protectNTFS=true -c core.symlinks=true --no-optional-locks apply --binary --whitespace=nowarn -`

// apply brings uncommitted changes into the finished workspace, as such: HEAD
// and the index stay at the point.
func (c *creation) apply(ctx context.Context) error {
	if c.dirty == policy.CurrentWorktreeSnapshot {
		for i := range c.repos {
			if err := c.baseline(ctx, i, &c.dirtyStates[i]); err != nil {
				return err
			}
		}
		return nil
	}
	for i := range c.repos {
		repo := &c.repos[i]
		if repo.point.Snapshot != "" {
			if err := c.recordSnapshot(ctx, i); err != nil {
				return err
			}
		}
		if repo.patch == nil {
			continue
		}
		if err := c.applyPatch(ctx, repo); err != nil {
			return err
		}
		d := DirtyState{
			RepositoryID: repo.point.RepositoryID, Kind: policy.PatchArtifact, Digest: string(repo.patch.digest),
			Bytes: int64(len(repo.patch.content)), Files: repo.patch.Files, CreatedAt: c.r.now(),
		}
		if err := c.baseline(ctx, i, &d); err != nil {
			return err
		}
		c.dirtyStates = append(c.dirtyStates, d)
	}
	return nil
}

func (c *creation) applyPatch(ctx context.Context, repo *creationRepo) error {
	const op = "runtime.apply"
	links, err := c.submodules(repo)
	if err != nil {
		return err
	}
	if p, ok := underAny(repo.patch.Paths, links); ok {
		return policy.Errorf(policy.CodePatchSubmodule, op, "the patch changes a file of a submodule").With("path", p)
	}
	a := c.allocation()
	a.SandboxPolicy = policy.SandboxPolicy{}.Normalize()
	var out bytes.Buffer
	git := capture{stdin: func() []byte { return repo.patch.content }, limit: maxCapture}
	code, err := git.run(ctx, c.r, a, launch{
		id: policy.NewWorkerID(), repo: repo.point.RepositoryID, command: []string{"/bin/sh", "-c", applyScript},
		limits:        policy.Limits{WallClock: lookLimit, FileSize: patch.MaxBinary},
		dieWithParent: true, unrecorded: true, volatile: c.ephemeral,
	}, &out)
	switch {
	case err != nil:
		return err
	case code == 0:
		return nil
	}
	return applyError(out.String())
}

// submodules reads them from the index that the workspace was made with.
func (c *creation) submodules(repo *creationRepo) ([]string, error) {
	dir := rootdir.Repository(c.id, repo.point.RepositoryID)
	if repo.tree != nil {
		dir = repo.tree.RelPath
	}
	top, err := c.r.root.OpenDir(dir)
	if err != nil {
		return nil, policy.Errorf(policy.CodeInternal, "runtime.apply", "the new workspace cannot be opened").Because(err)
	}
	defer top.Close()
	return gitcache.Submodules(top)
}

// snapshot takes the source's working tree as it is now, as the tree that the
// workspace is made of.
func (c *creation) snapshot(ctx context.Context, repo *creationRepo) error {
	id, holder := repo.point.RepositoryID, string(c.id)
	rec, err := c.r.registry.GetRepository(ctx, id)
	if err != nil {
		return err
	}
	options, err := optionsOf(rec)
	if err != nil {
		return err
	}
	tree, s, warnings, err := c.r.cache.HoldSnapshot(ctx, repo.source, repo.point, holder,
		gitcache.SnapshotOptions{Artifacts: options.Artifacts, Volatile: c.ephemeral})
	if err != nil {
		return err
	}
	repo.tree = tree
	c.warnings = append(c.warnings, warnings...)
	key := tree.Key
	c.undo = append(c.undo,
		func(ctx context.Context) error { return c.r.cache.Unpin(ctx, id, repo.point.CommitID, holder) },
		func(ctx context.Context) error {
			repo.tree = nil
			return errors.Join(tree.Close(), c.r.cache.ReleasePristine(ctx, id, key, holder))
		})
	c.dirtyStates = append(c.dirtyStates, DirtyState{
		RepositoryID: id, Kind: policy.CurrentWorktreeSnapshot, Digest: s.Digest, Files: int(s.Files), Bytes: s.Bytes,
		CreatedAt: c.r.now(), Rounds: s.Rounds, Excluded: s.Excluded, ExcludedCount: s.ExcludedCount,
		Source: &SourceState{
			Head: s.Source.Head, IndexDigest: s.Source.IndexDigest, Operations: s.Source.Operations,
			Staged: s.Source.Staged, Unstaged: s.Source.Unstaged, Untracked: s.Source.Untracked, Conflicted: s.Source.Conflicted,
		},
	})
	return nil
}

// applyError words what git said. It names paths inside the tree only.
func applyError(out string) error {
	const op = "runtime.apply"
	out = strings.TrimSpace(out)
	first, _, _ := strings.Cut(out, "\n")
	first = policy.Printable(strings.TrimPrefix(first, "error: "))
	if len(first) > 300 {
		first = first[:300] + "…"
	}
	code, what := policy.CodePatchNotApplied, "the patch does not apply to the point"
	switch {
	case strings.Contains(out, "No space left on device"):
		code, what = policy.CodeDiskFull, "the disk is full"
	case strings.Contains(out, "Disk quota exceeded"):
		code, what = policy.CodeQuotaExceeded, "the disk quota is used up"
	case strings.Contains(out, "invalid path"), strings.Contains(out, "is beyond a symbolic link"):
		code, what = policy.CodePatchEscapes, "git refuses a path of the patch"
	case strings.Contains(out, "corrupt patch"), strings.Contains(out, "corrupt binary patch"), strings.Contains(out, "unrecognized"):
		code, what = policy.CodePatchInvalid, "git cannot read the patch"
	}
	return policy.Errorf(code, op, "%s: %s", what, first)
}

// underAny returns the first path that is, or lies below, one of dirs.
func underAny(paths, dirs []string) (string, bool) {
	for _, p := range paths {
		for _, d := range dirs {
			if p == d || strings.HasPrefix(p, d+"/") {
				return p, true
			}
		}
	}
	return "", false
}

// baseline asks git, in a sandbox, which tree the point and the changes make, so
// that only what a Worker adds to them counts as work that nobody has collected.
// A workspace that is thrown away in any case needs none.
func (c *creation) baseline(ctx context.Context, i int, d *DirtyState) error {
	if c.ephemeral {
		return nil
	}
	w, err := c.r.workOf(ctx, c.allocation(), i, "")
	if err != nil {
		return err
	}
	d.TreeID, d.ChangedPaths = w.Tree, w.ChangedPaths
	return nil
}

// broughtAlong reports whether w is nothing but the changes that the workspace
// was made with, which are safe elsewhere: in the patch store or the source.
func broughtAlong(a registry.Allocation, w Work) bool {
	for _, m := range a.Mounts {
		if m.RepositoryID == w.RepositoryID {
			return m.BaseTree != "" && m.BaseTree == w.Tree && w.CommitCount == 0
		}
	}
	return false
}
