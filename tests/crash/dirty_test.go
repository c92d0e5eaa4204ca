package crash

import (
	"os"
	"path/filepath"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// TestDirtyRun walks through runs that bring uncommitted changes along: the
// cache's own tree of a snapshot goes with its run, and a patch that is half
// applied with its workspace.
func TestDirtyRun(t *testing.T) {
	testenv.Root(t)
	source := testenv.RepoSmall(t)
	readme := filepath.Join(source.Dir, "README.md")
	if err := os.WriteFile(readme, []byte("edited\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	diff := source.Git(t, "diff", "--binary", "HEAD") + "\n"
	for _, c := range []struct {
		fs       string
		uid      int
		strategy policy.StrategyName
		dirty    policy.DirtyStatePolicy
	}{
		{"ext4", 0, policy.StrategyOverlay, policy.CurrentWorktreeSnapshot},
		{"btrfs", rig.Ordinary, policy.StrategyBtrfsSnapshot, policy.CurrentWorktreeSnapshot},
		{"ext4", rig.Ordinary, policy.StrategyOverlay, policy.PatchArtifact},
		{"xfs", 0, policy.StrategyExternal, policy.CurrentWorktreeSnapshot},
		{"ext4", 0, policy.StrategyDirect, policy.DirectLegacyMount},
	} {
		t.Run(string(c.dirty)+" "+c.fs, func(t *testing.T) {
			p := rig.NewPlace(t, c.fs, c.uid)
			repo, y := p.Give(t, source).Dir, p.Yoi(t, tag)
			rig.Configure(t, y.Root, c.uid, rig.Cloning)
			args := []string{"run", "--repo", repo, "--strategy", string(c.strategy), "--dirty", string(c.dirty)}
			if c.strategy == policy.StrategyExternal {
				args = append(args, "--scope", "src")
			}
			if c.dirty == policy.PatchArtifact {
				file := filepath.Join(p.Dir, "p.patch")
				if err := os.WriteFile(file, []byte(diff), 0o644); err != nil {
					t.Fatal(err)
				}
				args = append(args, "--patch", file)
			}
			args = append(args, "--", "grep", "-q", "edited", "README.md")
			y.OK(t, args...)
			walk(t, func(t *testing.T, n int) bool { return cutRun(t, y, n, args...) })
		})
	}
}
