package helper

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/gitcache/index"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/policy"
)

// Materialize makes execution-workspaces/<id>/ and fills root/<repository>/ of
// each repository from its pristine tree. On an error everything that it made
// is taken away again, or stays in the ledger for recovery.
func (l *Local) Materialize(ctx context.Context, req MaterializeRequest) (MaterializeResult, error) {
	if err := req.validate(); err != nil {
		return MaterializeResult{}, err
	}
	res, plan, err := l.chooseStrategies(ctx, req)
	if err != nil {
		return res, err
	}
	if l.privileged {
		l.networks.prepare(1) // a Worker is likely to follow
	}
	if res.Quota, err = l.planQuota(req, res.Repositories); err != nil {
		return res, err
	}
	top := newResource(ledger.KindDirectory, req.AllocationID, rootdir.Workspace(req.AllocationID))
	if req.From != "" { // no Worker has been in it: recovery rescues nothing from a half-made fork
		top.Attrs = map[string]string{attrFork: string(req.From)}
	}
	intents := []ledger.Resource{top}
	for i, t := range res.Repositories {
		if plan[i] != nil && t.Strategy == policy.StrategyBtrfsSnapshot {
			intents = append(intents, newResource(ledger.KindSubvolume, req.AllocationID, rootdir.Repository(req.AllocationID, t.RepositoryID)))
		}
	}
	claim, err := l.claimProject(res.Quota)
	if err != nil {
		return res, err
	}
	defer claim.release()
	if claim.id != 0 {
		intents = append(intents, claim.resource(req.AllocationID))
	}
	if err := l.intendOnImage(ctx, req, &intents); err != nil {
		return res, err
	}
	l.mu.Lock()
	l.own[req.AllocationID] = true
	l.mu.Unlock()
	err = l.fill(ctx, req, plan, &res, top.ID, claim)
	if err == nil {
		return res, nil
	}
	if rerr := l.undo(context.WithoutCancel(ctx), req.AllocationID, intents); rerr != nil {
		l.log.Warn("half-made workspace left to the ledger", "allocation", req.AllocationID, "error", rerr)
	}
	return res, err
}

// chooseStrategies settles each repository's strategy. plan[i] is nil where
// nothing is to be cloned here: git makes the tree, or there is none.
func (l *Local) chooseStrategies(ctx context.Context, req MaterializeRequest) (MaterializeResult, []cow.Strategy, error) {
	res := MaterializeResult{Repositories: append([]RepositoryTree(nil), req.Repositories...)}
	plan := make([]cow.Strategy, len(req.Repositories))
	if req.From != "" {
		table, err := l.strategies(ctx)
		for i := range res.Repositories {
			if err != nil {
				break
			}
			plan[i], res.Reason, err = forkOf(table, &res.Repositories[i])
		}
		return res, plan, err
	}
	limited := req.Quota.Bytes > 0 && l.limitsSubvolumes()
	cached := slices.ContainsFunc(req.Repositories, func(t RepositoryTree) bool { return len(t.Caches) > 0 })
	for i := range res.Repositories {
		t := &res.Repositories[i]
		if t.Strategy == policy.StrategyDirect {
			res.Reason = "direct_legacy_mount was asked for: the source directory itself is mounted"
			continue
		}
		table, err := l.strategies(ctx)
		if err != nil {
			return res, nil, err
		}
		if (cached || limited) && (t.Strategy == policy.StrategyAuto || t.Strategy == "") {
			// A snapshot is a subvolume of its own: it can have no layer below, and is
			// outside its workspace's limit.
			if s, _, err := table.Choose(policy.StrategyOverlay); err == nil {
				t.Strategy, res.Reason, plan[i] = s.Name(), "auto chose overlay: a snapshot has neither shared caches below it nor its workspace's disk limit", s
				continue
			}
		}
		s, reason, err := table.ChooseFor(t.Strategy, t.Files, l.costs(t.Strategy))
		if err != nil {
			return res, nil, err
		}
		t.Strategy, res.Reason = s.Name(), reason
		switch t.Strategy {
		case policy.StrategyGitWorktree, policy.StrategyGitSparse, policy.StrategyExternal:
		default:
			plan[i] = s
		}
	}
	return res, plan, nil
}

// fill makes the directories and clones the trees.
func (l *Local) fill(ctx context.Context, req MaterializeRequest, plan []cow.Strategy, res *MaterializeResult, topID string, claim *projectClaim) error {
	const op = "helper.materialize"
	id := req.AllocationID
	top, err := l.makeTop(id, res.Quota, req.Quota, claim.id)
	claim.release() // the directory has the id
	if errors.Is(err, fs.ErrExist) {
		return policy.Errorf(policy.CodeConflict, op, "the execution workspace %s exists already", id)
	}
	if err != nil {
		return diskError(op, err)
	}
	defer top.Close()
	// A subvolume's numbers are others after each mount, and a rollback exchanges what
	// the kernel limits: see exchangeWhole.
	if res.Quota.Bytes != policy.QuotaBtrfs && claim.id == 0 {
		if err := l.ledger.Done(topID, identify(top)); err != nil {
			return err
		}
	}
	if req.Quota != (policy.Quota{}) {
		if err := l.writeQuota(id, quotaRecord{Quota: req.Quota, QuotaEvidence: res.Quota, Project: claim.id}); err != nil {
			return err
		}
	}
	dirs := make(map[string]*os.File, 4)
	for _, name := range []string{"root", "mounts", "scratch", "index"} {
		d, err := l.root.MkdirAt(top, name, 0o700)
		if err != nil {
			return diskError(op, err)
		}
		defer d.Close()
		dirs[name] = d
	}
	if req.From != "" {
		return l.fillFork(ctx, req, plan, res, top, dirs)
	}
	if err := l.workDirs(dirs["mounts"], req.BuildCache != "", res.Repositories); err != nil {
		return diskError(op, err)
	}
	if err := l.indexDirs(dirs["index"], res.Repositories); err != nil {
		return diskError(op, err)
	}
	if res.Caches, err = l.useCaches(ctx, req, res.Repositories, top); err != nil {
		return err
	}
	for i := range res.Repositories {
		if res.Repositories[i].Strategy == policy.StrategyExternal {
			if err := l.externalDir(top, res.Repositories[i].RepositoryID); err != nil {
				return diskError(op, err)
			}
		}
		if plan[i] == nil {
			continue
		}
		began := time.Now()
		if err := l.clone(ctx, plan[i], res.Repositories[i], dirs, res); err != nil {
			return err
		}
		l.measured(id, plan[i].Name(), res.Repositories[i].Files, time.Since(began))
	}
	if res.Caches != nil {
		return l.copyCaches(ctx, id, res.Repositories)
	}
	return nil
}

// fillFork is the rest of fill for a fork.
func (l *Local) fillFork(ctx context.Context, req MaterializeRequest, plan []cow.Strategy, res *MaterializeResult, top *os.File, dirs map[string]*os.File) (err error) {
	const op = "helper.fork"
	if res.Caches, err = l.forkCaches(ctx, req, top); err != nil {
		return err
	}
	build := len(res.Caches) > 0 && res.Caches[len(res.Caches)-1].Path == buildCacheAt
	if err := l.workDirs(dirs["mounts"], build, res.Repositories); err != nil {
		return diskError(op, err)
	}
	if err := l.indexDirs(dirs["index"], res.Repositories); err != nil {
		return diskError(op, err)
	}
	for i, t := range res.Repositories {
		if err := l.forkTree(ctx, req.From, plan[i], t, dirs, res); err != nil {
			return err
		}
	}
	return nil
}

// workDirs makes the directories that overlayfs wants beside the upper ones: see
// veiled in plan.go.
func (l *Local) workDirs(mounts *os.File, buildCache bool, trees []RepositoryTree) error {
	top, err := l.root.MkdirAt(mounts, overlayWork, 0o700)
	if err != nil {
		return err
	}
	defer top.Close()
	names := []string{scratchWork, overlayBottom}
	if buildCache {
		names = append(names, cacheWork)
	}
	for _, t := range trees {
		if t.Strategy != policy.StrategyOverlay && t.Strategy != policy.StrategyDirect {
			names = append(names, string(t.RepositoryID))
		}
	}
	for _, n := range names {
		d, err := l.root.MkdirAt(top, n, 0o700)
		if err != nil {
			return err
		}
		d.Close()
	}
	return nil
}

// indexDirs makes the directories for the indexes that no Worker can reach: see
// lookOps in plan.go.
func (l *Local) indexDirs(top *os.File, trees []RepositoryTree) error {
	for _, t := range trees {
		if keepsStat(t.Strategy) || t.Strategy == policy.StrategyDirect {
			continue
		}
		d, err := l.root.MkdirAt(top, string(t.RepositoryID), 0o700)
		if err != nil {
			return err
		}
		d.Close()
	}
	return nil
}

// clone fills one repository's directory and makes its git index agree.
func (l *Local) clone(ctx context.Context, s cow.Strategy, t RepositoryTree, dirs map[string]*os.File, res *MaterializeResult) error {
	const op = "helper.materialize"
	source, err := l.root.OpenDir(rootdir.Tree(t.RepositoryID, t.TreeKey))
	if err != nil {
		return policy.Errorf(policy.CodeCacheCorrupt, op, "the pristine tree of %s is not in the cache", t.RepositoryID).Because(err)
	}
	defer source.Close()
	req := cow.Request{Source: source, TargetParent: dirs["root"], TargetName: string(t.RepositoryID), Log: l.log}
	if s.Name() == policy.StrategyOverlay {
		layers, err := l.root.MkdirAt(dirs["mounts"], string(t.RepositoryID), 0o700)
		if err != nil {
			return diskError(op, err)
		}
		defer layers.Close()
		req.Layers = layers
	}
	var x *index.Index
	if !keepsStat(t.Strategy) {
		if x, err = treeIndex(source, t.TreeKey); err != nil {
			return err
		}
	}
	if x != nil {
		req.OnFile = restat(x)
	}
	r, err := s.Materialize(ctx, req)
	if err != nil {
		return err
	}
	res.Files += r.Files
	res.Bytes += r.Bytes
	res.Warnings = append(res.Warnings, r.Warnings...)
	if x == nil {
		return nil // the clone keeps inode numbers and ctimes, or is mounted later
	}
	tree, err := rootdir.OpenAt(dirs["root"], string(t.RepositoryID), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return diskError(op, err)
	}
	defer tree.Close()
	base, err := rootdir.OpenAt(dirs["index"], string(t.RepositoryID), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return diskError(op, err)
	}
	defer base.Close()
	return l.writeIndex(tree, base, x, t.RepositoryID)
}

// treeIndex reads a pristine tree's index; nil for none.
func treeIndex(tree *os.File, treeKey string) (*index.Index, error) {
	const op = "helper.index"
	f, err := rootdir.OpenAt(tree, ".git/index", unix.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, diskError(op, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, diskError(op, err)
	}
	b := make([]byte, st.Size())
	if _, err := f.ReadAt(b, 0); err != nil {
		return nil, diskError(op, err)
	}
	oid := 20
	if len(treeKey) >= 64 {
		oid = 32
	}
	x, err := index.Parse(b, oid)
	if err != nil {
		return nil, policy.Errorf(policy.CodeCacheCorrupt, op, "the pristine tree's index cannot be read").Because(err)
	}
	return x, nil
}

// restat gives an index the stat data of a clone's files as they are made.
func restat(x *index.Index) func(rel string, st *cow.Statx) {
	return func(rel string, st *cow.Statx) {
		x.PatchPath(rel, func(e index.Entry) (index.Stat, bool) {
			// An entry without stat data is of a file that is not what the point has: a
			// snapshot of a working tree. Git has to look at it.
			return workerStat(st), e.Stat != (index.Stat{})
		})
	}
}

// writeIndex gives the clone its index, so that the first git status reads no file and
// lists no directory, and keeps a copy in base. No Worker has run on the tree yet.
func (l *Local) writeIndex(tree, base *os.File, x *index.Index, repo policy.RepositoryID) error {
	const op = "helper.index"
	if x.HasUntracked() { // of the pristine tree
		if err := x.AddUntracked(tree, policy.WorkspacePath(repo), workerID, workerID); err != nil {
			return diskError(op, err)
		}
	}
	f, err := rootdir.OpenAt(tree, ".git/index", unix.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return diskError(op, err)
	}
	defer f.Close()
	b := x.Bytes()
	if _, err := f.WriteAt(b, 0); err != nil {
		return diskError(op, err)
	}
	if err := f.Truncate(int64(len(b))); err != nil { // an extension may have gone
		return diskError(op, err)
	}
	// The write moved the index's mtime to now, and the files' own mtimes lie in
	// the past, so no entry is "racy" (gitformat-index(5)) and read again.
	copied, err := l.newFile(base, "index")
	if err != nil {
		return diskError(op, err)
	}
	defer copied.Close()
	// Of 100,000 files an index is 10 MB, most of what the workspace has to itself.
	if unix.IoctlFileClone(int(copied.Fd()), int(f.Fd())) == nil {
		return nil
	}
	if _, err := copied.Write(b); err != nil {
		return diskError(op, err)
	}
	return nil
}

// undo removes what a failed Materialize made.
func (l *Local) undo(ctx context.Context, id policy.AllocationID, rs []ledger.Resource) error {
	parent, err := l.root.OpenDir(rootdir.Workspaces)
	if err != nil {
		return diskError("helper.undo", err)
	}
	defer parent.Close()
	if err := cow.RemoveTree(ctx, parent, string(id), cow.RemoveOptions{Log: l.log}); err != nil {
		return err
	}
	if err := l.syncParents(rs); err != nil {
		return err
	}
	return l.release(id, rs...)
}

// Keep marks an allocation as complete and wanted, durably. What there is no more,
// since who made it was taken for gone, cannot be kept.
func (l *Local) Keep(ctx context.Context, id policy.AllocationID) error {
	if err := policy.CheckID("allocation", string(id)); err != nil {
		return err
	}
	rs, err := l.resourcesOf(ctx, id)
	if err != nil {
		return err
	}
	l.mu.Lock()
	gone := len(rs) == 0 || l.left[id]
	if !gone {
		l.kept[id] = true
	}
	l.mu.Unlock()
	if gone {
		return policy.Errorf(policy.CodeAllocationUnknown, "helper.keep", "there is no %s to be kept", id)
	}
	return l.ledger.Keep(ctx, string(id))
}

// abandon removes an allocation whose maker is gone and has not had it kept: its
// records are in this process' stream, so no recovery would, as long as that lives.
func (l *Local) abandon(id policy.AllocationID) {
	l.mu.Lock()
	mine := l.own[id] && !l.kept[id]
	if mine {
		l.left[id] = true
	}
	l.mu.Unlock()
	if !mine {
		return
	}
	if err := l.Remove(context.Background(), RemoveRequest{AllocationID: id}); err != nil {
		l.log.Warn("a half-made workspace is left to the ledger", "allocation", id, "error", err)
	}
}

// HasNewObjects looks into each repository's private objects directory. It reads
// names only, beneath the workspace, through no symbolic link: what a Worker
// wrote there decides nothing but the answer.
func (l *Local) HasNewObjects(ctx context.Context, req MaterializeRequest) (bool, error) {
	if err := req.validate(); err != nil {
		return false, err
	}
	for _, t := range req.Repositories {
		base := rootdir.Repository(req.AllocationID, t.RepositoryID)
		if t.Strategy == policy.StrategyOverlay {
			base = rootdir.Layers(req.AllocationID, t.RepositoryID) + "/upper"
		}
		found, err := l.hasObjects(base + "/.git/objects")
		if err != nil || found {
			return found, err
		}
	}
	return false, ctx.Err()
}

// hasObjects reports whether a directory holds loose objects or packs. Anything
// that is not a plain directory counts as "yes": only a certain no lets work go.
func (l *Local) hasObjects(rel string) (bool, error) {
	d, err := l.root.OpenDir(rel)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return true, nil
	}
	defer d.Close()
	for {
		names, err := d.Readdirnames(256)
		for _, n := range names {
			if n == "info" {
				continue
			}
			if n != "pack" {
				return true, nil
			}
			if p, perr := rootdir.OpenAt(d, "pack", unix.O_RDONLY|unix.O_DIRECTORY, 0); perr != nil {
				return true, nil
			} else {
				packs, perr := p.Readdirnames(1)
				p.Close()
				if len(packs) > 0 || perr == nil {
					return true, nil
				}
			}
		}
		if err != nil {
			return false, nil
		}
	}
}
