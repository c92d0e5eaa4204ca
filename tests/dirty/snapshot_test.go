package dirty

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

const snapshot = "current_worktree_snapshot"

// TestSnapshotByEveryStrategy takes a working tree with every kind of change,
// staged and not, by each strategy that makes a tree of another.
func TestSnapshotByEveryStrategy(t *testing.T) {
	testenv.Root(t)
	source, _ := changed(t)
	source.Git(t, "reset", "-q", "README.md", "bin") // not everything is staged
	write(t, filepath.Join(source.Dir, ".gitignore"), "ignored\n")
	write(t, filepath.Join(source.Dir, "ignored"), "comes along too\n")
	write(t, filepath.Join(source.Dir, "node_modules/x/index.js"), "does not\n")
	if err := os.Mkdir(filepath.Join(source.Dir, "empty dir"), 0o750); err != nil {
		t.Fatal(err)
	}
	want := local(t, source.Dir, "mv node_modules ../out && "+facts+" && mv ../out node_modules")
	// Plumbing without a refresh names what differs by stat data alone: git has to
	// read exactly those.
	stale := strings.Join(slices.Sorted(strings.Lines(source.Git(t, "diff", "--no-renames", "--name-only", "--diff-filter=MDT", "HEAD"))), "")
	rig.EachPlace(t, func(t *testing.T, p rig.Place) {
		repo, y := p.Give(t, source), p.Yoi(t)
		for _, s := range append(rig.Strategies(p.FS), policy.StrategyGitSparse, policy.StrategyAuto) {
			t.Run(string(s), func(t *testing.T) {
				args := []string{"run", "--repo", repo.Dir, "--strategy", string(s), "--dirty", snapshot, "--"}
				if s == policy.StrategyGitWorktree || s == policy.StrategyGitSparse {
					y.Run(t, append(args, "true")...).Refused(t, 125, policy.CodeStrategyUnsupported)
					return
				}
				out := y.OK(t, append(args, "sh", "-c", `set -e
[ "$(git rev-parse HEAD)" = `+repo.Commit+` ]
git diff-files --name-only | LC_ALL=C sort
echo "== files"
git diff --cached --quiet
[ "$(stat -c %a "empty dir")" = 750 ]
git fsck --no-dangling
`+facts)...)
				names, files, _ := strings.Cut(out, "== files\n")
				if strings.TrimSpace(names) != strings.TrimSpace(stale) {
					t.Errorf("git has to read\n%s\nwant\n%s", names, stale)
				}
				if files != want {
					t.Errorf("the Worker has\n%s\nwant\n%s", files, want)
				}
			})
		}
		rig.Clean(t, y.Root)
	})
}

func evidence(t *testing.T, y rig.Yoi, args ...string) runtime.Evidence {
	t.Helper()
	var ev runtime.Evidence
	y.Run(t, append(append([]string{"run", "--json"}, args...), "--", "true")...).Want(t, 0).JSON(t, &ev)
	return ev
}

func codes(ev runtime.Evidence) []string {
	var out []string
	for _, d := range ev.Diagnostics {
		out = append(out, string(d.Code)+" "+d.Fields["path"])
	}
	slices.Sort(out)
	return out
}

// TestSnapshotEvidence records the source's git state, shares none of it, and
// gives the same digest for the same files.
func TestSnapshotEvidence(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", 0)
	repo := p.Give(t, testenv.RepoSmall(t))
	git := func(args ...string) string {
		return repo.Git(t, append([]string{"-c", "safe.directory=*"}, args...)...)
	}
	git("checkout", "-q", "-b", "other")
	write(t, filepath.Join(repo.Dir, "README.md"), "theirs\n")
	git("commit", "-q", "-am", "theirs")
	git("checkout", "-q", "main")
	write(t, filepath.Join(repo.Dir, "README.md"), "ours\n")
	git("commit", "-q", "-am", "ours")
	head := strings.TrimSpace(git("rev-parse", "HEAD"))
	rig.Command(t, "sh", "-c", `cd "$1" && ! git -c safe.directory='*' merge -q other`, "sh", repo.Dir)
	write(t, filepath.Join(repo.Dir, "untracked"), "u\n")
	y := p.Yoi(t)

	ev := evidence(t, y, "--repo", repo.Dir, "--dirty", snapshot)
	if len(ev.Changes) != 1 || ev.Changes[0].Source == nil {
		t.Fatalf("the evidence has %+v", ev.Changes)
	}
	d := ev.Changes[0]
	if s := *d.Source; s.Head != "refs/heads/main" || !slices.Equal(s.Operations, []string{"merge"}) || s.Conflicted != 1 || s.Untracked != 1 || s.IndexDigest == "" {
		t.Errorf("the source's state is %+v", s)
	}
	if ev.Points[0].CommitID != head || !strings.HasPrefix(d.Digest, "sha256:") || d.CreatedAt.IsZero() || d.Rounds < 2 || d.Kind != snapshot || ev.Strategy == "" {
		t.Errorf("the evidence is %+v of %+v", d, ev.Points)
	}
	out := y.OK(t, "run", "--repo", repo.Dir, "--dirty", snapshot, "--", "sh", "-c", "git status --porcelain; ls .git; grep -c '<<<<<<<' README.md")
	if !strings.HasPrefix(out, " M README.md\n?? untracked\n") || strings.Contains(out, "MERGE_HEAD") || !strings.HasSuffix(out, "\n1\n") {
		t.Errorf("the Worker sees\n%s", out)
	}
	if again := evidence(t, y, "--repo", repo.Dir, "--dirty", snapshot); again.Changes[0].Digest != d.Digest {
		t.Errorf("the same files have the digests %s and %s", d.Digest, again.Changes[0].Digest)
	}
	write(t, filepath.Join(repo.Dir, "untracked"), "v\n")
	if again := evidence(t, y, "--repo", repo.Dir, "--dirty", snapshot); again.Changes[0].Digest == d.Digest {
		t.Error("other files have the same digest")
	}
	// Another commit's tree is not what the working tree stands on.
	y.Run(t, "run", "--repo", repo.Dir, "--rev", "v1", "--dirty", snapshot, "--", "true").Refused(t, 125, policy.CodeDirtyPolicyUnsupported)
	y.Run(t, "run", "--repo", repo.Dir, "--scope", "nowhere", "--dirty", snapshot, "--", "true").Refused(t, 125, policy.CodeScopeEmpty)
	y.Run(t, "run", "--repo", testenv.RepoBare(t).Dir, "--dirty", snapshot, "--", "true").Refused(t, 125, policy.CodeDirtyPolicyUnsupported)
	y.Run(t, "run", "--repo", "file://"+repo.Dir, "--dirty", snapshot, "--", "true").Refused(t, 125, policy.CodeDirtyPolicyUnsupported)
	rig.Clean(t, y.Root)
}

// TestSnapshotWorkspace lives longer than a command: what came along is no
// uncollected work, what was added is, and the tree goes with the workspace.
func TestSnapshotWorkspace(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", 0)
	repo, y := p.Give(t, testenv.RepoSmall(t)), p.Yoi(t)
	write(t, filepath.Join(repo.Dir, "README.md"), "edited\n")
	y.OK(t, "repo", "add", repo.Dir)
	var ws runtime.Workspace
	y.Run(t, "ws", "create", "small", "--dirty", snapshot, "--strategy", "overlay", "--json").Want(t, 0).JSON(t, &ws)
	write(t, filepath.Join(repo.Dir, "README.md"), "edited later\n")
	w := spawned(t, y, ws.ID, "cat README.md")
	if got := y.OK(t, "worker", "logs", w); got != "edited\n" {
		t.Errorf("the Worker reads %q", got)
	}
	y.OK(t, "gc")
	y.OK(t, "ws", "rm", string(ws.ID))
	rig.Clean(t, y.Root)
	y.Run(t, "ws", "create", "small", "--dirty", snapshot, "--json").Want(t, 0).JSON(t, &ws)
	spawned(t, y, ws.ID, "echo more >>README.md")
	y.Run(t, "ws", "rm", string(ws.ID)).Refused(t, 1, policy.CodeUncollectedWork)
	y.OK(t, "ws", "rm", "--discard", string(ws.ID))
	rig.Clean(t, y.Root)
}

// TestSnapshotArtifacts leaves out what tools make again, but never what is
// tracked, and never a manifest.
func TestSnapshotArtifacts(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", 0)
	repo := p.Give(t, testenv.Commit(t, testenv.RepoSmall(t), "tracked", map[string]*testenv.Entry{
		"build/tracked/deep.sh": {Data: "tracked\n"}, "node_modules/patched/index.js": {Data: "tracked\n"}, "dist": {Data: "a file\n"},
	}))
	for _, f := range []string{
		"build/result", "build/tracked/result", "build/go.mod", "node_modules/other/package.json", "web/node_modules/x", "web/package.json",
		"web/package-lock.json", "target/debug/a", "src/x.pyc", "src/kept.c", "log/a.log", "log/go.sum",
	} {
		write(t, filepath.Join(repo.Dir, f), "x\n")
	}
	write(t, filepath.Join(repo.Dir, "staged/build/x"), "staged counts as tracked\n")
	repo.Git(t, "-c", "safe.directory=*", "add", "-f", "staged")
	y := p.Yoi(t)
	list := func() []string {
		t.Helper()
		out := y.OK(t, "run", "--repo", repo.Dir, "--dirty", snapshot, "--", "sh", "-c", "find build node_modules web target src/x.pyc src/kept.c log staged dist -type f 2>/dev/null | LC_ALL=C sort")
		return strings.Fields(out)
	}
	want := []string{
		"build/tracked/deep.sh", "dist", "log/a.log", "log/go.sum", "node_modules/patched/index.js", "src/kept.c", "staged/build/x", "web/package-lock.json", "web/package.json",
	}
	if got := list(); !slices.Equal(got, want) {
		t.Errorf("by default come along\n%q, want\n%q", got, want)
	}
	ev := evidence(t, y, "--repo", repo.Dir, "--dirty", snapshot)
	if d := ev.Changes[0]; d.ExcludedCount != len(d.Excluded) || !slices.Contains(d.Excluded, "target/") || !slices.Contains(d.Excluded, "src/x.pyc") {
		t.Errorf("left out are %q, %d", d.Excluded, d.ExcludedCount)
	}
	y.OK(t, "repo", "rm", "small")
	y.OK(t, "repo", "add", repo.Dir, "--exclude", "*", "--keep", "src/")
	want = []string{"build/tracked/deep.sh", "dist", "node_modules/patched/index.js", "staged/build/x"}
	if got := list(); !slices.Equal(got, want) {
		t.Errorf("with everything left out come along\n%q", got)
	}
	y.OK(t, "repo", "rm", "small")
	y.OK(t, "repo", "add", repo.Dir, "--exclude", "none")
	if got := list(); len(got) != 16 {
		t.Errorf("with nothing left out come along %d\n%q", len(got), got)
	}
	y.Run(t, "repo", "add", repo.Dir, "--id", "bad", "--exclude", "../x").Refused(t, 1, policy.CodePolicyInvalid)
	rig.Clean(t, y.Root)
}

// TestSnapshotOfOddTrees has in the working tree what a copy stumbles over: each
// comes along or is named.
func TestSnapshotOfOddTrees(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", 0)
	repo := p.Give(t, testenv.RepoSubmodules(t))
	at := func(n string) string { return filepath.Join(repo.Dir, n) }
	deep := strings.Repeat("d/", 100) + "bottom"
	long := strings.Repeat("n", 255)
	write(t, at(deep), "deep\n")
	write(t, at(long), "long\n")
	write(t, at("immutable"), "i\n")
	write(t, at("append"), "a\n")
	write(t, at("nested/file"), "n\n")
	write(t, at("nested/target/made"), "tracked there\n")
	write(t, at("nested/target/other"), "not\n")
	rig.Command(t, "sh", "-c", `cd "$1" && git init -q . && git add file && git add -f target/made`, "sh", at("nested"))
	if err := unix.Mkfifo(at("fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(at("socket"), unix.S_IFSOCK|0o644, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(at("null"), unix.S_IFCHR|0o644, int(unix.Mkdev(1, 3))); err != nil {
		t.Fatal(err)
	}
	rig.Command(t, "chattr", "+i", at("immutable"))
	rig.Command(t, "chattr", "+a", at("append"))
	t.Cleanup(func() { rig.Command(t, "chattr", "-i", "-a", at("immutable"), at("append")) })
	y := p.Yoi(t)
	ev := evidence(t, y, "--repo", repo.Dir, "--dirty", snapshot)
	got := codes(ev)
	for _, want := range []string{"file_skipped fifo", "file_skipped null", "file_skipped socket", "nested_repository nested"} {
		if !slices.Contains(got, want) {
			t.Errorf("%q is not among the warnings %q", want, got)
		}
	}
	out := y.OK(t, "run", "--repo", repo.Dir, "--dirty", snapshot, "--", "sh", "-c",
		"cat "+deep+" "+long+" immutable append nested/file nested/target/*; echo more >>immutable; echo x >append; ls -A nested; find . -name .git | wc -l; git status --porcelain | grep -v '^??'; true")
	if want := "deep\nlong\ni\na\nn\ntracked there\nfile\ntarget\n1\n"; out != want {
		t.Errorf("the Worker says\n%s\nwant\n%s", out, want)
	}
	rig.Clean(t, y.Root)
}

// TestSnapshotOfForeignFileSystems refuses what lies on another file system, by
// its path, and takes the rest when the policy leaves that out.
func TestSnapshotOfForeignFileSystems(t *testing.T) {
	testenv.Root(t)
	for name, plant := range map[string]func(t *testing.T, dir string){
		"mount": func(t *testing.T, dir string) {
			if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
		},
		"bind mount": func(t *testing.T, dir string) {
			if err := unix.Mount(filepath.Dir(dir), dir, "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
		},
		"subvolume": func(t *testing.T, dir string) {
			if err := os.Remove(dir); err != nil {
				t.Fatal(err)
			}
			rig.Command(t, "btrfs", "subvolume", "create", dir)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := rig.NewPlace(t, "btrfs", 0)
			repo, y := p.Give(t, testenv.RepoSmall(t)), p.Yoi(t)
			dir := filepath.Join(repo.Dir, "src/foreign")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			plant(t, dir)
			r := y.Run(t, "run", "--repo", repo.Dir, "--dirty", snapshot, "--json", "--", "true").Refused(t, 125, policy.CodeNestedFileSystem)
			if !strings.Contains(r.Stderr, `"path":"src/foreign"`) {
				t.Errorf("it says %s", r.Stderr)
			}
			rig.Clean(t, y.Root)
			y.OK(t, "repo", "rm", "small")
			y.OK(t, "repo", "add", repo.Dir, "--exclude", "src/foreign/")
			y.OK(t, "run", "--repo", repo.Dir, "--dirty", snapshot, "--", "test", "!", "-e", "src/foreign")
			rig.Clean(t, y.Root)
		})
	}
}

// TestSnapshotWhileSomebodyTypes takes snapshots while two files are saved in
// turn, one always before the other: none may mix two moments. With a writer that
// never pauses each is refused, or by luck is of one moment too, and nothing is left.
func TestSnapshotWhileSomebodyTypes(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", 0)
	repo, y := p.Give(t, testenv.RepoFilesCheckedOut(t, 500)), p.Yoi(t)
	y.OK(t, "run", "--repo", repo.Dir, "--dirty", snapshot, "--", "true")
	stop, done := make(chan struct{}), make(chan struct{})
	save := func(name string, i int) {
		tmp := filepath.Join(repo.Dir, ".saving")
		write(t, tmp, fmt.Sprintln(i))
		if err := os.Rename(tmp, filepath.Join(repo.Dir, name)); err != nil {
			t.Error(err)
		}
	}
	typing := func(pause time.Duration) {
		defer close(done)
		for i := 1; ; i++ {
			save("first", i)
			save("zz/second", i)
			select {
			case <-stop:
				return
			case <-time.After(pause):
			}
		}
	}
	write(t, filepath.Join(repo.Dir, "zz/second"), "0\n")
	save("first", 0)
	go typing(300 * time.Millisecond)
	take := func() rig.Result {
		t.Helper()
		r := y.Run(t, "run", "--repo", repo.Dir, "--dirty", snapshot, "--", "cat", "first", "zz/second")
		var first, second int
		if _, err := fmt.Sscan(r.Stdout, &first, &second); r.Code == 0 && (err != nil || first < second || first > second+1) {
			t.Errorf("a snapshot holds %q: no moment had both", r.Stdout)
		}
		return r
	}
	for range 5 {
		take().Want(t, 0)
	}
	close(stop)
	<-done
	stop, done = make(chan struct{}), make(chan struct{})
	go typing(0)
	r := take()
	close(stop)
	<-done
	if r.Code != 0 {
		r.Refused(t, 125, policy.CodeSourceChanged)
		if !strings.Contains(r.Stderr, "first") && !strings.Contains(r.Stderr, "second") {
			t.Errorf("it does not say what changed: %s", r.Stderr)
		}
	}
	rig.Clean(t, y.Root)
}

// TestSnapshotThroughDaemons takes what the daemon's user may read, and names
// what it may not, whoever the helper is.
func TestSnapshotThroughDaemons(t *testing.T) {
	testenv.Root(t)
	source, _ := changed(t)
	want := local(t, source.Dir, facts)
	for name, helperUID := range map[string]int{"privileged": 0, "user": daemonUser} {
		t.Run(name, func(t *testing.T) {
			p := rig.NewPlace(t, "btrfs", daemonUser)
			repo := p.Give(t, source)
			d := rig.StartDaemons(t, p, helperUID)
			y := d.Yoi(t, daemonUser)
			y.OK(t, "repo", "add", repo.Dir)
			for _, s := range []policy.StrategyName{policy.StrategyBtrfsSnapshot, policy.StrategyOverlay, policy.StrategyReflink} {
				var ws runtime.Workspace
				y.Run(t, "ws", "create", "small", "--dirty", snapshot, "--strategy", string(s), "--json").Want(t, 0).JSON(t, &ws)
				w := spawned(t, y, ws.ID, facts)
				if got := y.OK(t, "worker", "logs", w); got != want {
					t.Errorf("by %s the Worker has\n%s\nwant\n%s", s, got, want)
				}
				y.OK(t, "ws", "rm", string(ws.ID))
			}
			secret := filepath.Join(repo.Dir, "secret")
			write(t, secret, "root's\n")
			if err := os.Chmod(secret, 0o600); err != nil {
				t.Fatal(err)
			}
			r := y.Run(t, "ws", "create", "small", "--dirty", snapshot, "--json").Refused(t, 1, policy.CodeSourceUnreadable)
			if !strings.Contains(r.Stderr, `"path":"secret"`) {
				t.Errorf("it says %s", r.Stderr)
			}
			d.Stop(t)
			rig.Clean(t, d.Root)
		})
	}
}

// TestSnapshotOfKinds reads the index in all of its forms, and other repositories.
func TestSnapshotOfKinds(t *testing.T) {
	testenv.Root(t)
	for name, prepare := range map[string]func(*testing.T) testenv.Repo{
		"index version 4": func(t *testing.T) testenv.Repo {
			r := testenv.RepoSmall(t)
			r.Git(t, "update-index", "--index-version", "4")
			return r
		},
		"split index": func(t *testing.T) testenv.Repo {
			r := testenv.RepoSmall(t)
			r.Git(t, "update-index", "--split-index")
			return r
		},
		"linked worktree": func(t *testing.T) testenv.Repo { return testenv.RepoWorktree(t) },
		"sha256": func(t *testing.T) testenv.Repo {
			r := testenv.Repo{Dir: filepath.Join(t.TempDir(), "sha")}
			rig.Command(t, "git", "init", "-q", "-b", "main", "--object-format=sha256", r.Dir)
			write(t, filepath.Join(r.Dir, "README.md"), "one\n")
			write(t, filepath.Join(r.Dir, "same"), "same\n")
			r.Git(t, "add", "-A")
			r.Git(t, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "one")
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := rig.NewPlace(t, "disk", 0)
			repo, y := prepare(t), p.Yoi(t)
			write(t, filepath.Join(repo.Dir, "README.md"), "edited\n")
			out := y.OK(t, "run", "--repo", repo.Dir, "--dirty", snapshot, "--", "sh", "-c", "git diff-files --name-only; git status --porcelain")
			if out != "README.md\n M README.md\n" {
				t.Errorf("the Worker sees\n%s", out)
			}
			rig.Clean(t, y.Root)
		})
	}
}

// TestSnapshotForked removes the workspace that another was forked from: the
// tree that both stand on goes with the last of them.
func TestSnapshotForked(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", 0)
	repo, y := p.Give(t, testenv.RepoSmall(t)), p.Yoi(t)
	write(t, filepath.Join(repo.Dir, "README.md"), "edited\n")
	y.OK(t, "repo", "add", repo.Dir)
	var ws, fork runtime.Workspace
	y.Run(t, "ws", "create", "small", "--dirty", snapshot, "--strategy", "overlay", "--json").Want(t, 0).JSON(t, &ws)
	y.Run(t, "ws", "fork", string(ws.ID), "--json").Want(t, 0).JSON(t, &fork)
	y.OK(t, "ws", "rm", string(ws.ID))
	w := spawned(t, y, fork.ID, "cat README.md; git status --porcelain")
	if got := y.OK(t, "worker", "logs", w); got != "edited\n M README.md\n" {
		t.Errorf("the fork has %q", got)
	}
	y.OK(t, "ws", "rm", string(fork.ID))
	rig.Clean(t, y.Root)
}
