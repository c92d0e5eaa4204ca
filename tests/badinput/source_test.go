package badinput

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

func TestSources(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", 0)
	repo := testenv.RepoSmall(t)
	y := warmed(t, p, repo.Dir)
	plain := t.TempDir()
	file := filepath.Join(plain, "file")
	write(t, file, "not a repository\n")
	cut := p.Give(t, repo).Dir
	if err := os.Remove(filepath.Join(cut, ".git/HEAD")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, repo string
		code       policy.Code
	}{
		{"missing", filepath.Join(plain, "missing"), policy.CodeSourceUnreadable},
		{"no repository", plain, policy.CodeSourceNotRepository},
		{"a file", file, policy.CodeSourceNotRepository},
		{"without HEAD", cut, policy.CodeSourceNotRepository},
		{"empty", testenv.RepoEmpty(t).Dir, policy.CodeRepositoryEmpty},
		{"http", "http://localhost/x.git", policy.CodeProtocolRefused},
		{"git", "git://localhost/x.git", policy.CodeProtocolRefused},
		{"ext", "ext::sh -c 'touch /tmp/x'", policy.CodeProtocolRefused},
		{"option", "--upload-pack=id", policy.CodeSourceUnreadable}, // a path that is not there
		{"ssh option", "ssh://-oProxyCommand=id/x", policy.CodeSourceInvalid},
		{"nothing", "", policy.CodeSourceInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			refused(t, y, 125, c.code, "run", "--repo="+c.repo, "--", "true")
		})
	}
}

func TestUnreadableSource(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", rig.Ordinary)
	y := warmed(t, p, p.Give(t, testenv.RepoSmall(t)).Dir)
	theirs := testenv.RepoSmall(t) // below a directory of root's with mode 0700
	refused(t, y, 125, policy.CodeSourceUnreadable, "run", "--repo", theirs.Dir, "--", "true")
}

// TestDirtySource wants every kind of uncommitted change named.
func TestDirtySource(t *testing.T) {
	testenv.Root(t)
	repo := testenv.RepoSmall(t)
	y := warmed(t, rig.NewPlace(t, "disk", 0), repo.Dir)
	y.OK(t, "run", "--repo", repo.Dir, "--rev", "v1", "--", "true")
	write(t, filepath.Join(repo.Dir, "README.md"), "edited\n")
	write(t, filepath.Join(repo.Dir, "staged"), "staged\n")
	repo.Git(t, "add", "staged")
	write(t, filepath.Join(repo.Dir, "untracked"), "untracked\n")
	if err := os.Remove(filepath.Join(repo.Dir, "run.sh")); err != nil {
		t.Fatal(err)
	}
	r := refused(t, y, 125, policy.CodeSourceDirty, "run", "--repo", repo.Dir, "--", "true")
	for _, name := range []string{"README.md", "staged", "untracked", "run.sh"} {
		if !strings.Contains(r.Stderr, name) {
			t.Errorf("%s is not named:\n%s", name, r.Stderr)
		}
	}
	// Another revision of a dirty source is refused too: the caller may think
	// that the changes come along.
	refused(t, y, 125, policy.CodeSourceDirty, "run", "--repo", repo.Dir, "--rev", "v1", "--", "true")
}

func TestDirtyPolicies(t *testing.T) {
	testenv.Root(t)
	repo := testenv.RepoSmall(t)
	y := warmed(t, rig.NewPlace(t, "disk", 0), repo.Dir)
	for name, code := range map[string]policy.Code{
		"patch_artifact": policy.CodePolicyInvalid, // without a patch
		"whatever":       policy.CodePolicyInvalid,
	} {
		t.Run(name, func(t *testing.T) {
			refused(t, y, 125, code, "run", "--repo", repo.Dir, "--dirty", name, "--", "true")
		})
	}
}

// TestRuntimeRootAndRepositoryOverlap tries both ways, and through a symbolic
// link. Nothing is created in the repository.
func TestRuntimeRootAndRepositoryOverlap(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", 0)
	repo := testenv.RepoSmall(t)
	before := rig.Contents(t, repo.Dir)

	y := p.Yoi(t)
	y.Root = filepath.Join(repo.Dir, "rt")
	y.Run(t, "run", "--repo", repo.Dir, "--", "true").Refused(t, 125, policy.CodeRuntimeRootOverlap)
	y.Root = filepath.Join(repo.Dir, "src")
	y.Run(t, "run", "--repo", repo.Dir, "--", "true").Refused(t, 125, policy.CodeRuntimeRootOverlap)
	link := filepath.Join(p.Dir, "link")
	if err := os.Symlink(repo.Dir, link); err != nil {
		t.Fatal(err)
	}
	y.Root = filepath.Join(link, "rt")
	y.Run(t, "run", "--repo", repo.Dir, "--", "true").Refused(t, 125, policy.CodeRuntimeRootOverlap)
	for _, d := range rig.Difference(before, rig.Contents(t, repo.Dir)) {
		t.Errorf("the repository changed: %s", d)
	}

	outer := warmed(t, p, repo.Dir)
	inner := filepath.Join(outer.Root, "tmp", "repo")
	rig.Command(t, "cp", "-a", repo.Dir, inner)
	outer.Run(t, "run", "--repo", inner, "--", "true").Refused(t, 125, policy.CodeRuntimeRootOverlap)
	outer.Run(t, "run", "--repo", "file://"+inner, "--", "true").Refused(t, 125, policy.CodeRuntimeRootOverlap)
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
