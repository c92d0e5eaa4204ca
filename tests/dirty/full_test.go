package dirty

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

// TestFullDisk has room for the cache, and not for what comes along: a snapshot,
// a patch that is applied, and one that is stored. Nothing is left of any, and
// with room again the same commands work.
func TestFullDisk(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlaceOf(t, "ext4", 0, 200)
	repo, y := p.Give(t, testenv.RepoSmall(t)), p.Yoi(t)
	y.OK(t, "run", "--repo", repo.Dir, "--", "true")
	noise := make([]byte, 20<<20)
	_, _ = rand.Read(noise)
	write(t, filepath.Join(repo.Dir, "big"), string(noise))
	repo.Git(t, "add", "big")
	diff := repo.Git(t, "diff", "--cached", "--binary") + "\n"
	repo.Git(t, "reset", "-q")
	patch := filepath.Join(t.TempDir(), "big.patch")
	write(t, patch, diff)

	filler := filepath.Join(p.Dir, "filler")
	leave(t, filler, 10<<20)
	commands := map[string][]string{
		"snapshot":     {"run", "--repo", repo.Dir, "--dirty", snapshot, "--", "true"},
		"patch":        {"run", "--repo", repo.Dir, "--patch", patch, "--", "test", "-s", "big"},
		"stored patch": {"patch", "add", patch},
	}
	for name, args := range commands {
		exit := 125
		if args[0] == "patch" {
			exit = 1
		}
		t.Run(name, func(t *testing.T) {
			y.Run(t, args...).Refused(t, exit, policy.CodeDiskFull)
			rig.Clean(t, y.Root)
			if left, _ := os.ReadDir(filepath.Join(y.Root, "patches")); len(left) > 0 {
				t.Errorf("left in the store: %v", left)
			}
		})
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	for _, args := range commands {
		y.OK(t, args...)
	}
	rig.Clean(t, y.Root)
}

// leave fills the file system until about free bytes are left.
func leave(t *testing.T, filler string, free int64) {
	t.Helper()
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(st.Bavail)*st.Bsize-free); err != nil {
		t.Fatal(err)
	}
}
