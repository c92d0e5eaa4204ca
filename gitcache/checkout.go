package gitcache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/gitcache/index"
	"yoi.dev/yoi-runtime/policy"
)

// Inside every sandbox the Worker is this user, so this is what the index says
// of the files, whoever owns them on disk.
const (
	workerUID = 1000
	workerGID = 1000
)

// checkout fills the empty directory dir with the point's tree and a private
// .git directory whose index is ready.
//
// git runs with that .git as GIT_DIR, so its configuration is ours, and no
// filter of the tree's attributes has a command; of a scope it writes a sparse
// index, which names the directories outside and not their files; text, eol, ident and
// working-tree-encoding work as in a plain clone.
func (r *repo) checkout(ctx context.Context, p policy.RepositoryPoint, dir string, l *lockFile) (marker, error) {
	if err := r.writeSkeleton(dir, p); err != nil {
		return marker{}, diskError(opPristine, "the git directory cannot be written", err)
	}
	_, err := r.c.run(ctx, command{
		args: []string{"-c", "checkout.workers=0", "-c", "index.sparse=true", "read-tree", "-m", "-u", p.TreeID},
		env: []string{
			"GIT_DIR=" + filepath.Join(dir, ".git"), "GIT_WORK_TREE=" + dir,
			"GIT_OBJECT_DIRECTORY=" + r.bare("objects"), "GIT_PROGRESS_DELAY=0",
		},
		locks:  []*lockFile{l},
		writes: true,
		target: dir,
		onLine: r.c.progressLine(r.id),
	})
	if err != nil {
		return marker{}, checkoutError(err)
	}
	m := marker{Commit: p.CommitID, Scope: p.Scope}
	if err := r.finishTree(ctx, dir, p.CommittedAt, &m); err != nil {
		return marker{}, err
	}
	return m, nil
}

// Checkout makes dir, which must not exist, and checks the point out into it, with
// a private git directory: git's own way to a tree, for one workspace. The
// holder must have pinned the point before.
func (c *Cache) Checkout(ctx context.Context, p policy.RepositoryPoint, dir string) (Tree, []policy.Diagnostic, error) {
	r, err := c.repo(p.RepositoryID)
	if err == nil {
		err = checkTree(p)
	}
	if err != nil {
		return Tree{}, nil, err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return Tree{}, nil, diskError(opPristine, "the workspace cannot be made", err)
	}
	m, err := r.mending(ctx, p.CommitID, func() (marker, error) {
		if err := empty(dir); err != nil { // of a failed checkout
			return marker{}, diskError(opPristine, "the workspace cannot be emptied", err)
		}
		return r.checkout(ctx, p, dir, nil)
	})
	return m.Tree, m.Warnings, err
}

func checkoutError(err error) error {
	if stderrHas(err, "invalid path", "malformed tree", "is beyond a symbolic link", "empty filename in tree",
		"Untracked working tree file") { // the directory was empty but for .git
		return policy.Errorf(policy.CodeObjectsInvalid, opPristine, "the tree holds a path that git refuses to write").Because(err)
	}
	return gitFailure(opPristine, "the tree could not be checked out", err)
}

// finishTree sets the modification times, patches the index to what is on disk
// and collects what there is to say about the tree.
func (r *repo) finishTree(ctx context.Context, dir string, when time.Time, m *marker) error {
	past := pastTime(when)
	if err := setDirTimes(dir, past); err != nil {
		return diskError(opPristine, "the modification times cannot be set", err)
	}
	top, err := os.Open(dir)
	if err != nil {
		return diskError(opPristine, "the tree cannot be opened", err)
	}
	defer top.Close()
	x, err := readIndex(top)
	if err == nil {
		err = x.PatchTree(ctx, top, workerUID, workerGID, &past)
	}
	if err == nil {
		err = r.addUntracked(x, top)
	}
	if err == nil {
		err = writeIndex(top, x)
	}
	if err != nil {
		return gitFailure(opPristine, "the index could not be patched", err)
	}
	if m.Git, err = identifyGitFiles(dir); err != nil {
		return diskError(opPristine, "the git directory cannot be read back", err)
	}
	return describe(top, x, m)
}

// addUntracked tells git that a tree holds nothing but the index's files, at the place
// where a Worker finds it.
func (r *repo) addUntracked(x *index.Index, top *os.File) error {
	return x.AddUntracked(top, policy.WorkspacePath(r.id), workerUID, workerGID)
}

// pastTime is a commit's time, or ten seconds ago if it claims to be later: an
// entry as young as the index would be racy, and git would read its content.
func pastTime(when time.Time) time.Time {
	if limit := time.Now().Add(-10 * time.Second); when.After(limit) {
		when = limit
	}
	if when.Unix() < 1 { // git takes a zero time for "unknown"
		when = time.Unix(1, 0)
	}
	return when.Truncate(time.Second)
}

// setDirTimes sets the times of all directories but .git.
func setDirTimes(dir string, when time.Time) error {
	ts := unix.NsecToTimespec(when.UnixNano())
	times := []unix.Timespec{ts, ts}
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !d.IsDir():
			return nil
		case path == filepath.Join(dir, ".git"):
			return filepath.SkipDir
		}
		return unix.UtimesNanoAt(unix.AT_FDCWD, path, times, unix.AT_SYMLINK_NOFOLLOW)
	})
}

// writeSkeleton writes the private git directory but for its index. The
// alternates path exists only inside a sandbox.
func (r *repo) writeSkeleton(dir string, p policy.RepositoryPoint) error {
	var filter policy.ObjectFilter
	if src, err := r.readOrigin(); err == nil {
		filter = src.Filter
	}
	git := filepath.Join(dir, ".git")
	err := os.Chmod(dir, 0o755)
	for _, sub := range []string{"", "info", "objects", "objects/info", "objects/pack", "refs", "refs/heads", "refs/tags"} {
		d := filepath.Join(git, sub)
		err = errors.Join(err, os.Mkdir(d, 0o755), os.Chmod(d, 0o755))
	}
	if err != nil {
		return err
	}
	files := []struct{ name, text string }{
		{"config", privateConfig(len(p.TreeID) == 64, len(p.Scope) > 0, filter)},
		{"HEAD", p.CommitID + "\n"},
		{"info/exclude", ""},
		{"objects/info/alternates", "/run/yoi/objects/" + string(r.id) + "\n"},
	}
	if len(p.Scope) > 0 {
		files = append(files, struct{ name, text string }{"info/sparse-checkout", conePatterns(p.Scope)})
	}
	for _, f := range files {
		path := filepath.Join(git, f.name)
		if err := os.WriteFile(path, []byte(f.text), 0o644); err != nil {
			return err
		}
		if err := os.Chmod(path, 0o644); err != nil { // whatever our umask is
			return err
		}
	}
	return nil
}

// notFetched is the URL of a partial clone's remote in a sandbox: there is no
// network, so what git says when it lacks an object has to say why.
const notFetched = "/run/yoi/this-object-was-not-fetched"

// privateConfig holds no host path and no remote that can be reached: the
// Worker's to change. Of a partial clone it says so, or gc and fsck would take
// the objects that were left out for lost.
func privateConfig(sha256, sparse bool, filter policy.ObjectFilter) string {
	var b strings.Builder
	version := 0
	if sha256 || filter != "" {
		version = 1
	}
	fmt.Fprintf(&b, "[core]\n\trepositoryformatversion = %d\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n", version)
	if sparse {
		b.WriteString("\tsparseCheckout = true\n\tsparseCheckoutCone = true\n[index]\n\tsparse = true\n")
	}
	if sha256 {
		b.WriteString("[extensions]\n\tobjectformat = sha256\n")
	}
	if filter != "" {
		fmt.Fprintf(&b, "[extensions]\n\tpartialClone = partial\n[remote \"partial\"]\n\turl = %s\n\tpromisor = true\n\tpartialCloneFilter = %s\n", notFetched, filter)
	}
	return b.String()
}

// conePatterns is the scope as git sparse-checkout(1) writes cone mode: the
// files at the root and beside each ancestor, and everything below each
// directory of the scope.
func conePatterns(s policy.Scope) string {
	var parents []string
	for _, dir := range s {
		for d := filepath.Dir(dir); d != "."; d = filepath.Dir(d) {
			parents = append(parents, d)
		}
	}
	slices.Sort(parents)
	var b strings.Builder
	b.WriteString("/*\n!/*/\n")
	escape := strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)
	for _, d := range slices.Compact(parents) {
		fmt.Fprintf(&b, "/%s/\n!/%[1]s/*/\n", escape.Replace(d))
	}
	for _, d := range s {
		fmt.Fprintf(&b, "/%s/\n", escape.Replace(d))
	}
	return b.String()
}

// readIndex reads .git/index beneath tree.
func readIndex(tree *os.File) (*index.Index, error) {
	f, err := openBeneath(tree, ".git/index", unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := readRegular(f, 1<<31)
	if err != nil {
		return nil, err
	}
	return index.Parse(b, 0)
}
