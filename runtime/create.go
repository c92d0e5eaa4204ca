package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/gitcache"
	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/policy/seccomp/compile"
)

// creation is one Execution Workspace in the making. Its steps are the main
// path's first half, in order: see create.
type creation struct {
	r         *Runtime
	id        policy.AllocationID
	workspace policy.WorkspaceID
	repos     []creationRepo
	strategy  policy.StrategyName
	dirty     policy.DirtyStatePolicy
	cleanup   policy.CleanupPolicy
	sandbox   policy.SandboxPolicy
	image     *registry.Image // what sandbox.Root names, nil for a built-in profile
	fork      *fork           // what this is a fork of, nil for a workspace of its own
	// ephemeral allocations are leftovers as soon as their process dies.
	ephemeral bool
	// key is what its progress is asked for by, "" for nobody.
	key string

	began    time.Time
	timings  map[string]time.Duration
	warnings []policy.Diagnostic
	made     helper.MaterializeResult
	evidence Evidence
	git      []string // the new git directories
	// undo holds what takes the finished steps back, in order.
	undo []func(context.Context) error
	// clean is the search for uncommitted changes, which goes on beside the steps.
	clean []<-chan error
	// dirtyStates are the uncommitted changes that came along, in the order of repos.
	dirtyStates []DirtyState
}

type creationRepo struct {
	source   gitcache.Source
	selector policy.Selector
	scope    policy.Scope
	branch   string
	caches   []policy.DependencyCache
	point    policy.RepositoryPoint
	tree     *gitcache.Pristine
	patch    *storedPatch // nil without one
	built    bool         // its pristine tree was there
}

// create takes a request to a recorded Execution Workspace: policy, points,
// pins and pristine trees, materialization, git directories, evidence, record.
// A step that fails takes the finished ones back.
func (r *Runtime) create(ctx context.Context, c *creation) (registry.Allocation, error) {
	c.r = r
	a, err := c.run(ctx, []step{
		{"policy", c.checkPolicy},
		{"resolve", c.resolve},
		{"objects", c.complete},
		{"tree", c.pristine},
		{"materialize", c.materialize},
		{"git", c.gitDirs},
		{"clean", c.joinClean},
		{"apply", c.apply},
	})
	if err == nil {
		r.workspaceEvent(policy.EventWorkspaceCreated, a, map[string]string{"strategy": string(a.MaterializerKind)})
	}
	return a, err
}

// step is a part of a creation that takes time.
type step struct {
	name string
	do   func(context.Context) error
}

// run does the steps, and records the result.
func (c *creation) run(ctx context.Context, steps []step) (a registry.Allocation, err error) {
	began := time.Now()
	c.began, c.timings = c.r.now(), make(map[string]time.Duration)
	defer c.closeTrees()
	release, err := c.holdBundle()
	if err != nil {
		return a, err
	}
	defer release()
	steps = append(steps, step{"record", func(ctx context.Context) (err error) { a, err = c.record(ctx); return err }})
	defer c.r.making.drop(c.key)
	for i, s := range steps {
		c.r.making.put(c.key, CreationProgress{Step: i + 1, Steps: len(steps), Name: s.name})
		t := time.Now()
		if err := s.do(ctx); err != nil {
			_ = c.joinClean(ctx) // nothing may go on behind
			if uerr := c.takeBack(context.WithoutCancel(ctx)); uerr != nil {
				c.r.log.Warn("a failed creation is left to the ledger", "allocation", c.id, "error", uerr)
			}
			return a, err
		}
		c.timings[s.name] = time.Since(t)
	}
	c.r.count().Materialized(a.MaterializerKind, time.Since(began))
	c.r.note(a.Diagnostics, allocationAttrs(a)...)
	return a, nil
}

func (c *creation) takeBack(ctx context.Context) error {
	var errs []error
	for _, f := range slices.Backward(c.undo) {
		errs = append(errs, f(ctx))
	}
	return errors.Join(errs...)
}

func (c *creation) closeTrees() {
	for i := range c.repos {
		if t := c.repos[i].tree; t != nil {
			t.Close()
		}
	}
}

// checkPolicy decides whether the request is allowed at all, before anything
// is looked at.
func (c *creation) checkPolicy(ctx context.Context) error {
	const op = "runtime.create"
	if err := c.r.checkOwner(ctx); err != nil {
		return err
	}
	c.sandbox = c.sandbox.Normalize()
	if err := c.sandbox.Validate(); err != nil {
		return err
	}
	if err := c.cleanup.Validate(); err != nil {
		return err
	}
	if err := policy.CheckID("workspace", string(c.workspace)); err != nil {
		return err
	}
	if err := c.r.checkSecrets(c.sandbox.Secrets, c.workspace); err != nil {
		return err
	}
	if len(c.repos) == 0 {
		return policy.Errorf(policy.CodeBadRequest, op, "a workspace needs a repository")
	}
	// Mounting the source itself is asked for as what it is about: its dirty state.
	auto := c.strategy == policy.StrategyAuto || c.strategy == ""
	switch {
	case c.dirty == policy.DirectLegacyMount && (auto || c.strategy == policy.StrategyDirect):
		c.strategy = policy.StrategyDirect
	case c.dirty == policy.DirectLegacyMount || c.strategy == policy.StrategyDirect:
		return policy.Errorf(policy.CodePolicyInvalid, op, "the strategy %s and the dirty-state policy %s contradict each other", c.strategy, c.dirty)
	}
	if err := c.checkDirty(); err != nil {
		return err
	}
	if err := c.checkSnapshots(); err != nil {
		return err
	}
	if why := c.r.config().External.unconfigured(); why != "" && c.strategy == policy.StrategyExternal {
		return policy.Errorf(policy.CodeStrategyUnsupported, op, "external is not possible: %s", why).WithHint(externalFix)
	}
	for _, repo := range c.repos {
		if err := c.r.checkSource(repo.source); err != nil {
			return err
		}
		if c.strategy == policy.StrategyGitSparse && len(repo.scope) == 0 {
			return policy.Errorf(policy.CodeScopeInvalid, op, "git_sparse checks out the directories of a scope, and none is named").
				WithHint("Name one, as with --scope src, or use git_worktree.")
		}
	}
	if err := c.findImage(); err != nil {
		return err
	}
	return c.checkShared()
}

// isLocal reports whether a source is a directory of this host given by its
// path: only such a one has a working tree that could be dirty.
func isLocal(s gitcache.Source) bool { return strings.HasPrefix(s.URL, "/") }

// checkSource refuses a source on this host that overlaps the Runtime root.
func (r *Runtime) checkSource(s gitcache.Source) error {
	p := s.URL
	if !isLocal(s) {
		u, err := url.Parse(strings.TrimPrefix(s.URL, "snapshot+"))
		if err != nil || u.Scheme != "file" {
			return nil // gitcache has checked it
		}
		p = u.Path
	}
	return checkOverlap(r.root.Path, p, "the repository")
}

// resolve turns selectors into points, while uncommitted changes of local
// sources are looked for. Where the tree is in the cache already, that search
// goes on beside the next steps, which then cost nothing to take back; a tree is
// not built, and no command is started, before the source is known to be clean.
func (c *creation) resolve(ctx context.Context) error {
	warm := true
	for i := range c.repos {
		repo := &c.repos[i]
		if c.mustBeClean(repo) {
			c.lookForChanges(ctx, repo.source)
		}
		point, warnings, err := c.r.cache.Resolve(ctx, repo.source, repo.selector, gitcache.ResolveOptions{Scope: repo.scope})
		if err != nil {
			_ = c.joinClean(ctx) // the selector's fault goes first
			return err
		}
		repo.point = point
		c.warnings = append(c.warnings, warnings...)
		built, err := c.r.root.Exists(rootdir.Tree(point.RepositoryID, point.TreeKey()) + ".json")
		repo.built = err == nil && built
		warm = warm && repo.built
	}
	if warm {
		return nil
	}
	return c.joinClean(ctx)
}

func (c *creation) lookForChanges(ctx context.Context, src gitcache.Source) {
	found := make(chan error, 1)
	c.clean = append(c.clean, found)
	go func() { found <- c.r.cache.CheckClean(ctx, src) }()
}

// joinClean returns what the searches for uncommitted changes found.
func (c *creation) joinClean(context.Context) error {
	var first error
	for _, found := range c.clean {
		if err := <-found; first == nil {
			first = err
		}
	}
	c.clean = nil
	return first
}

// pristine pins each point and has its tree built in the cache, once for all.
func (c *creation) pristine(ctx context.Context) error {
	if c.strategy == policy.StrategyDirect {
		return nil
	}
	for i := range c.repos {
		repo := &c.repos[i]
		id, holder := repo.point.RepositoryID, string(c.id)
		if checksOut(c.strategy) && len(repo.caches) == 0 { // it takes nothing from a tree
			if err := c.r.cache.Pin(ctx, repo.point, holder); err != nil {
				return err
			}
			c.undo = append(c.undo, func(ctx context.Context) error { return c.r.cache.Unpin(ctx, id, repo.point.CommitID, holder) })
			continue
		}
		if c.dirty == policy.CurrentWorktreeSnapshot {
			if err := c.snapshot(ctx, repo); err != nil {
				return err
			}
			continue
		}
		tree, warnings, err := c.r.cache.Hold(ctx, repo.point, holder)
		if err != nil {
			return err
		}
		repo.tree = tree
		c.r.count().Tree(repo.built)
		c.warnings = append(c.warnings, warnings...)
		c.undo = append(c.undo,
			func(ctx context.Context) error { return c.r.cache.Unpin(ctx, id, repo.point.CommitID, holder) },
			func(ctx context.Context) error { return c.r.cache.ReleasePristine(ctx, id, tree.Key, holder) })
		if !c.ephemeral {
			if err := tree.Settle(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// checksOut says that git itself makes each workspace's tree. Only what shared
// caches are keyed by is read from one of the cache's.
func checksOut(s policy.StrategyName) bool {
	return s == policy.StrategyGitWorktree || s == policy.StrategyGitSparse
}

func (c *creation) trees() []helper.RepositoryTree {
	var out []helper.RepositoryTree
	for _, repo := range c.repos {
		t := helper.RepositoryTree{RepositoryID: repo.point.RepositoryID, Strategy: c.cloneStrategy(), Caches: repo.caches}
		switch {
		case c.strategy == policy.StrategyDirect:
		case repo.tree != nil:
			t.TreeKey = repo.tree.Key
		default:
			t.TreeKey = repo.point.TreeKey()
		}
		if repo.tree != nil {
			t.Files = int64(repo.tree.Entries)
		}
		out = append(out, t)
	}
	return out
}

// materialize has the helper make the workspace.
func (c *creation) materialize(ctx context.Context) (err error) {
	req := helper.MaterializeRequest{AllocationID: c.id, Repositories: c.trees(), Image: helperImage(c.image)}
	if c.sandbox.BuildCache {
		req.BuildCache = c.workspace
	}
	req.Quota = c.sandbox.Quota
	c.made, err = c.r.helper.Materialize(ctx, req)
	if err != nil {
		return err
	}
	c.undo = append(c.undo, func(ctx context.Context) error {
		return c.r.helper.Remove(ctx, helper.RemoveRequest{AllocationID: c.id})
	})
	c.warnings = append(c.warnings, c.made.Warnings...)
	if c.strategy == policy.StrategyExternal {
		return c.external(ctx)
	}
	if c.made.Files == 0 && !checksOut(c.strategy) { // a strategy in constant time looks at no file
		for _, repo := range c.repos {
			if repo.tree != nil {
				c.made.Files += int64(repo.tree.Entries)
				c.made.Bytes += repo.tree.Bytes
			}
		}
	}
	return nil
}

// gitDirs writes what differs between two workspaces of one tree: HEAD and the
// refs of the private git directory.
func (c *creation) gitDirs(ctx context.Context) error {
	for i, t := range c.made.Repositories {
		repo := c.repos[i]
		dir := rootdir.Repository(c.id, t.RepositoryID)
		switch t.Strategy {
		case policy.StrategyDirect:
			continue
		case policy.StrategyOverlay:
			dir = rootdir.Layers(c.id, t.RepositoryID) + "/upper"
		case policy.StrategyGitWorktree:
			began := time.Now()
			c.undo = append(c.undo, func(ctx context.Context) error { return c.r.cache.RemoveWorktree(ctx, t.RepositoryID, c.id) })
			tree, warnings, err := c.r.cache.AddWorktree(ctx, repo.point, c.id, c.r.root.Abs(dir))
			if err != nil {
				return err
			}
			c.r.measured(t.Strategy, int64(tree.Entries), time.Since(began))
			c.made.Files, c.made.Bytes = c.made.Files+int64(tree.Entries), c.made.Bytes+tree.Bytes
			c.warnings = append(c.warnings, warnings...)
			if err := c.keepIndex(t.RepositoryID); err != nil {
				return err
			}
		case policy.StrategyGitSparse:
			began := time.Now()
			tree, warnings, err := c.r.cache.Checkout(ctx, repo.point, c.r.root.Abs(dir))
			if err != nil {
				return err
			}
			c.r.measured(t.Strategy, int64(tree.Entries), time.Since(began))
			c.made.Files, c.made.Bytes = c.made.Files+int64(tree.Entries), c.made.Bytes+tree.Bytes
			c.warnings = append(c.warnings, warnings...)
			if err := c.keepIndex(t.RepositoryID); err != nil {
				return err
			}
		}
		top, err := c.r.root.OpenDir(dir)
		if err != nil {
			return policy.Errorf(policy.CodeInternal, "runtime.create", "the new workspace cannot be opened").Because(err)
		}
		err = c.r.cache.WriteGitDir(ctx, top, repo.point, gitcache.GitDirOptions{Branch: repo.branch})
		top.Close()
		if err != nil {
			return err
		}
		c.git = append(c.git, c.r.root.Abs(dir+"/.git"))
	}
	return nil
}

// keepIndex copies the index that git has just written to where no Worker can
// change it, as the helper does for the trees that it makes.
func (c *creation) keepIndex(id policy.RepositoryID) error {
	const op = "runtime.create"
	from, err := c.r.root.OpenFile(rootdir.Repository(c.id, id)+"/.git/index", unix.O_RDONLY, 0)
	if err != nil {
		return policy.Errorf(policy.CodeInternal, op, "the new workspace's index cannot be read").Because(err)
	}
	defer from.Close()
	to, err := c.r.root.OpenFile(rootdir.BaseIndex(c.id, id)+"/index", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		_, err = io.Copy(to, from)
		err = errors.Join(err, to.Close())
	}
	if d := rootdir.NoRoom(op, err); d != nil {
		return d
	}
	if err != nil {
		return policy.Errorf(policy.CodeInternal, op, "the new workspace's index cannot be kept").Because(err)
	}
	return nil
}

// record writes the evidence and the registry's record. Until then the
// allocation is known to the ledger alone, which takes it away after a crash.
func (c *creation) record(ctx context.Context) (registry.Allocation, error) {
	a := c.allocation()
	ev, err := c.r.newEvidence(a, c)
	if err != nil {
		return a, err
	}
	b, err := json.MarshalIndent(ev, "", "  ")
	if err != nil {
		return a, policy.AsDiagnostic(err)
	}
	a.Evidence = b
	c.evidence = ev
	// All wait for the disk, at once: none counts before the workspace is kept.
	const op = "runtime.create"
	written, settled := make(chan error, 1), make(chan error, 1)
	go func() {
		written <- rootdir.Failed(op, "the evidence cannot be written", c.writeEvidence(append(b, '\n')))
	}()
	go func() {
		settled <- rootdir.Failed(op, "the workspace's files cannot be written to the disk", c.settle())
	}()
	if err = c.r.registry.PutAllocation(ctx, a); err == nil {
		c.undo = append(c.undo, func(ctx context.Context) error {
			_, err := c.r.registry.SetAllocationStatus(ctx, a.ID, registry.AllocationFailed, a.Status)
			return err
		})
	}
	for _, werr := range []error{<-written, <-settled} {
		if werr != nil {
			return a, werr
		}
	}
	if err != nil {
		return a, err
	}
	if c.ephemeral {
		return a, nil
	}
	return a, c.r.helper.Keep(ctx, c.id)
}

// settle waits until the workspace's files are on the disk. Their names get there with
// any fsync(2) of a journaling file system, their content does not: git's files were
// empty, and so nothing a repository, after a power failure. It waits for no more than
// it has to: syncfs(2) takes what others write along.
func (c *creation) settle() error {
	if c.ephemeral {
		return nil
	}
	snapshots, layers := true, true // of what nobody has written to but git's directory
	for _, t := range c.made.Repositories {
		snapshots = snapshots && t.Strategy == policy.StrategyBtrfsSnapshot
		layers = layers && (t.Strategy == policy.StrategyBtrfsSnapshot || t.Strategy == policy.StrategyOverlay)
	}
	shared := len(c.made.Caches) > 0
	switch {
	case c.fork != nil && snapshots && !shared:
		return nil // a snapshot is a transaction, with all that is in it
	case c.fork == nil && layers && !shared && c.dirty == policy.CleanPointOnly:
		var errs []error
		for _, dir := range c.git {
			errs = append(errs, gitcache.SyncTree(dir))
		}
		return errors.Join(errs...)
	}
	dir, err := c.r.root.OpenDir(rootdir.Workspace(c.id))
	if err != nil {
		return err
	}
	return errors.Join(os.NewSyscallError("syncfs", unix.Syncfs(int(dir.Fd()))), dir.Close())
}

// writeEvidence makes materialization.json. An ephemeral workspace's need not
// survive a power failure: nor does the workspace.
func (c *creation) writeEvidence(b []byte) error {
	name := rootdir.Workspace(c.id) + "/materialization.json"
	if !c.ephemeral {
		return c.r.root.WriteNew(name, b, 0o600)
	}
	f, err := c.r.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

func (c *creation) allocation() registry.Allocation {
	a := registry.Allocation{
		ID: c.id, RuntimeID: c.r.id, WorkspaceID: c.workspace,
		StrategyReason: c.made.Reason,
		Root:           rootdir.Workspace(c.id) + "/root", Scratch: rootdir.Scratch(c.id),
		SandboxPolicy: c.sandbox, Image: c.image, DirtyStatePolicy: c.dirty, CleanupPolicy: c.cleanup,
		Status: registry.AllocationActive, CreatedAt: c.began, Diagnostics: c.warnings,
	}
	if c.fork != nil {
		c.fork.mark(&a)
	}
	for i, t := range c.made.Repositories {
		a.MaterializerKind = t.Strategy
		a.RepositoryPoints = append(a.RepositoryPoints, c.repos[i].point)
		m := registry.Mount{RepositoryID: t.RepositoryID, Target: policy.WorkspacePath(t.RepositoryID), Strategy: t.Strategy, Tree: t.TreeKey}
		for _, d := range c.dirtyStates {
			if d.RepositoryID == t.RepositoryID {
				m.BaseTree = d.TreeID
			}
		}
		a.Mounts = append(a.Mounts, m)
		if t.TreeKey != "" && (!checksOut(t.Strategy) || c.repos[i].tree != nil) {
			a.SourceCacheRefs = append(a.SourceCacheRefs, rootdir.Tree(t.RepositoryID, t.TreeKey))
		}
	}
	if c.strategy == policy.StrategyRemoteSnapshot {
		a.MaterializerKind, a.StrategyReason = c.strategy, "remote_snapshot was asked for; from the cache's tree "+a.StrategyReason
	}
	return a
}

// newEvidence is the proof of what a Worker runs on.
func (r *Runtime) newEvidence(a registry.Allocation, c *creation) (Evidence, error) {
	filter, err := compile.Filter(a.SandboxPolicy)
	if err != nil {
		return Evidence{}, err
	}
	p := a.SandboxPolicy
	p.Env = nil // values may be private
	return Evidence{
		Version: 1, RuntimeID: r.id, AllocationID: a.ID, WorkspaceID: a.WorkspaceID,
		Points: a.RepositoryPoints, Strategy: a.MaterializerKind, StrategyReason: a.StrategyReason,
		DirtyState: a.DirtyStatePolicy, Changes: c.dirtyStates, SandboxPolicy: p, SandboxDigest: a.SandboxPolicy.Digest(),
		SeccompDigest: digest(filter), RootImage: rootImage(a), Cleanup: a.CleanupPolicy, Ancestor: a.Ancestor, CreatedAt: a.CreatedAt,
		Files: c.made.Files, Bytes: c.made.Bytes, Timings: c.timings, Diagnostics: a.Diagnostics,
		Caches: c.made.Caches, Quota: c.made.Quota,
	}, nil
}

// CreateWorkspace makes an Execution Workspace that stays until it is removed.
func (r *Runtime) CreateWorkspace(ctx context.Context, req CreateWorkspaceRequest) (Workspace, error) {
	return idempotent(ctx, r, "workspace", req.IdempotencyKey, req, func() (Workspace, error) {
		c, err := r.creationFor(ctx, req)
		if err != nil {
			return Workspace{}, err
		}
		c.key = req.IdempotencyKey
		a, err := r.create(ctx, c)
		if err != nil {
			return Workspace{}, err
		}
		return workspaceView(a), nil
	})
}

// creationFor fills a request's defaults in and looks its repositories up.
func (r *Runtime) creationFor(ctx context.Context, req CreateWorkspaceRequest) (*creation, error) {
	c := &creation{id: policy.NewAllocationID(), workspace: req.WorkspaceID, cleanup: req.Cleanup, sandbox: r.sandboxDefaults(req.Sandbox)}
	if c.workspace == "" {
		c.workspace = "default"
	}
	if c.cleanup.Mode == "" {
		c.cleanup.Mode = policy.KeepUntil
		if d := r.config().Defaults.Cleanup; d != "" {
			c.cleanup, _ = policy.ParseCleanupPolicy(d) // checked when the configuration was read
		}
	}
	if c.sandbox.Network.Mode == policy.NetworkHost && !r.config().Sandbox.AllowHostNetwork {
		return nil, policy.Errorf(policy.CodePolicyInvalid, "runtime.create", "the network mode host is not allowed in this Runtime").
			WithHint("Set sandbox.allow_host_network in config.toml.")
	}
	if err := r.mayReach(c.sandbox.Network); err != nil {
		return nil, err
	}
	if c.sandbox.PublishCaches && !r.config().Cache.AllowPublish {
		return nil, policy.Errorf(policy.CodePolicyInvalid, "runtime.create", "publishing caches is not allowed in this Runtime").
			WithHint("Set cache.allow_publish in config.toml.")
	}
	if err := r.choose(c, req.Strategy, req.DirtyState); err != nil {
		return nil, err
	}
	for _, q := range req.Repositories {
		rec, err := r.repository(ctx, q.RepositoryID)
		if err != nil {
			return nil, err
		}
		src, err := sourceOfRecord(rec)
		if err != nil {
			return nil, err
		}
		repo := creationRepo{source: src, selector: q.Selector.Normalize(), branch: q.Branch}
		if err := repo.selector.Validate(); err != nil {
			return nil, err
		}
		if repo.scope, err = policy.ParseScope(q.Scope); err != nil {
			return nil, err
		}
		if q.Patch != "" {
			if repo.patch, err = r.readPatch(q.Patch); err != nil {
				return nil, err
			}
		}
		if repo.caches, err = cachesFor(rec, q.Caches); err != nil {
			return nil, err
		}
		c.repos = append(c.repos, repo)
	}
	return c, nil
}

// choose sets how the trees are made and what becomes of uncommitted changes, by
// the configuration where the request leaves them open.
func (r *Runtime) choose(c *creation, strategy policy.StrategyName, dirty policy.DirtyStatePolicy) error {
	if strategy == "" {
		strategy = policy.StrategyName(r.config().Defaults.Strategy)
	}
	var err error
	if c.strategy, err = policy.ParseStrategy(string(strategy)); err != nil {
		return err
	}
	c.dirty, err = policy.ParseDirtyStatePolicy(string(dirty))
	return err
}

// sandboxDefaults fills what the request leaves open from the configuration.
func (r *Runtime) sandboxDefaults(p policy.SandboxPolicy) policy.SandboxPolicy {
	if p.Network.Mode == "" && len(p.Network.Rules) == 0 {
		p.Network.Mode = policy.NetworkMode(r.config().Defaults.Network)
	}
	if p.Seccomp == "" {
		p.Seccomp = policy.SeccompProfile(r.config().Defaults.Seccomp)
	}
	if p.Root == "" {
		p.Root = policy.RootProfile(r.config().Defaults.Root)
	}
	if p.Quota == (policy.Quota{}) {
		p.Quota = r.config().quota()
	}
	return p.Normalize()
}
