package badinput

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// TestCommands: 127 and 126 as env(1) has them, and the workspace that was
// made for the command is gone.
func TestCommands(t *testing.T) {
	testenv.Root(t)
	repo := testenv.RepoSmall(t)
	repo = testenv.Commit(t, repo, "bad programs", map[string]*testenv.Entry{
		"bad-interpreter": {Mode: "100755", Data: "#!/no/such/interpreter\n"},
		"bad-format":      {Mode: "100755", Data: "\x7fELF but not really\n"},
		"loop":            {Mode: "120000", Data: "loop"},
	})
	for _, uid := range []int{0, rig.Ordinary} {
		p := rig.NewPlace(t, "disk", uid)
		src := p.Give(t, repo).Dir
		y := warmed(t, p, src)
		for _, c := range []struct {
			command string
			exit    int
			code    policy.Code
		}{
			{"no-such-command", 127, policy.CodeCommandNotFound},
			{"./no/such/file", 127, policy.CodeCommandNotFound},
			{"/workspace/missing", 127, policy.CodeCommandNotFound},
			{"./README.md", 126, policy.CodeCommandNotExecutable},
			{"./src", 126, policy.CodeCommandNotExecutable},
			{"./bad-format", 126, policy.CodeCommandNotExecutable},
			{"./bad-interpreter", 126, policy.CodeCommandNotExecutable}, // as bash has it
		} {
			t.Run(c.command, func(t *testing.T) {
				refused(t, y, c.exit, c.code, "run", "--repo", src, "--", c.command)
			})
		}
		refused(t, y, 125, policy.CodeCommandInvalid, "run", "--repo", src, "--", "")
	}
}

func TestLimitsThatMakeNoSense(t *testing.T) {
	testenv.Root(t)
	repo := testenv.RepoSmall(t)
	y := warmed(t, rig.NewPlace(t, "disk", 0), repo.Dir)
	for _, limit := range []string{
		"open_files=1", "processes=1", "address_space=1000", "stack_size=1", "cpu_time=1ms",
		"nice=-5", "nice=20", "oom_score_adj=-1000", "open_files=-3", "open_files=lots", "colour=blue",
	} {
		t.Run(limit, func(t *testing.T) {
			refused(t, y, 125, policy.CodeLimitsInvalid, "run", "--repo", repo.Dir, "--limit="+limit, "--", "true")
		})
	}
	for _, timeout := range []string{"-1s", "1us", "999999h"} {
		t.Run("timeout "+timeout, func(t *testing.T) {
			refused(t, y, 125, policy.CodeLimitsInvalid, "run", "--repo", repo.Dir, "--timeout="+timeout, "--", "true")
		})
	}
}

func TestPolicies(t *testing.T) {
	testenv.Root(t)
	repo := testenv.RepoSmall(t)
	y := warmed(t, rig.NewPlace(t, "disk", 0), repo.Dir)
	for _, c := range []struct {
		flag string
		code policy.Code
	}{
		{"--strategy=teleport", policy.CodeStrategyUnknown},
		{"--network=carrier-pigeon", policy.CodePolicyInvalid},
		{"--seccomp=off", policy.CodePolicyInvalid},
		{"--env=NOVALUE", policy.CodeEnvironmentInvalid},
		{"--env==x", policy.CodeEnvironmentInvalid},
		{"--cwd=/etc", policy.CodeCwdAbsolute},
		{"--cwd=../..", policy.CodeCwdEscape},
		{"--cwd=missing", policy.CodeCwdMissing},
		{"--cwd=README.md", policy.CodeCwdNotDirectory},
		{"--cwd=link-out", policy.CodeCwdSymlinkEscape},
	} {
		t.Run(c.flag, func(t *testing.T) {
			src := repo
			if strings.HasSuffix(c.flag, "link-out") {
				src = testenv.Commit(t, repo, "link", map[string]*testenv.Entry{"link-out": {Mode: "120000", Data: "/etc"}})
			}
			y := y
			if src.Commit != repo.Commit {
				y = warmed(t, rig.NewPlace(t, "disk", 0), src.Dir)
			}
			refused(t, y, 125, c.code, "run", "--repo", src.Dir, c.flag, "--", "true")
		})
	}
}

// TestRuntimeRoots are directories that cannot be one.
func TestRuntimeRoots(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", rig.Ordinary)
	repo := p.Give(t, testenv.RepoSmall(t))
	y := warmed(t, p, repo.Dir)
	run := func(t *testing.T, root string, code policy.Code) {
		t.Helper()
		y := y
		y.Root = root
		y.Run(t, "run", "--repo", repo.Dir, "--", "true").Refused(t, 125, code)
	}
	t.Run("somebody's full directory", func(t *testing.T) {
		dir := testenv.UserDir(t, rig.Ordinary)
		write(t, filepath.Join(dir, "letter"), "dear\n")
		before := rig.Contents(t, dir)
		run(t, dir, policy.CodeRuntimeRootInvalid)
		if d := rig.Difference(before, rig.Contents(t, dir)); len(d) > 0 {
			t.Errorf("the directory changed: %q", d)
		}
	})
	t.Run("a file", func(t *testing.T) {
		file := filepath.Join(testenv.UserDir(t, rig.Ordinary), "file")
		write(t, file, "")
		run(t, file, policy.CodeRuntimeRootInvalid)
	})
	t.Run("root's", func(t *testing.T) {
		run(t, "/root/yoi-no-such", policy.CodeRuntimeRootInvalid)
	})
	t.Run("writable by others", func(t *testing.T) {
		dir := filepath.Join(p.Dir, "open")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(dir, rig.Ordinary, rig.Ordinary); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		run(t, dir, policy.CodeRuntimeRootUnsafe)
	})
	t.Run("another user's", func(t *testing.T) {
		other := rig.NewPlace(t, "disk", rig.Ordinary+1)
		y2 := warmed(t, other, other.Give(t, testenv.RepoSmall(t)).Dir)
		if err := os.Chmod(other.Dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(y2.Root, 0o755); err != nil {
			t.Fatal(err)
		}
		run(t, y2.Root, policy.CodeRuntimeRootUnsafe)
	})
	t.Run("misspelt configuration", func(t *testing.T) {
		write(t, filepath.Join(y.Root, "config.toml"), "[cache]\nmax_byte = 5\n")
		if err := os.Chown(filepath.Join(y.Root, "config.toml"), rig.Ordinary, rig.Ordinary); err != nil {
			t.Fatal(err)
		}
		r := y.Run(t, "run", "--repo", repo.Dir, "--", "true").Refused(t, 125, policy.CodeConfigInvalid)
		if !strings.Contains(r.Stderr, "line 2") {
			t.Errorf("the line is not named: %s", r.Stderr)
		}
	})
}

// TestRuntimeRootOfAnotherOwner: where a privileged side gives the root's owner's
// files to Workers, nobody else makes them. Without a refusal the Worker had a tree
// in which it could not write, and no .git.
func TestRuntimeRootOfAnotherOwner(t *testing.T) {
	testenv.Root(t)
	own := func(t *testing.T, root string, uid, gid int, mode os.FileMode) {
		t.Helper()
		if err := os.Mkdir(root, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Chown(root, uid, gid), os.Chmod(root, mode)); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		uid, gid int
		mode     os.FileMode
	}{
		"a user's": {rig.Ordinary, rig.Ordinary, 0o700}, "another group's": {0, rig.Ordinary, 0o700}, "a group's for all": {0, rig.Ordinary, 0o700 | os.ModeSetgid},
	} {
		t.Run("root in "+name, func(t *testing.T) {
			p := rig.NewPlace(t, "disk", 0)
			repo, y := p.Give(t, testenv.RepoSmall(t)), p.Yoi(t)
			own(t, y.Root, c.uid, c.gid, c.mode)
			y.Run(t, "run", "--repo", repo.Dir, "--", "sh", "-c", "echo x >new && git add new").Refused(t, 125, policy.CodeRuntimeRootUnsafe)
			y.OK(t, "gc") // which makes nothing
			rig.Clean(t, y.Root)
		})
	}
	t.Run("a daemon in another group's", func(t *testing.T) {
		p := rig.NewPlace(t, "disk", rig.Ordinary)
		d := rig.NewDaemons(t, p, 0)
		if err := os.Chown(d.Root, rig.Ordinary, 0); err != nil {
			t.Fatal(err)
		}
		d.Start(t)
		y := d.Yoi(t, rig.Ordinary)
		y.OK(t, "repo", "add", p.Give(t, testenv.RepoSmall(t)).Dir)
		y.Run(t, "ws", "create", "small").Refused(t, 1, policy.CodeRuntimeRootUnsafe)
		d.Stop(t)
		rig.Clean(t, d.Root)
	})
}
