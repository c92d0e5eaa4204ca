package gitcache

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// packFiles lists the packs of a git directory with their indexes.
func packFiles(gitDir string) (map[string]fileID, error) {
	entries, err := os.ReadDir(filepath.Join(gitDir, "objects/pack"))
	if err != nil {
		return nil, err
	}
	files := make(map[string]fileID)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "pack-") || (!strings.HasSuffix(e.Name(), ".pack") && !strings.HasSuffix(e.Name(), ".idx")) {
			continue
		}
		id, err := identify(filepath.Join(gitDir, "objects/pack", e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		files[e.Name()] = id
	}
	return files, nil
}

// lookAtPacks compares what is there with the state, by stat alone: intact is
// false when something is missing or of another size, same is false also when
// a file was written again since it was verified.
func (r *repo) lookAtPacks(s state) (intact, same bool) {
	same = true
	for name, want := range s.Packs {
		have, err := identify(r.bare("objects/pack", name))
		if err != nil || have.Size != want.Size {
			return false, false
		}
		same = same && have == want
	}
	return isDir(r.bare("refs")) && isDir(r.bare("objects")), same
}

// packsDamaged reads the packs that were not yet verified as they are now:
// none in the usual case, since git has just checked what it has just written.
// The caller holds the mirror's lock.
func (r *repo) packsDamaged(ctx context.Context, s state) (bool, error) {
	if intact, _ := r.lookAtPacks(s); !intact {
		return true, nil
	}
	files, err := packFiles(r.bare())
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, diskError(opFetch, "the packs cannot be listed", err)
	}
	var doubtful []string
	for name, id := range files {
		base, isIndex := strings.CutSuffix(name, ".idx")
		pack, ok := files[base+".pack"]
		if !isIndex || (id == s.Packs[name] && ok && pack == s.Packs[base+".pack"]) {
			continue
		}
		if !ok {
			return true, nil
		}
		doubtful = append(doubtful, r.bare("objects/pack", name))
	}
	slices.Sort(doubtful)
	for some := range slices.Chunk(doubtful, 256) { // a command line holds so many
		_, err := r.c.run(ctx, r.bareCommand(append([]string{"verify-pack", "--"}, some...)...))
		var ge *gitError
		if errors.As(err, &ge) {
			r.c.log.Warn("a pack is damaged", "repository", r.id, "error", err)
			return true, nil
		}
		if err != nil {
			return false, gitFailure(opFetch, "the packs could not be verified", err)
		}
	}
	return false, nil
}

// mending does what reads the mirror. If that fails and the mirror proves to be
// damaged, the mirror is built anew and it is done once more.
func (r *repo) mending(ctx context.Context, commit string, do func() (marker, error)) (marker, error) {
	m, err := do()
	if err == nil || ctx.Err() != nil || !errors.Is(err, policy.CodeGitFailed) {
		return m, err
	}
	if mendErr := r.mend(ctx, commit); mendErr != nil {
		return m, mendErr
	}
	return do()
}

// mend rebuilds the mirror if reading all of it shows damage, and makes sure
// that it has the commit.
func (r *repo) mend(ctx context.Context, commit string) error {
	l, err := lock(ctx, r.path("lock"), unix.LOCK_EX)
	if err != nil {
		return gitFailure(opPristine, "the mirror could not be locked", err)
	}
	defer l.unlock()
	if err := r.mendLocked(ctx, l); err != nil {
		return err
	}
	if r.connected(ctx, r.bare(), commit) == nil {
		return nil
	}
	src, err := r.readOrigin()
	if err == nil {
		err = r.fetchCommit(ctx, r.bare(), src, commit, l)
	}
	if err == nil {
		_, err = r.writeMark(ctx, commit)
	}
	return r.beyondRepair(err)
}

// mendLocked is for a caller that holds the mirror's lock. A mirror that is
// sound may have been mended by somebody else since the caller read it.
func (r *repo) mendLocked(ctx context.Context, l *lockFile) error {
	_, err := r.c.run(ctx, r.bareCommand("fsck", "--full", "--no-dangling", "--no-progress"))
	var ge *gitError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &ge):
		return gitFailure(opPristine, "the mirror could not be read", err)
	}
	return r.rebuild(ctx, l)
}

// rebuild replaces the mirror by a new one, with every pinned commit.
func (r *repo) rebuild(ctx context.Context, l *lockFile) error {
	src, err := r.readOrigin()
	if err != nil {
		return err
	}
	aside, err := r.setAside()
	if err != nil {
		return err
	}
	r.c.log.Warn("the mirror is damaged and is built anew", "repository", r.id)
	if _, err = r.fetchLocked(ctx, src, l); err != nil {
		r.putBack(aside)
	}
	return r.beyondRepair(err)
}

func (r *repo) beyondRepair(err error) error {
	if err == nil || errors.Is(err, policy.CodeDiskFull) || errors.Is(err, policy.CodeQuotaExceeded) || errors.Is(err, policy.CodeCanceled) {
		return err
	}
	return policy.Errorf(policy.CodeCacheCorrupt, opPristine, "the mirror of %s is damaged and could not be rebuilt", r.id).Because(err)
}
