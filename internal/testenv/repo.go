package testenv

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Repo is a made repository, on branch main unless it is empty.
type Repo struct {
	// Dir is the working tree's top, or the bare repository.
	Dir string
	// Commit and Tree are HEAD's ids, "" in an empty repository.
	Commit, Tree string
	Bare         bool
}

// Git runs git in the repository.
func (r Repo) Git(t testing.TB, args ...string) string {
	t.Helper()
	return Git(t, r.Dir, args...)
}

// Commit makes one more commit of files in r, in the working tree too, and
// returns r as it is then.
func Commit(t testing.TB, r Repo, message string, files map[string]*Entry) Repo {
	t.Helper()
	s := stream{when: 1_700_100_000}
	s.parent = r.Commit
	s.commit("refs/heads/main", message, files)
	gitInput(t, r.Dir, s.buf.Bytes(), "fast-import", "--quiet")
	if !r.Bare {
		r.Git(t, "reset", "--quiet", "--hard", "main")
	}
	return readHead(t, r)
}

func readHead(t testing.TB, r Repo) Repo {
	t.Helper()
	r.Commit = r.Git(t, "rev-parse", "HEAD^{commit}")
	r.Tree = r.Git(t, "rev-parse", "HEAD^{tree}")
	return r
}

// newRepo initializes a repository in a directory of the test's.
func newRepo(t testing.TB, name string, bare bool) Repo {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	args := []string{"init", "--quiet", "--initial-branch=main"}
	if bare {
		args = append(args, "--bare")
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	Git(t, dir, args...)
	return Repo{Dir: dir, Bare: bare}
}

func fill(t testing.TB, r Repo, s *stream) Repo {
	t.Helper()
	gitInput(t, r.Dir, s.buf.Bytes(), "fast-import", "--quiet")
	if !r.Bare {
		r.Git(t, "reset", "--quiet", "--hard", "main")
	}
	return readHead(t, r)
}

// RepoSmall is a repository of a few plain files and three commits, the last
// two tagged v1 (annotated) and v2 (lightweight), with a branch topic at v1.
func RepoSmall(t testing.TB) Repo {
	t.Helper()
	var s stream
	s.commit("refs/heads/main", "first", map[string]*Entry{
		"README.md": {Data: "# small\n"}, "src/main.c": {Data: "int main(void) { return 0; }\n"},
		"Makefile": {Data: "all:\n\tcc -o main src/main.c\n"},
	})
	v1 := s.commit("refs/heads/main", "second", map[string]*Entry{
		"src/util.c": {Data: "int util(void) { return 1; }\n"}, "run.sh": {Mode: "100755", Data: "#!/bin/sh\necho hello\n"},
	})
	s.commit("refs/heads/main", "third", map[string]*Entry{
		"README.md": {Data: "# small\n\nChanged.\n"}, "link": {Mode: "120000", Data: "src/main.c"},
	})
	fmt.Fprintf(&s.buf, "tag v1\nfrom :%d\ntagger A U Thor <author@example.com> 1700000300 +0000\n", v1)
	s.data("version 1")
	fmt.Fprintf(&s.buf, "reset refs/heads/topic\nfrom :%d\n\nreset refs/tags/v2\nfrom :%d\n\n", v1, s.mark)
	return fill(t, newRepo(t, "small", false), &s)
}

// RepoFiles is a bare repository of n files of 100 to 600 bytes, 100 to a
// directory, two levels deep, and two commits. Each n is made once a process;
// the copies share its objects by hard link.
func RepoFiles(t testing.TB, n int) Repo {
	t.Helper()
	template := filesTemplate(t, n)
	dir := filepath.Join(t.TempDir(), fmt.Sprintf("files-%d", n))
	if out, err := tryGit("", nil, "clone", "--quiet", "--bare", "--local", template, dir); err != nil {
		// --local links by hand; across file systems git copies.
		t.Fatalf("git clone: %v\n%s", err, out)
	}
	return readHead(t, Repo{Dir: dir, Bare: true})
}

// RepoFilesCheckedOut is RepoFiles with a working tree.
func RepoFilesCheckedOut(t testing.TB, n int) Repo {
	t.Helper()
	dir := filepath.Join(t.TempDir(), fmt.Sprintf("files-%d", n))
	Git(t, "", "clone", "--quiet", "--local", filesTemplate(t, n), dir)
	return readHead(t, Repo{Dir: dir})
}

var templates struct {
	sync.Mutex
	dirs map[int]string
}

func filesTemplate(t testing.TB, n int) string {
	t.Helper()
	templates.Lock()
	defer templates.Unlock()
	if dir, ok := templates.dirs[n]; ok {
		return dir
	}
	// Outlives the test: the supervisor removes it (without root, the last
	// process of the package leaves it to the system's temporary directory).
	dir, err := os.MkdirTemp("", fmt.Sprintf("files%d-", n))
	if err != nil {
		t.Fatal(err)
	}
	Git(t, dir, "init", "--quiet", "--bare", "--initial-branch=main")
	gitInput(t, dir, filesStream(n), "fast-import", "--quiet")
	if templates.dirs == nil {
		templates.dirs = map[int]string{}
	}
	templates.dirs[n] = dir
	return dir
}

func filesStream(n int) []byte {
	var s stream
	files := make(map[string]*Entry, n)
	for i := range n {
		name := fmt.Sprintf("d%03d/s%02d/file-%06d.txt", i/10000, i/100%100, i)
		files[name] = &Entry{Data: strings.Repeat(fmt.Sprintf("line of file %06d\n", i), 5+i%25)}
	}
	s.commit("refs/heads/main", "all files", files)
	s.commit("refs/heads/main", "one change", map[string]*Entry{
		"d000/s00/file-000000.txt": {Data: "changed\n"},
	})
	return s.buf.Bytes()
}
