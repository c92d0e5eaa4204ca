package gitcache

import (
	"bytes"
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
	r, err := c.pinnable(p, holder)
	if err != nil {
		return err
	}
	res := r.pinResource(holder, p.CommitID)
	if err := c.journal.Intend(ctx, res); err != nil {
		return err
	}
	if err := r.pin(ctx, holder, p.CommitID); err != nil {
		if r.unpin(context.WithoutCancel(ctx), holder, p.CommitID) == nil {
			_ = c.journal.Release(res)
		}
		return err
	}
	return nil
}

// pinnable checks what can be checked before the ledger is told.
func (c *Cache) pinnable(p policy.RepositoryPoint, holder string) (*repo, error) {
	r, err := c.repo(p.RepositoryID)
	if err != nil {
		return nil, err
	}
	if err := policy.CheckID("holder", holder); err != nil {
		return nil, err
	}
	if !policy.ValidOID(p.CommitID) {
		return nil, policy.Errorf(policy.CodeSelectorInvalid, opPin, "the point has no commit id")
	}
	if !r.exists() {
		return nil, policy.Errorf(policy.CodeRepositoryUnknown, opPin, "the repository %s is not in the cache", r.id)
	}
	return r, nil
}

// pin makes the pin that the ledger has been told of.
func (r *repo) pin(ctx context.Context, holder, commit string) error {
	l, err := lock(ctx, r.path("pins.lock"), unix.LOCK_SH) // GC decides what to drop under LOCK_EX
	if err != nil {
		return gitFailure(opPin, "the pins could not be locked", err)
	}
	defer l.unlock()
	if _, ok := r.readMark(commit); !ok {
		return policy.Errorf(policy.CodeConflict, opPin, "commit %s is not resolved in the cache", commit).
			WithHint("Resolve the selector again.")
	}
	hold := r.path("holds", holder, commit)
	if !exists(hold) { // an older listing holds more, so the first one stays
		gen := strconv.FormatInt(r.readState().Listing, 10)
		err := os.MkdirAll(filepath.Dir(hold), 0o700)
		if err == nil {
			err = r.writePending(hold, pendingPin(holder), []byte(gen), 0o600)
		}
		if err != nil {
			return diskError(opPin, "the pin cannot be written", err)
		}
	}
	if err := r.writeRefIn(r.bare(), pinRef(holder, commit), pendingPin(holder), commit); err != nil {
		return diskError(opPin, "the pin cannot be written", err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(r.bare(pinRef(holder, commit)), &st); err != nil {
		return diskError(opPin, "the pin cannot be read back", err)
	}
	return r.c.journal.Done(r.pinResource(holder, commit), st.Dev, st.Ino)
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
	if err := r.unpin(ctx, holder, commit); err != nil {
		return diskError(opPin, "the pin cannot be removed", err)
	}
	return c.journal.Release(r.pinResource(holder, commit))
}

func (r *repo) unpin(ctx context.Context, holder, commit string) error {
	switch l, err := lock(ctx, r.path("pins.lock"), unix.LOCK_SH); { // mending would bring it back
	case err == nil:
		defer l.unlock()
	case !errors.Is(err, fs.ErrNotExist): // without a repository there is nothing to mend
		return err
	}
	if err := r.c.removeTemporary(ctx, r.path("pending"), pendingPin(holder)); err != nil {
		return err
	}
	if err := r.deleteRef(ctx, pinRef(holder, commit)); err != nil {
		return err
	}
	if err := os.Remove(r.path("holds", holder, commit)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, dir := range []string{filepath.Dir(r.bare(pinRef(holder, commit))), r.path("holds", holder)} {
		// It is not empty while the holder has other commits.
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
	return nil
}

// deleteRef removes one of our refs, wherever it is: somebody may have run
// `git gc` in the mirror by hand, which packs them.
func (r *repo) deleteRef(ctx context.Context, ref string) error {
	if err := os.Remove(r.bare(ref)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	packed, err := os.ReadFile(r.bare("packed-refs"))
	if err != nil || !bytes.Contains(packed, []byte(" "+ref+"\n")) {
		return nil
	}
	cmd := r.bareCommand("update-ref", "-d", ref)
	cmd.writes = true
	_, err = r.c.run(ctx, cmd)
	return err
}

// pin is a holder's reliance on a commit, and on the refs listing that was
// current when it was made. The hold files, not the refs, are the record.
type pin struct {
	holder, commit string
	listing        int64
}

func (r *repo) pins() ([]pin, error) {
	holders, err := os.ReadDir(r.path("holds"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []pin
	for _, h := range holders {
		commits, dirErr := os.ReadDir(r.path("holds", h.Name()))
		if errors.Is(dirErr, fs.ErrNotExist) { // unpinned just now
			continue
		}
		err = errors.Join(err, dirErr)
		for _, c := range commits {
			if !policy.ValidOID(c.Name()) {
				continue
			}
			// A file torn by a crash may hold any listing: 0 is the oldest.
			b, _ := os.ReadFile(r.path("holds", h.Name(), c.Name()))
			gen, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
			out = append(out, pin{h.Name(), c.Name(), gen})
		}
	}
	return out, err
}

// mendRefs is mendPins with no pin coming or going meanwhile.
func (r *repo) mendRefs(ctx context.Context) error {
	l, err := lock(ctx, r.path("pins.lock"), unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer l.unlock()
	return r.mendPins()
}

// mendPins writes again what refs of pins and of collected commits a crash or a
// hand has emptied or removed. The caller has pins.lock to itself.
func (r *repo) mendPins() error {
	pins, err := r.pins()
	for _, p := range pins {
		err = errors.Join(err, r.writeRef(pinRef(p.holder, p.commit), p.commit))
	}
	recs, cerr := r.collected()
	for _, rec := range recs {
		err = errors.Join(err, r.writeRef(collectedRef(rec.Name, rec.CommitID), rec.CommitID))
	}
	return errors.Join(err, cerr)
}

// writeRef writes one of our own loose refs. No other program writes below
// refs/yoi and pack-refs never takes them away, so git's lock file protocol is
// not needed; the rename keeps readers from seeing half a file.
func (r *repo) writeRef(ref, commit string) error { return r.writeRefIn(r.bare(), ref, "", commit) }

func (r *repo) writeRefIn(gitDir, ref, prefix, commit string) error {
	path := filepath.Join(gitDir, ref)
	if have, err := os.ReadFile(path); err == nil && string(have) == commit+"\n" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return r.writePending(path, prefix, []byte(commit+"\n"), 0o644)
}

const pinPrefix = "pin-"

func pendingPin(holder string) string { return pinPrefix + holder + "~" } // "~" is in no id

// writePending writes beside the mirror and renames into place, so that a crash
// leaves no half-made file among git's refs. The prefix tells whose it is: a
// pin's holder takes it away, GC the others.
//
// It does not fsync: the ledger's intent is durable, the file's name holds its
// content, and GC syncs the file system before it drops anything.
func (r *repo) writePending(path, prefix string, data []byte, mode os.FileMode) error {
	tmp := r.path("pending", policy.NewID(prefix))
	if err := os.WriteFile(tmp, data, mode); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return nil
}
