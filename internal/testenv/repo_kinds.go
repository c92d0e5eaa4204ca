package testenv

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// OddNames are file names that git and Linux both allow and programs get wrong.
func OddNames() []string {
	return []string{
		"-rf", "--help", "with space", " leading", "trailing ", "new\nline", "tab\there", "quo\"te", "single'quote",
		"back\\slash", "$(touch pwned)", "`id`", "a;b", "*", "?", "[x]", "~", "#comment", "%41", "per%cent", "co:lon",
		"CASE", "case", "Case", "caf\u00e9", "cafe\u0301", "\u202etxt.exe", "\x1b[31mred", "\x7f", "\x01",
		".hidden", "...", "..a", "dir.git/file", ".gitignore", "deep/" + strings.Repeat("d/", 60) + "file",
		strings.Repeat("n", 255), "\u65e5\u672c\u8a9e/\u30d5\u30a1\u30a4\u30eb",
	}
}

// NonUTF8Names are file names whose bytes are not UTF-8.
func NonUTF8Names() []string {
	return []string{"latin1-\xe9", "\xff\xfe", "sjis-\x93\xfa\x96\x7b", "cut-\xe2\x82", "dir-\xc0\xaf/file"}
}

// RepoOddNames has one file of each odd name, and awkward kinds of entries.
func RepoOddNames(t testing.TB) Repo {
	t.Helper()
	files := map[string]*Entry{
		"empty": {}, "exec": {Mode: "100755", Data: "#!/bin/sh\n"},
		"links/dangling": {Mode: "120000", Data: "nowhere"}, "links/absolute": {Mode: "120000", Data: "/etc/passwd"},
		"links/out": {Mode: "120000", Data: "../../.."}, "links/self": {Mode: "120000", Data: "self"},
		"links/dir": {Mode: "120000", Data: "../deep"}, "links/odd": {Mode: "120000", Data: "a\nb \xff"},
		"binary": {Data: "\x00\x01\xff\r\n\x00"}, "crlf": {Data: "a\r\nb\r\n"}, "no-newline": {Data: "end"},
	}
	for i, n := range OddNames() {
		files[n] = &Entry{Data: fmt.Sprintf("odd %d\n", i)}
	}
	files[".gitignore"] = &Entry{Data: "*.ignored\n"}
	var s stream
	s.commit("refs/heads/main", "odd names", files)
	return fill(t, newRepo(t, "odd", false), &s)
}

// RepoNonUTF8 has the names of NonUTF8Names.
func RepoNonUTF8(t testing.TB) Repo {
	t.Helper()
	files := map[string]*Entry{"plain": {Data: "plain\n"}}
	for _, n := range NonUTF8Names() {
		files[n] = &Entry{Data: "content of a name that is not UTF-8\n"}
	}
	var s stream
	s.commit("refs/heads/main", "names that are not UTF-8", files)
	return fill(t, newRepo(t, "bytes", false), &s)
}

// RepoEmpty has no commit.
func RepoEmpty(t testing.TB) Repo {
	t.Helper()
	return newRepo(t, "empty", false)
}

// RepoBare is RepoSmall without a working tree.
func RepoBare(t testing.TB) Repo {
	t.Helper()
	src := RepoSmall(t)
	dir := filepath.Join(t.TempDir(), "small.git")
	Git(t, "", "clone", "--quiet", "--mirror", src.Dir, dir)
	return readHead(t, Repo{Dir: dir, Bare: true})
}

// RepoShallow is a clone of RepoSmall's last commit alone.
func RepoShallow(t testing.TB) Repo {
	t.Helper()
	src := RepoSmall(t)
	dir := filepath.Join(t.TempDir(), "shallow")
	Git(t, "", "clone", "--quiet", "--depth=1", "--no-single-branch", "file://"+src.Dir, dir)
	return readHead(t, Repo{Dir: dir})
}

// RepoWorktree is a linked worktree of a RepoSmall, on branch topic.
func RepoWorktree(t testing.TB) Repo {
	t.Helper()
	src := RepoSmall(t)
	dir := filepath.Join(t.TempDir(), "linked")
	src.Git(t, "worktree", "add", "--quiet", dir, "topic")
	return readHead(t, Repo{Dir: dir})
}

// RepoSubmodules has a submodule at vendor/lib, not filled, and one at sub
// that is.
func RepoSubmodules(t testing.TB) Repo {
	t.Helper()
	lib := RepoSmall(t)
	modules := fmt.Sprintf("[submodule \"sub\"]\n\tpath = sub\n\turl = %[1]s\n[submodule \"vendor/lib\"]\n\tpath = vendor/lib\n\turl = %[1]s\n", lib.Dir)
	var s stream
	s.commit("refs/heads/main", "with submodules", map[string]*Entry{
		"README": {Data: "super\n"}, ".gitmodules": {Data: modules},
		"sub": {Mode: "160000", Data: lib.Commit}, "vendor/lib": {Mode: "160000", Data: lib.Commit},
	})
	r := fill(t, newRepo(t, "super", false), &s)
	r.Git(t, "submodule", "--quiet", "update", "--init", "sub")
	return r
}

// LFSPointer is what git stores for a file kept by Git LFS.
const LFSPointer = "version https://git-lfs.github.com/spec/v1\n" +
	"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"

// RepoLFS has a pointer file, and attributes that name the lfs filter. The
// filter's program is not needed.
func RepoLFS(t testing.TB) Repo {
	t.Helper()
	var s stream
	s.commit("refs/heads/main", "with LFS", map[string]*Entry{
		".gitattributes": {Data: "*.bin filter=lfs diff=lfs merge=lfs -text\n"},
		"data.bin":       {Data: LFSPointer}, "README": {Data: "plain\n"},
	})
	return fill(t, newRepo(t, "lfs", false), &s)
}

// RepoReal is the source of golang.org/x/sys, a public project that this one
// builds on and so always has in its module cache, in three commits with a
// rename and a deletion, tagged v0.1.0 to v0.3.0.
func RepoReal(t testing.TB) Repo {
	t.Helper()
	files := moduleFiles(t, "golang.org/x/sys")
	first := map[string]*Entry{}
	for name, e := range files {
		if !strings.HasPrefix(name, "windows/") {
			first[name] = e
		}
	}
	second := map[string]*Entry{}
	for name, e := range files {
		if strings.HasPrefix(name, "windows/") {
			second[name] = e
		}
	}
	var s stream
	s.commit("refs/heads/main", "everything but windows", first)
	fmt.Fprintf(&s.buf, "reset refs/tags/v0.1.0\nfrom :%d\n\n", s.mark)
	s.commit("refs/heads/main", "add windows", second)
	fmt.Fprintf(&s.buf, "reset refs/tags/v0.2.0\nfrom :%d\n\n", s.mark)
	s.commit("refs/heads/main", "rename the readme, drop plan9", map[string]*Entry{
		"README.md": nil, "docs/README.md": files["README.md"], "plan9": nil,
	})
	fmt.Fprintf(&s.buf, "reset refs/tags/v0.3.0\nfrom :%d\n\n", s.mark)
	return fill(t, newRepo(t, "sys", false), &s)
}

// moduleFiles reads a module's directory of the Go module cache.
func moduleFiles(t testing.TB, module string) map[string]*Entry {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatalf("go list -m %s: %v", module, err)
	}
	dir := strings.TrimSpace(string(out))
	files := map[string]*Entry{}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		files[rel] = &Entry{Data: string(b)}
		return err
	})
	if err != nil || len(files) < 100 {
		t.Fatalf("reading %s: %d files, %v", module, len(files), err)
	}
	return files
}
