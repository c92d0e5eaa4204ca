package helper

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/gitcache/index"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/policy"
)

// ChangedRequest names a repository of an allocation as its workspace was made.
type ChangedRequest struct {
	AllocationID policy.AllocationID `json:"allocation_id"`
	Repository   RepositoryTree      `json:"repository"`
}

// ChangedResult lists the paths at which a workspace can differ from the tree that
// it was made of. Without Known that would take a look at every file.
type ChangedResult struct {
	Known bool `json:"known"`
	// Files may be new, changed or not there; Gone are whiteouts and opaque
	// directories of an overlay, below which files of the tree may be missing.
	Files [][]byte `json:"files,omitempty"`
	Gone  [][]byte `json:"gone,omitempty"`
	// Git is a digest of the stat data of the private git directory's files, but for
	// the objects and the index: as long as it is the same, no ref, reflog or setting
	// has changed. It is empty where that cannot be said.
	Git string `json:"git,omitempty"`
}

// Clean says that the files are the tree's.
func (r ChangedResult) Clean() bool { return r.Known && len(r.Files) == 0 && len(r.Gone) == 0 }

// Beyond these a look at every file is not much slower.
const (
	maxChangedFiles = 2000
	maxChangedGone  = 40
	maxChangedDirs  = 4000
)

// Changed tells where a workspace can differ from its tree: of an overlay by names
// and types in its upper directory, else by every file's stat data, against an
// index that no Worker can reach. Anything unusual makes the answer unknown.
func (l *Local) Changed(ctx context.Context, req ChangedRequest) (ChangedResult, error) {
	err := policy.CheckID("allocation", string(req.AllocationID))
	if err == nil {
		err = validateTrees([]RepositoryTree{req.Repository})
	}
	if err != nil {
		return ChangedResult{}, err
	}
	var res ChangedResult
	top := rootdir.Repository(req.AllocationID, req.Repository.RepositoryID)
	switch req.Repository.Strategy {
	case policy.StrategyDirect:
		return ChangedResult{}, nil
	case policy.StrategyOverlay:
		top = rootdir.Layers(req.AllocationID, req.Repository.RepositoryID) + "/" + cow.UpperName
		res, err = l.changedAbove(ctx, req)
	default:
		res, err = l.changedFrom(ctx, req)
	}
	if err == nil && res.Clean() {
		res.Git = l.gitPrint(top + "/.git")
	}
	return res, err
}

// changedFrom compares stat data, as git would, without git's walks through the
// sandbox's mounts. That an edit of the same size with its mtime put back is found
// is the ctime's doing, which only the kernel sets.
func (l *Local) changedFrom(ctx context.Context, req ChangedRequest) (res ChangedResult, err error) {
	const op = "helper.changed"
	t := req.Repository
	base := rootdir.Tree(t.RepositoryID, t.TreeKey) + "/.git/index"
	if !keepsStat(t.Strategy) {
		base = rootdir.BaseIndex(req.AllocationID, t.RepositoryID) + "/index"
	}
	f, err := l.root.OpenFile(base, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return res, nil
	}
	if err != nil {
		return res, diskError(op, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return res, diskError(op, err)
	}
	b := make([]byte, st.Size())
	if _, err := io.ReadFull(f, b); err != nil {
		return res, diskError(op, err)
	}
	x, err := index.Parse(b, 0)
	if err != nil {
		return res, nil // git says what is wrong with it
	}
	tree, err := l.root.OpenDir(rootdir.Repository(req.AllocationID, t.RepositoryID))
	if errors.Is(err, fs.ErrNotExist) {
		return res, nil
	}
	if err != nil {
		return res, diskError(op, err)
	}
	defer tree.Close()
	if res.Files, res.Known = x.Differing(ctx, tree, st.ModTime(), maxChangedFiles); !res.Known {
		return ChangedResult{}, nil
	}
	return res, nil
}

// changedAbove reads names and types of an overlay's upper directory, whose pristine
// tree never changes: what is not named there is as it was.
func (l *Local) changedAbove(ctx context.Context, req ChangedRequest) (res ChangedResult, err error) {
	top, err := l.root.OpenDir(rootdir.Layers(req.AllocationID, req.Repository.RepositoryID) + "/" + cow.UpperName)
	if errors.Is(err, fs.ErrNotExist) {
		return res, nil
	}
	if err != nil {
		return res, diskError("helper.changed", err)
	}
	defer top.Close()
	res.Known = true
	dirs := []string{""}
	for n := 0; len(dirs) > 0 && res.Known; n++ {
		dir := dirs[len(dirs)-1]
		dirs = dirs[:len(dirs)-1]
		below, known := changedIn(top, dir, &res)
		dirs = append(dirs, below...)
		res.Known = known && n < maxChangedDirs && len(res.Files) <= maxChangedFiles && len(res.Gone) <= maxChangedGone && ctx.Err() == nil
	}
	if !res.Known {
		res = ChangedResult{}
	}
	return res, nil
}

// listDir opens a directory of a tree that may be hostile, "" for its top, and reads its
// names, if there are not more than most.
func listDir(top *os.File, dir string, most int) (d *os.File, names []string, ok bool) {
	if dir == "" {
		dir = "."
	}
	d, err := rootdir.OpenAt(top, dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, nil, false
	}
	names, err = d.Readdirnames(most + 1)
	if err != nil && err != io.EOF || len(names) > most {
		d.Close()
		return nil, nil, false
	}
	return d, names, true
}

// changedIn adds one directory's entries, and returns the directories in it.
func changedIn(top *os.File, dir string, res *ChangedResult) (below []string, known bool) {
	d, names, ok := listDir(top, dir, maxChangedFiles)
	if !ok {
		return nil, false
	}
	defer d.Close()
	if dir != "" {
		n, err := unix.Fgetxattr(int(d.Fd()), "user.overlay.opaque", make([]byte, 16))
		if err == nil && n > 0 {
			res.Gone = append(res.Gone, []byte(dir))
		} else if !errors.Is(err, unix.ENODATA) {
			return nil, false
		}
		dir += "/"
	}
	for _, n := range names {
		if n == ".git" && dir == "" {
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstatat(int(d.Fd()), n, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || n == ".git" {
			return nil, false // another repository, or a change just now
		}
		switch kind := st.Mode & unix.S_IFMT; {
		case kind == unix.S_IFREG, kind == unix.S_IFLNK:
			res.Files = append(res.Files, []byte(dir+n))
		case kind == unix.S_IFDIR:
			below = append(below, dir+n)
		case kind == unix.S_IFCHR && st.Rdev == 0:
			res.Gone = append(res.Gone, []byte(dir+n))
		default:
			return nil, false
		}
	}
	return below, true
}
