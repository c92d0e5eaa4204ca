package helper

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/policy"
)

// ChangedRequest names a repository of an allocation by the overlay strategy.
type ChangedRequest struct {
	AllocationID policy.AllocationID `json:"allocation_id"`
	RepositoryID policy.RepositoryID `json:"repository_id"`
}

// ChangedResult lists the paths at which an overlay can differ from its pristine
// tree. Without Known that would take a look at every file.
type ChangedResult struct {
	Known bool `json:"known"`
	// Files are files and symbolic links of the upper directory; Gone are
	// whiteouts and opaque directories, where files of the tree may be missing.
	Files [][]byte `json:"files,omitempty"`
	Gone  [][]byte `json:"gone,omitempty"`
}

// Beyond these a look at every file is not much slower.
const (
	maxChangedFiles = 2000
	maxChangedGone  = 40
	maxChangedDirs  = 4000
)

// Changed reads names and types of an overlay's upper directory, whose pristine
// tree never changes: what is not named there is as it was. Anything unusual makes
// the answer unknown.
func (l *Local) Changed(ctx context.Context, req ChangedRequest) (res ChangedResult, err error) {
	if err := errors.Join(policy.CheckID("allocation", string(req.AllocationID)), policy.CheckID("repository", string(req.RepositoryID))); err != nil {
		return res, policy.AsDiagnostic(err)
	}
	top, err := l.root.OpenDir(rootdir.Layers(req.AllocationID, req.RepositoryID) + "/" + cow.UpperName)
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

// changedIn adds one directory's entries, and returns the directories in it.
func changedIn(top *os.File, dir string, res *ChangedResult) (below []string, known bool) {
	d := top
	if dir != "" {
		var err error
		if d, err = rootdir.OpenAt(top, dir, unix.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
			return nil, false
		}
		defer d.Close()
		n, err := unix.Fgetxattr(int(d.Fd()), "user.overlay.opaque", make([]byte, 16))
		if err == nil && n > 0 {
			res.Gone = append(res.Gone, []byte(dir))
		} else if !errors.Is(err, unix.ENODATA) {
			return nil, false
		}
		dir += "/"
	}
	names, err := d.Readdirnames(maxChangedFiles + 1)
	if (err != nil && err != io.EOF) || len(names) > maxChangedFiles {
		return nil, false
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
