package crash

import (
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// TestFork cuts forks and rollbacks off at every point. The original is whole
// afterwards, as it was or as its snapshot was; of the fork there is all or
// nothing.
func TestFork(t *testing.T) {
	testenv.Root(t)
	for _, c := range []struct {
		fs       string
		strategy policy.StrategyName
		points   stride   // of a rollback
		limits   []string // held by the kernel
	}{
		{"ext4", policy.StrategyOverlay, every, nil}, {"btrfs", policy.StrategyBtrfsSnapshot, every, nil}, {"xfs", policy.StrategyReflink, stride{1, 2}, nil},
		{"btrfs", policy.StrategyOverlay, stride{2, 2}, []string{"--disk", "8M", "--hard-quota"}},
	} {
		t.Run(c.fs+" "+string(c.strategy), func(t *testing.T) {
			p := rig.NewPlace(t, c.fs, 0)
			if c.limits != nil {
				rig.EnableQuota(t, p.Dir, "qgroup")
			}
			y := p.Yoi(t, tag)
			y.OK(t, "repo", "add", "--id", "small", p.Give(t, testenv.RepoSmall(t)).Dir)
			var ws runtime.Workspace
			y.Run(t, append([]string{"ws", "create", "small", "--json", "--strategy", string(c.strategy)}, c.limits...)...).Want(t, 0).JSON(t, &ws)
			say(t, y, ws.ID, "git commit -q --allow-empty -m precious; echo old >state")
			var snap runtime.Snapshot
			y.Run(t, "ws", "snapshot", string(ws.ID), "--json").JSON(t, &snap)
			say(t, y, ws.ID, "echo new >state")
			y.OK(t, "gc")
			before, err := rig.Leftovers(y.Root)
			if err != nil {
				t.Fatal(err)
			}
			forked := c.fs != "ext4" // one is enough: a rollback forks too
			walkUnless(t, forked, func(t *testing.T, n int) bool {
				_, killed := cut(t, y, n, "ws", "fork", string(ws.ID))
				y.OK(t, "gc")
				for _, f := range workspaces(t, y) {
					if f.ID == ws.ID {
						continue
					}
					if got := say(t, y, f.ID, "cat state; git log -1 --format=%s"); got != "new\nprecious\n" {
						t.Errorf("the fork has %q", got)
					}
					y.OK(t, "ws", "rm", "--discard", string(f.ID))
				}
				if got := say(t, y, ws.ID, "cat state; git log -1 --format=%s"); got != "new\nprecious\n" {
					t.Errorf("the original has %q", got)
				}
				y.OK(t, "gc")
				same(t, y, before)
				return killed
			})
			c.points.walk(t, func(t *testing.T, n int) bool {
				_, killed := cut(t, y, n, "ws", "rollback", string(ws.ID), string(snap.ID))
				y.OK(t, "gc")
				var list struct{ Items []runtime.Snapshot }
				y.Run(t, "ws", "snapshots", "--json", string(ws.ID)).Want(t, 0).JSON(t, &list)
				got := say(t, y, ws.ID, "cat state; git log -1 --format=%s; echo new >state")
				if got != "new\nprecious\n" && (got != "old\nprecious\n" || len(list.Items) != 2) || (!killed && got != "old\nprecious\n") {
					t.Errorf("the workspace has %q and %+v", got, list.Items)
				}
				for _, s := range list.Items {
					if s.ID == snap.ID {
						continue
					}
					_, cutOff := cut(t, y, 1+n%4, "ws", "rm-snapshot", string(ws.ID), string(s.ID))
					if y.OK(t, "gc"); cutOff {
						y.Run(t, "ws", "rm-snapshot", string(ws.ID), string(s.ID)) // it may be gone
					}
				}
				y.OK(t, "gc")
				same(t, y, before)
				return killed
			})
			y.OK(t, "ws", "rm", "--discard", string(ws.ID))
			rig.Clean(t, y.Root)
		})
	}
}

// say runs a script on a workspace and returns what it prints.
func say(t *testing.T, y rig.Yoi, id policy.AllocationID, script string) string {
	t.Helper()
	return y.Work(t, id, "set -e\n"+script)
}

// same compares leftovers, apart from Workers that have ended: they stay with
// their workspace.
func same(t *testing.T, y rig.Yoi, before []string) {
	t.Helper()
	after, err := rig.Leftovers(y.Root)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range rig.Difference(before, after) {
		if !strings.Contains(d, "workers/wk-") {
			t.Error(d)
		}
	}
}

func walkUnless(t *testing.T, not bool, cut func(t *testing.T, n int) bool) {
	t.Helper()
	if !not {
		walk(t, cut)
	}
}
