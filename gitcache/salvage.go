package gitcache

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

// salvage carries everything that holders rely on from mirrors that were set
// aside into the new one at tmp: first from the source, and what only the cache
// had from the damaged mirror itself. What nobody has any more is logged, and
// the damaged mirror is then kept.
func (r *repo) salvage(ctx context.Context, tmp string, src Source, l *lockFile) error {
	broken, err := r.setAsides()
	if err != nil {
		return diskError(opFetch, "the cache directory cannot be read", err)
	}
	for _, old := range broken {
		if err := r.salvagePacks(ctx, old, tmp); err != nil {
			return diskError(opFetch, "the damaged mirror's packs cannot be taken over", err)
		}
		refs, err := r.needed(old)
		if err != nil {
			return diskError(opFetch, "the damaged mirror cannot be read", err)
		}
		for ref, commit := range refs {
			if ctx.Err() != nil {
				return gitFailure(opFetch, "", ctx.Err())
			}
			if err := r.salvageCommit(ctx, tmp, old, src, commit, l); err != nil {
				r.c.log.Error("a pinned commit is lost with the damaged mirror", "repository", r.id, "commit", commit, "ref", ref, "error", err)
				continue
			}
			if err := r.writeRefIn(tmp, ref, "", commit); err != nil {
				return diskError(opFetch, "a pin cannot be written", err)
			}
		}
		if err := os.CopyFS(filepath.Join(tmp, "worktrees"), os.DirFS(filepath.Join(old, "worktrees"))); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
			return diskError(opFetch, "worktree entries cannot be copied", err)
		}
	}
	return r.dropMarks(tmp, src.Filter != "")
}

func (r *repo) salvageCommit(ctx context.Context, tmp, old string, src Source, commit string, l *lockFile) error {
	if r.connected(ctx, tmp, commit) == nil {
		return nil
	}
	err := r.fetchCommit(ctx, tmp, src, commit, l)
	if err == nil {
		return nil
	}
	_, oldErr := r.c.run(ctx, command{
		args: []string{"fetch", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--update-shallow",
			"--upload-pack=" + r.c.uploadPack(Source{URL: old}), "--end-of-options", remoteName, "+" + commit + ":" + pointRef(commit)},
		env:    append(remoteEnv(old), "GIT_DIR="+tmp),
		locks:  []*lockFile{l},
		writes: true,
	})
	if oldErr != nil {
		return errors.Join(err, oldErr)
	}
	return r.connected(ctx, tmp, commit)
}

func (r *repo) setAsides() ([]string, error) {
	entries, err := os.ReadDir(r.dir)
	var out []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), brokenPrefix) && e.IsDir() {
			out = append(out, r.path(e.Name()))
		}
	}
	return out, err
}

// needed are our refs of a mirror, and those that the hold files say it had.
func (r *repo) needed(gitDir string) (map[string]string, error) {
	refs, err := yoiRefs(gitDir)
	if err != nil {
		return nil, err
	}
	pins, err := r.pins()
	for _, p := range pins {
		refs[pinRef(p.holder, p.commit)], refs[pointRef(p.commit)] = p.commit, p.commit
	}
	recs, cerr := r.collected()
	for _, rec := range recs {
		refs[collectedRef(rec.Name, rec.CommitID)] = rec.CommitID
	}
	err = errors.Join(err, cerr)
	return refs, err
}

// yoiRefs lists our own refs of a mirror by the names of their files: each ends
// in the commit id, so even an emptied file says what it held.
func yoiRefs(gitDir string) (map[string]string, error) {
	refs := make(map[string]string)
	top := filepath.Join(gitDir, "refs/yoi")
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && d.Type().IsRegular() && policy.ValidOID(d.Name()) {
			rel, relErr := filepath.Rel(gitDir, path)
			if relErr != nil {
				return relErr
			}
			refs[rel] = d.Name()
		}
		return err
	})
	packed, readErr := os.ReadFile(filepath.Join(gitDir, "packed-refs"))
	if readErr != nil && !errors.Is(readErr, fs.ErrNotExist) {
		return nil, readErr
	}
	for line := range strings.Lines(string(packed)) {
		oid, ref, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if ok && strings.HasPrefix(ref, "refs/yoi/") && policy.ValidOID(oid) {
			refs[ref] = oid
		}
	}
	return refs, err
}

// dropMarks removes the marks whose point the new mirror has not; all of them
// where a mark also speaks of objects that no ref brings (partial.go).
func (r *repo) dropMarks(gitDir string, all bool) error {
	marks, err := os.ReadDir(r.path("points"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, m := range marks {
		if all || !exists(filepath.Join(gitDir, pointRef(m.Name()))) {
			err = errors.Join(err, os.Remove(r.path("points", m.Name())))
		}
	}
	return err
}
