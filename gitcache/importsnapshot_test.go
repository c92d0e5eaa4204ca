package gitcache

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/snapshot"
)

// archive exports a point as the runtime does.
func (f *fixture) archive(p policy.RepositoryPoint) (archive []byte, digest string) {
	f.t.Helper()
	oids, err := f.TreeObjects(f.t.Context(), p)
	if err != nil {
		f.t.Fatal(err)
	}
	format := "sha1"
	if len(p.CommitID) == 64 {
		format = "sha256"
	}
	var b bytes.Buffer
	w, err := snapshot.NewWriter(&b, snapshot.Header{Kind: snapshot.KindPoint, ObjectFormat: format, Commit: p.CommitID, Objects: int64(len(oids)), Scope: p.Scope})
	if err == nil {
		err = f.ReadObjects(f.t.Context(), p.RepositoryID, oids, w.Object)
	}
	if err == nil {
		digest, err = w.Finish()
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return b.Bytes(), digest
}

// importer is a second host, whose store has what is put into it.
type importer struct {
	*fixture
	store map[string][]byte
	gets  int
}

func newImporter(t *testing.T) *importer {
	i := &importer{store: make(map[string][]byte)}
	j := &journal{held: map[string]Resource{}}
	root := filepath.Join(t.TempDir(), "[root]*") // no pattern
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	c, err := Open(Options{Root: root, Ledger: j, OpenSnapshot: func(_ context.Context, _, digest string) (io.ReadCloser, error) {
		i.gets++
		b, ok := i.store[digest]
		if !ok {
			return nil, policy.Errorf(policy.CodeRemoteSnapshotUnknown, "test", "no such snapshot")
		}
		return io.NopCloser(bytes.NewReader(b)), nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	i.fixture = &fixture{Cache: c, t: t, journal: j, root: root}
	return i
}

func (i *importer) from(digest string, scope ...string) (policy.RepositoryPoint, error) {
	src, err := ParseSource("snapshot+https://store.example/app", "/")
	if err != nil {
		i.t.Fatal(err)
	}
	p, _, err := i.Resolve(i.t.Context(), src, policy.Selector{Kind: policy.SelectSnapshot, Value: digest}, ResolveOptions{Scope: scope})
	return p, err
}

// A tree out of an archive is the tree that git checks out, index and all.
func TestSnapshotMakesTheSameTree(t *testing.T) {
	repos := map[string]testenv.Repo{
		"small": testenv.RepoSmall(t), "odd names": testenv.RepoOddNames(t), "submodules": testenv.RepoSubmodules(t),
		"lfs": testenv.RepoLFS(t), "many": testenv.RepoFiles(t, 300),
		"attributes": testenv.Commit(t, testenv.RepoSmall(t), "eol", map[string]*testenv.Entry{
			".gitattributes": {Data: "*.txt eol=crlf\n"}, "dos.txt": {Data: "a\nb\n"},
		}),
		"large attributes": testenv.Commit(t, testenv.RepoSmall(t), "eol", map[string]*testenv.Entry{
			".gitattributes": {Data: strings.Repeat("# a comment\n", 100_000) + "*.txt eol=crlf\n"}, "dos.txt": {Data: "a\nb\n"},
		}),
		"sha256": sha256Repo(t),
		"sizes":  testenv.Commit(t, testenv.RepoSmall(t), "sizes", sizes(storedObject, smallObject, 1<<20)),
		"large": testenv.Commit(t, testenv.RepoSmall(t), "large", map[string]*testenv.Entry{
			"one": {Data: strings.Repeat("0123456789abcdef", 100_000)}, "two": {Data: strings.Repeat("0123456789abcdef", 100_000), Mode: "100755"},
		}),
	}
	for name, repo := range repos {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			p := f.resolve(f.source(repo.Dir), "HEAD")
			want, _ := f.pristine(p)
			archive, digest := f.archive(p)
			i := newImporter(t)
			i.store[digest] = archive
			q, err := i.from(digest)
			if err != nil {
				t.Fatal(err)
			}
			if q.CommitID != p.CommitID || q.TreeID != p.TreeID || !q.CommittedAt.Equal(p.CommittedAt) || q.Subject != p.Subject {
				t.Errorf("got %+v, want %+v", q, p)
			}
			got, _ := i.pristine(q)
			sameTree(t, f.path(want.RelPath), i.path(got.RelPath))
			if got.Entries != want.Entries || got.Bytes != want.Bytes {
				t.Errorf("%+v, want %+v", got.Tree, want.Tree)
			}
			if reads := contentReads(t, i.fixture, q, i.path(got.RelPath)); !strings.HasSuffix(name, "attributes") && len(reads) != 0 {
				t.Errorf("the first status reads %q", reads)
			}
			if _, err := i.from(digest); err != nil || i.gets != 1 {
				t.Errorf("%d downloads, %v", i.gets, err)
			}
			noLeftovers(t, i.fixture)
		})
	}
}

// sameTree compares all but git's directory.
func sameTree(t *testing.T, a, b string) {
	t.Helper()
	list := func(top string) map[string]string {
		out := make(map[string]string)
		err := filepath.WalkDir(top, func(p string, _ os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, _ := filepath.Rel(top, p)
			if rel == ".git" {
				return filepath.SkipDir
			}
			st, err := os.Lstat(p)
			if err != nil {
				return err
			}
			text := st.Mode().String() + " " + st.ModTime().String()
			if st.Mode().IsRegular() {
				data, err := os.ReadFile(p)
				if err != nil {
					return err
				}
				text += string(data)
			} else if st.Mode()&os.ModeSymlink != 0 {
				target, _ := os.Readlink(p)
				text += target
			}
			out[rel] = text
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	x, y := list(a), list(b)
	for k, v := range x {
		if y[k] != v {
			t.Errorf("%q: %.80q, want %.80q", k, y[k], v)
		}
		delete(y, k)
	}
	for k := range y {
		t.Errorf("%q is too many", k)
	}
}

// What GC forgets the commit of is imported again; what a holder stands on stays.
func TestSnapshotsAreForgotten(t *testing.T) {
	f := newFixture(t)
	archive, digest := f.archive(f.resolve(f.source(testenv.RepoSmall(t).Dir), "HEAD"))
	i := newImporter(t)
	i.store[digest] = archive
	p, err := i.from(digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := i.Pin(t.Context(), p, "ws-1"); err != nil {
		t.Fatal(err)
	}
	for _, gets := range []int{1, 2} {
		if _, err := i.GC(t.Context(), p.RepositoryID, GCOptions{UnusedFor: 1, Expire: 1}); err != nil {
			t.Fatal(err)
		}
		if _, err := i.from(digest); err != nil || i.gets != gets {
			t.Errorf("%d downloads, want %d, %v", i.gets, gets, err)
		}
		if err := i.Unpin(t.Context(), p.RepositoryID, p.CommitID, "ws-1"); err != nil {
			t.Fatal(err)
		}
	}
}

// A store that lies, fails or stops leaves nothing behind, and the next try works.
func TestFailedImportsLeaveNothing(t *testing.T) {
	testenv.Root(t)
	f := newFixture(t)
	archive, digest := f.archive(f.resolve(f.source(testenv.RepoFiles(t, 300).Dir), "HEAD"))
	other, _ := f.archive(f.resolve(f.source(testenv.RepoSmall(t).Dir), "HEAD"))
	i := newImporter(t)
	for name, c := range map[string]struct {
		content []byte
		want    policy.Code
	}{
		"nothing":   {nil, policy.CodeSnapshotTruncated},
		"half":      {archive[:len(archive)/2], policy.CodeSnapshotTruncated},
		"another":   {other, policy.CodeSnapshotDigest},
		"no zstd":   {[]byte("<html>not found</html>"), policy.CodeSnapshotInvalid},
		"twice":     {append(bytes.Clone(archive), archive...), policy.CodeSnapshotInvalid},
		"not there": {nil, policy.CodeRemoteSnapshotUnknown},
	} {
		if i.store[digest] = c.content; name == "not there" {
			delete(i.store, digest)
		}
		_, err := i.from(digest)
		wantCode(t, err, c.want)
		noLeftovers(t, i.fixture)
		if exists(i.path("repository-cache/git/app")) {
			t.Errorf("%s: a repository was left", name)
		}
	}
	i.store[digest] = archive
	if _, err := i.from(digest, "no/such/dir"); policy.AsDiagnostic(err).Code != policy.CodeScopeEmpty {
		t.Errorf("an empty scope: %v", err)
	}
	p, err := i.from(digest)
	if err != nil {
		t.Fatal(err)
	}
	i.pristine(p)
}

// What a store sends under another's digest says nothing about the commits that
// are in the mirror: one that its history ended at would lose its parents.
func TestFailedImportEndsNoHistory(t *testing.T) {
	f := newFixture(t)
	archive, digest := f.archive(f.resolve(f.source(testenv.RepoSmall(t).Dir), "HEAD"))
	p := f.resolve(f.source(testenv.RepoFiles(t, 3).Dir), "HEAD")
	other, otherDigest := f.archive(p)
	i := newImporter(t)
	i.store[digest] = archive
	if _, err := i.from(digest); err != nil {
		t.Fatal(err)
	}
	ends := func() bool {
		b, err := os.ReadFile(i.path("repository-cache/git/app/bare.git/shallow"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(b), p.CommitID)
	}
	lie := "sha256:" + strings.Repeat("0", 64)
	i.store[lie] = other
	_, err := i.from(lie)
	wantCode(t, err, policy.CodeSnapshotDigest)
	if ends() {
		t.Error("the history ends at a commit that was refused")
	}
	i.store[otherDigest] = other
	if _, err := i.from(otherDigest); err != nil {
		t.Fatal(err)
	}
	if !ends() {
		t.Error("the history does not end at an imported commit")
	}
	testenv.Git(t, i.path("repository-cache/git/app/bare.git"), "fsck", "--full", "--strict")
	noLeftovers(t, i.fixture)
}

func TestImportOnFullDisk(t *testing.T) {
	testenv.Root(t)
	f := newFixture(t)
	archive, digest := f.archive(f.resolve(f.source(testenv.RepoFiles(t, 800).Dir), "HEAD"))
	for _, mib := range []int{1, 2, 3} {
		i := newImporter(t)
		root := testenv.TmpFS(t, mib)
		var err error
		if i.Cache, err = Open(Options{Root: root, Ledger: i.journal, OpenSnapshot: i.opts.OpenSnapshot}); err != nil {
			t.Fatal(err)
		}
		i.root = root
		i.store[digest] = archive
		_, err = i.from(digest)
		wantCode(t, err, policy.CodeDiskFull)
		noLeftovers(t, i.fixture)
	}
}

// sizes are files on both sides of each limit, and an empty one.
func sizes(limits ...int) map[string]*testenv.Entry {
	files := map[string]*testenv.Entry{"empty": {}}
	for _, n := range limits {
		for _, size := range []int{n - 1, n, n + 1} {
			text := strings.Repeat(strconv.Itoa(size)+"\n", size)[:size]
			files[fmt.Sprintf("sizes/%07d", size)] = &testenv.Entry{Data: text}
		}
	}
	return files
}

// What a commit may not hold git finds, though the archive's digest is right: it
// judges every object of an import, and what it refuses is not in the cache.
func TestImportedObjectsAreJudged(t *testing.T) {
	url := func(url string) string { return "[submodule \"x\"]\n\tpath = x\n\turl = " + url + "\n" }
	repos := map[string]testenv.Repo{"author, before more than a pipe holds": badAuthor(t)}
	for name, files := range map[string]map[string]*testenv.Entry{
		"submodule url (CVE-2018-17456)":    {".gitmodules": {Data: url("-u./payload")}},
		"submodule name (CVE-2018-11235)":   {".gitmodules": {Data: strings.Replace(url("https://a.example"), `"x"`, `"../../x"`, 1)}},
		"submodule newline (CVE-2020-5260)": {".gitmodules": {Data: url(`"https://a.example/\n"`)}},
		"symbolic link (CVE-2018-11235)":    {".gitmodules": {Data: "elsewhere", Mode: "120000"}},
		"by NTFS's short name":              {"gitmod~1": {Data: url("-u./payload")}},
		"endless attributes line":           {".gitattributes": {Data: strings.Repeat("a", 4096) + "\n"}},
	} {
		repos[name] = testenv.Commit(t, testenv.RepoFiles(t, 3), "hostile", files) // bare: git would not check it out
	}
	for name, repo := range repos {
		t.Run(name, func(t *testing.T) {
			archive, digest := rawArchive(t, repo.Dir)
			i := newImporter(t)
			i.store[digest] = archive
			_, err := i.from(digest)
			wantCode(t, err, policy.CodeObjectsInvalid)
			noLeftovers(t, i.fixture)
			if exists(i.path("repository-cache/git/app")) {
				t.Error("a repository was left")
			}
		})
	}
	archive, digest := rawArchive(t, testenv.RepoFiles(t, 300).Dir) // the cases fail for their own reason
	i := newImporter(t)
	i.store[digest] = archive
	if _, err := i.from(digest); err != nil {
		t.Error(err)
	}
}

// A blob that is not what its tree names is refused, though the digest is right.
func TestImportedBlobsAreWhatTheirTreeNames(t *testing.T) {
	for name, text := range map[string]string{"small": "zz\n", "large": strings.Repeat("0123456789abcde\n", 100_000)} {
		repo := testenv.Commit(t, testenv.RepoSmall(t), name, map[string]*testenv.Entry{"zz": {Data: text}})
		archive, _ := rawArchive(t, repo.Dir)
		d, err := zstd.NewReader(nil)
		if err != nil {
			t.Fatal(err)
		}
		content, err := d.DecodeAll(archive, nil)
		d.Close()
		if err != nil {
			t.Fatal(err)
		}
		content[len(content)-2] ^= 1 // of the last blob
		z, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(content)
		digest := policy.FormatDigest(sum[:])
		i := newImporter(t)
		i.store[digest] = z.EncodeAll(content, nil)
		_, err = i.from(digest)
		wantCode(t, err, policy.CodeSnapshotInvalid)
		noLeftovers(t, i.fixture)
		if exists(i.path("repository-cache/git/app")) {
			t.Errorf("%s: a repository was left", name)
		}
	}
}

// badAuthor's commit makes git end long before the archive does.
func badAuthor(t *testing.T) testenv.Repo {
	t.Helper()
	files := make(map[string]*testenv.Entry)
	for n := range 64 {
		files[fmt.Sprintf("%02d", n)] = &testenv.Entry{Data: strings.Repeat(strconv.Itoa(n)+"\n", 32<<10)[:storedObject*16]}
	}
	repo := testenv.Commit(t, testenv.RepoSmall(t), "many", files)
	tree := strings.TrimSpace(testenv.Git(t, repo.Dir, "rev-parse", "HEAD^{tree}"))
	text := filepath.Join(t.TempDir(), "commit")
	if err := os.WriteFile(text, []byte("tree "+tree+"\nauthor nobody\ncommitter nobody\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	commit := strings.TrimSpace(testenv.Git(t, repo.Dir, "hash-object", "-t", "commit", "-w", "--literally", text))
	testenv.Git(t, repo.Dir, "update-ref", "--no-deref", "HEAD", commit)
	return repo
}

// rawArchive writes a repository's HEAD as it is, without a cache that would look at it.
func rawArchive(t *testing.T, dir string) (archive []byte, digest string) {
	t.Helper()
	commit := strings.TrimSpace(testenv.Git(t, dir, "rev-parse", "HEAD"))
	trees, blobs := []string{strings.TrimSpace(testenv.Git(t, dir, "rev-parse", "HEAD^{tree}"))}, []string(nil)
	seen := map[string]bool{}
	for line := range strings.Lines(testenv.Git(t, dir, "ls-tree", "-r", "-t", "--format=%(objecttype) %(objectname)", "HEAD")) {
		kind, oid, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case seen[oid]:
		case kind == "tree":
			trees = append(trees, oid)
		case kind == "blob":
			blobs = append(blobs, oid)
		}
		seen[oid] = true
	}
	var b bytes.Buffer
	w, err := snapshot.NewWriter(&b, snapshot.Header{Kind: snapshot.KindPoint, ObjectFormat: "sha1", Commit: commit, Objects: int64(1 + len(trees) + len(blobs))})
	if err != nil {
		t.Fatal(err)
	}
	for kind, oids := range [][]string{{commit}, trees, blobs} {
		for _, oid := range oids {
			content, err := exec.Command("git", "-C", dir, "cat-file", []string{"commit", "tree", "blob"}[kind], oid).Output()
			if err != nil {
				t.Fatal(err)
			}
			if err := w.Object(int64(len(content)), bytes.NewReader(content)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if digest, err = w.Finish(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), digest
}

func sha256Repo(t *testing.T) testenv.Repo {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "sha256")
	testenv.Git(t, "", "init", "--quiet", "--object-format=sha256", "--initial-branch=main", dir)
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("content\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	testenv.Git(t, dir, "add", "f")
	testenv.Git(t, dir, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "sha256")
	return testenv.Repo{Dir: dir}
}
