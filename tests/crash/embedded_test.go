package crash

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// commits makes a commit and tells its id once it is complete, then lives on
// for a moment, so that some cuts fall into the Worker's life.
const commits = `git commit -q --allow-empty -m precious && echo "committed $(git rev-parse HEAD)"; sleep 0.05`

// TestRun walks through `yoi run`, on a cold cache and on a warm one.
func TestRun(t *testing.T) {
	testenv.Root(t)
	small := testenv.RepoSmall(t)
	for _, c := range []struct {
		fs   string
		uid  int
		cold stride // building the tree is the same everywhere but on btrfs
		only []policy.StrategyName
	}{
		{"ext4", 0, every, []policy.StrategyName{policy.StrategyOverlay, policy.StrategyGitWorktree, policy.StrategyCopy}},
		{"ext4", rig.Ordinary, stride{1, 2}, []policy.StrategyName{policy.StrategyOverlay}},
		{"xfs", 0, stride{2, 2}, []policy.StrategyName{policy.StrategyReflink, policy.StrategyExternal}},
		{"btrfs", 0, stride{1, 2}, []policy.StrategyName{policy.StrategyBtrfsSnapshot, policy.StrategyReflink}},
		{"btrfs", rig.Ordinary, stride{2, 2}, []policy.StrategyName{policy.StrategyBtrfsSnapshot, policy.StrategyGitWorktree}},
	} {
		t.Run(rig.Place{FS: c.fs, UID: c.uid}.String(), func(t *testing.T) {
			p := rig.NewPlace(t, c.fs, c.uid)
			repo := p.Give(t, small).Dir
			t.Run("cold", func(t *testing.T) {
				c.cold.walk(t, func(t *testing.T, n int) bool {
					y := p.Yoi(t, tag)
					y.Root = filepath.Join(p.Dir, "cold")
					killed := cutRun(t, y, n, "run", "--repo", repo, "--strategy", string(c.only[0]), "--", "true")
					rig.Command(t, "sh", "-c", `btrfs subvolume delete "$1"/repository-cache/git/*/trees/* >/dev/null 2>&1; rm -rf "$1"`, "sh", y.Root)
					return killed
				})
			})
			for _, s := range c.only {
				t.Run(string(s), func(t *testing.T) {
					y := p.Yoi(t, tag)
					rig.Configure(t, y.Root, c.uid, rig.Cloning)
					walk(t, func(t *testing.T, n int) bool {
						return cutRun(t, y, n, "run", "--repo", repo, "--strategy", string(s), "--", "true")
					})
				})
			}
		})
	}
}

// TestRunWithLimits: a control group stays when everything in it is gone, so it
// takes the ledger to remove it.
func TestRunWithLimits(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "ext4", 0)
	repo := p.Give(t, testenv.RepoSmall(t)).Dir
	y := p.Yoi(t, tag)
	walk(t, func(t *testing.T, n int) bool {
		return cutRun(t, y, n, "run", "--repo", repo, "--require", "limits", "--limit", "tasks=64", "--", "true")
	})
}

// cutRun cuts a run off at point n and then wants everything gone: after a gc,
// or, at every second point, after nothing more than the next run.
func cutRun(t *testing.T, y rig.Yoi, n int, args ...string) (killed bool) {
	t.Helper()
	machine := rig.Before(t)
	_, killed = cut(t, y, n, args...)
	machine.Unchanged(t) // before any recovery: the kernel takes these away
	if killed && otherwise(n) {
		y.OK(t, "gc")
	} else {
		y.OK(t, args...)
	}
	rig.Clean(t, y.Root)
	machine.Unchanged(t)
	return killed
}

func cut(t *testing.T, y rig.Yoi, n int, args ...string) (rig.Result, bool) {
	t.Helper()
	y.Env = append(y.Env, crashAt(n))
	return runUntil(t, y.Cmd(args...))
}

// TestCommitsAreNotLost walks through runs whose command commits. With --keep
// the commit is there after any cut. Without it, until the command has ended.
func TestCommitsAreNotLost(t *testing.T) {
	testenv.Root(t)
	small := testenv.RepoSmall(t)
	for _, c := range []struct {
		fs       string
		strategy policy.StrategyName
		points   stride
	}{{"btrfs", policy.StrategyBtrfsSnapshot, stride{1, 2}}, {"ext4", policy.StrategyOverlay, every}, {"ext4", policy.StrategyCopy, stride{2, 2}}} {
		for _, keep := range []bool{true, false} {
			name := string(c.strategy)
			if keep {
				name += " --keep"
			}
			t.Run(name, func(t *testing.T) {
				p := rig.NewPlace(t, c.fs, 0)
				repo := p.Give(t, small).Dir
				y := p.Yoi(t, tag)
				args := []string{"run", "--repo", repo, "--strategy", string(c.strategy)}
				y.OK(t, append(args, "--", "true")...)
				if keep {
					args = append(args, "--keep")
				}
				args = append(args, "--", "sh", "-c", commits)
				c.points.walk(t, func(t *testing.T, n int) bool { return cutCommit(t, y, n, keep, args) })
			})
		}
	}
}

func cutCommit(t *testing.T, y rig.Yoi, n int, keep bool, args []string) (killed bool) {
	t.Helper()
	r, killed := cut(t, y, n, args...)
	y.OK(t, "gc")
	_, oid, made := strings.Cut(strings.TrimSpace(r.Stdout), "committed ")
	kept := workspaces(t, y)
	switch {
	case made && keep && len(kept) != 1:
		t.Errorf("a commit was made and kept, and %d workspaces are left", len(kept))
	case len(kept) > 1:
		t.Errorf("%d workspaces are left", len(kept))
	}
	for _, ws := range kept {
		if made {
			holdsCommit(t, y.Root, ws, "small", oid)
		}
		if !keep && !warnedOfWork(ws) {
			t.Errorf("%s was kept without a diagnostic: %+v", ws.ID, ws)
		}
		y.OK(t, "ws", "rm", "--discard", string(ws.ID))
	}
	rig.Clean(t, y.Root)
	return killed
}

func warnedOfWork(ws runtime.Workspace) bool {
	for _, d := range ws.Diagnostics {
		if d.Code == policy.CodeUncollectedWork {
			return ws.Status == runtime.WorkspaceStopped
		}
	}
	return false
}

// workspaces lists those that are not removed.
func workspaces(t *testing.T, y rig.Yoi) []runtime.Workspace {
	t.Helper()
	var list runtime.WorkspaceList
	y.Run(t, "ws", "list", "--json").Want(t, 0).JSON(t, &list)
	var out []runtime.Workspace
	for _, ws := range list.Items {
		if ws.Status != runtime.WorkspaceRemoved && ws.Status != runtime.WorkspaceFailed {
			out = append(out, ws)
		}
	}
	return out
}

// holdsCommit looks for the loose object of a fresh commit.
func holdsCommit(t *testing.T, root string, ws runtime.Workspace, id, oid string) {
	t.Helper()
	base := filepath.Join(root, "execution-workspaces", string(ws.ID))
	for _, tree := range []string{"root/" + id, "mounts/" + id + "/upper"} {
		if _, err := os.Stat(filepath.Join(base, tree, ".git/objects", oid[:2], oid[2:])); err == nil {
			return
		}
	}
	t.Errorf("%s has lost the commit %s", ws.ID, oid)
}

// TestRecovery cuts recovery itself off, which must be able to begin again.
func TestRecovery(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "btrfs", 0)
	repo := p.Give(t, testenv.RepoSmall(t)).Dir
	y := p.Yoi(t, tag)
	for _, s := range []policy.StrategyName{policy.StrategyBtrfsSnapshot, policy.StrategyOverlay, policy.StrategyGitWorktree} {
		t.Run(string(s), func(t *testing.T) {
			args := []string{"run", "--repo", repo, "--strategy", string(s), "--", "sleep", "0.01"}
			y.OK(t, args...)
			last := countPoints(t, y, args)
			walk(t, func(t *testing.T, n int) bool {
				machine := rig.Before(t)
				cut(t, y, last/2+n%(last/2), args...) // somewhere in the second half, when there is most to remove
				_, killed := cut(t, y, n, "gc")
				y.OK(t, "gc")
				rig.Clean(t, y.Root)
				machine.Unchanged(t)
				return killed || n < 10 // a short recovery: this cut left little
			})
		})
	}
}

// countPoints finds the number of points of a run by bisection, mending after
// each try.
func countPoints(t *testing.T, y rig.Yoi, args []string) int {
	t.Helper()
	low, high := 1, mostPoints
	for low+1 < high {
		mid := (low + high) / 2
		if _, killed := cut(t, y, mid, args...); killed {
			low = mid
		} else {
			high = mid
		}
		y.OK(t, "gc")
	}
	return low
}
