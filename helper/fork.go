package helper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/gitcache/index"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/policy"
)

// attrFork marks a fork's directory in the ledger with the original's id.
const attrFork = "fork"

// forkOf settles how a repository of another allocation is forked: by the
// strategy that made it, so that its layers mean the same. What git checked out is
// a plain tree, which is cloned where the file system can.
func forkOf(table *cow.Table, t *RepositoryTree) (cow.Strategy, string, error) {
	name := t.Strategy
	switch name {
	case policy.StrategyBtrfsSnapshot, policy.StrategyOverlay, policy.StrategyReflink, policy.StrategyCopy:
	case policy.StrategyGitWorktree, policy.StrategyGitSparse, policy.StrategyExternal:
		name = policy.StrategyCopy
		if e, ok := table.Lookup(policy.StrategyReflink); ok && e.Support.OK {
			name = policy.StrategyReflink
		}
	default:
		return nil, "", policy.Errorf(policy.CodeStrategyUnsupported, "helper.fork", "a workspace by %s cannot be forked", name).
			With("strategy", string(name))
	}
	t.Strategy = name
	return cow.ByName(name), "forked by " + string(name), nil
}

// forkTries is how often the tree of a live Worker is copied again because
// something vanished meanwhile.
const forkTries = 3

// forkTree fills one repository's directory from another allocation's, private
// git directory and all. A btrfs snapshot is of one instant. The other strategies
// walk: beside a live Worker each file is taken at a moment of its own.
func (l *Local) forkTree(ctx context.Context, from policy.AllocationID, s cow.Strategy, t RepositoryTree, dirs map[string]*os.File, res *MaterializeResult) error {
	const op = "helper.fork"
	live, done, err := l.forkSource(from)
	if err != nil {
		return err
	}
	defer done()
	source := rootdir.Repository(from, t.RepositoryID)
	parent, name := dirs["root"], string(t.RepositoryID)
	if s.Name() == policy.StrategyOverlay {
		if parent, err = l.overlayFork(t, dirs); err != nil {
			return diskError(op, err)
		}
		defer parent.Close()
		source, name = rootdir.Layers(from, t.RepositoryID)+"/"+cow.UpperName, cow.UpperName
		s = cow.ByName(policy.StrategyReflink) // of the layer, file by file; what cannot be cloned is copied
	}
	src, err := l.root.OpenDir(source)
	if err != nil {
		return policy.Errorf(policy.CodeAllocationUnknown, op, "the files of %s are not there", from).Because(err)
	}
	defer src.Close()
	var x *index.Index
	var own *ownIndex
	req := cow.Request{Source: src, TargetParent: parent, TargetName: name, Layer: true, Busy: live, Log: l.log}
	if !keepsStat(t.Strategy) {
		if x, err = l.forkedIndex(from, t); err != nil {
			return err
		}
	}
	for try := 1; ; try++ {
		if !keepsStat(t.Strategy) {
			var indexes []*index.Index
			if x != nil && !live { // beside a Worker, a mapped file is written to without a new ctime
				indexes = append(indexes, x)
			}
			if own = readOwnIndex(src); own != nil { // in each try: what was carried over in the last is of no use
				indexes = append(indexes, own.Index)
			}
			req.OnCopy = carry(indexes)
		}
		var r cow.Result
		if r, err = s.Materialize(ctx, req); err == nil {
			res.Files += r.Files
			res.Bytes += r.Bytes
			res.Warnings = append(res.Warnings, r.Warnings...)
			break
		}
		if !live || try == forkTries || !errors.Is(err, policy.CodeSourceChanged) {
			return err
		}
		if err := cow.RemoveTree(ctx, parent, name, cow.RemoveOptions{Log: l.log}); err != nil {
			return err
		}
	}
	if live {
		if err := unlockGit(parent, name); err != nil {
			return diskError(op, err)
		}
	}
	if own != nil {
		if err := own.writeTo(parent, name); err != nil {
			return diskError(op, err)
		}
	}
	if x == nil {
		return nil
	}
	return diskError(op, l.keepIndex(dirs["index"], t, x))
}

// ownIndex is the index of a workspace that its Workers' git uses. Files that it
// takes for unchanged in the original it shall take for unchanged in the fork: or the
// first git status there reads every file.
type ownIndex struct {
	*index.Index
	size int64
	sum  []byte // the checksum at its end
}

// maxOwnIndex bounds what is read of a hostile one: about a million files.
const maxOwnIndex = 128 << 20

// readOwnIndex reads a workspace's index; nil for none that is understood. It may be
// hostile: whatever comes of it is the Workers' own again.
func readOwnIndex(tree *os.File) *ownIndex {
	f, err := rootdir.OpenAt(tree, ".git/index", unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || st.Size() > maxOwnIndex {
		return nil
	}
	b := make([]byte, st.Size())
	if _, err := io.ReadFull(f, b); err != nil {
		return nil
	}
	x, err := index.Parse(b, 0)
	if err != nil {
		return nil
	}
	sum := bytes.Clone(b[len(b)-x.OIDSize():])
	if bytes.Count(sum, []byte{0}) == len(sum) { // index.skipHash: it does not say what it is of
		return nil
	}
	return &ownIndex{x, st.Size(), sum}
}

// writeTo puts the index in the place of its copy, if that is one: beside a Worker it
// can be of another moment. The time stays, by which git knows which files may have
// been written to after it (racy ones, gitformat-index(5)).
func (o *ownIndex) writeTo(parent *os.File, name string) error {
	f, err := rootdir.OpenAt(parent, name+"/.git/index", unix.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil // it may be a link, or gone
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	sum := make([]byte, len(o.sum))
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 || st.Size != o.size {
		return nil
	}
	if _, err := f.ReadAt(sum, o.size-int64(len(sum))); err != nil || !bytes.Equal(sum, o.sum) {
		return err
	}
	b := o.Bytes()
	if _, err := f.WriteAt(b, 0); err != nil {
		return err
	}
	if err := f.Truncate(int64(len(b))); err != nil { // an extension may have gone
		return err
	}
	return unix.UtimesNanoAt(int(f.Fd()), "", []unix.Timespec{st.Atim, st.Mtim}, unix.AT_EMPTY_PATH)
}

// forkSource tells whether a Worker is live on the allocation, and keeps one from
// starting until done if none is.
func (l *Local) forkSource(from policy.AllocationID) (live bool, done func(), err error) {
	f, err := l.root.OpenFile(rootdir.Workspace(from)+"/lock", unix.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, func() {}, nil // it has had no Worker yet
	}
	if err != nil {
		return false, nil, diskError("helper.fork", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
		f.Close()
		return false, nil, policy.Errorf(policy.CodeInternal, "helper.fork", "the workspace's lock cannot be tried").Because(err)
	}
	return err != nil, func() { f.Close() }, nil
}

// overlayFork makes what an overlay has beside its upper directory.
func (l *Local) overlayFork(t RepositoryTree, dirs map[string]*os.File) (layers *os.File, err error) {
	at, err := l.root.MkdirAt(dirs["root"], string(t.RepositoryID), 0o700)
	if err != nil {
		return nil, err
	}
	at.Close()
	if layers, err = l.root.MkdirAt(dirs["mounts"], string(t.RepositoryID), 0o700); err != nil {
		return nil, err
	}
	work, err := l.root.MkdirAt(layers, cow.WorkName, 0o700)
	if err != nil {
		layers.Close()
		return nil, err
	}
	return layers, work.Close()
}

// unlockGit removes git's lock files from a fork of a live workspace: nobody in
// the fork holds them.
func unlockGit(parent *os.File, name string) error {
	git, err := rootdir.OpenAt(parent, name+"/.git", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil // a Worker may have no git directory
	}
	defer git.Close()
	names, err := git.Readdirnames(-1)
	for _, n := range names {
		if strings.HasSuffix(n, ".lock") {
			_ = unix.Unlinkat(int(git.Fd()), n, 0) // a directory of that name is no lock
		}
	}
	return err
}

// workerStat is stat data as a Worker sees it: its own ids, whoever owns the file
// on disk.
func workerStat(st *cow.Statx) index.Stat {
	v := index.FromStatx((*unix.Statx_t)(st))
	v.UID, v.GID = workerID, workerID
	return v
}

// forkedIndex is the index of a workspace that no Worker can reach, nil for none:
// then a look reads every file.
func (l *Local) forkedIndex(from policy.AllocationID, t RepositoryTree) (*index.Index, error) {
	b, err := l.root.ReadFile(rootdir.BaseIndex(from, t.RepositoryID)+"/index", 1<<31)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, diskError("helper.fork", err)
	}
	x, err := index.Parse(b, 0)
	if err != nil {
		return nil, policy.Errorf(policy.CodeInternal, "helper.fork", "the index of %s cannot be read", from).Because(err)
	}
	return x, nil
}

// carry makes entries that were right for the original right for the copy. The
// others stay wrong, so that the file is read again.
func carry(indexes []*index.Index) func(rel string, from, to *cow.Statx) {
	if len(indexes) == 0 {
		return nil // nobody wants to hear of the files
	}
	return func(rel string, from, to *cow.Statx) {
		for _, x := range indexes {
			x.PatchPath(rel, func(e index.Entry) (index.Stat, bool) {
				was := workerStat(from)
				was.Dev = e.Stat.Dev // git does not look at it
				return workerStat(to), was == e.Stat
			})
		}
	}
}

// keepIndex writes the index that no Worker can reach into top's directory for t.
func (l *Local) keepIndex(top *os.File, t RepositoryTree, x *index.Index) error {
	base, err := rootdir.OpenAt(top, string(t.RepositoryID), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer base.Close()
	f, err := l.newFile(base, "index")
	if err != nil {
		return err
	}
	_, err = f.Write(x.Bytes())
	return errors.Join(err, f.Close())
}

// forkCaches gives the fork the original's shared caches, and its own writes to
// the build cache.
func (l *Local) forkCaches(ctx context.Context, req MaterializeRequest, top *os.File) ([]policy.CacheUse, error) {
	const op = "helper.fork"
	uses, err := l.cacheUsesOf(req.From)
	if err != nil || uses == nil {
		return nil, err
	}
	b, err := json.Marshal(uses)
	if err != nil {
		return nil, policy.AsDiagnostic(err)
	}
	// The original's use keeps them until ours is written.
	if err := l.root.WriteFile(cacheUsesFile(req.AllocationID), append(b, '\n'), 0o600); err != nil {
		return nil, diskError(op, err)
	}
	var out []policy.CacheUse
	for _, u := range uses.Dependencies {
		out = append(out, u.CacheUse)
	}
	if uses.Build == nil {
		return out, nil
	}
	out = append(out, policy.CacheUse{Path: buildCacheAt, Digest: uses.Build.Generation, Warm: uses.Build.Generation != ""})
	src, err := l.root.OpenDir(rootdir.Workspace(req.From) + "/" + buildCacheDir)
	if err != nil {
		return nil, diskError(op, err)
	}
	defer src.Close()
	_, err = cow.ByName(policy.StrategyReflink).Materialize(ctx, cow.Request{Source: src, TargetParent: top, TargetName: buildCacheDir, Layer: true, Log: l.log})
	return out, err
}
