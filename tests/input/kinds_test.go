package input

import (
	"slices"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// look prints what the Worker got, in git's words and the file system's.
const look = `set -e
echo "$(git rev-parse HEAD)"
git ls-files -s -z >/scratch/index
git status --porcelain --ignored
git fsck --no-dangling
find . -path ./.git -prune -o ! -type d -print0 | sort -z >/scratch/files
cat /scratch/index; printf 'files follow\0'; cat /scratch/files`

// arrived runs look on a repository and holds the answer against the source's
// own git.
func arrived(t *testing.T, p rig.Place, repo testenv.Repo, args ...string) {
	t.Helper()
	y := p.Yoi(t)
	args = append(append([]string{"run", "--repo", repo.Dir}, args...), "--", "sh", "-c", look)
	out := y.OK(t, args...)
	head, rest, _ := strings.Cut(out, "\n")
	if head != repo.Commit {
		t.Errorf("the Worker stands on %s, not %s", head, repo.Commit)
	}
	index, files, ok := strings.Cut(rest, "files follow\x00")
	if !ok {
		t.Fatalf("the answer is cut short: %q", out)
	}
	if want := sourceIndex(t, repo); index != want {
		t.Errorf("the index differs, or status is not clean:\n%q\nwant:\n%q", index, want)
	}
	if want := sourceFiles(t, repo); files != want {
		t.Errorf("the files differ:\n%q\nwant:\n%q", files, want)
	}
	rig.Clean(t, y.Root)
}

// sourceIndex is `ls-files -s -z` of the source's HEAD, made in an index of
// its own: the source may be bare.
func sourceIndex(t *testing.T, repo testenv.Repo) string {
	t.Helper()
	var b strings.Builder
	for e := range strings.SplitSeq(lsTree(t, repo), "\x00") {
		meta, name, ok := strings.Cut(e, "\t")
		if f := strings.Fields(meta); ok && len(f) == 3 {
			b.WriteString(f[0] + " " + f[2] + " 0\t" + name + "\x00")
		}
	}
	return b.String()
}

func lsTree(t *testing.T, repo testenv.Repo) string {
	t.Helper()
	// The repository may belong to another user than this test's.
	return repo.Git(t, "-c", "safe.directory=*", "ls-tree", "-r", "-z", "--full-tree", repo.Commit)
}

func sourceFiles(t *testing.T, repo testenv.Repo) string {
	t.Helper()
	var names []string
	for e := range strings.SplitSeq(lsTree(t, repo), "\x00") {
		meta, name, ok := strings.Cut(e, "\t")
		if ok && !strings.HasPrefix(meta, "160000") {
			names = append(names, "./"+name)
		}
	}
	slices.Sort(names) // bytewise, as sort -z does under C.UTF-8
	var b strings.Builder
	for _, n := range names {
		b.WriteString(n + "\x00")
	}
	return b.String()
}

// warned runs a command that succeeds and returns its evidence's warnings.
func warned(t *testing.T, p rig.Place, repo testenv.Repo) []policy.Code {
	t.Helper()
	r := p.Yoi(t).Run(t, "run", "--json", "--repo", repo.Dir, "--", "true").Want(t, 0)
	var ev runtime.Evidence
	r.JSON(t, &ev)
	var codes []policy.Code
	for _, d := range ev.Diagnostics {
		if d.Severity != policy.SeverityWarning || d.Message == "" || d.Hint == "" {
			t.Errorf("not a warning with a hint: %+v", d)
		}
		codes = append(codes, d.Code)
	}
	return codes
}

func TestKindsOfRepositories(t *testing.T) {
	for _, k := range []struct {
		name     string
		make     func(testing.TB) testenv.Repo
		warnings []policy.Code
	}{
		{"small", testenv.RepoSmall, nil},
		{"bare", testenv.RepoBare, nil},
		{"linked worktree", testenv.RepoWorktree, nil},
		{"shallow clone", testenv.RepoShallow, []policy.Code{policy.CodeShallowSource}},
		{"submodules", testenv.RepoSubmodules, []policy.Code{policy.CodeSubmodulesNotFilled}},
		{"LFS pointers", testenv.RepoLFS, []policy.Code{policy.CodeLFSNotFilled}},
		{"odd names", testenv.RepoOddNames, nil},
		{"names that are not UTF-8", testenv.RepoNonUTF8, nil},
	} {
		t.Run(k.name, func(t *testing.T) {
			testenv.Root(t)
			repo := k.make(t)
			p := rig.NewPlace(t, "disk", 0)
			arrived(t, p, repo)
			if got := warned(t, p, repo); !slices.Equal(got, k.warnings) {
				t.Errorf("warnings %q, want %q", got, k.warnings)
			}
			rig.Clean(t, p.Yoi(t).Root)
		})
	}
}

// TestAsOrdinaryUser takes the kinds whose handling could depend on who runs.
func TestAsOrdinaryUser(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", rig.Ordinary)
	for name, make := range map[string]func(testing.TB) testenv.Repo{
		"small": testenv.RepoSmall, "odd": testenv.RepoOddNames, "bytes": testenv.RepoNonUTF8, "shallow": testenv.RepoShallow,
	} {
		t.Run(name, func(t *testing.T) { arrived(t, p, p.Give(t, make(t))) })
	}
}

func TestEmptyRepository(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", 0)
	y := p.Yoi(t)
	y.Run(t, "run", "--repo", testenv.RepoEmpty(t).Dir, "--", "true").Refused(t, 125, policy.CodeRepositoryEmpty)
	rig.Clean(t, y.Root)
}

// TestSubmoduleDirectoriesAreThere: empty, as in a clone that was not told to
// fill them, so that builds which test for the directory go on.
func TestSubmoduleDirectoriesAreThere(t *testing.T) {
	testenv.Root(t)
	repo := testenv.RepoSubmodules(t)
	out := rig.NewPlace(t, "disk", 0).Yoi(t).OK(t, "run", "--repo", repo.Dir, "--", "sh", "-c", "ls -A sub vendor/lib; git submodule status")
	want := "sub:\n\nvendor/lib:\n"
	if !strings.HasPrefix(out, want) || strings.Count(out, "\n-") != 2 {
		t.Errorf("the Worker sees\n%s", out)
	}
}

func TestLFSPointerIsAFile(t *testing.T) {
	testenv.Root(t)
	out := rig.NewPlace(t, "disk", 0).Yoi(t).OK(t, "run", "--repo", testenv.RepoLFS(t).Dir, "--", "cat", "data.bin")
	if out != testenv.LFSPointer {
		t.Errorf("the pointer arrived as %q", out)
	}
}

// TestScope takes one directory of a repository, and git agrees.
func TestScope(t *testing.T) {
	testenv.Root(t)
	y := rig.NewPlace(t, "disk", 0).Yoi(t)
	repo := testenv.RepoSmall(t)
	out := y.OK(t, "run", "--repo", repo.Dir, "--scope", "src", "--", "sh", "-c", "find . -path ./.git -prune -o -type f -print | sort; git status --porcelain; git log --oneline | wc -l")
	// Cone mode keeps the files at the top, git-sparse-checkout(1).
	if want := "./Makefile\n./README.md\n./run.sh\n./src/main.c\n./src/util.c\n3\n"; out != want {
		t.Errorf("the scoped workspace is\n%swant\n%s", out, want)
	}
	rig.Clean(t, y.Root)
}
