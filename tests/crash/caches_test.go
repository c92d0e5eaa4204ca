package crash

import (
	"os"
	"path/filepath"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// TestSharedCaches walks through a run that fills a dependency cache and a build
// cache. After any cut both are whole or not there, and the next run fills or
// finds them.
func TestSharedCaches(t *testing.T) {
	testenv.Root(t)
	small := testenv.RepoSmall(t)
	for _, c := range []struct {
		fs       string
		uid      int
		strategy policy.StrategyName
	}{{"ext4", 0, policy.StrategyOverlay}, {"btrfs", rig.Ordinary, policy.StrategyBtrfsSnapshot}} {
		t.Run(rig.Place{FS: c.fs, UID: c.uid}.String(), func(t *testing.T) {
			p := rig.NewPlace(t, c.fs, c.uid)
			y := p.Yoi(t, tag)
			args := []string{"run", "--repo", p.Give(t, small).Dir, "--strategy", string(c.strategy), "--cache", "deps=README.md", "--build-cache", "--publish-caches", "--",
				"sh", "-c", `mkdir -p deps/a /cache/a && for i in $(seq 20); do echo $i >deps/a/$i; echo $i >/cache/a/$i; done; test "$(cat deps/a/* | wc -l)$(cat /cache/a/* | wc -l)" = 2020`}
			y.OK(t, args...)
			walk(t, func(t *testing.T, n int) bool {
				for _, kind := range []string{"deps", "work"} {
					if err := os.RemoveAll(filepath.Join(y.Root, "build-cache", kind)); err != nil {
						t.Fatal(err)
					}
				}
				return cutRun(t, y, n, args...)
			})
		})
	}
}

// TestHardQuota walks through a run whose workspace is a subvolume with a limit.
func TestHardQuota(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "btrfs", 0)
	rig.EnableQuota(t, p.Dir, "qgroup")
	y := p.Yoi(t, tag)
	args := []string{"run", "--repo", p.Give(t, testenv.RepoSmall(t)).Dir, "--disk", "8M", "--hard-quota", "--", "true"}
	y.OK(t, args...)
	walk(t, func(t *testing.T, n int) bool { return cutRun(t, y, n, args...) })
}
