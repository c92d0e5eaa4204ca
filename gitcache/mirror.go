package gitcache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

func filePath(s string) (string, bool) {
	u, err := url.Parse(s)
	if err != nil {
		return "", false
	}
	return u.Path, true
}

// head is what a source's HEAD says.
type head struct {
	ref    string // "" when detached or unknown
	oid    string // "" when unknown
	sha256 bool
}

// sourceHead asks a remote for its HEAD and object format; of a local source
// both are in files.
func (r *repo) sourceHead(ctx context.Context, src Source) (head, error) {
	if p := src.path(); p != "" {
		d, err := discover(p)
		if err != nil {
			return head{}, err
		}
		b, err := readHead(filepath.Join(d.commonDir, "HEAD"))
		if err != nil {
			return head{}, unreadable(opFetch, err)
		}
		h := parseHead(string(b))
		h.sha256 = d.config.sha256
		return h, nil
	}
	out, err := r.c.run(ctx, command{
		args:    []string{"ls-remote", "--symref", "--upload-pack=git-upload-pack", "--end-of-options", remoteName, "HEAD"},
		env:     append(remoteEnv(src.URL), "GIT_DIR=/nonexistent"),
		network: true,
		secret:  src.password(),
	})
	if err != nil {
		return head{}, r.fetchError(src, false, err)
	}
	var h head
	for line := range strings.Lines(string(out)) {
		value, name, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if name != "HEAD" {
			continue
		}
		p := parseHead(value)
		h.ref, h.oid = h.ref+p.ref, h.oid+p.oid
	}
	h.sha256 = len(h.oid) == 64
	return h, nil
}

func parseHead(s string) head {
	s = strings.TrimSpace(s)
	if ref, ok := strings.CutPrefix(s, "ref: "); ok {
		if strings.HasPrefix(ref, "refs/heads/") && !strings.ContainsAny(ref, " \t\n\x00") && !strings.Contains(ref, "..") {
			return head{ref: ref}
		}
		return head{}
	}
	if policy.ValidOID(s) {
		return head{oid: s}
	}
	return head{}
}

// writeHead keeps the mirror's HEAD what the source's is, so that HEAD means
// the same in both. Where nothing is known a valid HEAD is still needed.
func (r *repo) writeHead(dir string, h head) error {
	text := "ref: refs/heads/main\n"
	if h.ref != "" {
		text = "ref: " + h.ref + "\n"
	} else if h.oid != "" {
		text = h.oid + "\n"
	}
	if have, err := os.ReadFile(filepath.Join(dir, "HEAD")); err == nil && bytes.Equal(have, []byte(text)) {
		return nil
	}
	return writeFile(filepath.Join(dir, "HEAD"), []byte(text), 0o644, true)
}

// create makes the mirror under a temporary name and renames it once it is
// whole: a mirror that exists has been fetched completely at least once.
func (r *repo) create(ctx context.Context, src Source, l *lockFile) (string, error) {
	if err := r.c.checkVersion(ctx); err != nil {
		return "", err
	}
	h, err := r.sourceHead(ctx, src)
	if err != nil {
		return "", err
	}
	name := policy.NewID(mirrorPrefix)
	tmp := r.path(name)
	res := Resource{Kind: "directory", Owner: string(r.id), Path: r.rel(name)}
	if err := r.c.journal.Intend(ctx, res); err != nil {
		return "", err
	}
	err = r.build(ctx, tmp, h, src, l)
	if err != nil {
		if rmErr := os.RemoveAll(tmp); rmErr == nil {
			_ = r.c.journal.Release(res)
		}
		return "", err
	}
	return h.ref, r.c.journal.Release(res)
}

func (r *repo) build(ctx context.Context, tmp string, h head, src Source, l *lockFile) error {
	format := "sha1"
	if h.sha256 {
		format = "sha256"
	}
	_, err := r.c.run(ctx, command{
		args:   []string{"init", "--quiet", "--bare", "--template=", "--object-format=" + format, "--", tmp},
		locks:  []*lockFile{l},
		writes: true,
	})
	if err != nil {
		return gitFailure(opFetch, "the mirror could not be initialized", err)
	}
	if err := r.writeHead(tmp, head{ref: h.ref}); err != nil {
		return diskError(opFetch, "HEAD cannot be written", err)
	}
	if err := r.fetchInto(ctx, tmp, src, false, bulkRefspecs, l); err != nil {
		return err
	}
	if _, err := r.c.run(ctx, command{args: []string{"pack-refs", "--all"}, env: []string{"GIT_DIR=" + tmp}, locks: []*lockFile{l}, writes: true}); err != nil {
		return gitFailure(opFetch, "the refs could not be packed", err)
	}
	if h.ref == "" && h.oid != "" && r.connected(ctx, tmp, h.oid) == nil {
		if err := r.writeHead(tmp, h); err != nil {
			return diskError(opFetch, "HEAD cannot be written", err)
		}
	}
	if err := r.salvage(ctx, tmp, src, l); err != nil {
		return err
	}
	if err := errors.Join(os.Chmod(tmp, 0o755), syncFS(tmp), os.Rename(tmp, r.bare()), syncDir(r.dir)); err != nil {
		return diskError(opFetch, "the mirror cannot be put in place", err)
	}
	return nil
}

// checkVersion is done when a mirror is made, not at every start.
func (c *Cache) checkVersion(ctx context.Context) error {
	out, err := c.run(ctx, command{args: []string{"version"}})
	if ctx.Err() != nil {
		return gitFailure(opFetch, "", err)
	}
	if err != nil {
		return policy.Errorf(policy.CodeGitMissing, opFetch, "git does not run").Because(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(out), "git version %d.%d", &major, &minor); err != nil || major < 2 || (major == 2 && minor < 39) {
		return policy.Errorf(policy.CodeGitMissing, opFetch, "git is too old").With("version", strings.TrimSpace(string(out)))
	}
	return nil
}

// damaged reads the whole mirror: only after something has already failed.
func (r *repo) damaged(ctx context.Context) bool {
	_, err := r.c.run(ctx, r.bareCommand("fsck", "--connectivity-only", "--no-dangling", "--no-progress"))
	var ge *gitError
	return errors.As(err, &ge)
}

// setAside takes a damaged mirror out of the way without deleting it: it may
// hold the only copy of a pinned commit, and running sandboxes still read it.
func (r *repo) setAside() (string, error) {
	aside := r.path(brokenPrefix + policy.NewID(""))
	if err := r.forgetWhole(); err != nil {
		return "", diskError(opFetch, "the records of whole scopes cannot be removed", err)
	}
	err := os.Rename(r.bare(), aside)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", policy.Errorf(policy.CodeCacheCorrupt, opFetch, "the damaged mirror of %s cannot be set aside", r.id).Because(err)
	}
	return aside, nil
}

// putBack undoes setAside when no new mirror could be made: workspaces that
// stand on what is still readable go on, and the next use tries again.
func (r *repo) putBack(aside string) {
	if aside == "" || r.exists() {
		return
	}
	if err := os.Rename(aside, r.bare()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.c.log.Error("a damaged mirror stays aside", "repository", r.id, "error", err)
	}
}

const brokenPrefix = ".broken-"
