package gitcache

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// Commits that were made in a workspace come into the mirror as a pack, as data:
// no ref, configuration or hook of the workspace comes along. The pack is indexed
// and checked in a git directory of its own beside the mirror; only what passed
// is fetched from there. A name keeps it:
//
//	collected/<name>.json                  the record; the name exists while it does
//	bare.git/refs/yoi/collected/<name>/<commit>  what keeps the objects
//
// ("/" in a name is "%2f" in the record's file name.)

const opCollect = "gitcache.collect"

// Collected is a name for commits that a workspace made.
type Collected struct {
	Name     string              `json:"name"`
	CommitID string              `json:"commit_id"`
	TreeID   string              `json:"tree_id"`
	BaseID   string              `json:"base_id"` // the point that the workspace was made of
	Holder   policy.AllocationID `json:"holder"`  // the workspace
	Commits  int                 `json:"commits"`
	Bytes    int64               `json:"bytes"` // of the pack that came
	At       time.Time           `json:"at"`
}

// CollectOptions say what a pack is and what becomes of it.
type CollectOptions struct {
	Name     string
	CommitID string // what the name shall mean
	BaseID   string
	Holder   policy.AllocationID
	Commits  int
	MaxBytes int64
	// Force lets the name leave commits behind that it meant before.
	Force bool
}

// ValidCollectedName refuses names that git would not have as a branch, and those
// with a part that could be taken for an object id.
func ValidCollectedName(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if policy.ValidOID(part) {
			return false
		}
	}
	return validBranch(name) && !strings.ContainsAny(name, "%") && len(name) <= 120
}

const collectedRefs = "refs/yoi/collected/"

func collectedRef(name, commit string) string { return collectedRefs + name + "/" + commit }

func (r *repo) collectedPath(name string) string {
	return r.path("collected", strings.ReplaceAll(name, "/", "%2f")+".json")
}

func (r *repo) collectedResource(name, commit string) Resource {
	return Resource{
		Kind: "cache_reference", Owner: string(r.id), Path: r.rel("bare.git", collectedRef(name, commit)),
		Attrs: map[string]string{"repository": string(r.id), "collected": name, "commit": commit},
	}
}

// Collect reads a pack, which may be thin on what the mirror has, and gives its
// commit a name. The pack is a hostile one's until it is checked.
func (c *Cache) Collect(ctx context.Context, id policy.RepositoryID, o CollectOptions, pack io.Reader) (Collected, error) {
	none := Collected{}
	r, err := c.repo(id)
	switch {
	case err != nil:
		return none, err
	case !ValidCollectedName(o.Name):
		return none, policy.Errorf(policy.CodeSelectorInvalid, opCollect, "%q is not a name for collected commits", policy.Printable(o.Name))
	case !policy.ValidOID(o.CommitID) || !policy.ValidOID(o.BaseID):
		return none, policy.Errorf(policy.CodeSelectorInvalid, opCollect, "the collected commit has no id")
	case !r.exists():
		return none, policy.Errorf(policy.CodeRepositoryUnknown, opCollect, "the repository %s is not in the cache", r.id)
	}
	q, err := r.newQuarantine(ctx, len(o.CommitID) == 64)
	if err != nil {
		return none, err
	}
	size := &sized{r: pack}
	err = r.indexPack(ctx, q, size, o.MaxBytes)
	var rec Collected
	if err == nil {
		rec, err = r.publishCollected(ctx, q, o, size.n)
	}
	if qerr := r.dropQuarantine(context.WithoutCancel(ctx), q); err == nil {
		err = qerr
	}
	return rec, err
}

type sized struct {
	r io.Reader
	n int64
}

func (s *sized) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	s.n += int64(n)
	return n, err
}

// quarantine is a git directory for what nobody has checked yet.
type quarantine struct {
	dir string
	res Resource
}

const quarantinePrefix = ".quarantine-"

// newQuarantine makes a git directory that borrows the mirror's objects.
func (r *repo) newQuarantine(ctx context.Context, sha256 bool) (quarantine, error) {
	name := policy.NewID(quarantinePrefix)
	q := quarantine{dir: r.path(name), res: Resource{Kind: "directory", Owner: string(r.id), Path: r.rel(name)}}
	if err := r.c.journal.Intend(ctx, q.res); err != nil {
		return q, err
	}
	config := "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
	if sha256 {
		config = "[core]\n\trepositoryformatversion = 1\n\tbare = true\n[extensions]\n\tobjectformat = sha256\n"
	}
	var err error
	for _, sub := range []string{"", "objects", "objects/info", "objects/pack", "refs", "refs/heads"} {
		err = errors.Join(err, os.Mkdir(filepath.Join(q.dir, sub), 0o700))
	}
	for _, f := range [][2]string{{"HEAD", "ref: refs/heads/none\n"}, {"config", config}, {"objects/info/alternates", r.bare("objects") + "\n"}} {
		if err == nil {
			err = os.WriteFile(filepath.Join(q.dir, f[0]), []byte(f[1]), 0o600)
		}
	}
	if b, rerr := os.ReadFile(r.bare("shallow")); err == nil && rerr == nil {
		err = os.WriteFile(filepath.Join(q.dir, "shallow"), b, 0o600)
	}
	if err != nil {
		return q, errors.Join(diskError(opCollect, "the quarantine cannot be made", err), r.dropQuarantine(context.WithoutCancel(ctx), q))
	}
	return q, nil
}

func (r *repo) dropQuarantine(_ context.Context, q quarantine) error {
	if err := os.RemoveAll(q.dir); err != nil {
		return diskError(opCollect, "the quarantine cannot be removed", err)
	}
	return r.c.journal.Release(q.res)
}

func (q quarantine) command(args ...string) command {
	return command{args: args, env: []string{"GIT_DIR=" + q.dir}, target: q.dir}
}

// indexPack has git index the pack, and check each object (fsck) and, unless the
// mirror lacks objects on purpose, that whatever an object names is there.
func (r *repo) indexPack(ctx context.Context, q quarantine, pack io.Reader, most int64) error {
	check := "--strict=zeroPaddedFilemode=warn,badTimezone=warn"
	if r.partial() {
		check = "--fsck-objects"
	}
	cmd := q.command("-c", "core.bigFileThreshold=16m", "-c", "pack.windowMemory=64m",
		"index-pack", "--stdin", "--fix-thin", check, "--threads=1", "--max-input-size="+strconv.FormatInt(most, 10))
	cmd.input, cmd.writes, cmd.bounded = pack, true, true
	_, err := r.c.run(ctx, cmd)
	switch {
	case err == nil:
		return nil
	case stderrHas(err, "pack exceeds maximum allowed size"):
		return policy.Errorf(policy.CodeResultTooLarge, opCollect, "the commits are larger than %d bytes", most).Because(err)
	case noSpace(err) != "":
		return policy.Errorf(noSpace(err), opCollect, "%s", fullMessage(noSpace(err))).Because(err)
	}
	var ge *gitError
	if errors.As(err, &ge) {
		return policy.Errorf(policy.CodeObjectsInvalid, opCollect, "the workspace's commits fail git's checks").
			WithHint("Run git fsck in the workspace.").Because(err)
	}
	return gitFailure(opCollect, "the commits could not be read", err)
}

// partial reports whether the mirror lacks objects that were promised to it.
func (r *repo) partial() bool {
	found, err := filepath.Glob(globEscape(r.bare("objects/pack")) + "/*.promisor")
	return err == nil && len(found) > 0
}

// publishCollected takes what has passed into the mirror: objects and ref, then
// the record, then away with what the name meant before.
func (r *repo) publishCollected(ctx context.Context, q quarantine, o CollectOptions, bytes int64) (Collected, error) {
	none := Collected{}
	l, err := lock(ctx, r.path("lock"), unix.LOCK_EX)
	if err != nil {
		return none, gitFailure(opCollect, "the mirror could not be locked", err)
	}
	defer l.unlock()
	before, err := r.replaceable(ctx, q, o)
	if err != nil {
		return none, err
	}
	res := r.collectedResource(o.Name, o.CommitID)
	if err := r.c.journal.Intend(ctx, res); err != nil {
		return none, err
	}
	rec, err := r.takeIn(ctx, q, o, bytes, l)
	if err != nil {
		if before.CommitID == o.CommitID || r.deleteCollectedRef(context.WithoutCancel(ctx), o.Name, o.CommitID) == nil {
			err = errors.Join(err, r.c.journal.Release(res))
		}
		return none, err
	}
	if before.CommitID != "" && before.CommitID != o.CommitID {
		if err := r.deleteCollectedRef(ctx, o.Name, before.CommitID); err != nil {
			return none, diskError(opCollect, "an old ref cannot be removed", err)
		}
	}
	return rec, r.c.journal.Release(res)
}

// replaceable returns what the name means now, nothing if it is free. The caller
// holds the mirror's lock.
func (r *repo) replaceable(ctx context.Context, q quarantine, o CollectOptions) (Collected, error) {
	before, err := r.readCollected(o.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return Collected{}, nil
	}
	if err != nil {
		return before, diskError(opCollect, "a record cannot be read", err)
	}
	if o.Force || before.CommitID == o.CommitID {
		return before, nil
	}
	_, err = r.c.run(ctx, q.command("merge-base", "--is-ancestor", before.CommitID, o.CommitID))
	var ge *gitError
	switch {
	case err == nil:
		return before, nil
	case errors.As(err, &ge) && ge.Exit == 1:
		return before, policy.Errorf(policy.CodeCollectedExists, opCollect, "%s names %.12s of %s, which %.12s does not follow", o.Name, before.CommitID, before.Holder, o.CommitID).
			With("commit", before.CommitID)
	}
	return before, gitFailure(opCollect, "the commits could not be compared", err)
}

// takeIn fetches the commit out of quarantine and writes the name's record.
func (r *repo) takeIn(ctx context.Context, q quarantine, o CollectOptions, bytes int64, l *lockFile) (Collected, error) {
	from := Source{URL: q.dir}
	_, err := r.c.run(ctx, command{
		args: []string{"fetch", "--force", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--no-recurse-submodules", "--update-shallow",
			"--upload-pack=" + r.c.uploadPack(from), "--end-of-options", remoteName, "+" + o.CommitID + ":" + collectedRef(o.Name, o.CommitID)},
		env:    append(remoteEnv(q.dir), "GIT_DIR="+r.bare()),
		locks:  []*lockFile{l},
		writes: true,
	})
	if err != nil {
		r.clearStale()
		return Collected{}, r.fetchError(from, false, err)
	}
	if err := r.connected(ctx, r.bare(), o.CommitID); err != nil {
		return Collected{}, policy.Errorf(policy.CodeObjectsInvalid, opCollect, "the workspace's commits lack objects").Because(err)
	}
	s := r.readState()
	if s.Packs, err = packFiles(r.bare()); err == nil {
		err = r.writeState(s)
	}
	if err != nil {
		return Collected{}, diskError(opCollect, "the state cannot be written", err)
	}
	m, err := r.writeMark(ctx, o.CommitID)
	if err != nil {
		return Collected{}, err
	}
	rec := Collected{Name: o.Name, CommitID: o.CommitID, TreeID: m.Tree, BaseID: o.BaseID, Holder: o.Holder, Commits: o.Commits, Bytes: bytes, At: time.Now().UTC()}
	b, err := json.Marshal(rec)
	if err == nil {
		err = os.MkdirAll(r.path("collected"), 0o700)
	}
	if err == nil {
		err = writeFile(r.collectedPath(o.Name), b, 0o600, true)
	}
	if err == nil {
		err = syncDir(r.dir)
	}
	if err != nil {
		return Collected{}, diskError(opCollect, "the record cannot be written", err)
	}
	return rec, nil
}

func (r *repo) readCollected(name string) (rec Collected, err error) {
	b, err := os.ReadFile(r.collectedPath(name))
	if err == nil {
		err = json.Unmarshal(b, &rec)
	}
	if err == nil && (!policy.ValidOID(rec.CommitID) || !ValidCollectedName(rec.Name)) {
		err = errors.New("the record makes no sense")
	}
	return rec, err
}

// Collected lists a repository's names, sorted.
func (c *Cache) Collected(id policy.RepositoryID) ([]Collected, error) {
	r, err := c.repo(id)
	if err != nil {
		return nil, err
	}
	out, err := r.collected()
	if err != nil {
		return nil, diskError(opCollect, "the records cannot be read", err)
	}
	return out, nil
}

func (r *repo) collected() ([]Collected, error) {
	entries, err := os.ReadDir(r.path("collected"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []Collected
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok {
			continue // a writer that was cut off
		}
		rec, rerr := r.readCollected(strings.ReplaceAll(name, "%2f", "/"))
		if errors.Is(rerr, fs.ErrNotExist) { // dropped just now
			continue
		}
		err = errors.Join(err, rerr)
		if rerr == nil {
			out = append(out, rec)
		}
	}
	slices.SortFunc(out, func(a, b Collected) int { return strings.Compare(a.Name, b.Name) })
	return out, err
}

// ExportCollected writes a git bundle of a name's commits to w, in which they are
// the branch of that name. It needs the commit that the workspace was made of.
func (c *Cache) ExportCollected(ctx context.Context, id policy.RepositoryID, name string, w io.Writer) error {
	r, rec, err := c.oneCollected(id, name)
	if err != nil {
		return err
	}
	q, err := r.newQuarantine(ctx, len(rec.CommitID) == 64)
	if err != nil {
		return err
	}
	ref := "refs/heads/" + name
	path := filepath.Join(q.dir, ref)
	if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
		err = os.WriteFile(path, []byte(rec.CommitID+"\n"), 0o600)
	}
	if err != nil {
		err = diskError(opCollect, "the ref cannot be written", err)
	} else {
		cmd := q.command("bundle", "create", "-q", "-", ref, "^"+rec.BaseID)
		cmd.output = w
		if _, err = c.run(ctx, cmd); err != nil {
			err = gitFailure(opCollect, "the bundle could not be made", err)
		}
	}
	return errors.Join(err, r.dropQuarantine(context.WithoutCancel(ctx), q))
}

func (c *Cache) oneCollected(id policy.RepositoryID, name string) (*repo, Collected, error) {
	r, err := c.repo(id)
	if err != nil {
		return nil, Collected{}, err
	}
	missing := policy.Errorf(policy.CodeSelectorMissing, opCollect, "nothing was collected as %q", policy.Printable(name)).WithHint("See yoi repo collected.")
	if !ValidCollectedName(name) {
		return nil, Collected{}, missing
	}
	rec, err := r.readCollected(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, rec, missing
	}
	if err != nil {
		return nil, rec, diskError(opCollect, "a record cannot be read", err)
	}
	return r, rec, nil
}

// DropCollected forgets a name. Its commits stay as long as something else needs
// them.
func (c *Cache) DropCollected(ctx context.Context, id policy.RepositoryID, name string) error {
	r, rec, err := c.oneCollected(id, name)
	if err != nil {
		return err
	}
	l, err := lock(ctx, r.path("lock"), unix.LOCK_EX)
	if err != nil {
		return gitFailure(opCollect, "the mirror could not be locked", err)
	}
	defer l.unlock()
	if rec, err = r.readCollected(name); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		// The record first: a ref without one is swept, a record without a ref mended.
		if err = os.Remove(r.collectedPath(name)); err == nil {
			err = errors.Join(syncDir(r.path("collected")), r.deleteCollectedRef(ctx, name, rec.CommitID))
		}
	}
	if err != nil {
		return diskError(opCollect, "the name cannot be dropped", err)
	}
	return nil
}

func (r *repo) deleteCollectedRef(ctx context.Context, name, commit string) error {
	ref := collectedRef(name, commit)
	if err := r.deleteRef(ctx, ref); err != nil {
		return err
	}
	for dir := filepath.Dir(ref); dir+"/" != collectedRefs; dir = filepath.Dir(dir) {
		if os.Remove(r.bare(dir)) != nil {
			break // other names are in it
		}
	}
	return nil
}

// RecoverCollected ends what a dead process had begun: a ref whose name has no
// record of that commit goes.
func (c *Cache) RecoverCollected(ctx context.Context, id policy.RepositoryID, name, commit string) error {
	r, err := c.repo(id)
	if err != nil {
		return err
	}
	if !ValidCollectedName(name) || !policy.ValidOID(commit) {
		return policy.Errorf(policy.CodeLeftoverForeign, opCollect, "the ledger names a collected ref that the cache never makes")
	}
	if r.exists() {
		l, err := lock(ctx, r.path("lock"), unix.LOCK_EX)
		if err != nil {
			return gitFailure(opCollect, "the mirror could not be locked", err)
		}
		defer l.unlock()
		if err := r.sweepCollected(ctx); err != nil {
			return diskError(opCollect, "a ref cannot be removed", err)
		}
	}
	return c.journal.Release(r.collectedResource(name, commit))
}

// sweepCollected makes refs and records agree: the records are right. The caller
// holds the mirror's lock.
func (r *repo) sweepCollected(ctx context.Context) error {
	recs, err := r.collected()
	if err != nil {
		return err
	}
	want := make(map[string]bool, len(recs))
	for _, rec := range recs {
		ref := collectedRef(rec.Name, rec.CommitID)
		want[ref] = true
		if err := r.writeRef(ref, rec.CommitID); err != nil {
			return err
		}
	}
	have, err := yoiRefs(r.bare())
	if err != nil {
		return err
	}
	for ref, commit := range have {
		name, ok := strings.CutPrefix(ref, collectedRefs)
		if ok && !want[ref] {
			err = errors.Join(err, r.deleteCollectedRef(ctx, strings.TrimSuffix(name, "/"+commit), commit))
		}
	}
	return err
}

// resolveCollected finds what a name means.
func (r *repo) resolveCollected(ctx context.Context, name string) (string, mark, error) {
	_, rec, err := r.c.oneCollected(r.id, name)
	if err != nil {
		return "", mark{}, err
	}
	if m, ok := r.readMark(rec.CommitID); ok && r.healthy() {
		return rec.CommitID, m, nil
	}
	l, err := lock(ctx, r.path("lock"), unix.LOCK_EX)
	if err != nil {
		return "", mark{}, gitFailure(opResolve, "the mirror could not be locked", err)
	}
	defer l.unlock()
	if !r.healthy() {
		if err := r.mendLocked(ctx, l); err != nil {
			return "", mark{}, err
		}
	}
	m, err := r.writeMark(ctx, rec.CommitID)
	return rec.CommitID, m, err
}
