package gitcache

import (
	"bytes"
	"context"
	"crypto/sha1" // #nosec: git's object ids
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/gitcache/index"
	"yoi.dev/yoi-runtime/policy"
)

// A file under a clean filter (LFS above all), or checked out with line endings
// that the user's own configuration asks for, looks modified to a git that has
// neither. It is only compared at all where the index entry is racy or stale,
// as in a repository cloned a moment ago. Such a file counts as clean when
//   - it is LFS's and hashes to the pointer in the index,
//   - it has another filter and its stat data is the index's,
//   - its stat data is the index's and only its line endings differ.

const maxCompared = 256 << 20 // bytes read into memory for line endings

// dropFiltered removes the changes that are none.
func (c *Cache) dropFiltered(ctx context.Context, v *view, changes []change) ([]change, error) {
	var doubtful bytes.Buffer
	for _, ch := range changes {
		if ch.doubtful {
			doubtful.WriteString(ch.path + "\x00")
		}
	}
	if doubtful.Len() == 0 {
		return changes, nil
	}
	filters, err := c.filterAttributes(ctx, v, doubtful.Bytes())
	if err != nil {
		return nil, err
	}
	entries := indexEntries(v.src.gitDir)
	kept := changes[:0]
	for _, ch := range changes {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !ch.doubtful || !v.unchanged(ch, filters[ch.path], entries) {
			kept = append(kept, ch)
		}
	}
	return kept, nil
}

// filterAttributes asks which driver each path has; it runs none.
func (c *Cache) filterAttributes(ctx context.Context, v *view, paths []byte) (map[string]string, error) {
	cmd := v.command("check-attr", "-z", "--stdin", "filter")
	cmd.stdin = paths
	out, err := c.run(ctx, cmd)
	if err != nil {
		return nil, err
	}
	filters := make(map[string]string)
	f := strings.Split(string(out), "\x00") // path, attribute, value, …
	for i := 0; i+2 < len(f); i += 3 {
		if value := f[i+2]; value != "unspecified" && value != "unset" && value != "set" {
			filters[f[i]] = value
		}
	}
	return filters, nil
}

// indexEntries is empty for an index that the parser refuses: then every
// doubtful file counts as changed.
func indexEntries(gitDir string) map[string]index.Entry {
	out := make(map[string]index.Entry)
	b, err := readSmall(filepath.Join(gitDir, "index"), 1<<31)
	if err != nil {
		return out
	}
	x, err := index.Parse(b, 0)
	if err != nil {
		return out
	}
	for i := range x.Len() {
		e := x.Entry(i)
		out[string(e.Path)] = e
	}
	return out
}

func (v *view) unchanged(ch change, filter string, entries map[string]index.Entry) bool {
	e, known := entries[ch.path]
	top, err := os.Open(v.src.top)
	if err != nil {
		return false
	}
	defer top.Close()
	f, err := openBeneath(top, ch.path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return false
	}
	switch {
	case filter == "lfs":
		pointer, err := lfsPointer(f, st.Size())
		return err == nil && blobID(pointer, len(ch.oid)) == ch.oid
	case !known || !statEqual(f, e, v.src.config.trustCtime != "false"):
		return false
	case filter != "":
		return true
	case st.Size() > maxCompared:
		return false
	}
	text, err := io.ReadAll(io.LimitReader(f, maxCompared))
	return err == nil && blobID(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n")), len(ch.oid)) == ch.oid
}

func statEqual(f *os.File, e index.Entry, trustCtime bool) bool {
	var st unix.Statx_t
	if unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS, &st) != nil {
		return false
	}
	have, want := index.FromStatx(&st), e.Stat
	have.Dev, want.Dev = 0, 0 // git does not compare it either
	if !trustCtime {
		have.CtimeSec, have.CtimeNsec = want.CtimeSec, want.CtimeNsec
	}
	return have == want
}

// lfsPointer is what git-lfs's clean filter makes of the content.
func lfsPointer(f io.Reader, size int64) ([]byte, error) {
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "%soid sha256:%x\nsize %d\n", lfsHeader, h.Sum(nil), size), nil
}

func blobID(content []byte, hexSize int) string {
	h := blobHash(hexSize, int64(len(content)))
	h.Write(content)
	return hex.EncodeToString(h.Sum(nil))
}

// blobHash becomes the id of a blob of that size.
func blobHash(hexSize int, size int64) hash.Hash {
	var h hash.Hash = sha1.New()
	if hexSize == 64 {
		h = sha256.New()
	}
	fmt.Fprintf(h, "blob %d\x00", size)
	return h
}

func sha256Digest(b []byte) string {
	h := sha256.Sum256(b)
	return policy.FormatDigest(h[:])
}
