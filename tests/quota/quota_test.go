package quota

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

func evidence(t *testing.T, r rig.Result) runtime.Evidence {
	t.Helper()
	var ev runtime.Evidence
	r.JSON(t, &ev)
	return ev
}

// TestHard: on a btrfs with quotas on, the kernel refuses what is beyond; the
// command sees EDQUOT, goes on, and nothing is left.
func TestHard(t *testing.T) {
	testenv.Root(t)
	small := testenv.RepoSmall(t)
	for _, mode := range []string{"qgroup", "squota"} {
		t.Run(mode, func(t *testing.T) {
			p := rig.NewPlace(t, "btrfs", 0)
			rig.EnableQuota(t, p.Dir, mode)
			repo := p.Give(t, small).Dir
			y := p.Yoi(t)
			machine := rig.Before(t)
			run := func(more ...string) rig.Result {
				return y.Run(t, append([]string{"run", "--json", "--repo", repo, "--disk", "4M", "--hard-quota"}, more...)...)
			}
			for _, s := range []policy.StrategyName{policy.StrategyAuto, policy.StrategyReflink, policy.StrategyOverlay} {
				r := run("--strategy", string(s), "--", "sh", "-c", "git status >/dev/null; head -c 2000000 /dev/urandom >f && sync f && head -c 8000000 /dev/urandom >/scratch/g; echo $? >&2; rm f").Want(t, 0)
				ev := evidence(t, r)
				if ev.Quota.Bytes != policy.QuotaBtrfs || !strings.Contains(r.Stderr, "quota exceeded") {
					t.Errorf("%s: held by %q\n%s", s, ev.Quota.Bytes, r.Stderr)
				}
				rig.Clean(t, y.Root)
			}
			// A snapshot lies outside its workspace's subvolume: by name it is refused, not
			// silently unlimited, and without --hard-quota measured.
			run("--strategy", "btrfs_snapshot", "--", "true").Refused(t, 125, policy.CodeQuotaUnsupported)
			ev := evidence(t, y.Run(t, "run", "--json", "--repo", repo, "--disk", "4M", "--strategy", "btrfs_snapshot", "--", "true").Want(t, 0))
			if ev.Quota.Bytes != policy.QuotaMeasured {
				t.Errorf("a snapshot's quota is held by %q", ev.Quota.Bytes)
			}
			run("--inodes", "100", "--", "true").Refused(t, 125, policy.CodeQuotaUnsupported)
			y.OK(t, "repo", "add", "--id", "app", repo)
			for _, s := range []policy.StrategyName{policy.StrategyReflink, policy.StrategyOverlay} {
				var ws runtime.Workspace
				y.Run(t, "ws", "create", "app", "--strategy", string(s), "--disk", "4M", "--hard-quota", "--json").Want(t, 0).JSON(t, &ws)
				stuffed(t, y, ws.ID, fillBytes)
				y.OK(t, "ws", "rm", "--discard", string(ws.ID))
			}
			rig.Clean(t, y.Root)
			machine.Unchanged(t)
		})
	}
}

// TestFullQuotaAtEachStep makes workspaces under limits that are used up a little
// later each time: while the directories are made, the tree, git's files, the
// evidence, the Worker's own files. Each is a diagnostic, and nothing half-made is
// left.
func TestFullQuotaAtEachStep(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "btrfs", 0)
	rig.EnableQuota(t, p.Dir, "qgroup")
	repo := p.Give(t, testenv.RepoSmall(t))
	if err := os.WriteFile(filepath.Join(repo.Dir, "big"), []byte(strings.Repeat("0123456789abcdef", 1<<14)), 0o644); err != nil {
		t.Fatal(err)
	}
	repo.Git(t, "add", ".")
	repo.Git(t, "commit", "-q", "-m", "big")
	y := p.Yoi(t)
	for _, s := range []policy.StrategyName{policy.StrategyGitWorktree, policy.StrategyOverlay} {
		refused, made := 0, 0
		for kib := 64; kib <= 704; kib += 64 {
			r := y.Run(t, "run", "--repo", repo.Dir, "--strategy", string(s), "--disk", strconv.Itoa(kib)+"K", "--hard-quota", "--", "true")
			if r.Code == 0 {
				made++
			} else {
				r.Refused(t, 125, policy.CodeQuotaExceeded)
				refused++
			}
			rig.Clean(t, y.Root)
		}
		t.Logf("%s: %d refused, %d made", s, refused, made)
		if made == 0 || (refused == 0 && s == policy.StrategyGitWorktree) {
			t.Errorf("%s: %d refused, %d made: not each step was tried", s, refused, made)
		}
	}
}

// TestProject: on an ext4 or xfs with project quotas, bytes and inodes are the kernel's
// to refuse, a rollback keeps both, and no id or limit is left.
func TestProject(t *testing.T) {
	testenv.Root(t)
	for _, fs := range []string{"ext4", "xfs"} {
		t.Run(fs, func(t *testing.T) {
			dir := testenv.ProjectQuotaFS(t, fs)
			p := rig.Place{FS: fs, Dir: filepath.Join(dir, "home")}
			if err := os.Mkdir(p.Dir, 0o700); err != nil {
				t.Fatal(err)
			}
			y := p.Yoi(t)
			y.OK(t, "repo", "add", "--id", "app", p.Give(t, testenv.RepoSmall(t)).Dir)
			limits := []string{"--disk", "4M", "--inodes", "50", "--hard-quota"}
			var ws runtime.Workspace
			y.Run(t, append([]string{"ws", "create", "app", "--json"}, limits...)...).Want(t, 0).JSON(t, &ws)
			spawn := func(script string) string { return y.Work(t, ws.ID, script) }
			const full = "head -c 8000000 /dev/urandom >f 2>/dev/null || echo bytes; rm f; for i in $(seq 80); do true >n$i || { echo inodes; break; }; done 2>/dev/null; rm -f n*"
			if got := spawn("echo old >state; " + full); got != "bytes\ninodes\n" {
				t.Errorf("the Worker says %q", got)
			}
			ev := evidence(t, y.Run(t, "ws", "evidence", string(ws.ID), "--json"))
			if ev.Quota.Bytes != policy.QuotaProject || ev.Quota.Inodes != policy.QuotaProject {
				t.Errorf("the evidence says %+v", ev.Quota)
			}
			var snap runtime.Snapshot
			y.Run(t, "ws", "snapshot", "--json", string(ws.ID)).Want(t, 0).JSON(t, &snap)
			spawn("echo new >state; echo kept >/scratch/x")
			y.OK(t, "ws", "rollback", string(ws.ID), string(snap.ID))
			if got := spawn("cat state /scratch/x; " + full); got != "old\nkept\nbytes\ninodes\n" {
				t.Errorf("after the rollback the Worker says %q", got)
			}
			stuffed(t, y, ws.ID, fillBytes, fillInodes)
			y.OK(t, "ws", "rm", "--discard", string(ws.ID))
			rig.Clean(t, y.Root)
			// Beside shared caches, and where a reflink counts as a copy, it is refused.
			y.Run(t, append([]string{"run", "--repo", "app", "--build-cache"}, append(limits, "--", "true")...)...).Want(t, 125)
			if fs == "xfs" {
				y.Run(t, append([]string{"ws", "create", "app", "--strategy", "reflink"}, limits...)...).Refused(t, 1, policy.CodeQuotaUnsupported)
			}
			rig.Clean(t, y.Root)
		})
	}
}

const (
	fillBytes  = "head -c 8000000 /dev/urandom >f"
	fillInodes = "for i in $(seq 80); do true >n$i || break; done"
)

// stuffed: however full a Worker leaves its workspace, it can be looked at, its results
// be taken out, and another Worker make room. overlayfs mounts what it finds no room in
// read-only, and says nothing.
func stuffed(t *testing.T, y rig.Yoi, ws policy.AllocationID, fills ...string) {
	t.Helper()
	for i, fill := range fills {
		y.Work(t, ws, "echo mine >result; "+fill+" 2>/dev/null; sync .; i=0; while echo >>f$i; do i=$((i+1)); [ $i = 99 ] && break; done 2>/dev/null; :")
		if got := y.OK(t, "ws", "status", string(ws)); !strings.Contains(got, "result") {
			t.Errorf("full after %s: %s", fill, got)
		}
		name := fmt.Sprint("full", i)
		y.OK(t, "ws", "collect", string(ws), "--uncommitted", "--as", name)
		y.OK(t, "repo", "drop", "app", name)
		// xfs gives back what a removed file had a moment later.
		if got := y.Work(t, ws, "cat result; echo x >/scratch/x; rm -f f* n*; for i in $(seq 100); do echo >more && { echo room; break; }; sleep .1; done 2>/dev/null"); got != "mine\nroom\n" {
			t.Errorf("full after %s, the next Worker says %q", fill, got)
		}
	}
}

// TestNoHardQuota: where nothing enforces it, a hard quota stops the launch.
func TestNoHardQuota(t *testing.T) {
	testenv.Root(t)
	for _, c := range []struct {
		fs  string
		uid int
	}{{"ext4", 0}, {"xfs", 0}, {"btrfs", 0}, {"btrfs", rig.Ordinary}} {
		p := rig.NewPlace(t, c.fs, c.uid)
		if c.uid != 0 {
			rig.EnableQuota(t, p.Dir, "qgroup") // on, but an ordinary user sets no limit
		}
		repo := p.Give(t, testenv.RepoSmall(t)).Dir
		y := p.Yoi(t)
		y.Run(t, "run", "--repo", repo, "--disk", "4M", "--hard-quota", "--", "true").Refused(t, 125, policy.CodeQuotaUnsupported)
		rig.Clean(t, y.Root)
	}
}

// TestRoundTheMeasure clones everything that it writes onto a neighbour, so that
// the file system calls each extent shared; hides files in a directory that it may
// not read itself; and puts them where no path reaches.
func TestRoundTheMeasure(t *testing.T) {
	testenv.Root(t)
	small := testenv.RepoSmall(t)
	for _, c := range []struct {
		name, fs string
		uid      int
		strategy policy.StrategyName
		script   string
		over     string
	}{
		{"clones", "xfs", 0, policy.StrategyReflink, `mkdir d; for i in 1 2 3 4 5 6 7 8 9 10 11 12; do head -c 400000 /dev/urandom >d/$i && cp --reflink=always d/$i d/$i.clone || exit 9; done; sync; sleep 20`, "disk_bytes"},
		{"clones", "btrfs", rig.Ordinary, policy.StrategyBtrfsSnapshot, `mkdir d; for i in 1 2 3 4 5 6 7 8 9 10 11 12; do head -c 400000 /dev/urandom >d/$i && cp --reflink=always d/$i d/$i.clone || exit 9; done; sync; sleep 20`, "disk_bytes"},
		{"unreadable", "ext4", rig.Ordinary, policy.StrategyOverlay, `mkdir d; head -c 4000000 /dev/urandom >d/f; chmod 0 d; sleep 20`, "disk_bytes unmeasurable"},
		{"scratch", "ext4", 0, policy.StrategyOverlay, `head -c 4000000 /dev/urandom >/scratch/f; sleep 20`, "disk_bytes"},
		{"deep", "ext4", 0, policy.StrategyOverlay, `for i in $(seq 400); do mkdir 0123456789 && cd -P 0123456789 || exit 9; done; head -c 4000000 /dev/urandom >f; sleep 20`, "disk_bytes"},
	} {
		t.Run(c.name+"/"+c.fs, func(t *testing.T) {
			p := rig.NewPlace(t, c.fs, c.uid)
			y := p.Yoi(t)
			r := y.Run(t, "run", "--repo", p.Give(t, small).Dir, "--strategy", string(c.strategy), "--disk", "2M", "--", "sh", "-c", c.script).Want(t, 137)
			_, over, found := strings.Cut(r.Stderr, "yoi: the command was ended by its quota: ")
			if over = strings.TrimSpace(over); !found || !strings.Contains(c.over, over) {
				t.Errorf("it was ended by %q\n%s", over, r.Stderr)
			}
			rig.Clean(t, y.Root)
		})
	}
}

// TestAdopted: a Worker's quota is held by the helper that comes after a crash of
// the one that launched it, and its end is told to who asks later.
func TestAdopted(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", 64400)
	machine := rig.Before(t)
	d := rig.StartDaemons(t, p, 0)
	repo, err := d.Client.AddRepository(t.Context(), runtime.AddRepositoryRequest{Source: p.Give(t, testenv.RepoSmall(t)).Dir})
	if err != nil {
		t.Fatal(err)
	}
	ws, err := d.Client.CreateWorkspace(t.Context(), runtime.CreateWorkspaceRequest{
		Repositories: []runtime.RepositoryRequest{{RepositoryID: repo.ID}}, Sandbox: policy.SandboxPolicy{Quota: policy.Quota{Bytes: 2 << 20}},
	})
	if err != nil {
		t.Fatal(err)
	}
	w, err := d.Client.SpawnWorker(t.Context(), runtime.SpawnWorkerRequest{AllocationID: ws.ID, Command: []string{"sh", "-c", "sleep 2; head -c 4000000 /dev/urandom >f; sleep 60"}})
	if err != nil {
		t.Fatal(err)
	}
	d.Helper.Kill(t)
	d.StartHelper(t)
	d.Runtimed.Stop(t)
	d.StartRuntimed(t)
	if w, err = d.Client.WaitWorker(t.Context(), w.ID); err != nil {
		t.Fatal(err)
	}
	if w.Outcome == nil || w.Outcome.Exceeded != "disk_bytes" || w.Outcome.Lost {
		t.Errorf("the outcome is %+v", w.Outcome)
	}
	if _, err := d.Client.RemoveWorkspace(t.Context(), ws.ID, runtime.RemoveWorkspaceRequest{Discard: true}); err != nil {
		t.Error(err)
	}
	d.Stop(t)
	rig.Clean(t, d.Root)
	machine.Unchanged(t)
}

// TestFork: a fork of a limited workspace is limited by a subvolume of its own.
func TestFork(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "btrfs", 0)
	rig.EnableQuota(t, p.Dir, "squota")
	y := p.Yoi(t)
	y.OK(t, "repo", "add", "--id", "app", p.Give(t, testenv.RepoSmall(t)).Dir)
	var ws, fork runtime.Workspace
	y.Run(t, "ws", "create", "app", "--json", "--disk", "4M", "--hard-quota").Want(t, 0).JSON(t, &ws)
	y.Work(t, ws.ID, "echo work >state")
	y.Run(t, "ws", "fork", "--json", string(ws.ID)).Want(t, 0).JSON(t, &fork)
	if out := y.Work(t, fork.ID, "cat state; head -c 8000000 /dev/urandom >f 2>/dev/null || echo refused"); out != "work\nrefused\n" {
		t.Errorf("in the fork: %q", out)
	}
}

// TestRollback: a workspace that the kernel limits goes back to a snapshot, keeps
// what does not belong to its files, and its limit; what it was is a snapshot.
func TestRollback(t *testing.T) {
	testenv.Root(t)
	for _, mode := range []string{"qgroup", "squota"} {
		for _, strategy := range []string{"overlay", "reflink"} {
			t.Run(mode+"/"+strategy, func(t *testing.T) {
				p := rig.NewPlace(t, "btrfs", 0)
				rig.EnableQuota(t, p.Dir, mode)
				y := p.Yoi(t)
				y.OK(t, "repo", "add", "--id", "app", p.Give(t, testenv.RepoSmall(t)).Dir)
				var ws runtime.Workspace
				y.Run(t, "ws", "create", "app", "--json", "--strategy", strategy, "--disk", "4M", "--hard-quota").Want(t, 0).JSON(t, &ws)
				y.Work(t, ws.ID, "echo old >state; git add state; git commit -qm old; mkdir /scratch/a; echo 1 >/scratch/a/x; echo 2 >/scratch/gone")
				var snap, before runtime.Snapshot
				y.Run(t, "ws", "snapshot", "--json", string(ws.ID)).Want(t, 0).JSON(t, &snap)
				y.Work(t, ws.ID, "echo new >state; rm README.md; git commit -qam new; echo 3 >/scratch/a/x; rm /scratch/gone")
				y.Run(t, "ws", "rollback", "--json", string(ws.ID), string(snap.ID)).Want(t, 0).JSON(t, &before)
				got := y.Work(t, ws.ID, "cat state README.md; git log -1 --format=%s; git status --porcelain; git fsck --no-progress; cat /scratch/a/x; ls /scratch; head -c 8000000 /dev/urandom >f 2>/dev/null || echo refused; rm f")
				if want := "old\n# small\n\nChanged.\nold\n3\na\nrefused\n"; got != want {
					t.Errorf("after the rollback %q, want %q", got, want)
				}
				kept, err := os.ReadFile(filepath.Join(y.Root, "execution-workspaces", string(ws.ID), "materialization.json"))
				if err != nil || !strings.Contains(string(kept), `"allocation_id": "`+string(ws.ID)) {
					t.Errorf("%s, %v", kept, err)
				}
				kept, err = os.ReadFile(filepath.Join(y.Root, "execution-workspaces", string(before.ID), "materialization.json"))
				if err != nil || !strings.Contains(string(kept), `"allocation_id": "`+string(before.ID)) {
					t.Errorf("%s, %v", kept, err)
				}
				// And back again: nothing was lost, and the limit is still there.
				y.OK(t, "ws", "rollback", string(ws.ID), string(before.ID))
				got = y.Work(t, ws.ID, "cat state; git log -1 --format=%s; git status --porcelain; cat /scratch/a/x; head -c 8000000 /dev/urandom >f 2>/dev/null || echo refused")
				if want := "new\nnew\n3\nrefused\n"; got != want {
					t.Errorf("after the second rollback %q, want %q", got, want)
				}
				y.OK(t, "ws", "rm", "--discard", string(ws.ID))
				rig.Clean(t, y.Root)
			})
		}
	}
}

// TestMeasuredWithoutADaemon: the process that started a Worker measures at least
// once, and the one that waits for it goes on measuring.
func TestMeasuredWithoutADaemon(t *testing.T) {
	testenv.Root(t)
	for _, uid := range []int{0, rig.Ordinary} {
		for name, command := range map[string]string{
			"too much already": "sleep 60",
			"too much later":   "sleep 1; head -c 4000000 /dev/urandom >more; sleep 60",
		} {
			t.Run(name+"/"+strconv.Itoa(uid), func(t *testing.T) {
				p := rig.NewPlace(t, "disk", uid)
				machine := rig.Before(t)
				y := p.Yoi(t)
				y.OK(t, "repo", "add", "--id", "app", p.Give(t, testenv.RepoSmall(t)).Dir)
				var ws runtime.Workspace
				y.Run(t, "ws", "create", "app", "--json", "--strategy", "overlay", "--disk", "2M").Want(t, 0).JSON(t, &ws)
				var w runtime.Worker
				if name == "too much already" {
					y.Run(t, "worker", "spawn", "--json", string(ws.ID), "--", "sh", "-c", "head -c 4000000 /dev/urandom >f").Want(t, 0).JSON(t, &w)
					y.OK(t, "worker", "wait", string(w.ID))
				}
				y.Run(t, "worker", "spawn", "--json", string(ws.ID), "--", "sh", "-c", command).Want(t, 0).JSON(t, &w)
				y.Run(t, "worker", "wait", "--json", string(w.ID)).Want(t, 0).JSON(t, &w)
				if w.Outcome == nil || w.Outcome.Exceeded != "disk_bytes" || w.Outcome.Lost {
					t.Errorf("the outcome is %+v", w.Outcome)
				}
				y.OK(t, "ws", "rm", "--discard", string(ws.ID))
				rig.Clean(t, y.Root)
				machine.Unchanged(t)
			})
		}
	}
}
