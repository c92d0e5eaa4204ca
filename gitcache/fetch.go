package gitcache

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

const opFetch = "gitcache.fetch"

// bulkRefspecs is all that prune may reach; see the package documentation.
var bulkRefspecs = []string{"+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"}

// Fetch brings the mirror up to date, making it the first time.
func (c *Cache) Fetch(ctx context.Context, src Source) (FetchReport, error) {
	r, done, err := c.openSource(ctx, src)
	if err != nil {
		return FetchReport{}, err
	}
	defer done()
	return r.fetchShared(ctx, src)
}

// fetchShared fetches, or waits for a fetch of another caller that began after
// this call did. One that was already running may have missed what this caller
// has just seen upstream, so all who come during it share the next one.
func (r *repo) fetchShared(ctx context.Context, src Source) (FetchReport, error) {
	before := r.readState().Started
	l, err := lock(ctx, r.path("lock"), unix.LOCK_EX)
	if err != nil {
		return FetchReport{}, gitFailure(opFetch, "the mirror could not be locked", err)
	}
	defer l.unlock()
	if s := r.readState(); s.Finished > before && r.healthy() {
		return FetchReport{FetchedAt: s.FetchedAt, Refs: s.Refs, Shared: true}, nil
	}
	return r.fetchLocked(ctx, src, l)
}

// ensureCommit makes sure that commit and all it reaches is in the mirror.
func (r *repo) ensureCommit(ctx context.Context, src Source, commit string) (mark, error) {
	l, err := lock(ctx, r.path("lock"), unix.LOCK_EX)
	if err != nil {
		return mark{}, gitFailure(opFetch, "the mirror could not be locked", err)
	}
	defer l.unlock()
	if r.healthy() {
		if m, ok := r.readMark(commit); ok { // another caller was faster
			return m, nil
		}
	}
	if src.isLocal() || !r.healthy() {
		if _, err := r.fetchLocked(ctx, src, l); err != nil {
			return mark{}, err
		}
	}
	if r.connected(ctx, r.bare(), commit) != nil {
		if err := r.fetchCommit(ctx, r.bare(), src, commit, l); err != nil {
			return mark{}, err
		}
	}
	if err := r.completeTrees(ctx, src, commit, l); err != nil {
		return mark{}, err
	}
	return r.writeMark(ctx, commit)
}

// fetchLocked heals what a dead writer left, fetches, and records the result.
func (r *repo) fetchLocked(ctx context.Context, src Source, l *lockFile) (FetchReport, error) {
	if src.isSnapshot() {
		return r.importAgain(ctx, src, l)
	}
	s := r.readState()
	if err := r.c.removeTemporary(ctx, r.dir, tmpPrefix); err != nil {
		return FetchReport{}, diskError(opFetch, "a leftover cannot be removed", err)
	}
	created, aside := !r.exists(), ""
	if !created {
		if s.Started > s.Finished {
			r.clearStale()
		}
		damaged, err := r.packsDamaged(ctx, s)
		if err != nil {
			return FetchReport{}, err
		}
		if damaged {
			if aside, err = r.setAside(); err != nil {
				return FetchReport{}, err
			}
			created = true
		} else if err := r.mendRefs(ctx); err != nil {
			return FetchReport{}, diskError(opFetch, "a pin cannot be written", err)
		}
	}
	if created {
		s.Packs = nil // or a crash right after the rename makes the new mirror look damaged
	}
	s.Started++
	if err := r.writeState(s); err != nil {
		r.putBack(aside)
		return FetchReport{}, diskError(opFetch, "the state cannot be written", err)
	}
	head, err := r.update(ctx, src, l, &created, &aside)
	if err != nil {
		r.putBack(aside)
		return FetchReport{}, err
	}
	s.Finished, s.FetchedAt, s.Head = s.Started, time.Now().UTC(), head
	if err := r.record(ctx, &s); err != nil {
		return FetchReport{}, err
	}
	return FetchReport{FetchedAt: s.FetchedAt, Refs: s.Refs, Created: created}, nil
}

// update fetches into the mirror, or makes a new one. A mirror that proves to
// be damaged is set aside and made anew, once.
func (r *repo) update(ctx context.Context, src Source, l *lockFile, created *bool, aside *string) (head string, err error) {
	if !*created {
		if head, err = r.refresh(ctx, src, l); err == nil || ctx.Err() != nil || !r.damaged(ctx) {
			return head, err
		}
		r.c.log.Warn("the mirror is damaged and is built anew", "repository", r.id, "error", err)
		if *aside, err = r.setAside(); err != nil {
			return "", err
		}
		*created = true
	}
	return r.create(ctx, src, l)
}

func (r *repo) refresh(ctx context.Context, src Source, l *lockFile) (string, error) {
	h, err := r.sourceHead(ctx, src)
	if err != nil {
		return "", err
	}
	if err := r.writeHead(r.bare(), h); err != nil { // first: git refuses a mirror with a garbage HEAD
		return "", diskError(opFetch, "HEAD cannot be written", err)
	}
	if err := r.fetchInto(ctx, r.bare(), src, true, bulkRefspecs, l); err != nil {
		return "", err
	}
	return h.ref, nil
}

// fetchCommit fetches one commit that no branch or tag leads to. It is a fetch
// of its own: prune would take the exact refspec's ref for a stale one.
func (r *repo) fetchCommit(ctx context.Context, dir string, src Source, commit string, l *lockFile) error {
	if src.isSnapshot() {
		return policy.Errorf(policy.CodeSelectorMissing, opFetch, "a snapshot store does not give single commits")
	}
	err := r.fetchInto(ctx, dir, src, false, []string{"+" + commit + ":" + pointRef(commit)}, l)
	if stderrHas(err, "not our ref", "unadvertised object", "no such remote ref", "couldn't find remote ref") {
		return policy.Errorf(policy.CodeSelectorMissing, opFetch, "the source does not give commit %s", commit).Because(err)
	}
	if err != nil {
		return err
	}
	return r.connected(ctx, dir, commit)
}

// connected checks that all objects of commit are there, as fetch itself does;
// in a partial mirror, all that were not left out.
func (r *repo) connected(ctx context.Context, dir, commit string) error {
	_, err := r.c.run(ctx, command{
		args: []string{"rev-list", "--objects", "--quiet", "--exclude-promisor-objects", commit, "--not", "--all"},
		env:  []string{"GIT_DIR=" + dir},
	})
	return err
}

// fetchInto runs one git fetch. The URL goes by the environment, which other
// users can't read as they can a command line. A local source is read through
// its view, so upload-pack too runs under our configuration.
func (r *repo) fetchInto(ctx context.Context, dir string, src Source, prune bool, refspecs []string, l *lockFile) error {
	url, partial, err := r.fetchURL(src)
	if err != nil {
		return err
	}
	args := []string{"fetch", "--progress", "--force", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance",
		"--no-recurse-submodules", "--upload-pack=" + r.c.uploadPack(src)}
	args = append(args, src.filterArgs()...)
	if prune {
		args = append(args, "--prune")
	}
	if exists(filepath.Join(dir, "shallow")) {
		args = append(args, "--unshallow") // as far as the source can; it says what it lacks
	}
	args = append(args, "--update-shallow", "--end-of-options", remoteName)
	err = r.runFetch(ctx, src, command{args: append(args, refspecs...), env: append(remoteEnv(url), "GIT_DIR="+dir), locks: []*lockFile{l}})
	if err != nil && dir == r.bare() {
		r.clearStale() // a failed fetch leaves its temporary pack
	}
	return r.fetchError(src, partial, err)
}

const remoteName = "yoi-source"

func remoteEnv(url string) []string {
	return []string{"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=remote." + remoteName + ".url", "GIT_CONFIG_VALUE_0=" + url}
}

// uploadPack is the command for the other side. For a path it is ours, and may
// give any object: the caller can read them all anyway. GIT_CONFIG_PARAMETERS
// does not reach it (git clears it for a local transport), so it has its own.
func (c *Cache) uploadPack(src Source) string {
	if src.protocol() != "file" {
		return "git-upload-pack"
	}
	quoted := "'" + strings.ReplaceAll(c.git, "'", `'\''`) + "'"
	return quoted + " -c core.hooksPath=/dev/null -c core.fsmonitor=false -c uploadpack.allowAnySHA1InWant=true -c uploadpack.allowFilter=" +
		strconv.FormatBool(src.Filter != "") + " upload-pack"
}

// path is the local directory of a path or file URL source, else "".
func (s Source) path() string {
	if s.isLocal() {
		return s.URL
	}
	if s.protocol() == "file" {
		if p, ok := filePath(s.URL); ok {
			return p
		}
	}
	return ""
}

func (r *repo) fetchURL(src Source) (url string, partial bool, err error) {
	p := src.path()
	if p == "" {
		return src.URL, false, nil
	}
	d, err := discover(p)
	if err != nil {
		return "", false, err
	}
	v, err := r.openView(d)
	if err != nil {
		return "", false, unreadable(opFetch, err)
	}
	return v.dir, d.config.partialClone, nil
}

// fetchError gives a failed fetch its code.
func (r *repo) fetchError(src Source, partial bool, err error) error {
	var ge *gitError
	if err == nil || !errors.As(err, &ge) {
		if err != nil {
			return gitFailure(opFetch, "fetching failed", err)
		}
		return nil
	}
	refuse := func(code policy.Code, message string) error {
		return policy.Errorf(code, opFetch, "%s", message).Because(err)
	}
	lacks := stderrHas(err, "missing blob", "missing tree", "missing commit", "missing object", "did not send all necessary objects",
		"unable to read", "bad object", "unable to load root tree", "error: Could not read")
	switch {
	case noSpace(err) != "":
		return refuse(noSpace(err), fullMessage(noSpace(err)))
	case stderrHas(err, "not our ref", "unadvertised object"):
		return err // fetchCommit names the commit
	case stderrHas(err, "fsck error", "error in object", "fsck: ", "contains invalid object"):
		return refuse(policy.CodeObjectsInvalid, "the source sent objects that fail fsck")
	case stderrHas(err, "not allowed"):
		return refuse(policy.CodeProtocolRefused, "the protocol is not allowed")
	case partial && lacks:
		return refuse(policy.CodePartialCloneRefused, "the source is a partial clone that lacks needed objects")
	case src.path() != "" && lacks:
		return refuse(policy.CodeSourceUnreadable, "the source lacks objects that its refs need, or they cannot be read")
	case stderrHas(err, "Host key verification failed"):
		return refuse(policy.CodeFetchFailed, "the host key of the source is not known").(*policy.Diagnostic).
			WithHint("Add the host's key to the known_hosts of the user that runs the fetch.")
	case stderrHas(err, "could not read Username", "Authentication failed", "Permission denied"):
		return refuse(policy.CodeFetchFailed, "the source wants credentials that were not given")
	}
	return refuse(policy.CodeFetchFailed, fmt.Sprintf("fetching %s failed", r.id))
}

// clearStale removes the lock and temporary files of a git that was killed.
// The caller holds the mirror's lock, which every writing git inherits, so
// none of them can belong to a living one.
func (r *repo) clearStale() {
	_ = filepath.WalkDir(r.bare(), func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		name := d.Name()
		if d.IsDir() {
			if path == r.bare("worktrees") { // under a lock of its own
				return filepath.SkipDir
			}
			return nil
		}
		if strings.HasSuffix(name, ".lock") || strings.HasPrefix(name, "tmp_") || name == "gc.pid" || strings.HasPrefix(name, ".tmp-") {
			_ = os.Remove(path)
		}
		return nil
	})
}
