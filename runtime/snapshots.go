package runtime

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/gitcache"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/snapshot"
	"yoi.dev/yoi-runtime/snapshot/store"
)

const opSnapshot = "runtime.snapshot"

// ExportSnapshotRequest names what to export: a point of a repository, or a
// workspace that no Worker lives in.
type ExportSnapshotRequest struct {
	// Store is a directory's absolute path, an http or https URL, or s3://BUCKET/PREFIX.
	Store        string              `json:"store"`
	RepositoryID policy.RepositoryID `json:"repository_id,omitempty"`
	Selector     policy.Selector     `json:"selector,omitzero"`
	Scope        []string            `json:"scope,omitempty"`
	// AllocationID exports the files of a workspace as they are; with several
	// repositories, RepositoryID says whose.
	AllocationID policy.AllocationID `json:"allocation_id,omitempty"`
}

// StoredSnapshot is an archive in a store.
type StoredSnapshot struct {
	Digest string `json:"digest"`
	// Kind is point or workspace.
	Kind   string                 `json:"kind"`
	Point  policy.RepositoryPoint `json:"point"`
	Source string                 `json:"source"` // the store, as yoi repo add takes it
	// Objects counts git objects, Files a workspace's files; Bytes is the archive's size.
	Objects   int64               `json:"objects"`
	Files     int64               `json:"files,omitempty"`
	Bytes     int64               `json:"bytes"`
	CreatedAt time.Time           `json:"created_at"`
	Warnings  []policy.Diagnostic `json:"warnings,omitempty"`
}

// ImportSnapshotRequest takes an archive into the cache. The store becomes a
// repository, unless it is one: RepositoryID names it, "" takes the store's name.
type ImportSnapshotRequest struct {
	Store        string              `json:"store"`
	Digest       string              `json:"digest"`
	RepositoryID policy.RepositoryID `json:"repository_id,omitempty"`
	Scope        []string            `json:"scope,omitempty"`
}

// StoredSnapshotList is a store's archives, oldest first.
type StoredSnapshotList struct {
	Items []StoredSnapshotItem `json:"items"`
}

// StoredSnapshotItem is one archive of a listing.
type StoredSnapshotItem = store.Item

const credentialsFile = "snapshot-credentials.toml"

// snapshotStore opens the store at a location with the operator's credentials.
func (r *Runtime) snapshotStore(location string) (store.Store, snapshot.Location, error) {
	l, err := snapshot.ParseLocation(location)
	if err != nil {
		return nil, l, err
	}
	if l.Scheme == "file" {
		if err := checkOverlap(r.root.Path, l.Path, "the snapshot store"); err != nil {
			return nil, l, err
		}
	}
	file, err := r.readCredentials()
	if err != nil {
		return nil, l, err
	}
	c, err := store.FindCredentials(file, l)
	if err != nil {
		return nil, l, err
	}
	s, err := store.Open(l, store.Options{Credentials: c, Stall: r.config().snapshotLimits().StallTimeout})
	return s, l, err
}

// readCredentials reads the file only if nobody else can.
func (r *Runtime) readCredentials() ([]byte, error) {
	f, err := r.root.OpenFile(credentialsFile, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, policy.Errorf(policy.CodeConfigInvalid, opSnapshot, "%s cannot be read", credentialsFile).Because(err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, policy.Errorf(policy.CodeConfigInvalid, opSnapshot, "%s is not a regular file", credentialsFile).Because(err)
	}
	if st.Mode&0o077 != 0 || (int(st.Uid) != os.Geteuid() && int(st.Uid) != r.root.UID) {
		return nil, policy.Errorf(policy.CodeSnapshotCredentials, opSnapshot, "%s has mode %04o", credentialsFile, st.Mode&0o7777)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxConfigSize))
	if err != nil {
		return nil, policy.Errorf(policy.CodeConfigInvalid, opSnapshot, "%s cannot be read", credentialsFile).Because(err)
	}
	return b, nil
}

// openSnapshot is the cache's way to an archive.
func (r *Runtime) openSnapshot(ctx context.Context, location, digest string) (io.ReadCloser, error) {
	s, _, err := r.snapshotStore(location)
	if err != nil {
		return nil, err
	}
	return s.Get(ctx, digest)
}

func checkDigest(digest string) error {
	if !policy.ValidDigest(digest) {
		return policy.Errorf(policy.CodeBadRequest, opSnapshot, "%q is not sha256: and 64 hexadecimal digits", policy.Printable(digest))
	}
	return nil
}

// ExportSnapshot writes an archive into a nameless file of the Runtime root, for
// only then is its name known, and from there to the store.
func (r *Runtime) ExportSnapshot(ctx context.Context, req ExportSnapshotRequest) (StoredSnapshot, error) {
	s, location, err := r.snapshotStore(req.Store)
	if err != nil {
		return StoredSnapshot{}, err
	}
	out := StoredSnapshot{Kind: string(snapshot.KindPoint), Source: snapshotSource(location), CreatedAt: r.now()}
	var files func(*snapshot.Writer) error
	if req.AllocationID != "" {
		out.Kind = string(snapshot.KindWorkspace)
		done, err := r.exportWorkspace(ctx, req, &out, &files)
		if err != nil {
			return out, err
		}
		defer done()
	} else if err := r.exportPoint(ctx, req, &out); err != nil {
		return out, err
	}
	f, err := r.nameless()
	if err != nil {
		return out, err
	}
	defer f.Close()
	if err := r.writeArchive(ctx, f, &out, files); err != nil {
		return out, err
	}
	if err := s.Put(ctx, out.Digest, f, out.Bytes); err != nil {
		return out, err
	}
	r.event(policy.EventSnapshotExported, string(out.Point.RepositoryID), map[string]string{"digest": out.Digest, "kind": out.Kind})
	return out, nil
}

func snapshotSource(l snapshot.Location) string { return "snapshot+" + l.String() }

func (r *Runtime) exportPoint(ctx context.Context, req ExportSnapshotRequest, out *StoredSnapshot) error {
	res, err := r.Resolve(ctx, ResolveRequest{RepositoryID: req.RepositoryID, Selector: req.Selector, Scope: req.Scope})
	if err != nil {
		return err
	}
	if res.Point.Snapshot != "" {
		return policy.Errorf(policy.CodeBadRequest, opSnapshot, "the selector names a workspace's snapshot, which is one already")
	}
	out.Point, out.Warnings = res.Point, res.Warnings
	return nil
}

// exportWorkspace looks at a workspace's tree. No Worker may live in it: what
// the walk sees must be one state of it.
func (r *Runtime) exportWorkspace(ctx context.Context, req ExportSnapshotRequest, out *StoredSnapshot, files *func(*snapshot.Writer) error) (done func(), err error) {
	if len(req.Scope) > 0 || req.Selector != (policy.Selector{}) {
		return nil, policy.Errorf(policy.CodeBadRequest, opSnapshot, "a workspace is exported as it is: it takes no selector and no scope")
	}
	if err := policy.CheckID("allocation", string(req.AllocationID)); err != nil {
		return nil, err
	}
	a, err := r.registry.GetAllocation(ctx, req.AllocationID)
	if err != nil {
		return nil, err
	}
	if a.Status != registry.AllocationActive && a.Status != registry.AllocationStopped && a.Status != registry.AllocationFailed {
		return nil, policy.Errorf(policy.CodeAllocationNotActive, opSnapshot, "the execution workspace %s is %s", a.ID, a.Status)
	}
	i := slices.IndexFunc(a.Mounts, func(m registry.Mount) bool { return m.RepositoryID == req.RepositoryID })
	if req.RepositoryID == "" && len(a.Mounts) == 1 {
		i = 0
	}
	switch {
	case i < 0:
		return nil, policy.Errorf(policy.CodeRepositoryUnknown, opSnapshot, "the workspace has no repository %q", policy.Printable(string(req.RepositoryID))).
			WithHint("Name one of the workspace's repositories.")
	case a.Mounts[i].Strategy == policy.StrategyDirect:
		return nil, policy.Errorf(policy.CodeStrategyUnsupported, opSnapshot, "a directly mounted source is not a workspace that can be exported")
	}
	if err := r.nobodyLives(ctx, a.ID); err != nil {
		return nil, err
	}
	upper, lower, err := r.treeLayers(a.ID, a.Mounts[i])
	if err != nil {
		return nil, err
	}
	done = func() {
		upper.Close()
		if lower != nil {
			lower.Close()
		}
	}
	tree, err := snapshot.Walk(ctx, upper, lower, r.config().snapshotLimits())
	if err != nil {
		done()
		return nil, err
	}
	out.Point = a.RepositoryPoints[i]
	out.Files = tree.Files
	*files = func(w *snapshot.Writer) error {
		err := tree.Write(ctx, w, func(n int64) {
			r.showProgress("Exporting files", n, tree.Files)
		})
		out.Warnings = append(out.Warnings, tree.Warnings()...)
		if err == nil {
			err = r.nobodyLives(ctx, a.ID) // nor has come meanwhile
		}
		return err
	}
	return done, nil
}

func (r *Runtime) nobodyLives(ctx context.Context, id policy.AllocationID) error {
	live, err := r.liveWorkers(ctx, id)
	if err == nil && len(live) > 0 {
		err = policy.Errorf(policy.CodeAllocationInUse, opSnapshot, "the worker %s lives in the execution workspace", live[0].ID)
	}
	return err
}

// treeLayers opens what a workspace's tree is made of.
func (r *Runtime) treeLayers(id policy.AllocationID, m registry.Mount) (upper, lower *os.File, err error) {
	dir := rootdir.Repository(id, m.RepositoryID)
	if m.Strategy == policy.StrategyOverlay {
		dir = rootdir.Layers(id, m.RepositoryID) + "/upper"
		if lower, err = r.root.OpenDir(rootdir.Tree(m.RepositoryID, m.Tree)); err != nil {
			return nil, nil, policy.Errorf(policy.CodeCacheCorrupt, opSnapshot, "the workspace's pristine tree is gone").Because(err)
		}
	}
	if upper, err = r.root.OpenDir(dir); err != nil {
		if lower != nil {
			lower.Close()
		}
		return nil, nil, policy.Errorf(policy.CodeInternal, opSnapshot, "the workspace cannot be opened").Because(err)
	}
	return upper, lower, nil
}

// nameless makes a file that no crash can leave behind, open(2) O_TMPFILE.
func (r *Runtime) nameless() (*os.File, error) {
	dir, err := r.root.OpenDir(rootdir.Tmp)
	if err != nil {
		return nil, policy.Errorf(policy.CodeRuntimeRootInvalid, opSnapshot, "the Runtime root has no %s", rootdir.Tmp).Because(err)
	}
	defer dir.Close()
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_RDWR|unix.O_TMPFILE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, policy.Errorf(policy.CodeInternal, opSnapshot, "a temporary file cannot be made").Because(err)
	}
	return os.NewFile(uintptr(fd), "archive"), nil
}

func (r *Runtime) writeArchive(ctx context.Context, f *os.File, out *StoredSnapshot, files func(*snapshot.Writer) error) error {
	p := out.Point
	// GC must not drop the objects while they are read.
	holder := policy.NewID("export-")
	if err := r.cache.Pin(ctx, p, holder); err != nil {
		return err
	}
	defer func() {
		if err := r.cache.Unpin(context.WithoutCancel(ctx), p.RepositoryID, p.CommitID, holder); err != nil {
			r.log.Warn("an export's pin is left to the ledger", "error", err)
		}
	}()
	oids, err := r.cache.TreeObjects(ctx, p)
	if err != nil {
		return err
	}
	out.Objects = int64(len(oids))
	h := snapshot.Header{Kind: snapshot.Kind(out.Kind), ObjectFormat: "sha1", Commit: p.CommitID, Objects: out.Objects, Scope: p.Scope}
	if len(p.CommitID) == 64 {
		h.ObjectFormat = "sha256"
	}
	w, err := snapshot.NewWriter(f, h)
	if err != nil {
		return writeError(err)
	}
	n := int64(0)
	err = r.cache.ReadObjects(ctx, p.RepositoryID, oids, func(size int64, content io.Reader) error {
		if n++; n%256 == 0 {
			r.showProgress("Exporting objects", n, out.Objects)
		}
		return w.Object(size, content)
	})
	if err == nil && files != nil {
		err = files(w)
	}
	if err == nil {
		out.Digest, err = w.Finish()
	}
	if err == nil {
		out.Bytes, err = f.Seek(0, io.SeekEnd)
	}
	return writeError(err)
}

func writeError(err error) error {
	var d *policy.Diagnostic
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return policy.Errorf(policy.CodeDiskFull, opSnapshot, "the Runtime root's file system is full").Because(err)
	case errors.As(err, &d):
		return err
	}
	return policy.Errorf(policy.CodeInternal, opSnapshot, "the snapshot cannot be written").Because(err)
}

func (r *Runtime) showProgress(phase string, done, total int64) {
	if r.progress != nil {
		r.progress(gitcache.Progress{Phase: phase, Done: done, Total: total})
	}
}

// ImportSnapshot fetches and checks an archive and fills the cache from it.
func (r *Runtime) ImportSnapshot(ctx context.Context, req ImportSnapshotRequest) (ResolveResult, error) {
	if err := checkDigest(req.Digest); err != nil {
		return ResolveResult{}, err
	}
	_, l, err := r.snapshotStore(req.Store)
	if err != nil {
		return ResolveResult{}, err
	}
	src, err := sourceOf(snapshotSource(l), "/")
	if err != nil {
		return ResolveResult{}, err
	}
	if req.RepositoryID != "" {
		repo, err := r.AddRepository(ctx, AddRepositoryRequest{ID: req.RepositoryID, Source: src.URL})
		if err != nil {
			return ResolveResult{}, err
		}
		src.ID = repo.ID
	} else if src, err = r.adoptSource(ctx, src); err != nil {
		return ResolveResult{}, err
	}
	return r.Resolve(ctx, ResolveRequest{RepositoryID: src.ID, Selector: policy.Selector{Kind: policy.SelectSnapshot, Value: req.Digest}, Scope: req.Scope})
}

// ListStoredSnapshots lists a store's archives.
func (r *Runtime) ListStoredSnapshots(ctx context.Context, location string) (StoredSnapshotList, error) {
	s, _, err := r.snapshotStore(location)
	if err != nil {
		return StoredSnapshotList{}, err
	}
	items, err := s.List(ctx)
	if items == nil {
		items = []StoredSnapshotItem{}
	}
	return StoredSnapshotList{Items: items}, err
}

// RemoveStoredSnapshot takes an archive out of a store; what was imported stays in caches.
func (r *Runtime) RemoveStoredSnapshot(ctx context.Context, location string, digest policy.SnapshotDigest) error {
	if err := checkDigest(string(digest)); err != nil {
		return err
	}
	s, _, err := r.snapshotStore(location)
	if err != nil {
		return err
	}
	if err := s.Remove(ctx, string(digest)); err != nil {
		return err
	}
	r.event(policy.EventSnapshotRemoved, strings.TrimPrefix(string(digest), "sha256:"), nil)
	return nil
}

// checkSnapshots is the part of checkPolicy that is about snapshot stores.
func (c *creation) checkSnapshots() error {
	for _, repo := range c.repos {
		stored := strings.HasPrefix(repo.source.URL, "snapshot+")
		if c.strategy == policy.StrategyRemoteSnapshot && !stored {
			return policy.Errorf(policy.CodeStrategyUnsupported, "runtime.create", "remote_snapshot takes repositories that are snapshot stores, and %s is none", repo.source.ID).
				WithHint("Import one first: yoi snapshot import.")
		}
		if checksOut(c.strategy) && stored {
			return policy.Errorf(policy.CodeStrategyUnsupported, "runtime.create", "%s makes the files of a commit only, not of a snapshot", c.strategy).
				WithHint("Use remote_snapshot or auto.")
		}
	}
	return nil
}

// cloneStrategy is how the trees of the cache become the workspace's.
func (c *creation) cloneStrategy() policy.StrategyName {
	if c.strategy == policy.StrategyRemoteSnapshot {
		return policy.StrategyAuto
	}
	return c.strategy
}

// recordSnapshot is the evidence of files that came along with an archive. Git
// sees them as changes of the point; they are safe in the store.
func (c *creation) recordSnapshot(ctx context.Context, i int) error {
	repo := &c.repos[i]
	d := DirtyState{
		RepositoryID: repo.point.RepositoryID, Kind: policy.CurrentWorktreeSnapshot, Digest: repo.point.Snapshot,
		Files: repo.tree.Entries, Bytes: repo.tree.Bytes, CreatedAt: c.r.now(),
	}
	if err := c.baseline(ctx, i, &d); err != nil {
		return err
	}
	c.dirtyStates = append(c.dirtyStates, d)
	return nil
}
