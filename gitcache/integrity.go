package gitcache

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// fileID tells whether a file is still the one that was written or read once,
// at the price of one lstat(2). Content that changes under an unchanged
// modification time is not noticed.
type fileID struct {
	Size  int64  `json:"size"`
	Mtime int64  `json:"mtime_ns"`
	Ino   uint64 `json:"ino"`
}

func identify(path string) (fileID, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return fileID{}, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fileID{}, &fs.PathError{Op: "lstat", Path: path, Err: errors.New("not a regular file")}
	}
	return fileID{st.Size, st.Mtim.Nano(), st.Ino}, nil
}

// gitFiles are what a private git directory cannot work without. A workspace
// gets them as they are in the pristine tree.
var gitFiles = []string{"index", "HEAD", "config", "objects/info/alternates"}

func identifyGitFiles(dir string) (map[string]fileID, error) {
	ids := make(map[string]fileID, len(gitFiles))
	for _, name := range gitFiles {
		id, err := identify(filepath.Join(dir, ".git", name))
		if err != nil {
			return nil, err
		}
		ids[name] = id
	}
	return ids, nil
}

// sound is the check of the warm path: the marker is there, and the tree's git
// directory is what was built.
func (r *repo) sound(key string) (marker, bool) {
	m, ok := r.readMarker(key)
	return m, ok && (m.Boot == "" || m.Boot == bootID()) && r.sameGitFiles(key, m)
}

func (r *repo) sameGitFiles(key string, m marker) bool {
	for _, name := range gitFiles {
		id, err := identify(r.treePath(filepath.Join(key, ".git", name)))
		if err != nil || id != m.Git[name] {
			return false
		}
	}
	return true
}

// clear makes room for a tree to be built. What is there has no marker, or no
// longer agrees with it. An overlay's lower layer must not change while it is
// mounted (kernel, Documentation/filesystems/overlayfs.rst), so a tree that one
// stands on is left as it is. The caller holds the tree's lock exclusively:
// nobody is copying from it.
func (r *repo) clear(key string) error {
	damaged := exists(r.treePath(key))
	if damaged && r.isLower(key) {
		return policy.Errorf(policy.CodeCacheCorrupt, opPristine, "a pristine tree of %s is damaged, and a workspace still stands on it", r.id).
			WithHint("Remove the workspaces of this repository that use the overlay strategy; then it is rebuilt.")
	}
	if _, marked := r.readMarker(key); marked {
		r.c.log.Warn("a pristine tree is damaged and is built anew", "repository", r.id, "tree", key)
	}
	if err := r.dropMarker(key); err != nil {
		return diskError(opPristine, "a damaged tree's marker cannot be removed", err)
	}
	return nil
}

// dropMarker is durable on return: a crash must not leave a marker beside a
// tree that is half gone.
func (r *repo) dropMarker(key string) error {
	err := os.Remove(r.treePath(key + ".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, syncDir(r.path("trees")))
}

// isLower reports whether a holder's workspace is an overlay on the tree. Only
// then has it a directory of layers; the others have copied what they need.
// What cannot be looked at counts.
func (r *repo) isLower(key string) bool {
	holders, err := os.ReadDir(r.treePath(key + ".use"))
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	for _, h := range holders {
		layers := filepath.Join(r.c.opts.Root, "execution-workspaces", h.Name(), "mounts", string(r.id))
		if _, err := os.Lstat(layers); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}
