package crash

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// TestRemoteSnapshot walks through exports, and through a first workspace out
// of a store: the download, git's objects, the tree, the kept archive.
func TestRemoteSnapshot(t *testing.T) {
	testenv.Root(t)
	small := testenv.RepoSmall(t)
	for _, c := range []rig.Place{{FS: "ext4", UID: 0}, {FS: "btrfs", UID: rig.Ordinary}} {
		t.Run(c.String(), func(t *testing.T) {
			p := rig.NewPlace(t, c.FS, c.UID)
			repo := p.Give(t, small).Dir
			y := p.Yoi(t, tag)
			store := filepath.Join(p.Dir, "store")
			if err := os.Mkdir(store, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Chown(store, c.UID, c.UID); err != nil {
				t.Fatal(err)
			}
			y.OK(t, "repo", "add", "--id", "small", repo)
			for n, killed := 1, true; killed; n++ {
				_, killed = cut(t, y, n, "snapshot", "export", "small", "--to", store)
				y.OK(t, "gc") // an export looks after itself alone
				rig.Clean(t, y.Root)
			}
			digests := []string{digestOf(t, y, "small", store), digestOf(t, y, workspace(t, y, repo), store)}
			for i, kind := range []string{"point", "workspace"} {
				if kind == "point" && c.UID != 0 {
					continue // nothing of it is another user's matter
				}
				t.Run(kind, func(t *testing.T) {
					walk(t, func(t *testing.T, n int) bool {
						y := p.Yoi(t, tag)
						y.Root = filepath.Join(p.Dir, "cold")
						killed := cutRun(t, y, n, "run", "--repo", "snapshot+file://"+store, "--rev", "snapshot:"+digests[i], "--strategy", "remote_snapshot", "--", "true")
						rig.Command(t, "sh", "-c", `btrfs subvolume delete "$1"/repository-cache/git/*/trees/* >/dev/null 2>&1; rm -rf "$1"`, "sh", y.Root)
						return killed
					})
				})
			}
		})
	}
}

// digestOf exports what and returns its digest.
func digestOf(t *testing.T, y rig.Yoi, what, store string) string {
	t.Helper()
	var s struct {
		Digest string `json:"digest"`
	}
	if err := json.Unmarshal([]byte(y.OK(t, "snapshot", "export", what, "--to", store, "--json")), &s); err != nil {
		t.Fatal(err)
	}
	return s.Digest
}

// workspace is the id of a kept one with an untracked file.
func workspace(t *testing.T, y rig.Yoi, repo string) string {
	t.Helper()
	var ev struct {
		ID string `json:"allocation_id"`
	}
	out := y.OK(t, "run", "--keep", "--json", "--repo", repo, "--", "sh", "-c", "echo new >new")
	if err := json.Unmarshal([]byte(out), &ev); err != nil {
		t.Fatal(err)
	}
	return ev.ID
}
