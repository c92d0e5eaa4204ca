package gitcache

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// sandboxScript stands for the real sandbox: the Worker is uid 1000 of a user
// namespace, owns the workspace, and sees the cache's objects read-only at the
// fixed path and nothing else of the cache.
const sandboxScript = `
set -e
mount -t tmpfs none /run
mkdir -p /run/yoi/objects/"$REPO" /run/ws
mount --bind "$OBJECTS" /run/yoi/objects/"$REPO"
mount -o remount,ro,bind /run/yoi/objects/"$REPO"
mount --bind "$WS" /run/ws
mount -t tmpfs none "$ROOT"
cd /run/ws
exec "$@"
`

func sandboxCommand(f *fixture, p policy.RepositoryPoint, ws string, argv ...string) *exec.Cmd {
	args := append([]string{"--mount", "--propagation=private", "sh", "-c", sandboxScript, "sh",
		"unshare", "--user", "--map-user=1000", "--map-group=1000", "--"}, argv...)
	cmd := exec.Command("unshare", args...)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_PAGER=cat", "GIT_EDITOR=true",
		"GIT_AUTHOR_NAME=w", "GIT_AUTHOR_EMAIL=w@x", "GIT_COMMITTER_NAME=w", "GIT_COMMITTER_EMAIL=w@x",
		// The index's untracked cache is for the tree at its place in the real sandbox.
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=core.untrackedCache", "GIT_CONFIG_VALUE_0=false",
		"REPO=" + string(p.RepositoryID), "OBJECTS=" + f.path(f.ObjectsPath(p.RepositoryID)), "WS=" + ws, "ROOT=" + f.root,
	}
	return cmd
}

func inSandbox(t *testing.T, f *fixture, p policy.RepositoryPoint, ws string) func(args ...string) string {
	testenv.Root(t)
	return func(args ...string) string {
		t.Helper()
		cmd := sandboxCommand(f, p, ws, append([]string{"git"}, args...)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("git %q in the sandbox: %v\n%s%s", args, err, out, &stderr)
		}
		return string(out)
	}
}

// checkWorkspace holds a workspace of p against the source repository.
func checkWorkspace(t *testing.T, f *fixture, p policy.RepositoryPoint, repo testenv.Repo) {
	t.Helper()
	ws := f.workspace(p, GitDirOptions{})
	git := inSandbox(t, f, p, ws)
	if out := git("status", "--porcelain", "--ignored"); out != "" {
		t.Errorf("status is not clean:\n%s", out)
	}
	if got, want := git("log", "--format=%H"), repo.Git(t, "log", "--format=%H", p.CommitID); strings.TrimSpace(got) != want {
		t.Errorf("log:\n%s\nwant:\n%s", got, want)
	}
	if got, want := git("ls-files", "-s"), repo.Git(t, "ls-tree", "-r", p.CommitID); strings.Count(got, "\n") != strings.Count(want+"\n", "\n") {
		t.Errorf("%d entries, want %d", strings.Count(got, "\n"), strings.Count(want, "\n")+1)
	}
	git("fsck", "--no-dangling")
	if out := git("for-each-ref", "--format=%(refname)"); repo.Git(t, "tag") != "" && !strings.Contains(out, "refs/tags/v1\n") && !strings.Contains(out, "refs/tags/v0.1.0\n") {
		t.Errorf("refs:\n%s", out)
	}
	noHostPaths(t, f, ws)
}

// contentReads counts what `git status` opens in the working tree for reading,
// directories apart.
func contentReads(t *testing.T, f *fixture, p policy.RepositoryPoint, ws string) []string {
	t.Helper()
	log := filepath.Join(t.TempDir(), "trace")
	cmd := sandboxCommand(f, p, ws, "strace", "-f", "-qq", "-e", "trace=open,openat,openat2,readlink,readlinkat", "-o", "/proc/self/fd/3", "git", "status", "--porcelain")
	file, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd.ExtraFiles = []*os.File{file}
	out, err := cmd.CombinedOutput()
	if err != nil || len(out) != 0 {
		t.Fatalf("git status under strace: %v\n%s", err, out)
	}
	trace, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	var reads []string
	for line := range strings.Lines(string(trace)) {
		if strings.Contains(line, "O_DIRECTORY") || strings.Contains(line, "ENOENT") || strings.Contains(line, "\"/") || strings.Contains(line, "\".git") {
			continue
		}
		if strings.Contains(line, "open") || strings.Contains(line, "readlink") {
			reads = append(reads, strings.TrimSpace(line))
		}
	}
	if !strings.Contains(string(trace), "index\"") {
		t.Fatalf("the trace shows no git at work:\n%s", trace)
	}
	return reads
}

func TestFirstStatusReadsNothing(t *testing.T) {
	testenv.Root(t)
	f := newFixture(t)
	repo := testenv.RepoFiles(t, 500)
	p := f.resolve(f.source(repo.Dir), "HEAD")
	t.Run("copied", func(t *testing.T) {
		ws := f.workspace(p, GitDirOptions{Branch: "work/one"})
		if reads := contentReads(t, f, p, ws); len(reads) > 0 {
			t.Errorf("%d reads, first: %s", len(reads), reads[0])
		}
		// The count can see a read: an index that is not patched needs them.
		top, err := os.Open(ws)
		if err != nil {
			t.Fatal(err)
		}
		defer top.Close()
		x, err := readIndex(top)
		if err != nil {
			t.Fatal(err)
		}
		s := x.Entry(0).Stat
		s.Ino++
		x.SetStat(0, s)
		if err := writeIndex(top, x); err != nil {
			t.Fatal(err)
		}
		if reads := contentReads(t, f, p, ws); len(reads) != 1 {
			t.Errorf("one stale entry gave %d reads: %q", len(reads), reads)
		}
	})
	t.Run("in place", func(t *testing.T) { // as a snapshot or an overlay has it
		tree, _ := f.pristine(p)
		if reads := contentReads(t, f, p, f.path(tree.RelPath)); len(reads) > 0 {
			t.Errorf("%d reads, first: %s", len(reads), reads[0])
		}
	})
}

func TestGitWorksInWorkspace(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoSmall(t)
	p := f.resolve(f.source(repo.Dir), "HEAD")
	ws := f.workspace(p, GitDirOptions{Branch: "agent/one"})
	before := digest(t, f.path(f.ObjectsPath(p.RepositoryID)))
	git := inSandbox(t, f, p, ws)
	if got := strings.TrimSpace(git("symbolic-ref", "HEAD")); got != "refs/heads/agent/one" {
		t.Errorf("HEAD is %s", got)
	}
	write(t, filepath.Join(ws, "new"), "new\n")
	git("add", "new")
	git("commit", "--quiet", "-m", "work")
	write(t, filepath.Join(ws, "README.md"), "changed\n")
	git("stash")
	git("stash", "pop")
	git("checkout", "--quiet", "-b", "other", "origin/topic", "--force")
	git("rebase", "--quiet", "agent/one")
	git("worktree", "add", "--quiet", "/run/wt", "HEAD")
	git("gc", "--quiet")
	git("fsck", "--strict")
	git("blame", "README.md")
	if got := strings.TrimSpace(git("rev-parse", "origin/HEAD")); got != p.CommitID {
		t.Errorf("origin/HEAD is %s", got)
	}
	if after := digest(t, f.path(f.ObjectsPath(p.RepositoryID))); after != before {
		t.Error("the cache's objects changed")
	}
}

// noHostPaths looks into every file of the private git directory.
func noHostPaths(t *testing.T, f *fixture, ws string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(ws, ".git"), func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(f.root)) || bytes.Contains(b, []byte("repository-cache")) {
			t.Errorf("%s names a host path", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func digest(t *testing.T, dir string) string {
	t.Helper()
	return run(t, "sh", "-c", fmt.Sprintf("cd '%s' && find . -type f | sort | xargs sha256sum | sha256sum", dir))
}
