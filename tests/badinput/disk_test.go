package badinput

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// incompressible is a repository of n files of 1 MiB that no packing shrinks.
func incompressible(t *testing.T, n int) testenv.Repo {
	t.Helper()
	files := map[string]*testenv.Entry{}
	for i := range n {
		b := make([]byte, 1<<20)
		_, _ = rand.Read(b)
		files["data/"+string(rune('a'+i))] = &testenv.Entry{Data: string(b)}
	}
	return testenv.Commit(t, testenv.RepoSmall(t), "data", files)
}

// TestFullDiskWhileFillingTheCache: the mirror or the pristine tree does not fit.
func TestFullDiskWhileFillingTheCache(t *testing.T) {
	testenv.Root(t)
	repo := incompressible(t, 16)
	for fs, size := range map[string]int{"ext4": 64, "xfs": 320} {
		t.Run(fs, func(t *testing.T) {
			y := rig.NewPlaceOf(t, fs, 0, size).Yoi(t)
			fill(t, y.Dir, 20<<20)
			y.Run(t, "run", "--repo", repo.Dir, "--", "true").Refused(t, 125, policy.CodeDiskFull)
			rig.Clean(t, y.Root)
			drain(t, y.Dir)
		})
	}
}

// TestFullDiskWhileCopying: the cache fits, the workspace does not. What was
// copied so far is taken away, and with room again the same command works.
func TestFullDiskWhileCopying(t *testing.T) {
	testenv.Root(t)
	repo := incompressible(t, 12)
	for _, c := range []struct {
		strategy string
		code     policy.Code
		more     []string
	}{
		{"copy", policy.CodeDiskFull, nil}, {"git_worktree", policy.CodeDiskFull, nil}, {"git_sparse", policy.CodeDiskFull, []string{"--scope", "data"}},
		{"external", policy.CodeExternalFailed, nil}, // it is the command that finds it full
	} {
		t.Run(c.strategy, func(t *testing.T) {
			y := rig.NewPlaceOf(t, "ext4", 0, 320).Yoi(t)
			rig.Configure(t, y.Root, 0, rig.Cloning)
			y.OK(t, "run", "--repo", repo.Dir, "--strategy", "overlay", "--", "true")
			fill(t, y.Dir, 5<<20)
			args := append(append([]string{"run", "--repo", repo.Dir, "--strategy", c.strategy}, c.more...), "--", "true")
			refused(t, y, 125, c.code, args...)
			drain(t, y.Dir)
			y.OK(t, args...)
			rig.Clean(t, y.Root)
		})
	}
}

// TestFullDiskLater: there is room for a workspace, and not for what is made of it.
// Each is refused, nothing of it is left, the workspace is what it was, and with
// room again the same command works.
func TestFullDiskLater(t *testing.T) {
	testenv.Root(t)
	y := rig.NewPlaceOf(t, "ext4", 0, 320).Yoi(t)
	y.OK(t, "repo", "add", "--id", "app", testenv.RepoSmall(t).Dir)
	var ws runtime.Workspace
	y.Run(t, "ws", "create", "app", "--json", "--strategy", "copy").Want(t, 0).JSON(t, &ws)
	id := string(ws.ID)
	say := func(script string) string {
		t.Helper()
		return y.Work(t, ws.ID, "set -e\n"+script)
	}
	say("head -c 12000000 /dev/urandom >big; git add big; git commit -qm big")
	var snap runtime.Snapshot
	y.Run(t, "ws", "snapshot", id, "--json").Want(t, 0).JSON(t, &snap)
	store := filepath.Join(y.Dir, "store")
	if err := os.Mkdir(store, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(y.Dir, "work.tar")
	y.OK(t, "gc")
	before, err := rig.Leftovers(y.Root)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, y.Dir, 5<<20)
	commands := [][]string{
		{"ws", "fork", id}, {"ws", "snapshot", id}, {"ws", "rollback", id, string(snap.ID)},
		{"ws", "export", "--tar", "-o", file, id}, {"ws", "export", "--bundle", "-o", file + ".bundle", id}, {"ws", "collect", "--as", "fix", id},
		{"snapshot", "export", id, "--to", store},
	}
	for _, args := range commands {
		y.Run(t, args...).Refused(t, 1, policy.CodeDiskFull)
		after, err := rig.Leftovers(y.Root)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range rig.Difference(before, after) {
			if !strings.Contains(d, "workers/wk-") { // the one that looked
				t.Errorf("%q left a trace: %s", args, d)
			}
		}
		for _, pattern := range []string{store + "/*", file + "*", filepath.Join(y.Dir, ".yoi-export-*")} {
			if left, _ := filepath.Glob(pattern); len(left) > 0 {
				t.Errorf("%q left %q", args, left)
			}
		}
	}
	drain(t, y.Dir)
	if got := say("git status --porcelain; git log -1 --format=%s; git fsck --no-progress; stat -c %s big"); got != "big\n12000000\n" {
		t.Errorf("the workspace has %q", got)
	}
	for _, args := range commands {
		y.OK(t, args...)
	}
}

// fill leaves about free bytes of a file system. (Not of btrfs: once data has
// taken all of the device there, only a balance makes room for metadata.)
func fill(t *testing.T, dir string, free int64) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	_, _ = rand.Read(block)
	for {
		var st unix.Statfs_t
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		left := int64(st.Bavail)*st.Bsize - free
		if left <= 0 {
			return
		}
		if _, err := f.Write(block[:min(left, int64(len(block)))]); err != nil {
			t.Fatal(err)
		}
	}
}

func drain(t *testing.T, dir string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, "filler")); err != nil {
		t.Fatal(err)
	}
	unix.Sync()
}

// TestStrategiesThatTheFileSystemLacks: what was demanded by name is never
// replaced by something else.
func TestStrategiesThatTheFileSystemLacks(t *testing.T) {
	testenv.Root(t)
	repo := testenv.RepoSmall(t)
	for _, c := range []struct {
		fs       string
		strategy policy.StrategyName
	}{
		{"ext4", policy.StrategyReflink}, {"ext4", policy.StrategyBtrfsSnapshot}, {"xfs", policy.StrategyBtrfsSnapshot},
	} {
		t.Run(c.fs+" "+string(c.strategy), func(t *testing.T) {
			y := warmed(t, rig.NewPlace(t, c.fs, 0), repo.Dir)
			refused(t, y, 125, policy.CodeStrategyUnsupported, "run", "--repo", repo.Dir, "--strategy", string(c.strategy), "--", "true")
		})
	}
}
