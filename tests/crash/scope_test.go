package crash

import (
	"path/filepath"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// TestScopes walks through a checkout of a scope by git, out of a partial mirror
// that is made and filled on the way.
func TestScopes(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "ext4", rig.Ordinary)
	url := "file://" + p.Give(t, testenv.RepoSmall(t)).Dir
	y := p.Yoi(t, tag)
	run := []string{"run", "--repo", url, "--strategy", "git_sparse", "--scope", "src", "--", "sh", "-c", `test -z "$(git status --porcelain)"`}
	walk(t, func(t *testing.T, n int) bool {
		cold := y
		cold.Root = filepath.Join(p.Dir, "cold")
		cold.OK(t, "repo", "add", "--filter", "tree:0", url)
		killed := cutRun(t, cold, n, run...)
		rig.Command(t, "rm", "-rf", cold.Root)
		return killed
	})
}

// external writes a configuration whose command snapshots the tree.
func external(t *testing.T, root string, uid int) {
	t.Helper()
	rig.Configure(t, root, uid, "[external]\ncommand = [\"/usr/bin/env\", \"btrfs\", \"subvolume\", \"snapshot\", \"/run/yoi/source\", \"/run/yoi/target/tree\"]\n")
}

// TestExternal walks through a workspace whose tree an operator's command makes.
func TestExternal(t *testing.T) {
	testenv.Root(t)
	small := testenv.RepoSmall(t)
	for victim, points := range map[string]stride{"runtimed": every, "helper": {2, 2}} {
		t.Run(victim, func(t *testing.T) {
			p := rig.NewPlace(t, "btrfs", yoiUser)
			repo := p.Give(t, small).Dir
			d := rig.NewDaemons(t, p, 0, tag)
			external(t, d.Root, yoiUser)
			d.Start(t)
			if _, err := d.Client.AddRepository(t.Context(), runtime.AddRepositoryRequest{Source: repo}); err != nil {
				t.Fatal(err)
			}
			d.Stop(t)
			points.walk(t, func(t *testing.T, n int) bool { return cutDaemons(t, d, victim, policy.StrategyExternal, n) })
		})
	}
}
