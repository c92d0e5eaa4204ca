package gitcache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// A mirror with a filter is a partial clone. git would fetch what it lacks on
// its own, in the middle of any command: ours never does (GIT_NO_LAZY_FETCH),
// and the remote's URL is in the environment of fetches alone. Instead the
// cache fetches what is needed when it is known what that is:
//
//   - with a point's mark, the commits and all trees of the point, so that its
//     scope can be checked and its index written;
//   - with Complete, the blobs of the scope.
//
// whole/<tree>[.<scope>] records that nothing of a scope is missing, so the warm
// path starts no git and reaches no network. The records go before the mirror
// does: see setAside. Objects that were promised are never collected.

const opObjects = "gitcache.objects"

// Complete makes sure that every object of the point's scope is in the cache,
// and returns how many had to be fetched. Only a repository with a filter can
// lack any.
func (c *Cache) Complete(ctx context.Context, src Source, p policy.RepositoryPoint) (fetched int, err error) {
	r, err := c.repo(p.RepositoryID)
	if err == nil {
		err = checkTree(p)
	}
	if err != nil || src.Filter == "" {
		return 0, err
	}
	if r.isWhole(p) && r.healthy() {
		return 0, nil
	}
	l, err := lock(ctx, r.path("lock"), unix.LOCK_EX)
	if err != nil {
		return 0, gitFailure(opObjects, "the mirror could not be locked", err)
	}
	defer l.unlock()
	if r.isWhole(p) { // another caller was faster
		return 0, nil
	}
	if err := r.completeTrees(ctx, src, p.CommitID, l); err != nil { // gone with a mirror that was built anew
		return 0, err
	}
	want, err := r.scopeBlobs(ctx, p)
	if err != nil {
		return 0, err
	}
	if fetched, err = r.fetchMissing(ctx, src, want, l); err != nil {
		return 0, err
	}
	err = os.MkdirAll(r.path("whole"), 0o700)
	if err == nil {
		err = writeFile(r.wholePath(p), []byte(p.CommitID+"\n"), 0o600, true)
	}
	if err != nil {
		return 0, diskError(opObjects, "the record of a scope cannot be written", err)
	}
	return fetched, nil
}

func (r *repo) wholePath(p policy.RepositoryPoint) string { return r.path("whole", p.TreeKey()) }
func (r *repo) isWhole(p policy.RepositoryPoint) bool     { return exists(r.wholePath(p)) }
func (r *repo) forgetWhole() error                        { return os.RemoveAll(r.path("whole")) }
func filtersTrees(f policy.ObjectFilter) bool             { return f == "tree:0" }
func (s Source) filterArgs() []string {
	if s.Filter == "" {
		return nil
	}
	return []string{"--filter=" + string(s.Filter)}
}

// completeTrees fetches the commit's trees where the filter leaves them out.
// The caller holds the mirror's lock.
func (r *repo) completeTrees(ctx context.Context, src Source, commit string, l *lockFile) error {
	if !filtersTrees(src.Filter) {
		return nil
	}
	m, err := r.readCommit(ctx, commit)
	if err != nil {
		return err
	}
	whole, err := r.treesWhole(ctx, commit)
	if err != nil || whole {
		return err
	}
	if err := r.fetchObjects(ctx, src, []string{m.Tree}, l); err != nil {
		return err
	}
	if whole, err = r.treesWhole(ctx, commit); err == nil && !whole {
		err = policy.Errorf(policy.CodeObjectsUnavailable, opObjects, "the server did not give all trees of %s", commit)
	}
	return err
}

// treesWhole reports whether every tree of the commit is there.
func (r *repo) treesWhole(ctx context.Context, commit string) (bool, error) {
	out, err := r.c.run(ctx, r.bareCommand("rev-list", "--objects", "--no-object-names", "--no-walk", "--filter=blob:none", "--missing=print", commit))
	if err != nil {
		return false, gitFailure(opObjects, "the trees could not be read", err)
	}
	return !bytes.HasPrefix(out, []byte("?")) && !bytes.Contains(out, []byte("\n?")), nil
}

// scopeBlobs lists the blobs of the point's scope.
func (r *repo) scopeBlobs(ctx context.Context, p policy.RepositoryPoint) ([]string, error) {
	out, err := r.c.run(ctx, r.bareCommand("ls-tree", "-r", "-z", "--full-tree", p.TreeID))
	if err != nil {
		return nil, gitFailure(opObjects, "the tree could not be read", err)
	}
	cone := newCone(p.Scope)
	seen := make(map[string]bool)
	var blobs []string
	for entry := range strings.SplitSeq(string(out), "\x00") {
		meta, name, ok := strings.Cut(entry, "\t") // mode, type, id
		f := strings.Fields(meta)
		if !ok || len(f) != 3 || f[1] != "blob" || seen[f[2]] || !cone.has(name) {
			continue
		}
		seen[f[2]] = true
		blobs = append(blobs, f[2])
	}
	return blobs, nil
}

// cone is a scope as git's cone mode means it: what is below its directories,
// and the files beside each of them on the way from the root.
type cone struct{ below, beside map[string]bool }

func newCone(s policy.Scope) *cone {
	if len(s) == 0 {
		return nil
	}
	c := &cone{below: make(map[string]bool), beside: map[string]bool{".": true}}
	for _, dir := range s {
		c.below[dir] = true
		for d := path.Dir(dir); d != "."; d = path.Dir(d) {
			c.beside[d] = true
		}
	}
	return c
}

// has reports whether the file name is in the cone; a nil cone has everything.
func (c *cone) has(name string) bool {
	return c == nil || c.beside[path.Dir(name)] || c.inside(path.Dir(name))
}

// enters reports whether there can be such files in the directory dir.
func (c *cone) enters(dir string) bool {
	return c == nil || c.beside[dir] || c.inside(dir)
}

func (c *cone) inside(dir string) bool {
	for ; dir != "."; dir = path.Dir(dir) {
		if c.below[dir] {
			return true
		}
	}
	return false
}

// fetchMissing fetches those of the objects that are not there. The caller holds
// the mirror's lock.
func (r *repo) fetchMissing(ctx context.Context, src Source, want []string, l *lockFile) (int, error) {
	missing, err := r.missing(ctx, want)
	if err != nil || len(missing) == 0 {
		return 0, err
	}
	if err := r.fetchObjects(ctx, src, missing, l); err != nil {
		return 0, err
	}
	left, err := r.missing(ctx, missing)
	if err != nil {
		return 0, err
	}
	if len(left) > 0 {
		return 0, policy.Errorf(policy.CodeObjectsUnavailable, opObjects, "the server did not give %d of %d objects", len(left), len(missing)).
			With("object", left[0]).With("count", strconv.Itoa(len(left)))
	}
	return len(missing), nil
}

// missing keeps the objects that the mirror has not. In the mirror itself git
// gives up at the first promised object that it may not fetch, so it is asked in
// a git directory that has the mirror's objects and not its configuration.
func (r *repo) missing(ctx context.Context, oids []string) ([]string, error) {
	if len(oids) == 0 {
		return nil, nil
	}
	dir, err := r.lookupDir(len(oids[0]) == 64)
	if err != nil {
		return nil, diskError(opObjects, "a git directory cannot be made", err)
	}
	out, err := r.c.run(ctx, command{
		args:  []string{"cat-file", "--batch-check=%(objecttype)"},
		env:   []string{"GIT_DIR=" + dir, "GIT_OBJECT_DIRECTORY=" + r.bare("objects")},
		stdin: []byte(strings.Join(oids, "\n") + "\n"),
	})
	if err != nil {
		return nil, gitFailure(opObjects, "the objects could not be looked up", err)
	}
	var missing []string
	for line := range strings.Lines(string(out)) {
		if oid, ok := strings.CutSuffix(line, " missing\n"); ok {
			missing = append(missing, oid)
		}
	}
	return missing, nil
}

func (r *repo) lookupDir(sha256 bool) (string, error) {
	dir := r.path("lookup")
	err := errors.Join(os.MkdirAll(dir+"/refs", 0o700), os.MkdirAll(dir+"/objects", 0o700))
	if err == nil {
		err = ensureFile(dir+"/config", []byte(privateConfig(sha256, false, "")))
	}
	if err == nil {
		err = ensureFile(dir+"/HEAD", []byte("ref: refs/heads/none\n"))
	}
	return dir, err
}

// fetchObjects fetches single objects: blobs alone, trees with all trees below.
// Without the negotiation, which is about commits, the server is told of the
// objects and nothing else.
func (r *repo) fetchObjects(ctx context.Context, src Source, oids []string, l *lockFile) error {
	url, _, err := r.fetchURL(src)
	if err != nil {
		return err
	}
	r.clearStale() // of a fetch like this one that was killed
	if r.c.opts.Progress != nil {
		r.c.opts.Progress(Progress{Repo: r.id, Phase: "Fetching missing objects", Total: int64(len(oids))})
	}
	err = r.runFetch(ctx, src, command{
		args: []string{"-c", "fetch.negotiationAlgorithm=noop", "fetch", "--progress", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance",
			"--no-recurse-submodules", "--upload-pack=" + r.c.uploadPack(src), "--filter=blob:none", "--stdin", "--end-of-options", remoteName},
		env:   append(remoteEnv(url), "GIT_DIR="+r.bare()),
		stdin: []byte(strings.Join(oids, "\n") + "\n"),
		locks: []*lockFile{l},
	})
	if err != nil {
		r.clearStale()
		if stderrHas(err, "not our ref", "unadvertised object", "no such remote ref", "couldn't find remote ref") {
			return policy.Errorf(policy.CodeObjectsUnavailable, opObjects, "the server does not give the objects that are missing").Because(err)
		}
		return r.fetchError(src, false, err)
	}
	s := r.readState()
	if s.Packs, err = packFiles(r.bare()); err == nil {
		err = r.writeState(s)
	}
	if err != nil {
		return diskError(opObjects, "the state cannot be written", err)
	}
	return nil
}

// runFetch runs a fetch, and ends it as soon as git says that the server has no
// filters: it would go on and fetch everything.
func (r *repo) runFetch(ctx context.Context, src Source, cmd command) error {
	watched, cancel := context.WithCancel(ctx)
	defer cancel()
	refused := false
	progress := r.c.progressLine(r.id)
	cmd.network, cmd.writes, cmd.secret = !src.isLocal(), true, src.password()
	cmd.onLine = func(line string) {
		if src.Filter != "" && strings.Contains(line, "filtering not recognized by server") {
			refused = true
			cancel()
		}
		if progress != nil {
			progress(line)
		}
	}
	_, err := r.c.run(watched, cmd)
	if refused {
		return policy.Errorf(policy.CodeFilterRefused, opFetch, "the server of %s does not filter objects", r.id).With("filter", string(src.Filter))
	}
	return err
}

// checkFilter refuses a filter that cannot be had.
func (s Source) checkFilter() error {
	if err := s.Filter.Validate(); err != nil {
		return err
	}
	if s.Filter != "" && s.isLocal() {
		return policy.Errorf(policy.CodeFilterInvalid, "gitcache.source", "a path's objects are not filtered").With("filter", string(s.Filter))
	}
	return nil
}

// salvagePacks takes the sound packs of a partial mirror that was set aside into
// the new one: single objects that workspaces rely on are in no fetch of refs.
func (r *repo) salvagePacks(ctx context.Context, old, tmp string) error {
	promised, err := os.ReadDir(old + "/objects/pack")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range promised {
		base, ok := strings.CutSuffix(e.Name(), ".promisor")
		if !ok || exists(tmp+"/objects/pack/"+base+".idx") {
			continue
		}
		if _, verr := r.c.run(ctx, command{args: []string{"verify-pack", "--", old + "/objects/pack/" + base + ".idx"}, env: []string{"GIT_DIR=" + tmp}}); verr != nil {
			r.c.log.Warn("a damaged pack is not taken over", "repository", r.id, "pack", base, "error", verr)
			continue
		}
		for _, ext := range []string{".promisor", ".pack", ".idx"} { // the index last: it is what makes a pack
			err = errors.Join(err, os.Link(old+"/objects/pack/"+base+ext, tmp+"/objects/pack/"+base+ext))
		}
	}
	if err != nil {
		return fmt.Errorf("taking packs over: %w", err)
	}
	return nil
}
