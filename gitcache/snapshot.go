package gitcache

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"hash"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/gitcache/index"
	"yoi.dev/yoi-runtime/policy"
)

const opSnapshot = "gitcache.snapshot"

// SnapshotOptions tune HoldSnapshot.
type SnapshotOptions struct {
	Artifacts policy.ArtifactPolicy
	// Volatile is for a holder that does not survive a power failure: nothing is
	// synced.
	Volatile bool
}

// Snapshot is what was taken of a source's working tree.
type Snapshot struct {
	// Digest is "sha256:…" of the files: package cow's Digest of the tree.
	Digest string
	Files  int64 // files and symbolic links
	Bytes  int64
	// Rounds is how often the tree was walked until nothing changed any more.
	Rounds int
	Source SourceState
	// Excluded are the first paths that the artifact policy left out, and
	// ExcludedCount how many there were; a directory counts once.
	Excluded      []string
	ExcludedCount int
}

// SourceState is a source's git state: evidence only, none of it comes along.
type SourceState struct {
	// Head is the ref that HEAD names, "" when it is detached.
	Head string
	// IndexDigest is "sha256:…" of what `git ls-files --stage -z` says: modes, ids,
	// stages and names, without stat data, which any git status may refresh.
	IndexDigest string
	// Operations are in progress: merge, rebase and others.
	Operations []string
	// Staged, Unstaged, Untracked and Conflicted count paths.
	Staged, Unstaged, Untracked, Conflicted int
}

// snapshotAttempts is how often a snapshot is begun anew because the source's
// index or HEAD changed under it.
const snapshotAttempts = 3

// HoldSnapshot is Hold for the working tree that a local source has now: p must
// be the point of its HEAD. Every call makes a tree of its own, of which any
// strategy can make a workspace, and which goes with its last holder
// (ReleasePristine). Its private git directory stands at p, so what the working
// tree has beyond it are uncommitted changes. Of a scope it takes what git's cone mode
// does, untracked files too.
//
// What the tree holds is the working tree at one moment: CopyLive says how that
// is known. The source's index and HEAD are the same before and after.
func (c *Cache) HoldSnapshot(ctx context.Context, src Source, p policy.RepositoryPoint, holder string, o SnapshotOptions) (*Pristine, Snapshot, []policy.Diagnostic, error) {
	r, err := c.pinnable(p, holder)
	if err == nil {
		err = checkTree(p)
	}
	if err != nil {
		return nil, Snapshot{}, nil, err
	}
	key := snapshotKey(p)
	pin, use := r.pinResource(holder, p.CommitID), r.useResource(key, holder)
	if err := c.journal.Intend(ctx, pin, use); err != nil {
		return nil, Snapshot{}, nil, err
	}
	tree, snap, warnings, err := r.holdSnapshot(ctx, src, p, key, holder, o)
	if err != nil {
		after := context.WithoutCancel(ctx)
		undo := errors.Join(r.unuse(key, holder), r.dropSnapshot(after, key), r.unpin(after, holder, p.CommitID))
		if undo == nil {
			undo = errors.Join(c.journal.Release(use), c.journal.Release(pin))
		}
		if undo != nil {
			c.log.Warn("a failed snapshot is left to the ledger", "repository", r.id, "holder", holder, "error", undo)
		}
		return nil, Snapshot{}, nil, err
	}
	return tree, snap, warnings, nil
}

// snapshotKey has the form of a scoped tree's. It is drawn, not derived: what a
// snapshot holds is not known before it is made.
func snapshotKey(p policy.RepositoryPoint) string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return p.TreeID + "." + hex.EncodeToString(b[:])
}

func (r *repo) holdSnapshot(ctx context.Context, src Source, p policy.RepositoryPoint, key, holder string, o SnapshotOptions) (*Pristine, Snapshot, []policy.Diagnostic, error) {
	if err := r.pin(ctx, holder, p.CommitID); err != nil {
		return nil, Snapshot{}, nil, err
	}
	l, err := lock(ctx, r.treePath(key+".lock"), unix.LOCK_EX)
	if err != nil {
		return nil, Snapshot{}, nil, r.lockError(err)
	}
	snap, m, err := r.buildSnapshot(ctx, src, p, key, l, o)
	if err == nil {
		err = r.use(key, holder)
	}
	if err != nil {
		l.unlock()
		return nil, Snapshot{}, nil, err
	}
	// Nobody else knows the key, so the exclusive lock is as good as a shared one.
	return &Pristine{Repo: r.id, Key: key, RelPath: r.rel("trees", key), Tree: m.Tree, r: r, lock: l}, snap, m.Warnings, nil
}

// buildSnapshot is buildPristine from a working tree.
func (r *repo) buildSnapshot(ctx context.Context, src Source, p policy.RepositoryPoint, key string, l *lockFile, o SnapshotOptions) (Snapshot, marker, error) {
	start := time.Now()
	name := policy.NewID(treePrefix(key))
	res := Resource{Kind: "pristine_tree", Owner: string(r.id), Path: r.rel("trees", name)}
	if err := r.c.journal.Intend(ctx, res); err != nil {
		return Snapshot{}, marker{}, err
	}
	t := &taking{r: r, src: src, point: p, dir: r.treePath(name), o: o, lock: l}
	snap, m, err := t.take(ctx)
	if err == nil {
		m.BuiltAt, m.BuildFor = start.UTC(), time.Since(start)
		err = r.publish(ctx, name, key, m, !o.Volatile)
	}
	if err != nil {
		if r.c.removeTop(context.WithoutCancel(ctx), r.treePath(name)) == nil {
			_ = r.c.journal.Release(res)
		}
		return Snapshot{}, m, err
	}
	return snap, m, r.c.journal.Release(res)
}

// dropSnapshot removes a snapshot that nobody holds; other trees stay for the
// next who wants them.
func (r *repo) dropSnapshot(ctx context.Context, key string) error {
	m, ok := r.readMarker(key)
	if ok && !m.Snapshot || !ok && !exists(r.treePath(key+".lock")) {
		return nil
	}
	err := r.withTree(ctx, key, func(lockPath string) error { return r.removeTree(ctx, key, lockPath) })
	if errors.Is(err, errLocked) {
		return nil // somebody is copying from it: a sweep comes by again
	}
	return err
}

// taking is one snapshot in the making.
type taking struct {
	r     *repo
	src   Source
	point policy.RepositoryPoint
	dir   string // the new tree
	o     SnapshotOptions
	lock  *lockFile
}

func (t *taking) take(ctx context.Context) (Snapshot, marker, error) {
	c := t.r.c
	d, err := discover(t.src.URL)
	if err != nil {
		return Snapshot{}, marker{}, err
	}
	if d.top == "" {
		return Snapshot{}, marker{}, policy.Errorf(policy.CodeDirtyPolicyUnsupported, opSnapshot, "the source is bare: it has no working tree")
	}
	for attempt := 1; ; attempt++ {
		if err := c.removeTop(ctx, t.dir); err != nil {
			return Snapshot{}, marker{}, diskError(opSnapshot, "a leftover cannot be removed", err)
		}
		snap, m, err := t.once(ctx, d)
		if err == nil || !errors.Is(err, errSourceMoved) {
			return snap, m, err
		}
		if attempt == snapshotAttempts {
			return snap, m, policy.Errorf(policy.CodeSourceChanged, opSnapshot, "the source's index or HEAD went on changing while its files were read, %d times over", attempt)
		}
	}
}

var errSourceMoved = errors.New("the source's git state changed")

func (t *taking) once(ctx context.Context, d *sourceDir) (Snapshot, marker, error) {
	v, err := t.r.openView(d)
	if err != nil {
		return Snapshot{}, marker{}, unreadable(opSnapshot, err)
	}
	before, tracked, err := t.state(ctx, v)
	if err != nil {
		return Snapshot{}, marker{}, err
	}
	x, err := t.begin(ctx)
	if err != nil {
		return Snapshot{}, marker{}, err
	}
	f := newArtifactFilter(d, t.point.Scope, t.o.Artifacts.Compile(), tracked, x)
	// What git calls the changes is only evidence, and is looked for beside the copy.
	var changes []change
	var changesErr error
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		changes, changesErr = t.r.c.changes(ctx, v)
	}()
	rounds, warnings, err := t.copy(ctx, d, f)
	<-looked
	if err == nil {
		err = changesErr
	}
	if err != nil {
		return Snapshot{}, marker{}, err
	}
	after, _, err := t.state(ctx, v)
	if errors.Is(err, policy.CodeDirtyPolicyUnsupported) { // it was the selected one before
		return Snapshot{}, marker{}, policy.Errorf(policy.CodeSourceChanged, opSnapshot, "the source's HEAD moved to another commit while its files were read").Because(err)
	}
	if err != nil {
		return Snapshot{}, marker{}, err
	}
	if before.Head != after.Head || before.IndexDigest != after.IndexDigest || !slices.Equal(before.Operations, after.Operations) {
		return Snapshot{}, marker{}, errSourceMoved
	}
	after.count(changes)
	snap := Snapshot{Rounds: rounds, Source: after, Excluded: f.excluded, ExcludedCount: f.count}
	m := marker{Commit: t.point.CommitID, Scope: t.point.Scope, Snapshot: true, Warnings: append(warnings, f.warnings...)}
	return snap, m, t.finish(ctx, x, &snap, &m)
}

// state reads the source's git state and the names of its tracked files.
func (t *taking) state(ctx context.Context, v *view) (s SourceState, tracked []string, err error) {
	out, err := t.r.c.run(ctx, v.command("rev-parse", "--verify", "--end-of-options", "HEAD^{commit}"))
	if err != nil {
		return s, nil, gitFailure(opSnapshot, "the source's HEAD could not be read", err)
	}
	if commit := strings.TrimSpace(string(out)); commit != t.point.CommitID {
		return s, nil, policy.Errorf(policy.CodeDirtyPolicyUnsupported, opSnapshot, "the working tree stands on another commit than the selector names").
			WithHint("A snapshot of the working tree stands on the source's HEAD: leave the revision out.").
			With("head", commit).With("selected", t.point.CommitID)
	}
	head, err := readHead(filepath.Join(v.src.gitDir, "HEAD"))
	if err != nil {
		return s, nil, unreadable(opSnapshot, err)
	}
	s.Head = parseHead(string(head)).ref
	s.Operations = v.src.operations()
	if out, err = t.r.c.run(ctx, v.command("ls-files", "--stage", "-z")); err != nil {
		return s, nil, gitFailure(opSnapshot, "the source's index could not be read", err)
	}
	s.IndexDigest = sha256Digest(out)
	for entry := range strings.SplitSeq(string(out), "\x00") {
		if _, name, ok := strings.Cut(entry, "\t"); ok {
			tracked = append(tracked, name)
		}
	}
	return s, tracked, nil
}

func (s *SourceState) count(changes []change) {
	for _, ch := range changes {
		switch ch.kind {
		case "staged":
			s.Staged++
		case "unstaged":
			s.Unstaged++
		case "untracked":
			s.Untracked++
		case "conflicted":
			s.Conflicted++
		}
	}
}

// begin makes the tree's directory with its git directory, and an index of the
// point without stat data: git has to look at every file that keeps none.
func (t *taking) begin(ctx context.Context) (*index.Index, error) {
	r := t.r
	if err := r.makeTop(ctx, t.dir); err != nil {
		return nil, err
	}
	if err := r.writeSkeleton(t.dir, t.point); err != nil {
		return nil, diskError(opSnapshot, "the git directory cannot be written", err)
	}
	args := []string{"read-tree", t.point.TreeID}
	if len(t.point.Scope) > 0 { // a merge is what marks the entries outside of it
		args = []string{"-c", "index.sparse=true", "read-tree", "-m", t.point.TreeID}
	}
	_, err := r.c.run(ctx, command{
		args:  args,
		env:   []string{"GIT_DIR=" + filepath.Join(t.dir, ".git"), "GIT_WORK_TREE=" + t.dir, "GIT_OBJECT_DIRECTORY=" + r.bare("objects")},
		locks: []*lockFile{t.lock}, writes: true, target: t.dir,
	})
	if err != nil {
		return nil, gitFailure(opSnapshot, "the index could not be made", err)
	}
	top, err := os.Open(t.dir)
	if err != nil {
		return nil, diskError(opSnapshot, "the tree cannot be opened", err)
	}
	defer top.Close()
	x, err := readIndex(top)
	if err != nil {
		return nil, gitFailure(opSnapshot, "the index could not be read", err)
	}
	return x, nil
}

func (t *taking) copy(ctx context.Context, d *sourceDir, f *artifactFilter) (int, []policy.Diagnostic, error) {
	source, err := os.OpenFile(d.top, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return 0, nil, unreadable(opSnapshot, err)
	}
	defer source.Close()
	target, err := os.Open(t.dir)
	if err != nil {
		return 0, nil, diskError(opSnapshot, "the tree cannot be opened", err)
	}
	defer target.Close()
	return t.r.c.opts.CopyLive(ctx, source, target, f.directory, t.r.c.copied(t.r.id))
}

func (c *Cache) copied(id policy.RepositoryID) func(int64) {
	if c.opts.Progress == nil {
		return nil
	}
	return func(n int64) { c.opts.Progress(Progress{Repo: id, Phase: "Copying the working tree", Done: n}) }
}

// finish digests the tree and, since that reads every file anyway, gives the
// index the stat data of those that are what the point has.
func (t *taking) finish(ctx context.Context, x *index.Index, snap *Snapshot, m *marker) error {
	top, err := os.Open(t.dir)
	if err != nil {
		return diskError(opSnapshot, "the tree cannot be opened", err)
	}
	defer top.Close()
	known := indexFiles(x)
	blob := func(rel string, size int64) hash.Hash {
		if _, ok := known[rel]; !ok {
			return nil
		}
		return blobHash(x.OIDSize()*2, size)
	}
	done := func(rel string, st *unix.Statx_t, h hash.Hash) {
		i := known[rel]
		e := x.Entry(i)
		if string(h.Sum(nil)) != string(e.OID) || e.Mode != gitMode(st.Mode) {
			return
		}
		s := index.FromStatx(st)
		s.UID, s.GID = workerUID, workerGID
		x.SetStat(i, s)
	}
	if snap.Digest, snap.Files, snap.Bytes, err = t.r.c.opts.DigestTree(ctx, top, ".git", blob, done); err != nil {
		return err
	}
	if err := writeIndex(top, x); err != nil {
		return diskError(opSnapshot, "the index cannot be written", err)
	}
	if m.Git, err = identifyGitFiles(t.dir); err != nil {
		return diskError(opSnapshot, "the git directory cannot be read back", err)
	}
	m.Entries, m.Bytes = int(snap.Files), snap.Bytes
	return nil
}

// indexFiles finds the entries of files by their paths.
func indexFiles(x *index.Index) map[string]int {
	out := make(map[string]int, x.Len())
	for i := range x.Len() {
		if e := x.Entry(i); e.Stage == 0 && !e.IsGitlink() && !e.SkipWorktree {
			out[string(e.Path)] = i
		}
	}
	return out
}

// gitMode is what git records for a file of that mode.
func gitMode(mode uint16) uint32 {
	switch {
	case mode&unix.S_IFMT == unix.S_IFLNK:
		return 0o120000
	case mode&0o100 != 0:
		return 0o100755
	}
	return 0o100644
}
