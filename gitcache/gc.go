package gitcache

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

const opGC = "gitcache.gc"

// GC repacks a mirror and drops objects that nothing needs. Needed are: the
// branches and tags, every point resolved lately, every pin, and every ref that
// was listed into the private git directory of a holder that still has a pin,
// since a workspace's git reads those objects from here.
func (c *Cache) GC(ctx context.Context, id policy.RepositoryID, o GCOptions) (GCReport, error) {
	r, err := c.repo(id)
	if err != nil {
		return GCReport{}, err
	}
	if !r.exists() {
		return GCReport{}, policy.Errorf(policy.CodeRepositoryUnknown, opGC, "the repository %s is not in the cache", r.id)
	}
	if o.UnusedFor <= 0 {
		o.UnusedFor = 7 * 24 * time.Hour
	}
	if o.Expire <= 0 {
		o.Expire = 14 * 24 * time.Hour
	}
	l, err := lock(ctx, r.path("lock"), unix.LOCK_EX)
	if err != nil {
		return GCReport{}, gitFailure(opGC, "the mirror could not be locked", err)
	}
	defer l.unlock()
	if err := r.mendForGC(ctx, l); err != nil {
		return GCReport{}, err
	}
	var rep GCReport
	rep.BytesBefore = diskUsage(r.bare())
	if rep.PointsDropped, err = r.forget(ctx, o); err != nil {
		return rep, err
	}
	err = r.repack(ctx, o.Expire, l)
	if errors.Is(err, policy.CodeGitFailed) { // it reads every object that it moves
		if err = r.mendLocked(ctx, l); err == nil {
			err = r.repack(ctx, o.Expire, l)
		}
	}
	if err != nil {
		return rep, err
	}
	rep.BytesAfter = diskUsage(r.bare())
	return rep, r.settleTrees(ctx)
}

// mendForGC rebuilds a mirror whose packs are not what they were. Collecting in
// a damaged one could drop the last good copy of an object.
func (r *repo) mendForGC(ctx context.Context, l *lockFile) error {
	s := r.readState()
	if s.Started > s.Finished {
		r.clearStale()
	}
	damaged, err := r.packsDamaged(ctx, s)
	if err != nil || !damaged {
		return err
	}
	return r.rebuild(ctx, l)
}

// forget decides, with no pin being made meanwhile, what is not needed.
func (r *repo) forget(ctx context.Context, o GCOptions) (int, error) {
	l, err := lock(ctx, r.path("pins.lock"), unix.LOCK_EX)
	if err != nil {
		return 0, gitFailure(opGC, "the pins could not be locked", err)
	}
	defer l.unlock()
	pins, err := r.pins()
	if err != nil {
		return 0, diskError(opGC, "the pins cannot be read", err)
	}
	pinned := make(map[string]bool)
	for _, p := range pins {
		pinned[p.commit] = true
	}
	for _, commit := range o.Keep {
		pinned[commit] = true
	}
	if err := r.clearPending(true); err != nil {
		return 0, diskError(opGC, "a leftover cannot be removed", err)
	}
	if err := r.mendPins(); err != nil {
		return 0, diskError(opGC, "a pin cannot be written", err)
	}
	if err := r.sweepCollected(ctx); err != nil {
		return 0, diskError(opGC, "a collected ref cannot be removed", err)
	}
	recs, err := r.collected()
	if err != nil {
		return 0, diskError(opGC, "the records of collected commits cannot be read", err)
	}
	for _, rec := range recs { // resolving one needs its mark
		pinned[rec.CommitID] = true
	}
	if err := r.keepListed(ctx, pins, o.Keep); err != nil {
		return 0, err
	}
	dropped, err := r.dropPoints(ctx, pinned, time.Now().Add(-o.UnusedFor))
	if err == nil {
		err = r.dropImported()
	}
	if err == nil && len(pins) == 0 {
		err = r.c.removeTemporary(ctx, r.dir, brokenPrefix)
	}
	if err != nil {
		return dropped, diskError(opGC, "a point cannot be dropped", err)
	}
	return dropped, nil
}

// clearPending removes what dead writers of refs left. The caller holds the mirror's lock,
// under which all but pins are written, and for those the pins'.
func (r *repo) clearPending(pins bool) error {
	entries, err := os.ReadDir(r.path("pending"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		pin := strings.HasPrefix(e.Name(), pinPrefix)
		if !strings.HasPrefix(e.Name(), awayPrefix) && (pins || !pin) {
			err = errors.Join(err, os.Remove(r.path("pending", e.Name())))
		}
	}
	return err
}

func (r *repo) dropPoints(ctx context.Context, pinned map[string]bool, before time.Time) (int, error) {
	marks, err := os.ReadDir(r.path("points"))
	if err != nil {
		return 0, err
	}
	n := 0
	for _, m := range marks {
		st, err := m.Info()
		if err != nil || pinned[m.Name()] || st.ModTime().After(before) {
			continue
		}
		if err := os.Remove(r.markPath(m.Name())); err != nil { // before its ref: a mark is a promise
			return n, err
		}
		if err := r.deleteRef(ctx, pointRef(m.Name())); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// keepListed makes refs/yoi/keep hold every object that a listing of a live
// holder names, and drops the listings that none can have any more.
func (r *repo) keepListed(ctx context.Context, pins []pin, keep []string) error {
	current := r.readState().Listing
	oldest := current
	for _, p := range pins {
		oldest = min(oldest, p.listing)
	}
	want := make(map[string]bool)
	for _, oid := range keep {
		if policy.ValidOID(oid) {
			want[oid] = true
		}
	}
	for _, g := range r.listings() {
		switch {
		case g < oldest:
			if err := os.Remove(r.listingPath(g)); err != nil {
				return diskError(opGC, "an old listing cannot be removed", err)
			}
		case g < current: // the current one's objects have their refs
			text, err := os.ReadFile(r.listingPath(g))
			if err != nil {
				return diskError(opGC, "a listing cannot be read", err)
			}
			listedObjects(text, want)
		}
	}
	present, err := r.present(ctx, want)
	if err != nil {
		return err
	}
	return r.replaceKeeps(ctx, present)
}

func listedObjects(listing []byte, into map[string]bool) {
	for line := range bytes.Lines(listing) {
		oid, _, ok := bytes.Cut(line, []byte(" "))
		if ok && policy.ValidOID(string(oid)) {
			into[string(oid)] = true
		}
	}
}

// present keeps the objects that the mirror has.
func (r *repo) present(ctx context.Context, oids map[string]bool) ([]string, error) {
	missing, err := r.missing(ctx, slices.Collect(maps.Keys(oids)))
	if err != nil {
		return nil, err
	}
	for _, oid := range missing {
		delete(oids, oid)
	}
	return slices.Collect(maps.Keys(oids)), nil
}

func (r *repo) replaceKeeps(ctx context.Context, oids []string) error {
	want := make(map[string]bool)
	for _, oid := range oids {
		want[oid] = true
		if err := r.writeRef("refs/yoi/keep/"+oid, oid); err != nil {
			return diskError(opGC, "a ref cannot be written", err)
		}
	}
	have, err := yoiRefs(r.bare())
	for ref := range have {
		if oid, ok := strings.CutPrefix(ref, "refs/yoi/keep/"); ok && !want[oid] {
			err = errors.Join(err, r.deleteRef(ctx, ref))
		}
	}
	if err != nil {
		return diskError(opGC, "a ref cannot be removed", err)
	}
	return nil
}

// repack makes one pack. Unreachable objects younger than expire are kept
// loose. pack-refs runs without --all: our own refs must stay loose files.
func (r *repo) repack(ctx context.Context, expire time.Duration, l *lockFile) error {
	when := time.Now().Add(-expire).Format(time.RFC3339)
	if err := syncFS(r.bare()); err != nil { // pins are not fsynced one by one
		return diskError(opGC, "the mirror cannot be synced", err)
	}
	for _, args := range [][]string{
		{"pack-refs"},
		{"repack", "-q", "-A", "-d", "--unpack-unreachable=" + when},
		{"prune", "--expire=" + when},
	} {
		cmd := r.bareCommand(args...)
		cmd.locks, cmd.writes = []*lockFile{l}, true
		if _, err := r.c.run(ctx, cmd); err != nil {
			return gitFailure(opGC, "the mirror could not be repacked", err)
		}
		// The packs are new: a crash here must not look like damage.
		s := r.readState()
		var err error
		if s.Packs, err = packFiles(r.bare()); err == nil {
			err = r.writeState(s)
		}
		if err != nil {
			return diskError(opGC, "the state cannot be written", err)
		}
	}
	return nil
}
