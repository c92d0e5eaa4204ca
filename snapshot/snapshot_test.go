package snapshot

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

// objects lists a commit's objects in the archive's order by git itself.
func objects(t testing.TB, dir, commit string) (oids []string) {
	t.Helper()
	tree := strings.TrimSpace(testenv.Git(t, dir, "rev-parse", commit+"^{tree}"))
	oids = []string{commit, tree}
	seen := map[string]bool{tree: true}
	var blobs []string
	for _, line := range strings.Split(testenv.Git(t, dir, "ls-tree", "-r", "-t", "-z", tree), "\x00") {
		f := strings.Fields(line)
		if len(f) < 3 || seen[f[2]] || f[1] == "commit" {
			continue
		}
		seen[f[2]] = true
		if f[1] == "tree" {
			oids = append(oids, f[2])
		} else {
			blobs = append(blobs, f[2])
		}
	}
	return append(oids, blobs...)
}

func object(t testing.TB, dir, oid string) []byte {
	t.Helper()
	typ := strings.TrimSpace(testenv.Git(t, dir, "cat-file", "-t", oid))
	out, err := exec.Command("git", "-C", dir, "cat-file", typ, oid).Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// begin writes the header and the objects of dir's commit.
func begin(t testing.TB, to io.Writer, dir string, kind Kind) *Writer {
	t.Helper()
	commit := strings.TrimSpace(testenv.Git(t, dir, "rev-parse", "HEAD"))
	oids := objects(t, dir, commit)
	w, err := NewWriter(to, Header{Kind: kind, ObjectFormat: "sha1", Commit: commit, Objects: int64(len(oids))})
	if err != nil {
		t.Fatal(err)
	}
	for _, oid := range oids {
		b := object(t, dir, oid)
		if err := w.Object(int64(len(b)), bytes.NewReader(b)); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func finish(t testing.TB, w *Writer) string {
	t.Helper()
	digest, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

func wantCode(t *testing.T, err error, code policy.Code) {
	t.Helper()
	if !errors.Is(err, code) {
		t.Fatalf("got %v, want %s", err, code)
	}
}

// readAll reads an archive to its end.
func readAll(b []byte, want string, limits policy.SnapshotLimits) error {
	r, err := NewReader(bytes.NewReader(b), limits)
	if err != nil {
		return err
	}
	defer r.Close()
	return r.Finish(want)
}

// pack packs a directory; unpack makes it again.
func pack(t testing.TB, repo string, upper, lower *os.File) (archive []byte, digest string, w *WorkTree) {
	t.Helper()
	w, err := Walk(t.Context(), upper, lower, policy.SnapshotLimits{})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	out := begin(t, &b, repo, KindWorkspace)
	if err := w.Write(t.Context(), out, nil); err != nil {
		t.Fatal(err)
	}
	digest = finish(t, out)
	return b.Bytes(), digest, w
}

func unpack(t testing.TB, archive []byte, digest, dir string) error {
	t.Helper()
	top := open(t, dir)
	r, err := NewReader(bytes.NewReader(archive), policy.SnapshotLimits{})
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		if _, err := r.Object(); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
	}
	tree := NewTree(top, time.Unix(1700000000, 0))
	for {
		e, content, err := r.Entry()
		if err == io.EOF {
			break
		}
		if err == nil {
			err = tree.Entry(e, content)
		}
		if err != nil {
			_, ferr := tree.Finish(t.Context())
			return errors.Join(err, ferr)
		}
	}
	if _, err := tree.Finish(t.Context()); err != nil {
		return err
	}
	return r.Finish(digest)
}

func open(t testing.TB, dir string) *os.File {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func write(t testing.TB, dir, name, text string, mode os.FileMode) {
	t.Helper()
	p := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(p, []byte(text), mode), os.Chmod(p, mode)); err != nil {
		t.Fatal(err)
	}
}

func TestPointRoundTrip(t *testing.T) {
	repo := testenv.RepoSmall(t)
	var b bytes.Buffer
	digest := finish(t, begin(t, &b, repo.Dir, KindPoint))
	if err := readAll(b.Bytes(), digest, policy.SnapshotLimits{}); err != nil {
		t.Fatal(err)
	}
	var again bytes.Buffer
	if d := finish(t, begin(t, &again, repo.Dir, KindPoint)); d != digest {
		t.Errorf("one tree, two digests: %s and %s", digest, d)
	}
	r, err := NewReader(bytes.NewReader(b.Bytes()), policy.SnapshotLimits{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for {
		if _, err := r.Object(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	files, _, err := r.Graph().Places(nil, 1000)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range files {
		n += len(f)
	}
	if want := len(strings.Split(strings.TrimSpace(testenv.Git(t, repo.Dir, "ls-tree", "-r", "HEAD")), "\n")); n != want {
		t.Errorf("%d files, git has %d", n, want)
	}
}

// One tree has one digest: whatever the times, the order on disk, the file system.
func TestWorkspaceRoundTrip(t *testing.T) {
	repo := testenv.RepoSmall(t)
	dir := t.TempDir()
	long := strings.Repeat("n", 255)
	write(t, dir, "a-b", "after a's contents\n", 0o644)
	write(t, dir, "a/x", "linked\n", 0o640)
	write(t, dir, "z\n\xff-", "odd name\n", 0o600)
	write(t, dir, "run", "#!/bin/sh\n", 0o755)
	write(t, dir, "read-only/f", "x", 0o444)
	write(t, dir, "big", strings.Repeat("\x00", 3<<20)+"end", 0o644)
	write(t, dir, ".git/config", "[core]\n\tfsmonitor = evil\n", 0o644)
	write(t, dir, "nested/.git/HEAD", "ref: x\n", 0o644)
	parent := open(t, dir)
	for range 30 { // deeper than open(2) reaches at once
		if err := unix.Mkdirat(int(parent.Fd()), long, 0o755); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Openat(int(parent.Fd()), long, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		parent = os.NewFile(uintptr(fd), long)
		defer parent.Close()
	}
	for _, f := range []error{
		os.Link(filepath.Join(dir, "a/x"), filepath.Join(dir, "b")),
		os.Symlink("/etc/passwd", filepath.Join(dir, "abs")),
		os.Symlink("../../..", filepath.Join(dir, "a/up")),
		os.Mkdir(filepath.Join(dir, "empty"), 0o700),
		os.Chmod(filepath.Join(dir, "read-only"), 0o555),
	} {
		if f != nil {
			t.Fatal(f)
		}
	}
	archive, digest, w := pack(t, repo.Dir, open(t, dir), nil)
	if len(w.Warnings()) != 0 {
		t.Errorf("%v", w.Warnings())
	}
	out := t.TempDir()
	if err := unpack(t, archive, digest, out); err != nil {
		t.Fatal(err)
	}
	_, again, _ := pack(t, repo.Dir, open(t, out), nil)
	if again != digest {
		t.Errorf("the unpacked tree has another digest")
	}
	for name, want := range map[string]string{"a/x": "linked\n", "z\n\xff-": "odd name\n", "a-b": "after a's contents\n"} {
		if b, err := os.ReadFile(filepath.Join(out, name)); err != nil || string(b) != want {
			t.Errorf("%q: %q, %v", name, b, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(out, ".git")); err == nil {
		t.Error("the Worker's git directory was packed")
	}
	a, _ := os.Stat(filepath.Join(out, "a/x"))
	b, _ := os.Stat(filepath.Join(out, "b"))
	if !os.SameFile(a, b) {
		t.Error("a hard link became two files")
	}
	if st, err := os.Stat(filepath.Join(out, "read-only")); err != nil || st.Mode().Perm() != 0o555 || !st.ModTime().Equal(time.Unix(1700000000, 0)) {
		t.Errorf("%v, %v", st, err)
	}
}

func TestTruncatedAndDamaged(t *testing.T) {
	repo := testenv.RepoSmall(t)
	dir := t.TempDir()
	write(t, dir, "f", "content\n", 0o644)
	archive, digest, _ := pack(t, repo.Dir, open(t, dir), nil)
	for n := range len(archive) {
		err := readAll(archive[:n], digest, policy.SnapshotLimits{})
		if err == nil {
			t.Fatalf("%d of %d bytes are a whole archive", n, len(archive))
		}
		if d := policy.AsDiagnostic(err); d.Code != policy.CodeSnapshotTruncated && d.Code != policy.CodeSnapshotInvalid {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
	for i := range archive {
		bad := bytes.Clone(archive)
		bad[i] ^= 0x40
		if err := readAll(bad, digest, policy.SnapshotLimits{}); err == nil {
			// A bit of the frame that says nothing of the content may flip.
			if d, _ := digestOf(bad); d != digest {
				t.Fatalf("byte %d may be changed", i)
			}
		}
	}
	wantCode(t, readAll(append(bytes.Clone(archive), archive...), digest, policy.SnapshotLimits{}), policy.CodeSnapshotInvalid)
	wantCode(t, readAll(archive, policy.FormatDigest(make([]byte, 32)), policy.SnapshotLimits{}), policy.CodeSnapshotDigest)
	wantCode(t, readAll([]byte("not zstd at all"), digest, policy.SnapshotLimits{}), policy.CodeSnapshotInvalid)
	wantCode(t, readAll(nil, digest, policy.SnapshotLimits{}), policy.CodeSnapshotTruncated)
}

// digestOf is the digest that the archive has, whatever it should have.
func digestOf(b []byte) (string, error) {
	err := readAll(b, "", policy.SnapshotLimits{})
	return policy.AsDiagnostic(err).Fields["found"], err
}

func sh(t *testing.T, dir, script string) {
	t.Helper()
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
