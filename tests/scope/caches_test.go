package scope

import (
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// TestSharedCachesOfOtherMakers: a shared cache is as warm in a tree that git or
// an operator's command makes as in one of our own.
func TestSharedCachesOfOtherMakers(t *testing.T) {
	testenv.Root(t)
	source := testenv.Commit(t, layered(t), "locked", map[string]*testenv.Entry{"docs/lock": {Data: "1\n"}, ".gitignore": {Data: "deps\n"}})
	for _, uid := range []int{0, rig.Ordinary} {
		p := rig.NewPlace(t, "btrfs", uid)
		y, repo := p.Yoi(t), p.Give(t, source)
		rig.Configure(t, y.Root, uid, "[external]\ncommand = [\"/usr/bin/env\", \"btrfs\", \"subvolume\", \"snapshot\", \"/run/yoi/source\", \"/run/yoi/target/tree\"]\n")
		run := func(strategy string, more ...string) []string {
			return append([]string{"run", "--json", "--repo", repo.Dir, "--strategy", strategy, "--scope", "docs", "--cache", "docs/deps=docs/lock"}, more...)
		}
		y.OK(t, run("overlay", "--publish-caches", "--", "sh", "-c", "mkdir -p docs/deps/x && echo installed >docs/deps/x/y")...)
		for _, s := range []string{"git_sparse", "external", "copy"} {
			r := y.Run(t, run(s, "--", "sh", "-c", "cat docs/deps/x/y >&2; mv docs/deps/x docs/deps/z; rm -r docs/deps; git status --porcelain >&2")...).Want(t, 0)
			if !strings.HasPrefix(r.Stderr, "installed\n") || strings.Contains(r.Stderr, "?? ") || !strings.Contains(r.Stdout, `"warm": true`) {
				t.Errorf("%s: %s\n%s", s, r.Stderr, r.Stdout)
			}
		}
		rig.Clean(t, y.Root)
	}
}
