package crash

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// TestCreate cuts the making of workspaces that stay off at every point: of two
// repositories, and with a stored patch. Afterwards there is all of it or nothing.
func TestCreate(t *testing.T) {
	testenv.Root(t)
	small := testenv.RepoSmall(t)
	for _, c := range []struct {
		name, fs string
		uid      int
		args     []string
		says     string
	}{
		{"two repositories", "btrfs", 0, []string{"small", "other"}, "small\nother\n"},
		{"stored patch", "ext4", rig.Ordinary, []string{"small", "--patch"}, "edited\nsmall\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := rig.NewPlace(t, c.fs, c.uid)
			y := p.Yoi(t, tag)
			y.OK(t, "repo", "add", "--id", "small", p.Give(t, small).Dir)
			y.OK(t, "repo", "add", "--id", "other", p.Give(t, small).Dir)
			look := `cd /workspace; for i in *; do git -C $i status >/dev/null && echo $i; done`
			args := append([]string{"ws", "create"}, c.args...)
			if c.args[1] == "--patch" {
				file := filepath.Join(p.Dir, "p.patch")
				diff := "diff --git a/README.md b/README.md\n--- a/README.md\n+++ b/README.md\n@@ -1,3 +1 @@\n-# small\n-\n-Changed.\n+edited\n"
				if err := os.WriteFile(file, []byte(diff), 0o644); err != nil {
					t.Fatal(err)
				}
				args = append(args, strings.TrimSpace(y.OK(t, "patch", "add", file)))
				look = "cat README.md; " + look
			}
			walk(t, func(t *testing.T, n int) bool {
				machine := rig.Before(t)
				_, killed := cut(t, y, n, args...)
				machine.Unchanged(t)
				y.OK(t, "gc")
				made := workspaces(t, y)
				if len(made) > 1 || !killed && len(made) != 1 {
					t.Errorf("there are %+v", made)
				}
				for _, ws := range made {
					if got := say(t, y, ws.ID, look); !sameLines(got, c.says) {
						t.Errorf("the workspace has %q", got)
					}
					y.OK(t, "ws", "rm", string(ws.ID))
				}
				rig.Clean(t, y.Root)
				return killed
			})
		})
	}
}

// sameLines compares without regard to order.
func sameLines(a, b string) bool {
	return len(rig.Difference(strings.Split(a, "\n"), strings.Split(b, "\n"))) == 0
}
