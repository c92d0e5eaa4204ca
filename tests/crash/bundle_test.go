package crash

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// TestBundle walks through storing and removing a configuration bundle. After any
// cut it is whole or not there, and nothing else is.
func TestBundle(t *testing.T) {
	testenv.Root(t)
	dir := t.TempDir()
	for _, f := range []string{"a", "sub/b"} {
		p := filepath.Join(dir, f)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(f), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p := rig.NewPlace(t, "ext4", 0)
	repo := p.Give(t, testenv.RepoSmall(t)).Dir
	y := p.Yoi(t, tag)
	digest := strings.TrimSpace(y.OK(t, "bundle", "add", dir))
	y.OK(t, "bundle", "rm", digest)
	points := 0
	for _, work := range [][]string{{"bundle", "add", dir}, {"bundle", "rm", digest}} {
		for n := 1; ; n++ {
			if work[1] == "rm" {
				y.OK(t, "bundle", "add", dir)
			}
			_, killed := cut(t, y, n, work...)
			if killed {
				points++
			}
			y.OK(t, "gc")
			there := strings.Contains(y.OK(t, "bundle", "list"), digest)
			if there {
				y.OK(t, "run", "--repo", repo, "--config-bundle", digest, "--", "cat", "/run/yoi/config/sub/b")
			} else if !killed && work[1] == "add" {
				t.Error("it was added, and is not there")
			}
			rig.Clean(t, y.Root)
			if there {
				y.OK(t, "bundle", "rm", digest)
			}
			if !killed || t.Failed() {
				break
			}
		}
	}
	if points < 6 {
		t.Errorf("only %d crash points", points)
	}
}

// TestSecret walks through a run with a secret: whatever is cut off, its value is in
// nothing that is left, nor mounted anywhere.
func TestSecret(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "ext4", 0)
	repo := p.Give(t, testenv.RepoSmall(t)).Dir
	y := p.Yoi(t, tag)
	const value = "canary-5b1e0d63a7"
	store := filepath.Join(p.Dir, "store")
	if err := os.WriteFile(store, []byte(value), 0o600); err != nil {
		t.Fatal(err)
	}
	walk(t, func(t *testing.T, n int) bool {
		killed := cutRun(t, y, n, "run", "--repo", repo, "--secret", "s=file:"+store, "--secret", "s=file:"+store+",as=env", "--", "sh", "-c", `test "$S" = "$(cat /run/secrets/s)"`)
		if out := rig.Command(t, "sh", "-c", `grep -rlF "$1" "$2" || true`, "sh", value, y.Root); out != "" {
			t.Errorf("the value is in %s", out)
		}
		return killed
	})
}
