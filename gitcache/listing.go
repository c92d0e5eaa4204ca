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
)

// A listing is the mirror's branches and tags as a packed-refs file, branches
// under refs/remotes/origin as in a plain clone. It is made after each fetch
// that changed something, so writing a private git directory starts no git.
// Listings are numbered; GC keeps the objects of every one that a holder's
// private git directory may still name.

// record writes the listing and the state after a successful fetch.
func (r *repo) record(ctx context.Context, s *state) error {
	text, n, err := r.listRefs(ctx)
	if err != nil {
		return err
	}
	if have, err := os.ReadFile(r.listingPath(s.Listing)); err != nil || !bytes.Equal(have, text) {
		s.Listing = max(s.Listing, r.newestListing()) + 1
		if err := os.MkdirAll(r.path("refs"), 0o700); err != nil {
			return diskError(opFetch, "the refs listing cannot be written", err)
		}
		if err := writeFile(r.listingPath(s.Listing), text, 0o600, true); err != nil {
			return diskError(opFetch, "the refs listing cannot be written", err)
		}
	}
	s.Refs = n
	if s.Packs, err = packFiles(r.bare()); err == nil {
		err = r.writeState(*s)
	}
	if err != nil {
		return diskError(opFetch, "the state cannot be written", err)
	}
	return nil
}

func (r *repo) listingPath(generation int64) string {
	return r.path("refs", strconv.FormatInt(generation, 10))
}

func (r *repo) newestListing() int64 {
	var newest int64
	for _, g := range r.listings() {
		newest = max(newest, g)
	}
	return newest
}

func (r *repo) listings() []int64 {
	entries, _ := os.ReadDir(r.path("refs")) // absent: none
	var out []int64
	for _, e := range entries {
		if g, err := strconv.ParseInt(e.Name(), 10, 64); err == nil {
			out = append(out, g)
		}
	}
	return out
}

func (r *repo) listRefs(ctx context.Context) ([]byte, int, error) {
	if hasNoRefs(r.bare()) { // as an imported one: no need to ask git
		return packedRefs("")
	}
	out, err := r.c.run(ctx, r.bareCommand("for-each-ref", "--format=%(objectname) %(*objectname) %(refname)", "refs/heads/", "refs/tags/"))
	if err != nil {
		return nil, 0, gitFailure(opFetch, "the refs could not be listed", err)
	}
	return packedRefs(string(out))
}

// hasNoRefs says that a git directory has neither branches nor tags, for certain.
func hasNoRefs(gitDir string) bool {
	for _, d := range []string{"refs/heads", "refs/tags"} {
		if entries, err := os.ReadDir(filepath.Join(gitDir, d)); err != nil || len(entries) > 0 {
			return false
		}
	}
	_, err := os.Lstat(filepath.Join(gitDir, "packed-refs"))
	return errors.Is(err, fs.ErrNotExist)
}

// packedRefs turns "<oid> <peeled or nothing> <ref>" lines, sorted by ref, into
// a packed-refs file. heads sort before tags and origin's refs do too, so the
// order stays the byte order that "sorted" promises.
func packedRefs(lines string) ([]byte, int, error) {
	var b bytes.Buffer
	b.WriteString("# pack-refs with: peeled fully-peeled sorted \n")
	n := 0
	for line := range strings.Lines(lines) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 3)
		if len(f) != 3 {
			continue
		}
		ref := f[2]
		if branch, ok := strings.CutPrefix(ref, "refs/heads/"); ok {
			ref = "refs/remotes/origin/" + branch
		}
		b.WriteString(f[0] + " " + ref + "\n")
		if f[1] != "" {
			b.WriteString("^" + f[1] + "\n")
		}
		n++
	}
	return b.Bytes(), n, nil
}

// syncFS makes everything on path's file system durable, syncfs(2).
func syncFS(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return os.NewSyscallError("syncfs", unix.Syncfs(int(f.Fd())))
}
