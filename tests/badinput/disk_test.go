package badinput

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
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
	for _, c := range []struct{ fs, strategy string }{{"ext4", "copy"}, {"ext4", "git_worktree"}} {
		t.Run(c.fs+" "+c.strategy, func(t *testing.T) {
			y := rig.NewPlaceOf(t, c.fs, 0, 320).Yoi(t)
			y.OK(t, "run", "--repo", repo.Dir, "--strategy", "overlay", "--", "true")
			fill(t, y.Dir, 5<<20)
			refused(t, y, 125, policy.CodeDiskFull, "run", "--repo", repo.Dir, "--strategy", c.strategy, "--", "true")
			drain(t, y.Dir)
			y.OK(t, "run", "--repo", repo.Dir, "--strategy", c.strategy, "--", "true")
			rig.Clean(t, y.Root)
		})
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
