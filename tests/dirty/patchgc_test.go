package dirty

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// stored puts a patch of its own into the store, and ages it.
func stored(t *testing.T, p rig.Place, y rig.Yoi, n int, age time.Duration) string {
	t.Helper()
	file := filepath.Join(p.Dir, "p.patch")
	write(t, file, fmt.Sprintf("diff --git a/new%d b/new%d\nnew file mode 100644\n--- /dev/null\n+++ b/new%d\n@@ -0,0 +1 @@\n+new\n", n, n, n))
	digest := strings.TrimSpace(y.OK(t, "patch", "add", file))
	usedBefore(t, y, digest, age)
	return digest
}

// usedBefore makes the last use of a patch so old.
func usedBefore(t *testing.T, y rig.Yoi, digest string, age time.Duration) {
	t.Helper()
	then := time.Now().Add(-age)
	if err := os.Chtimes(filepath.Join(y.Root, "patches", strings.TrimPrefix(digest, "sha256:")), then, then); err != nil {
		t.Fatal(err)
	}
}

// TestUnusedPatches: gc takes those that nobody used for the configured time, says
// so before, and takes none that a workspace was made with.
func TestUnusedPatches(t *testing.T) {
	testenv.Root(t)
	for _, uid := range []int{0, rig.Ordinary} {
		p := rig.NewPlace(t, "disk", uid)
		y := p.Yoi(t)
		y.OK(t, "repo", "add", "--id", "app", p.Give(t, testenv.RepoSmall(t)).Dir)
		const month = 31 * 24 * time.Hour
		old, needed, again, young := stored(t, p, y, 1, month), stored(t, p, y, 2, month), stored(t, p, y, 3, month), stored(t, p, y, 4, month-2*24*time.Hour)
		used := stored(t, p, y, 5, month)
		var ws runtime.Workspace
		y.Run(t, "ws", "create", "app", "--patch", needed, "--json").Want(t, 0).JSON(t, &ws)
		usedBefore(t, y, needed, 2*month) // it was used long ago, but is still what the workspace's evidence names
		var tmp runtime.Workspace
		y.Run(t, "ws", "create", "app", "--patch", used, "--json").Want(t, 0).JSON(t, &tmp)
		y.OK(t, "ws", "rm", string(tmp.ID)) // nothing names it any more, but it was used just now
		stored(t, p, y, 3, 0)               // adding it again is a use, too
		patches := func(dry bool) (out []string) {
			t.Helper()
			args := []string{"gc", "--json"}
			if dry {
				args = append(args, "--dry-run")
			}
			var rep runtime.GCReport
			y.Run(t, args...).Want(t, 0).JSON(t, &rep)
			for _, i := range rep.Items {
				if i.Kind == "patch" {
					if i.Bytes <= 0 {
						t.Errorf("%+v", i)
					}
					out = append(out, i.Name)
				}
			}
			return out
		}
		listed := func() (out []string) {
			t.Helper()
			var list []runtime.Patch
			y.Run(t, "patch", "list", "--json").Want(t, 0).JSON(t, &list)
			for _, p := range list {
				out = append(out, string(p.Digest))
			}
			return out
		}
		if got := patches(true); !slices.Equal(got, []string{old}) || len(listed()) != 5 {
			t.Errorf("would take %q, of %q", got, listed())
		}
		if got := patches(false); !slices.Equal(got, []string{old}) {
			t.Errorf("took %q", got)
		}
		for _, d := range []string{needed, again, young, used} {
			if !slices.Contains(listed(), d) {
				t.Errorf("%s is gone", d)
			}
		}
		y.Run(t, "ws", "create", "app", "--patch", old).Refused(t, 1, policy.CodePatchUnknown)
		// When its workspace is gone, nothing needs it; unless it is to be kept for ever.
		y.OK(t, "ws", "rm", string(ws.ID))
		rig.Configure(t, y.Root, uid, "[cache]\npatches_unused_for = \"never\"\n")
		if got := patches(false); len(got) != 0 {
			t.Errorf("took %q", got)
		}
		rig.Configure(t, y.Root, uid, "[cache]\npatches_unused_for = \"1h\"\n")
		if got := patches(false); len(got) != 2 || !slices.Contains(got, needed) || !slices.Contains(got, young) {
			t.Errorf("took %q", got)
		}
		rig.Clean(t, y.Root)
	}
}
