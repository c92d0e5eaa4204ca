package crash

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// TestGC cuts a gc off that has something of every kind to take: an expired
// workspace, trees, shared caches, a patch. The next takes the rest, and neither
// touches what a workspace stands on.
func TestGC(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "btrfs", 0)
	repo, y := p.Give(t, testenv.RepoSmall(t)), p.Yoi(t, tag)
	rig.Configure(t, y.Root, 0, "[cache]\nmax_bytes = 1\nshared_max_bytes = 1\n")
	y.OK(t, "repo", "add", "--id", "small", repo.Dir)
	var stays runtime.Workspace
	y.Run(t, "ws", "create", "small", "--json", "--strategy", "overlay").Want(t, 0).JSON(t, &stays)
	file := filepath.Join(p.Dir, "p.patch")
	if err := os.WriteFile(file, []byte("diff --git a/new b/new\nnew file mode 100644\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+new\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	y.OK(t, "gc")
	before, err := rig.Leftovers(y.Root)
	if err != nil {
		t.Fatal(err)
	}
	stride{1, 2}.walk(t, func(t *testing.T, n int) bool {
		machine := rig.Before(t)
		digest := strings.TrimSpace(y.OK(t, "patch", "add", file))
		long := time.Now().Add(-1000 * time.Hour)
		if err := os.Chtimes(filepath.Join(y.Root, "patches", strings.TrimPrefix(digest, "sha256:")), long, long); err != nil {
			t.Fatal(err)
		}
		var ws runtime.Workspace
		y.Run(t, "ws", "create", "small", "--json", "--rev", "v1", "--cleanup", "keep_for:1ms", "--strategy", []string{"btrfs_snapshot", "git_worktree"}[n/2%2]).Want(t, 0).JSON(t, &ws)
		say(t, y, ws.ID, "true") // its time begins when its last Worker has ended
		y.OK(t, "run", "--repo", repo.Dir, "--rev", "v1", "--cache", "deps=README.md", "--publish-caches", "--", "sh", "-c", "mkdir -p deps; echo x >deps/x")
		_, killed := cut(t, y, n, "gc")
		machine.Unchanged(t)
		y.OK(t, "gc")
		for _, pattern := range []string{"patches/*", "build-cache/deps/*/*", "repository-cache/git/small/trees/*.json"} {
			found, err := filepath.Glob(filepath.Join(y.Root, pattern))
			if most := strings.Count(pattern, "trees"); err != nil || len(found) != most { // one, of the workspace that stays
				t.Errorf("after two gc there are %q", found)
			}
		}
		if got := say(t, y, stays.ID, "git status --porcelain; cat README.md"); got != "# small\n\nChanged.\n" {
			t.Errorf("the workspace that stays has %q", got)
		}
		y.OK(t, "gc")
		same(t, y, before)
		return killed || n < 10
	})
	y.OK(t, "ws", "rm", string(stays.ID))
	rig.Clean(t, y.Root)
}
