package gitcache

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

const opPin = "gitcache.pin"

func pinRef(holder, commit string) string { return "refs/yoi/pins/" + holder + "/" + commit }

func (r *repo) pinResource(holder, commit string) Resource {
	return Resource{
		Kind: "cache_reference", Owner: holder, Path: r.rel("bare.git", pinRef(holder, commit)),
		Attrs: map[string]string{"repository": string(r.id), "commit": commit},
	}
}

// Pin makes the point's commit, and the refs that a private git directory of
// holder will list, unlosable until Unpin. It fails with CodeConflict if the
// commit was resolved so long ago that GC has forgotten it: resolve again.
func (c *Cache) Pin(ctx context.Context, p policy.RepositoryPoint, holder string) error {
	r, err := c.repo(p.RepositoryID)
	if err != nil {
		return err
	}
	if err := policy.CheckID("holder", holder); err != nil {
		return err
	}
	if !policy.ValidOID(p.CommitID) {
		return policy.Errorf(policy.CodeSelectorInvalid, opPin, "the point has no commit id")
	}
	res := r.pinResource(holder, p.CommitID)
	if err := c.journal.Intend(ctx, res); err != nil {
		return err
	}
	dev, ino, err := r.pin(ctx, holder, p.CommitID)
	if err != nil {
		if r.unpin(holder, p.CommitID) == nil {
			_ = c.journal.Release(res)
		}
		return err
	}
	return c.journal.Done(res, dev, ino)
}

func (r *repo) pin(ctx context.Context, holder, commit string) (dev, ino uint64, err error) {
	l, err := lock(ctx, r.path("pins.lock"), unix.LOCK_SH) // GC decides what to drop under LOCK_EX
	if err != nil {
		return 0, 0, gitFailure(opPin, "the pins could not be locked", err)
	}
	defer l.unlock()
	if _, ok := r.readMark(commit); !ok {
		return 0, 0, policy.Errorf(policy.CodeConflict, opPin, "commit %s is not resolved in the cache", commit).
			WithHint("Resolve the selector again.")
	}
	hold := r.path("holds", holder)
	if !exists(hold) { // an older listing holds more, so the first one stays
		gen := strconv.FormatInt(r.readState().Listing, 10)
		if err := r.writePending(hold, []byte(gen), 0o600); err != nil {
			return 0, 0, diskError(opPin, "the pin cannot be written", err)
		}
	}
	if err := r.writeRef(pinRef(holder, commit), commit); err != nil {
		return 0, 0, diskError(opPin, "the pin cannot be written", err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(r.bare(pinRef(holder, commit)), &st); err != nil {
		return 0, 0, diskError(opPin, "the pin cannot be read back", err)
	}
	return st.Dev, st.Ino, nil
}

// Unpin drops a holder's pin. It is idempotent, and needs no repository to be there.
func (c *Cache) Unpin(ctx context.Context, id policy.RepositoryID, commit, holder string) error {
	r, err := c.repo(id)
	if err != nil {
		return err
	}
	if err := policy.CheckID("holder", holder); err != nil {
		return err
	}
	if !policy.ValidOID(commit) {
		return policy.Errorf(policy.CodeSelectorInvalid, opPin, "%q is not a commit id", policy.Printable(commit))
	}
	if err := r.unpin(holder, commit); err != nil {
		return diskError(opPin, "the pin cannot be removed", err)
	}
	return c.journal.Release(r.pinResource(holder, commit))
}

func (r *repo) unpin(holder, commit string) error {
	err := os.Remove(r.bare(pinRef(holder, commit)))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err = os.Remove(filepath.Dir(r.bare(pinRef(holder, commit))))
	switch {
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST): // another commit of this holder
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := os.Remove(r.path("holds", holder)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// pins lists every pin as holder/commit.
func (r *repo) pins() (map[string]string, error) {
	refs, err := yoiRefs(r.bare())
	out := make(map[string]string)
	for ref, commit := range refs {
		if rest, ok := strings.CutPrefix(ref, "refs/yoi/pins/"); ok {
			out[rest] = commit
		}
	}
	return out, err
}

// writeRef writes one of our own loose refs. No other program writes below
// refs/yoi and pack-refs never takes them away, so git's lock file protocol is
// not needed; the rename keeps readers from seeing half a file.
func (r *repo) writeRef(ref, commit string) error { return r.writeRefIn(r.bare(), ref, commit) }

func (r *repo) writeRefIn(gitDir, ref, commit string) error {
	path := filepath.Join(gitDir, ref)
	if have, err := os.ReadFile(path); err == nil && string(have) == commit+"\n" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return r.writePending(path, []byte(commit+"\n"), 0o644)
}

// writePending writes beside the mirror and renames into place, so that a crash
// leaves no half-made file among git's refs.
//
// It does not fsync: the ledger's intent is durable, the file's name holds its
// content, and GC drops no object younger than Expire. syncPins is for those
// who want more.
func (r *repo) writePending(path string, data []byte, mode os.FileMode) error {
	tmp := r.path("pending", policy.NewID(""))
	if err := os.WriteFile(tmp, data, mode); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return nil
}
