package gitcache

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/snapshot"
)

const (
	opImport     = "gitcache.snapshot"
	snapshotsDir = "snapshots"
)

// imported is what is known of an archive that has been imported. Its presence
// says that the commit's mark was written.
type imported struct {
	Kind   snapshot.Kind `json:"kind"`
	Commit string        `json:"commit"`
	Scope  policy.Scope  `json:"scope,omitempty"`
}

func (r *repo) importedPath(digest string) string { return r.keptPath(digest) + ".json" }

// keptPath is where a workspace's archive stays, so that its tree can be made
// again: git has only the commit that it stands on.
func (r *repo) keptPath(digest string) string {
	return r.path(snapshotsDir, strings.TrimPrefix(digest, "sha256:"))
}

// resolveSnapshot turns an archive's digest into a point, fetching the archive
// the first time.
func (r *repo) resolveSnapshot(ctx context.Context, src Source, sel policy.Selector, o ResolveOptions) (policy.RepositoryPoint, []policy.Diagnostic, error) {
	none := policy.RepositoryPoint{}
	switch {
	case !src.isSnapshot():
		return none, nil, policy.Errorf(policy.CodeSelectorInvalid, opImport, "%s is a git repository, which has no snapshots", r.id).
			WithHint("Register the snapshot store as a repository of its own: yoi repo add snapshot+URL.")
	case sel.Kind != policy.SelectSnapshot:
		return none, nil, policy.Errorf(policy.CodeSelectorInvalid, opImport, "%s is a snapshot store, in which %q names nothing", r.id, policy.Printable(sel.String())).
			WithHint("Select snapshot:sha256:DIGEST; yoi snapshot list shows them.")
	}
	im, m, ok := r.readImported(sel.Value)
	if !ok {
		if o.NoFetch {
			return none, nil, policy.Errorf(policy.CodeSelectorMissing, opImport, "the snapshot is not in the cache")
		}
		l, err := lock(ctx, r.path("lock"), unix.LOCK_EX)
		if err != nil {
			return none, nil, gitFailure(opImport, "the mirror could not be locked", err)
		}
		defer l.unlock()
		if im, m, ok = r.readImported(sel.Value); !ok { // else another caller was faster
			if im, m, err = r.importLocked(ctx, src, sel.Value, o.Scope, l); err != nil {
				return none, nil, err
			}
		}
	}
	p := r.point(im.Commit, m, sel, im.Scope)
	switch {
	case im.Kind == snapshot.KindWorkspace:
		if len(o.Scope) > 0 {
			return none, nil, policy.Errorf(policy.CodeScopeInvalid, opImport, "a workspace's snapshot has the files that it has: a scope cannot be asked for")
		}
		p.Snapshot = sel.Value
	case len(o.Scope) > 0:
		p.Scope = o.Scope
	}
	if err := r.checkScope(ctx, p); err != nil {
		return none, nil, err
	}
	return p, nil, nil
}

func (r *repo) readImported(digest string) (imported, mark, bool) {
	var im imported
	b, err := os.ReadFile(r.importedPath(digest))
	if err != nil || json.Unmarshal(b, &im) != nil || !policy.ValidOID(im.Commit) {
		return im, mark{}, false
	}
	if im.Kind == snapshot.KindWorkspace && !exists(r.keptPath(digest)) {
		return im, mark{}, false
	}
	m, ok := r.readMark(im.Commit)
	return im, m, ok && r.healthy()
}

// importAgain stands in for a fetch: what is in the cache never changes in the
// store. Only a damaged mirror is made anew, of all that was imported.
func (r *repo) importAgain(ctx context.Context, src Source, l *lockFile) (FetchReport, error) {
	if r.healthy() {
		return FetchReport{FetchedAt: r.readState().FetchedAt}, nil
	}
	names, err := filepath.Glob(globEscape(r.path(snapshotsDir)) + "/*.json")
	for _, name := range names {
		digest := "sha256:" + strings.TrimSuffix(filepath.Base(name), ".json")
		if _, _, ierr := r.importLocked(ctx, src, digest, nil, l); err == nil {
			err = ierr
		}
	}
	if err == nil && !r.healthy() {
		err = policy.Errorf(policy.CodeRepositoryEmpty, opImport, "no snapshot of %s is in the cache", r.id).
			WithHint("Import one: yoi snapshot import.")
	}
	return FetchReport{FetchedAt: r.readState().FetchedAt, Created: true}, err
}

// importLocked heals what a dead writer left, imports the archive, and records
// it. The caller holds the mirror's lock.
func (r *repo) importLocked(ctx context.Context, src Source, digest string, scope policy.Scope, l *lockFile) (imported, mark, error) {
	none := imported{}
	s := r.readState()
	if err := errors.Join(r.c.removeTemporary(ctx, r.dir, tmpPrefix), r.clearPending(false)); err != nil {
		return none, mark{}, diskError(opImport, "a leftover cannot be removed", err)
	}
	created, aside := !r.exists(), ""
	if !created {
		if s.Started > s.Finished {
			r.clearStale()
		}
		damaged, err := r.packsDamaged(ctx, s)
		if err == nil && damaged {
			created = true
			aside, err = r.setAside()
		} else if err == nil {
			err = r.mendRefs(ctx)
		}
		if err != nil {
			return none, mark{}, diskError(opImport, "the mirror cannot be mended", err)
		}
	}
	if created {
		s.Packs = nil // or a crash right after the rename makes the new mirror look damaged
	}
	s.Started++
	if !created || aside != "" { // else there is nothing that a crash could leave in doubt
		if err := r.writeState(s); err != nil {
			r.putBack(aside)
			return none, mark{}, diskError(opImport, "the state cannot be written", err)
		}
	}
	im := &snapshotImport{r: r, src: src, digest: digest, scope: scope, lock: l, state: s, created: created}
	if err := im.do(ctx); err != nil {
		r.putBack(aside)
		return none, mark{}, err
	}
	return imported{im.header.Kind, im.header.Commit, im.header.Scope}, im.mark, nil
}

// snapshotImport is one archive on its way into the cache:
//
//	.tmp-import-…/archive    what came from the store, kept for a workspace
//	.tmp-import-…/bare.git   the mirror, if there was none
//	.tmp-import-…/shallow    its file of that name, with this commit
//	trees/.tmp-<key>-…       the tree, written while git reads the objects
//
// Nothing of it gets its name before the digest has been checked.
type snapshotImport struct {
	r       *repo
	src     Source
	digest  string
	scope   policy.Scope // asked for; the archive's where empty
	lock    *lockFile
	state   state
	created bool

	dir     string
	version <-chan error // whether this git will do
	header  snapshot.Header
	mark    mark
	tree    *treeImport
}

func (im *snapshotImport) do(ctx context.Context) error {
	r := im.r
	name := policy.NewID(importPrefix)
	im.dir = r.path(name)
	res := Resource{Kind: "directory", Owner: string(r.id), Path: r.rel(name)}
	if err := r.c.journal.Intend(ctx, res); err != nil {
		return err
	}
	im.version = im.checkVersion(ctx)
	err := os.Mkdir(im.dir, 0o700)
	if err != nil {
		err = diskError(opImport, "the import's directory cannot be made", err)
	} else {
		err = im.fetch(ctx)
	}
	if err == nil {
		err = im.publish(ctx)
	}
	<-im.version
	if im.tree != nil {
		im.tree.end(ctx)
	}
	if rmErr := os.RemoveAll(im.dir); rmErr == nil {
		err = errors.Join(err, r.c.journal.Release(res))
	}
	return err
}

// checkVersion asks git, for a new mirror, while the archive is on its way. The
// channel is closed behind the answer.
func (im *snapshotImport) checkVersion(ctx context.Context) <-chan error {
	answer := make(chan error, 1)
	if !im.created {
		close(answer)
		return answer
	}
	go func() {
		defer close(answer)
		answer <- im.r.c.checkVersion(ctx)
	}()
	return answer
}

func (im *snapshotImport) gitDir() string {
	if im.created {
		return filepath.Join(im.dir, "bare.git")
	}
	return im.r.bare()
}

// fetch reads the archive once: to a file, into git and into the tree.
func (im *snapshotImport) fetch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	location := strings.TrimPrefix(im.src.URL, snapshotScheme)
	from, err := im.r.c.opts.OpenSnapshot(ctx, location, im.digest)
	if err != nil {
		return err
	}
	defer from.Close()
	kept, err := os.OpenFile(filepath.Join(im.dir, "archive"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return diskError(opImport, "the archive cannot be kept", err)
	}
	defer kept.Close()
	rd, err := snapshot.NewReader(io.TeeReader(from, diskWriter{kept}), im.r.c.rules.Load().limits)
	if err != nil {
		return err
	}
	defer rd.Close()
	im.header = rd.Header()
	if err := im.prepare(); err != nil {
		return err
	}
	return im.objects(ctx, rd)
}

// diskWriter types its errors, which come to light as the reader's.
type diskWriter struct{ w io.Writer }

func (d diskWriter) Write(b []byte) (int, error) {
	n, err := d.w.Write(b)
	if err != nil {
		err = diskError(opImport, "the archive cannot be kept", err)
	}
	return n, err
}

// prepare makes the mirror, if there is none, and writes beside it that the commit
// is where its history ends: git looks at that before it asks for a parent.
func (im *snapshotImport) prepare() error {
	if im.created {
		if err := makeBare(im.gitDir(), im.header.ObjectFormat); err != nil {
			return diskError(opImport, "the mirror could not be initialized", err)
		}
	}
	have, err := os.ReadFile(filepath.Join(im.gitDir(), "shallow"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return diskError(opImport, "the end of the history cannot be read", err)
	}
	line := im.header.Commit + "\n"
	if !strings.Contains(string(have), line) {
		have = append(have, line...)
	}
	if err := writeFile(im.shallow(), have, 0o644, !im.created); err != nil {
		return diskError(opImport, "the end of the history cannot be written", err)
	}
	return nil
}

// shallow is what the mirror's file of that name becomes, gitformat-shallow(5).
func (im *snapshotImport) shallow() string { return filepath.Join(im.dir, "shallow") }

// objects feeds git and the tree. git gets the end of the pack, without which
// it keeps nothing, when the digest is known to be right.
func (im *snapshotImport) objects(ctx context.Context, rd *snapshot.Reader) error {
	args := []string{"index-pack", "--stdin", "--strict=zeroPaddedFilemode=warn,badTimezone=warn"}
	if im.created {
		args = append([]string{"-c", "core.fsync=none"}, args...) // publish makes the whole mirror durable
	}
	in, out, err := os.Pipe()
	if err != nil {
		return diskError(opImport, "git cannot be given a pipe", err)
	}
	defer out.Close()
	_, _ = unix.FcntlInt(out.Fd(), unix.F_SETPIPE_SZ, 1<<20) // it may be more than a user is allowed
	done := make(chan error, 1)
	go func() {
		_, err := im.r.c.run(ctx, command{
			args:   args,
			env:    []string{"GIT_DIR=" + im.gitDir(), "GIT_SHALLOW_FILE=" + im.shallow()},
			input:  in,
			locks:  []*lockFile{im.lock},
			writes: true, bounded: true,
		})
		in.Close() // a write that git no longer reads is EPIPE
		done <- err
	}()
	buffered := bufio.NewWriterSize(out, 256<<10)
	err = im.stream(ctx, rd, buffered)
	if err == nil {
		err = buffered.Flush()
	}
	out.Close() // without its trailer the pack is nothing to git
	gitErr := <-done
	if err := <-im.version; err != nil {
		return err // a git too old may have failed for no other reason
	}
	if err != nil && !errors.Is(err, unix.EPIPE) {
		return err
	}
	if gitErr != nil {
		if stderrHas(gitErr, "fsck error", "error in object", "fsck: ", "invalid object", "Error in object") {
			return policy.Errorf(policy.CodeObjectsInvalid, opImport, "the snapshot holds objects that fail fsck").Because(gitErr)
		}
		return gitFailure(opImport, "the snapshot's objects could not be stored", gitErr)
	}
	return err
}

func (im *snapshotImport) stream(ctx context.Context, rd *snapshot.Reader, to io.Writer) error {
	pack, err := newPackWriter(to, im.header.ObjectFormat, im.header.Objects)
	if err != nil {
		return err
	}
	total, n := im.header.Objects, int64(0)
	for {
		if err := ctx.Err(); err != nil {
			return gitFailure(opImport, "", err)
		}
		o, err := rd.Object()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if n++; n%256 == 0 || n == total {
			im.progress(n, total, rd.Received())
		}
		if err := im.object(ctx, o, rd, pack); err != nil {
			return err
		}
	}
	if err := im.entries(ctx, rd); err != nil {
		return err
	}
	if err := rd.Finish(im.digest); err != nil {
		return err
	}
	return pack.trailer()
}

func (im *snapshotImport) progress(done, total, bytes int64) {
	if f := im.r.c.opts.Progress; f != nil {
		f(Progress{Repo: im.r.id, Phase: "Importing snapshot", Done: done, Total: total, Bytes: bytes})
	}
}

func (im *snapshotImport) object(ctx context.Context, o *snapshot.Object, rd *snapshot.Reader, pack *packWriter) error {
	if o.Type != "blob" {
		b, err := io.ReadAll(o)
		if err != nil {
			return err
		}
		if o.Type == "commit" {
			im.mark = parseCommit(string(b))
		}
		return pack.object(o.Type, b)
	}
	if err := im.beginTree(ctx, rd.Graph()); err != nil {
		return err
	}
	return im.tree.blob(ctx, o, pack)
}

// point is what the archive stands for, as far as the tree needs it.
func (im *snapshotImport) point() policy.RepositoryPoint {
	p := policy.RepositoryPoint{
		RepositoryID: im.r.id, CommitID: im.header.Commit, TreeID: im.mark.Tree,
		CommittedAt: time.Unix(im.mark.CommittedAt, 0).UTC(), Scope: im.header.Scope,
	}
	switch {
	case im.header.Kind == snapshot.KindWorkspace:
		p.Snapshot = im.digest
	case len(im.scope) > 0:
		p.Scope = im.scope
	}
	return p
}

func (im *snapshotImport) entries(ctx context.Context, rd *snapshot.Reader) error {
	if err := im.beginTree(ctx, rd.Graph()); err != nil { // of a commit without files
		return err
	}
	if im.header.Kind != snapshot.KindWorkspace {
		return nil
	}
	if !im.tree.ready {
		return nil // Finish reads them
	}
	return im.tree.entries(ctx, rd)
}

// publish gives everything its name: the mirror, the commit's mark, the archive,
// the tree.
func (im *snapshotImport) publish(ctx context.Context) error {
	r := im.r
	if im.created {
		if err := im.publishMirror(ctx); err != nil {
			return err
		}
	} else {
		if err := im.tree.index(ctx, im.gitDir()); err != nil {
			return err
		}
		if err := errors.Join(os.Rename(im.shallow(), filepath.Join(im.gitDir(), "shallow")), syncDir(im.gitDir())); err != nil {
			return diskError(opImport, "the end of the history cannot be written", err)
		}
	}
	s := im.state
	s.Finished, s.FetchedAt = s.Started, time.Now().UTC()
	if err := r.record(ctx, &s); err != nil {
		return err
	}
	if err := r.keepMark(im.header.Commit, im.mark, false); err != nil {
		return err
	}
	if err := im.keep(); err != nil {
		return diskError(opImport, "the snapshot cannot be recorded", err)
	}
	return im.tree.publish(ctx)
}

// publishMirror waits for a new mirror to be on the disk while the tree gets its index.
func (im *snapshotImport) publishMirror(ctx context.Context) error {
	r := im.r
	if err := os.Rename(im.shallow(), filepath.Join(im.gitDir(), "shallow")); err != nil {
		return diskError(opImport, "the end of the history cannot be written", err)
	}
	if err := r.salvage(ctx, im.gitDir(), im.src, im.lock); err != nil {
		return err
	}
	durable := make(chan error, 1)
	go func() { durable <- errors.Join(os.Chmod(im.gitDir(), 0o755), SyncTree(im.gitDir())) }()
	indexErr := im.tree.index(ctx, im.gitDir())
	err := <-durable
	if indexErr != nil {
		return indexErr
	}
	if err == nil {
		err = errors.Join(os.Rename(im.gitDir(), r.bare()), syncDir(r.dir))
	}
	if err != nil {
		return diskError(opImport, "the mirror cannot be put in place", err)
	}
	im.created = false
	return nil
}

func (im *snapshotImport) keep() error {
	r := im.r
	if err := os.MkdirAll(r.path(snapshotsDir), 0o700); err != nil {
		return err
	}
	if im.header.Kind == snapshot.KindWorkspace {
		archive := filepath.Join(im.dir, "archive")
		f, err := os.Open(archive)
		if err == nil {
			err = errors.Join(f.Sync(), f.Close(), os.Rename(archive, r.keptPath(im.digest)))
		}
		if err != nil {
			return err
		}
	}
	b, err := json.Marshal(imported{im.header.Kind, im.header.Commit, im.header.Scope})
	if err != nil {
		return err
	}
	return writeFile(r.importedPath(im.digest), b, 0o600, false) // lost, it is imported again
}

// makeBare is `git init --bare` without a process: gitrepository-layout(5).
func makeBare(dir, format string) error {
	err := os.Mkdir(dir, 0o700)
	for _, sub := range []string{"objects", "objects/info", "objects/pack", "refs", "refs/heads", "refs/tags"} {
		d := filepath.Join(dir, sub)
		err = errors.Join(err, os.Mkdir(d, 0o755), os.Chmod(d, 0o755))
	}
	config := "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n"
	if format == "sha256" {
		config = "[core]\n\trepositoryformatversion = 1\n\tfilemode = true\n\tbare = true\n[extensions]\n\tobjectformat = sha256\n"
	}
	for name, text := range map[string]string{"config": config, "HEAD": "ref: refs/heads/main\n"} {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	return err
}

// dropImported forgets the archives whose commit has been forgotten, and what a
// crash left of one. The caller holds the mirror's lock.
func (r *repo) dropImported() error {
	entries, err := os.ReadDir(r.path(snapshotsDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name(), ".json")
		var im imported
		b, readErr := os.ReadFile(r.path(snapshotsDir, name+".json"))
		if readErr == nil && json.Unmarshal(b, &im) == nil {
			if _, ok := r.readMark(im.Commit); ok {
				continue
			}
		}
		if rmErr := os.Remove(r.path(snapshotsDir, e.Name())); !errors.Is(rmErr, fs.ErrNotExist) {
			err = errors.Join(err, rmErr)
		}
	}
	return err
}
