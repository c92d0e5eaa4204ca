package dirty

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// facts lists type, execute bit, link target and content of every file but git's.
const facts = `find . -path ./.git -prune -o ! -type d -printf '%y %P -> %l ' \( -perm -100 -printf x -o -printf - \) -printf '\n' | LC_ALL=C sort
find . -path ./.git -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum`

func local(t *testing.T, dir, script string) string {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// changed is a repository with every kind of uncommitted change, and the diff
// of all of them.
func changed(t *testing.T) (repo testenv.Repo, diff string) {
	t.Helper()
	repo = testenv.RepoSmall(t)
	repo = testenv.Commit(t, repo, "kinds", map[string]*testenv.Entry{
		"bin": {Data: "\x00\x01\x02"}, "moved": {Data: strings.Repeat("line\n", 100)}, "gone": {Data: "gone\n"},
		"link": {Data: "README.md", Mode: "120000"}, "tool": {Data: "#!/bin/sh\n"}, "was a file": {Data: "x\n"},
	})
	at := func(n string) string { return filepath.Join(repo.Dir, n) }
	write(t, at("README.md"), "edited\n")
	write(t, at("bin"), strings.Repeat("\x00\xff\x03", 5000))
	write(t, at("new dir/new é\tfile"), "new\n")
	write(t, at("empty"), "")
	for _, err := range []error{
		os.Rename(at("moved"), at("src/moved to")), os.Remove(at("gone")), os.Chmod(at("tool"), 0o755),
		os.Remove(at("link")), os.Symlink("../outside/the tree", at("link")),
		os.Remove(at("was a file")), os.Symlink("bin", at("was a file")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	repo.Git(t, "add", "-A")
	return repo, repo.Git(t, "diff", "--binary", "-M", "HEAD")
}

// TestPatchByEveryStrategy brings every kind of change along, by each strategy
// on each file system, as root and as an ordinary user.
func TestPatchByEveryStrategy(t *testing.T) {
	testenv.Root(t)
	source, diff := changed(t)
	want := local(t, source.Dir, facts)
	rig.EachPlace(t, func(t *testing.T, p rig.Place) {
		repo, y := p.Give(t, source), p.Yoi(t)
		for _, w := range p.Ways(t, y, repo) {
			t.Run(w.String(), func(t *testing.T) {
				r := y.Input(t, diff, w.Run("--patch", "-", "--", "sh", "-c",
					`[ "$(git rev-parse HEAD)" = `+repo.Commit+` ] && git diff --cached --quiet && `+facts)...)
				if r.Want(t, 0); r.Stdout != want {
					t.Errorf("the Worker has\n%s\nwant\n%s", r.Stdout, want)
				}
			})
		}
		rig.Clean(t, y.Root)
	})
}

// TestPatchEvidence names the patch, and knows the tree that it makes.
func TestPatchEvidence(t *testing.T) {
	testenv.Root(t)
	source, diff := changed(t)
	p := rig.NewPlace(t, "disk", 0)
	repo, y := p.Give(t, source), p.Yoi(t)
	y.OK(t, "repo", "add", repo.Dir)
	file := filepath.Join(p.Dir, "p.patch")
	write(t, file, diff)
	digest := strings.TrimSpace(y.OK(t, "patch", "add", file))
	var ws runtime.Workspace
	y.Run(t, "ws", "create", "small", "--patch", digest, "--json").Want(t, 0).JSON(t, &ws)
	var ev runtime.Evidence
	y.Run(t, "ws", "evidence", string(ws.ID)).Want(t, 0).JSON(t, &ev)
	if len(ev.Changes) != 1 {
		t.Fatalf("the evidence has %+v", ev.Changes)
	}
	d := ev.Changes[0]
	tree := strings.TrimSpace(repo.Git(t, "-c", "safe.directory=*", "write-tree"))
	if d.Digest != digest || d.Kind != policy.PatchArtifact || d.TreeID != tree || d.CreatedAt.IsZero() || d.Bytes != int64(len(diff)) ||
		ev.Points[0].CommitID != repo.Commit || ev.Strategy == "" || ws.DirtyState != policy.PatchArtifact {
		t.Errorf("the evidence is %+v of %+v, the tree is %s", d, ws, tree)
	}
	// What came along is not work of a Worker's; what it adds is.
	y.OK(t, "ws", "rm", string(ws.ID))
	y.Run(t, "ws", "create", "small", "--patch", digest, "--json").Want(t, 0).JSON(t, &ws)
	w := spawned(t, y, ws.ID, "echo more >>README.md")
	y.OK(t, "worker", "show", w)
	y.Run(t, "ws", "rm", string(ws.ID)).Refused(t, 1, policy.CodeUncollectedWork)
	y.OK(t, "ws", "rm", "--discard", string(ws.ID))

	var list []runtime.Patch
	y.Run(t, "patch", "list", "--json").Want(t, 0).JSON(t, &list)
	if len(list) != 1 || string(list[0].Digest) != digest || list[0].Bytes != int64(len(diff)) {
		t.Errorf("stored are %+v", list)
	}
	y.OK(t, "patch", "rm", digest)
	y.Run(t, "patch", "rm", digest).Refused(t, 1, policy.CodePatchUnknown)
	y.Run(t, "ws", "create", "small", "--patch", digest).Refused(t, 1, policy.CodePatchUnknown)
	rig.Clean(t, y.Root)
}

// spawned runs a script to its end as a Worker and returns the Worker's id.
func spawned(t *testing.T, y rig.Yoi, ws policy.AllocationID, script string) string {
	t.Helper()
	var w runtime.Worker
	y.Run(t, "worker", "spawn", "--json", string(ws), "--", "sh", "-c", script).Want(t, 0).JSON(t, &w)
	y.OK(t, "worker", "wait", string(w.ID))
	return string(w.ID)
}

// TestHostilePatches tries to write where no patch may, past the reader that
// names what it refuses, and past it to git. Nothing is left of any.
func TestHostilePatches(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", 0)
	repo := p.Give(t, testenv.Commit(t, testenv.RepoSmall(t), "link", map[string]*testenv.Entry{
		"dir": {Data: "/tmp", Mode: "120000"}, "up": {Data: "..", Mode: "120000"},
	}))
	y := p.Yoi(t)
	y.OK(t, "run", "--repo", repo.Dir, "--", "true")
	file := func(name string) string {
		return "diff --git a/" + name + " b/" + name + "\nnew file mode 100644\nindex 0000000..1\n--- /dev/null\n+++ b/" + name + "\n@@ -0,0 +1 @@\n+hostile\n"
	}
	before := rig.Contents(t, rig.Cache(y.Root, "small")...)
	for _, c := range []struct {
		name, patch string
		code        policy.Code
	}{
		{"parent", file("../escaped"), policy.CodePatchEscapes},
		{"absolute", file("/tmp/escaped"), policy.CodePatchEscapes},
		{"git directory", file(".git/hooks/pre-commit"), policy.CodePatchEscapes},
		{"git directory on NTFS", file("git~1/config"), policy.CodePatchEscapes},
		{"git directory with an ignored character", file(".g\u200cit/config"), policy.CodePatchEscapes},
		{"through a link of the tree", file("dir/escaped"), policy.CodePatchEscapes},
		{"through a link upwards", file("up/escaped"), policy.CodePatchEscapes},
		{"through a link of its own", "diff --git a/mine b/mine\nnew file mode 120000\nindex 0000000..1\n--- /dev/null\n+++ b/mine\n@@ -0,0 +1 @@\n+/tmp\n\\ No newline at end of file\n" + file("mine/escaped"), policy.CodePatchEscapes},
		{"rename through a link", "diff --git a/README.md b/dir/README.md\nsimilarity index 100%\nrename from README.md\nrename to dir/README.md\n", policy.CodePatchEscapes},
		{"submodule", "diff --git a/s b/s\nnew file mode 160000\nindex 0000000..1\n--- /dev/null\n+++ b/s\n@@ -0,0 +1 @@\n+Subproject commit 1111111111111111111111111111111111111111\n", policy.CodePatchSubmodule},
		{"does not apply", strings.Replace(file("README.md"), "new file mode 100644\n", "", 1), policy.CodePatchNotApplied},
		{"half applies", file("fresh") + file("README.md"), policy.CodePatchNotApplied},
		{"binary that does not inflate", "diff --git a/b b/b\nnew file mode 100644\nindex 0000000000000000000000000000000000000000..1111111111111111111111111111111111111111\nGIT binary patch\nliteral 1\nHcmZPo00031\n\n", policy.CodePatchInvalid},
		{"cut off", strings.TrimSuffix(file("a"), "+hostile\n"), policy.CodePatchInvalid},
		{"empty", "", policy.CodePatchInvalid},
		{"no patch", "hello\n", policy.CodePatchInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := y.Input(t, c.patch, "run", "--repo", repo.Dir, "--patch", "-", "--", "sh", "-c", "echo the command ran")
			r.Refused(t, 125, c.code)
			if r.Stdout != "" || strings.Contains(r.Stderr, y.Root) {
				t.Errorf("it printed %q and %q", r.Stdout, r.Stderr)
			}
			rig.Clean(t, y.Root)
		})
	}
	for _, escaped := range []string{"/tmp/escaped", filepath.Join(y.Root, "execution-workspaces/escaped")} {
		if _, err := os.Lstat(escaped); err == nil {
			t.Errorf("%s was written", escaped)
			_ = os.Remove(escaped)
		}
	}
	for _, d := range rig.Difference(before, rig.Contents(t, rig.Cache(y.Root, "small")...)) {
		t.Errorf("the cache changed: %s", d)
	}
}

// TestPatchOverSubmodule wants files of a submodule refused by name.
func TestPatchOverSubmodule(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", 0)
	repo, y := p.Give(t, testenv.RepoSubmodules(t)), p.Yoi(t)
	sub, _, _ := strings.Cut(strings.TrimPrefix(repo.Git(t, "-c", "safe.directory=*", "config", "-f", ".gitmodules", "--get-regexp", "path"), "submodule."), "\n")
	path := sub[strings.LastIndexByte(sub, ' ')+1:]
	diff := "diff --git a/" + path + "/x b/" + path + "/x\nnew file mode 100644\nindex 0000000..1\n--- /dev/null\n+++ b/" + path + "/x\n@@ -0,0 +1 @@\n+x\n"
	y.Input(t, diff, "run", "--repo", repo.Dir, "--patch", "-", "--", "true").Refused(t, 125, policy.CodePatchSubmodule)
	rig.Clean(t, y.Root)
}

// TestStoredPatchIsChecked changes a stored patch behind the Runtime's back.
func TestStoredPatchIsChecked(t *testing.T) {
	testenv.Root(t)
	source, diff := changed(t)
	p := rig.NewPlace(t, "disk", 0)
	repo, y := p.Give(t, source), p.Yoi(t)
	digest := strings.TrimSpace(y.Input(t, diff, "patch", "add", "-").Want(t, 0).Stdout)
	y.OK(t, "run", "--repo", repo.Dir, "--patch", digest, "--", "true")
	y.Run(t, "run", "--repo", repo.Dir, "--dirty", "clean_point_only", "--patch", digest, "--", "true").Refused(t, 125, policy.CodePolicyInvalid)
	stored := filepath.Join(y.Root, "patches", strings.TrimPrefix(digest, "sha256:"))
	write(t, stored, strings.Replace(diff, "+edited", "+forged", 1))
	y.Run(t, "run", "--repo", repo.Dir, "--patch", digest, "--", "true").Refused(t, 125, policy.CodePatchCorrupt)
	y.Run(t, "run", "--repo", repo.Dir, "--patch", "sha256:1234", "--", "true").Refused(t, 125, policy.CodePatchInvalid)
	y.Run(t, "run", "--repo", repo.Dir, "--dirty", "patch_artifact", "--", "true").Refused(t, 125, policy.CodePolicyInvalid)
	rig.Clean(t, y.Root)
}

// TestPatchThroughDaemons stores and applies through an unprivileged daemon
// with a helper that is root, and with one that is not.
func TestPatchThroughDaemons(t *testing.T) {
	testenv.Root(t)
	source, diff := changed(t)
	want := local(t, source.Dir, facts)
	for name, helperUID := range map[string]int{"privileged": 0, "user": daemonUser} {
		t.Run(name, func(t *testing.T) {
			p := rig.NewPlace(t, "ext4", daemonUser)
			repo := p.Give(t, source)
			d := rig.StartDaemons(t, p, helperUID)
			y := d.Yoi(t, daemonUser)
			y.OK(t, "repo", "add", repo.Dir)
			for _, s := range []policy.StrategyName{policy.StrategyOverlay, policy.StrategyCopy} {
				var ws runtime.Workspace
				r := y.Input(t, diff, "ws", "create", "small", "--patch", "-", "--strategy", string(s), "--json").Want(t, 0)
				if err := json.Unmarshal([]byte(r.Stdout), &ws); err != nil {
					t.Fatal(err)
				}
				w := spawned(t, y, ws.ID, facts)
				if got := y.OK(t, "worker", "logs", w); got != want {
					t.Errorf("by %s the Worker has\n%s\nwant\n%s", s, got, want)
				}
				y.OK(t, "ws", "rm", string(ws.ID))
			}
			y.Input(t, "diff --git a/../x b/../x\nold mode 100644\nnew mode 100755\n", "ws", "create", "small", "--patch", "-").Refused(t, 1, policy.CodePatchEscapes)
			// More than any other request may be.
			big := "diff --git a/big b/big\nnew file mode 100644\nindex 0000000..1\n--- /dev/null\n+++ b/big\n@@ -0,0 +1,400000 @@\n" + strings.Repeat("+a line\n", 400000)
			w := y.Input(t, big, "ws", "create", "small", "--patch", "-", "--json").Want(t, 0)
			var ws runtime.Workspace
			w.JSON(t, &ws)
			y.OK(t, "ws", "rm", string(ws.ID))
			d.Stop(t)
			rig.Clean(t, d.Root)
		})
	}
}

// daemonUser is the uid of the unprivileged daemon.
const daemonUser = 64401
