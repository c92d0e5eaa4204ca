package gitcache

import (
	"bytes"
	"context"
	"crypto/sha1" // #nosec: git's object ids
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/gitcache/index"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/snapshot"
)

// treeFiller makes a pristine tree out of an archive. It stands where checkout
// does for other sources, and leaves to git what only git can judge.
type treeFiller struct {
	r     *repo
	point policy.RepositoryPoint
	dir   string
	top   *os.File
	tree  *snapshot.Tree
	// oids are what a workspace's files are to git: an index entry is only given
	// the stat data of a file that is its blob.
	oids map[string]index.Blob
}

func (r *repo) fillTree(p policy.RepositoryPoint, dir string) (*treeFiller, error) {
	if err := r.writeSkeleton(dir, p); err != nil {
		return nil, diskError(opPristine, "the git directory cannot be written", err)
	}
	top, err := os.Open(dir)
	if err != nil {
		return nil, diskError(opPristine, "the tree cannot be opened", err)
	}
	f := &treeFiller{r: r, point: p, dir: dir, top: top, tree: snapshot.NewTree(top, pastTime(p.CommittedAt))}
	if p.Snapshot != "" {
		f.oids = make(map[string]index.Blob)
	}
	return f, nil
}

// stop ends what a failure left at work.
func (f *treeFiller) stop(ctx context.Context) {
	if f.tree != nil {
		_, _ = f.tree.Finish(context.WithoutCancel(ctx)) // there is an earlier error
		f.tree = nil
	}
	f.top.Close()
}

// entries makes a workspace's files.
func (f *treeFiller) entries(ctx context.Context, rd *snapshot.Reader) error {
	for {
		if err := ctx.Err(); err != nil {
			return gitFailure(opImport, "", err)
		}
		e, content, err := rd.Entry()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		blob := index.Blob{}
		sum := f.blobHash(e.Size)
		switch e.Type {
		case snapshot.File:
			if blob.Mode = 0o100644; e.Mode&0o100 != 0 {
				blob.Mode = 0o100755
			}
			content = io.TeeReader(content, sum)
		case snapshot.Symlink:
			blob.Mode = 0o120000
			sum = f.blobHash(int64(len(e.Target)))
			io.WriteString(sum, e.Target)
		}
		if err := f.tree.Entry(e, content); err != nil {
			return err
		}
		if blob.Mode != 0 {
			blob.OID = string(sum.Sum(nil))
			f.oids[e.Path] = blob
		}
	}
}

func (f *treeFiller) blobHash(size int64) hash.Hash {
	h := sha1.New()
	if len(f.point.TreeID) == 2*sha256.Size {
		h = sha256.New()
	}
	io.WriteString(h, "blob "+strconv.FormatInt(size, 10)+"\x00")
	return h
}

// finish writes the index, whose stat data is that of the files just written.
func (f *treeFiller) finish(ctx context.Context, objects string, l *lockFile) (marker, error) {
	start := time.Now()
	read := make(chan error, 1)
	go func() { // it looks at no file of the tree
		_, err := f.r.c.run(ctx, command{
			args:   []string{"read-tree", "-m", f.point.TreeID},
			env:    []string{"GIT_DIR=" + filepath.Join(f.dir, ".git"), "GIT_WORK_TREE=" + f.dir, "GIT_OBJECT_DIRECTORY=" + objects},
			locks:  []*lockFile{l},
			writes: true,
			target: f.dir,
		})
		read <- err
	}()
	stats, err := f.tree.Finish(ctx)
	files, size := f.tree.Files, f.tree.Bytes
	f.tree = nil
	readErr := <-read
	if err != nil {
		return marker{}, err
	}
	if readErr != nil {
		return marker{}, checkoutError(readErr)
	}
	x, err := readIndex(f.top)
	if err != nil {
		return marker{}, gitFailure(opPristine, "the index could not be read", err)
	}
	missing := 0
	x.Patch(func(e index.Entry) (index.Stat, bool) {
		st, ok := stats[string(e.Path)]
		if ok && f.oids != nil {
			b := f.oids[string(e.Path)]
			ok = b.Mode == e.Mode && b.OID == string(e.OID)
		}
		if !ok {
			missing++
			return index.Stat{}, false
		}
		s := index.FromStatx(&st)
		s.UID, s.GID = workerUID, workerGID
		return s, true
	})
	if missing > 0 && f.oids == nil {
		return marker{}, policy.Errorf(policy.CodeInternal, opPristine, "%d files of the tree were not written", missing)
	}
	when := unix.NsecToTimespec(pastTime(f.point.CommittedAt).UnixNano())
	if err := unix.UtimesNanoAt(int(f.top.Fd()), "", []unix.Timespec{when, when}, unix.AT_EMPTY_PATH); err != nil {
		return marker{}, diskError(opPristine, "the modification times cannot be set", err)
	}
	if f.oids == nil {
		err = f.r.addUntracked(x, f.top)
	}
	if err == nil {
		err = writeIndex(f.top, x)
	}
	if err != nil {
		return marker{}, diskError(opPristine, "the index could not be written", err)
	}
	m := marker{Commit: f.point.CommitID, Scope: f.point.Scope, BuiltAt: start.UTC(), BuildFor: time.Since(start)}
	if m.Git, err = identifyGitFiles(f.dir); err != nil {
		return marker{}, diskError(opPristine, "the git directory cannot be read back", err)
	}
	if err := describe(f.top, x, &m); err != nil {
		return marker{}, err
	}
	if f.oids != nil {
		m.Entries, m.Bytes = files, size
	}
	return m, nil
}

// unpackKept makes a workspace's tree again from the archive in the cache.
func (r *repo) unpackKept(ctx context.Context, p policy.RepositoryPoint, dir string, l *lockFile) (marker, error) {
	kept, err := os.Open(r.keptPath(p.Snapshot))
	if err != nil {
		return marker{}, policy.Errorf(policy.CodeCacheCorrupt, opPristine, "the snapshot's archive is not in the cache").
			WithHint("Import the snapshot again: yoi snapshot import.").Because(err)
	}
	defer kept.Close()
	rd, err := snapshot.NewReader(kept, r.c.rules.Load().limits)
	if err != nil {
		return marker{}, err
	}
	defer rd.Close()
	f, err := r.fillTree(p, dir)
	if err != nil {
		return marker{}, err
	}
	defer f.stop(ctx)
	for {
		if _, err := rd.Object(); err == io.EOF {
			break
		} else if err != nil {
			return marker{}, err
		}
	}
	if err := f.entries(ctx, rd); err != nil {
		return marker{}, err
	}
	if err := rd.Finish(p.Snapshot); err != nil {
		return marker{}, err
	}
	return f.finish(ctx, r.bare("objects"), l)
}

// treeImport is the tree of an archive that is being imported. It may turn out
// that it is there already, or that git has to make it; then ready is false and
// the first use of the point does.
type treeImport struct {
	*treeFiller
	repo  *repo
	ready bool
	key   string
	name  string
	lock  *lockFile
	res   Resource
	files map[string][]snapshot.PlacedFile
	attrs map[string]bool
	links []string
	made  marker
}

// beginTree is called when all tree objects have come.
func (im *snapshotImport) beginTree(ctx context.Context, g *snapshot.Graph) error {
	if im.tree != nil {
		return nil
	}
	r, p := im.r, im.point()
	t := &treeImport{repo: r, key: p.TreeKey(), attrs: g.Attributes}
	im.tree = t
	if hex.EncodeToString([]byte(g.Root)) != p.TreeID {
		return policy.Errorf(policy.CodeInternal, opImport, "the snapshot's commit was read in two ways")
	}
	for _, dir := range p.Scope {
		if !g.HasDir(dir) {
			return policy.Errorf(policy.CodeScopeEmpty, opImport, "%q is not a directory of the snapshot's tree", policy.Printable(dir))
		}
	}
	var err error
	if t.files, t.links, err = g.Places(p.Scope, r.c.rules.Load().limits.Normalize().MaxFiles); err != nil {
		return err
	}
	if g.Suspicious && p.Snapshot == "" {
		return nil
	}
	// Without waiting: a builder holds the tree's lock while it asks for ours.
	if t.lock, err = lock(ctx, r.treePath(t.key+".lock"), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if err == errLocked {
			return nil
		}
		return r.lockError(err)
	}
	if _, ok := r.sound(t.key); ok {
		return nil
	}
	if t.res, t.name, err = r.newTree(ctx, t.key); err != nil {
		t.name = "" // the ledger has not been told
		return err
	}
	t.ready = true
	if err := r.makeTop(ctx, r.treePath(t.name)); err != nil {
		return err
	}
	t.treeFiller, err = r.fillTree(p, r.treePath(t.name))
	return err
}

// blob stores a blob in git, by the pack, and at its places in the tree.
func (t *treeImport) blob(ctx context.Context, o *snapshot.Object, pack *packWriter) error {
	var places []snapshot.PlacedFile
	if t.ready && t.oids == nil {
		places = t.files[o.OID]
	}
	if o.Size > 1<<20 {
		if len(places) > 0 && t.attrs[o.OID] { // nobody writes one of that size: git may read it
			t.abandon(ctx)
			places = nil
		}
		return t.largeBlob(o, places, pack)
	}
	data := make([]byte, o.Size)
	if _, err := io.ReadFull(o, data); err != nil { // whether it is OID's, the next Object says
		return err
	}
	if len(places) > 0 && t.attrs[o.OID] && converts(data) {
		t.abandon(ctx)
		places = nil
	}
	for _, p := range places {
		if err := t.tree.GitBlob(p, data); err != nil {
			return err
		}
	}
	return pack.object("blob", data)
}

// largeBlob writes the first file while git gets the content, and copies the others.
func (t *treeImport) largeBlob(o *snapshot.Object, places []snapshot.PlacedFile, pack *packWriter) error {
	if len(places) == 0 {
		return pack.stream("blob", o.Size, o)
	}
	from, to := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := t.tree.GitFile(places[0], o.Size, from)
		from.CloseWithError(err)
		done <- err
	}()
	err := pack.stream("blob", o.Size, io.TeeReader(o, to))
	to.CloseWithError(err)
	if writeErr := <-done; writeErr != nil && (err == nil || err == writeErr) {
		err = writeErr
	}
	for _, p := range places[1:] {
		if err == nil {
			err = t.copyPlace(places[0].Path, p, o.Size)
		}
	}
	return err
}

func (t *treeImport) copyPlace(from string, p snapshot.PlacedFile, size int64) error {
	f, err := openBeneath(t.top, from, unix.O_RDONLY, 0)
	if err != nil {
		return diskError(opPristine, "a file cannot be read back", err)
	}
	defer f.Close()
	return t.tree.GitFile(p, size, f)
}

// converts reports whether an attributes file may ask for content that is not
// the blob's: then git makes the tree.
func converts(attributes []byte) bool {
	for _, word := range []string{"crlf", "ident", "working-tree-encoding"} {
		if bytes.Contains(attributes, []byte(word)) {
			return true
		}
	}
	return false
}

// index makes the tree whole but for its name.
func (t *treeImport) index(ctx context.Context, gitDir string) (err error) {
	if !t.ready {
		return nil
	}
	if t.oids == nil {
		for _, p := range t.links {
			if err := t.tree.GitLink(p); err != nil {
				return err
			}
		}
	}
	t.made, err = t.finish(ctx, filepath.Join(gitDir, "objects"), t.lock)
	return err
}

func (t *treeImport) publish(ctx context.Context) error {
	if !t.ready {
		return nil
	}
	return t.repo.publish(ctx, t.name, t.key, t.made, false)
}

// abandon leaves the tree to git.
func (t *treeImport) abandon(ctx context.Context) {
	t.drop(ctx)
	t.ready = false
}

// drop removes the temporary tree, if it is there; it is not after publish.
func (t *treeImport) drop(ctx context.Context) {
	if t.treeFiller != nil {
		t.stop(ctx)
		t.treeFiller = nil
	}
	if t.name == "" {
		return
	}
	if t.repo.c.removeTop(context.WithoutCancel(ctx), t.repo.treePath(t.name)) == nil {
		_ = t.repo.c.journal.Release(t.res)
	}
	t.name = ""
}

// end leaves nothing behind but a tree that was published.
func (t *treeImport) end(ctx context.Context) {
	t.drop(ctx)
	if t.lock == nil {
		return
	}
	if !exists(t.repo.treePath(t.key)) {
		_ = os.Remove(t.repo.treePath(t.key + ".lock")) // waiters see that its name is gone
	}
	t.lock.unlock()
}
