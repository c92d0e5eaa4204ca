package runtime

import (
	"context"
	"path"
	"strings"
	"sync"

	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// What people look through before they ask for something: refs to make a workspace
// of, directories to start a Worker in, and how far a creation is.

// RefsRequest narrows a repository's refs to names that hold Part. Limit 0 is 100;
// at most 1000.
type RefsRequest struct {
	Part  string `json:"part,omitempty"`
	Limit int    `json:"limit,omitempty"`
}

// RefList holds branches, then tags. More says that others were left out.
type RefList struct {
	Items []Ref `json:"items"`
	More  bool  `json:"more,omitempty"`
}

// Ref is a branch or a tag, "refs/heads/main", and the commit it leads to.
type Ref struct {
	Name     string `json:"name"`
	CommitID string `json:"commit_id"`
}

// ListRefs lists a repository's branches and tags.
func (r *Runtime) ListRefs(ctx context.Context, id policy.RepositoryID, req RefsRequest) (RefList, error) {
	switch {
	case req.Limit == 0:
		req.Limit = 100
	case req.Limit < 0 || req.Limit > 1000:
		return RefList{}, policy.Errorf(policy.CodeBadRequest, "runtime.refs", "the limit is not between 1 and 1000")
	}
	rec, err := r.repository(ctx, id)
	if err != nil {
		return RefList{}, err
	}
	src, err := sourceOfRecord(rec)
	if err != nil {
		return RefList{}, err
	}
	refs, more, err := r.cache.Refs(ctx, src, req.Part, req.Limit)
	if err != nil {
		return RefList{}, err
	}
	out := RefList{Items: make([]Ref, 0, len(refs)), More: more}
	for _, ref := range refs {
		out.Items = append(out.Items, Ref(ref))
	}
	return out, nil
}

// DirectoriesRequest names a directory of a workspace's repository, relative to its
// root; RepositoryID "" is the first.
type DirectoriesRequest struct {
	RepositoryID policy.RepositoryID `json:"repository_id,omitempty"`
	Path         string              `json:"path,omitempty"`
}

// DirectoryList holds the names of the directories in Path, links and git's own
// left out: what a Worker can be started in. More says that there are more than
// a thousand.
type DirectoryList struct {
	Path  string   `json:"path"` // clean; "." is the root
	Names []string `json:"names"`
	More  bool     `json:"more,omitempty"`
}

const maxDirectories = 1000

// ListDirectories lists the directories in a directory of a workspace, as they are
// now. As with all that a Worker left, a sandbox looks.
func (r *Runtime) ListDirectories(ctx context.Context, id policy.AllocationID, req DirectoriesRequest) (DirectoryList, error) {
	dir, err := policy.CheckRelativeCwd(req.Path)
	if err != nil {
		return DirectoryList{}, err
	}
	if req.RepositoryID == "" {
		a, _, err := r.looked(ctx, id, "")
		if err != nil {
			return DirectoryList{}, err
		}
		req.RepositoryID = a.Mounts[0].RepositoryID
	}
	l := look{ask: "directories", args: []string{"./" + dir}} // it may begin with a dash
	list, err := report(ctx, r, id, req.RepositoryID, l, func(f *fields, _ registry.Allocation, _ int) DirectoryList {
		out := DirectoryList{Path: path.Clean(dir), Names: []string{}}
		if kind := f.next(); kind != "directory" {
			f.bad = kind != "missing" && kind != "file" && kind != "outside"
			out.Path = kind
			return out
		}
		for f.more() {
			name := f.next()
			switch {
			case strings.ContainsRune(name, '/'):
				f.bad = true
			case len(out.Names) == maxDirectories:
				out.More = true
			case policy.Printable(name) == name: // others cannot be typed either
				out.Names = append(out.Names, name)
			}
		}
		return out
	})
	if err != nil {
		return DirectoryList{}, err
	}
	switch shown := policy.Printable(dir); list[0].Path {
	case "missing":
		return DirectoryList{}, policy.Errorf(policy.CodeCwdMissing, "runtime.directories", "%q does not exist", shown)
	case "file":
		return DirectoryList{}, policy.Errorf(policy.CodeCwdNotDirectory, "runtime.directories", "%q is not a directory", shown)
	case "outside":
		return DirectoryList{}, policy.Errorf(policy.CodeCwdSymlinkEscape, "runtime.directories", "%q leaves the workspace by a symbolic link", shown)
	}
	list[0].Path = path.Clean(dir)
	return list[0], nil
}

// CreationProgress says how far CreateWorkspace is: Step of Steps, from 1, is being
// done.
type CreationProgress struct {
	Step  int    `json:"step"`
	Steps int    `json:"steps"`
	Name  string `json:"name"` // policy, resolve, objects, tree, materialize, git, clean, apply, record
}

// progressBook holds the creations under way that somebody can ask about: those
// with an idempotency key.
type progressBook struct{ m sync.Map }

func (b *progressBook) put(key string, p CreationProgress) {
	if key != "" {
		b.m.Store(key, p)
	}
}

func (b *progressBook) drop(key string) { b.m.Delete(key) }

// CreationProgress says how far the creation with an idempotency key is. One that is
// not under way is not_found.
func (r *Runtime) CreationProgress(_ context.Context, key string) (CreationProgress, error) {
	if v, ok := r.making.m.Load(key); ok {
		return v.(CreationProgress), nil
	}
	return CreationProgress{}, policy.Errorf(policy.CodeNotFound, "runtime.progress", "no creation with that key is under way")
}
