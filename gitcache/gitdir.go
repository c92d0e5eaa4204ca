package gitcache

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"

	"yoi.dev/yoi-runtime/gitcache/index"
	"yoi.dev/yoi-runtime/policy"
)

const opGitDir = "gitcache.gitdir"

// WriteGitDir writes what differs per allocation into tree's .git: HEAD,
// packed-refs, shallow, origin's HEAD and the synthetic branch. It starts no
// git. tree may be an overlay's upper directory: what is missing is made.
//
// The holder must have pinned the point before: the pin is what keeps the
// listed refs' objects. The tree must not have been given to a Worker yet.
func (c *Cache) WriteGitDir(_ context.Context, tree *os.File, p policy.RepositoryPoint, o GitDirOptions) error {
	r, err := c.repo(p.RepositoryID)
	if err != nil {
		return err
	}
	if !policy.ValidOID(p.CommitID) {
		return policy.Errorf(policy.CodeSelectorInvalid, opGitDir, "the point has no commit id")
	}
	if o.Branch != "" && !validBranch(o.Branch) {
		return policy.Errorf(policy.CodeSelectorInvalid, opGitDir, "%q is not a branch name", policy.Printable(o.Branch))
	}
	s := r.readState()
	listing, err := os.ReadFile(r.listingPath(s.Listing))
	if err != nil {
		return policy.Errorf(policy.CodeCacheCorrupt, opGitDir, "the refs listing of %s is missing", r.id).Because(err)
	}
	if err := r.writeGitDir(tree, p.CommitID, o.Branch, s.Head, listing); err != nil {
		return diskError(opGitDir, "the private git directory cannot be written", err)
	}
	return nil
}

func (r *repo) writeGitDir(tree *os.File, commit, branch, originHead string, listing []byte) error {
	head := commit + "\n"
	if branch != "" {
		head = "ref: refs/heads/" + branch + "\n"
		if err := writeBeneath(tree, ".git/refs/heads/"+branch, []byte(commit+"\n")); err != nil {
			return err
		}
	}
	if err := writeBeneath(tree, ".git/HEAD", []byte(head)); err != nil {
		return err
	}
	if err := writeBeneath(tree, ".git/packed-refs", listing); err != nil {
		return err
	}
	if name, ok := strings.CutPrefix(originHead, "refs/heads/"); ok && strings.Contains(string(listing), " refs/remotes/origin/"+name+"\n") {
		if err := writeBeneath(tree, ".git/refs/remotes/origin/HEAD", []byte("ref: refs/remotes/origin/"+name+"\n")); err != nil {
			return err
		}
	}
	shallow, err := os.ReadFile(r.bare("shallow"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return writeBeneath(tree, ".git/shallow", shallow)
}

// PatchIndex makes tree's .git/index true for the files that tree has now, as
// the Worker sees them. stat gives the stat data of an entry's path where the
// caller has it from copying; without it, or for false, the file is fstatat'ed.
func (c *Cache) PatchIndex(ctx context.Context, tree *os.File, stat func(path string) (index.Stat, bool)) error {
	x, err := readIndex(tree)
	if err != nil {
		return gitFailure(opGitDir, "the index could not be read", err)
	}
	complete := false
	if stat != nil {
		missing := 0
		x.Patch(func(e index.Entry) (index.Stat, bool) {
			s, ok := stat(string(e.Path))
			if !ok {
				missing++
			}
			s.UID, s.GID = workerUID, workerGID
			return s, ok
		})
		complete = missing == 0
	}
	if !complete {
		err = x.PatchTree(ctx, tree, workerUID, workerGID, nil)
	}
	if err == nil {
		err = writeIndex(tree, x)
	}
	if err != nil {
		return gitFailure(opGitDir, "the index could not be patched", err)
	}
	return nil
}

// validBranch applies git-check-ref-format(1) to refs/heads/<name>, and
// refuses names that would be options or HEAD.
func validBranch(name string) bool {
	if name == "" || len(name) > 200 || name[0] == '-' || name == "HEAD" || name == "@" || strings.HasSuffix(name, ".") ||
		strings.Contains(name, "..") || strings.Contains(name, "@{") || strings.ContainsAny(name, " ~^:?*[\\\x7f") {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part[0] == '.' || strings.HasSuffix(part, ".lock") {
			return false
		}
	}
	return !strings.ContainsFunc(name, func(c rune) bool { return c < 0x20 })
}
