package attack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// places are directories below the Runtime root that the privileged helper walks
// through, for a workspace made in that way.
func places(ws policy.AllocationID, tree string, s policy.StrategyName) []string {
	at := "execution-workspaces/" + string(ws)
	list := []string{"execution-workspaces", at, at + "/scratch", "workers", "tmp/trash",
		"repository-cache/git/small", "repository-cache/git/small/bare.git/objects", "repository-cache/git/small/trees/" + tree}
	if s == policy.StrategyOverlay {
		return append(list, at+"/mounts", at+"/mounts/small/upper", at+"/mounts/small/work")
	}
	return append(list, at+"/root", at+"/root/small")
}

// TestAttackSwappedPlaces: whoever owns the Runtime root, and so may rename what lies
// in it, puts a link to a copy of root's in the place of a directory, for good or again
// and again while the helper is at work (CVE-2019-16884's class). The helper, which alone
// could, neither changes root's copy nor shows it to a Worker.
func TestAttackSwappedPlaces(t *testing.T) {
	testenv.Root(t)
	for _, s := range []policy.StrategyName{policy.StrategyCopy, policy.StrategyOverlay} {
		for _, racing := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/racing=%t", s, racing), func(t *testing.T) {
				p := rig.NewPlace(t, "disk", yoiUser)
				d := rig.StartDaemons(t, p, 0)
				repo := p.Give(t, testenv.RepoSmall(t))
				make := func() policy.AllocationID {
					return d.Workspace(t, repo.Dir, func(r *runtime.CreateWorkspaceRequest) { r.Strategy = s }).ID
				}
				for i := range places("ws-x", repo.Tree, s) {
					ws := make()
					rel := places(ws, repo.Tree, s)[i]
					t.Run(strings.ReplaceAll(rel, string(ws), "WS"), func(t *testing.T) {
						swapped(t, d, ws, rel, racing)
					})
				}
				d.Stop(t)
				d.Start(t) // what was cut off half-way is the next start's
				if _, err := d.Client.GC(t.Context(), runtime.GCRequest{}); err != nil {
					t.Error(err)
				}
				d.Stop(t)
				rig.Clean(t, d.Root)
			})
		}
	}
}

func swapped(t *testing.T, d *rig.Daemons, ws policy.AllocationID, rel string, racing bool) {
	t.Helper()
	at := filepath.Join(d.Root, rel)
	private, err := os.MkdirTemp(d.Place.Dir, "private") // mode 0700 and root's, on the same file system
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(private)
	theirs, aside := filepath.Join(private, "host"), filepath.Join(d.Place.Dir, "aside")
	rig.Command(t, "cp", "-a", at, theirs)
	rig.Command(t, "find", theirs, "-type", "d", "-exec", "sh", "-c", `echo secret >"$1/of-the-host"`, "sh", "{}", ";")
	before := rig.Contents(t, private)
	if err := os.Symlink(theirs, aside); err != nil {
		t.Fatal(err)
	}
	exchange := func() error { return unix.Renameat2(unix.AT_FDCWD, aside, unix.AT_FDCWD, at, unix.RENAME_EXCHANGE) }
	tries, stop := 1, func() {}
	if racing {
		tries = 3
		stop = testenv.Exchanging(aside, at)
	} else if err := exchange(); err != nil {
		t.Fatal(err)
	}
	for range tries {
		at := helperAtWork(t, d, ws)
		if strings.Contains(at, "of-the-host") {
			t.Errorf("a Worker sees\n%s", at)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, _ = d.Client.RemoveWorkspace(ctx, ws, runtime.RemoveWorkspaceRequest{Discard: true, Stop: true}) // refused or not
	stop()
	for _, diff := range rig.Difference(before, rig.Contents(t, private)) {
		t.Errorf("what is root's changed: %s", diff)
	}
	// As it was, and then everything works.
	if st, err := os.Lstat(at); err == nil && st.Mode()&os.ModeSymlink != 0 {
		if err := exchange(); err != nil {
			t.Fatal(err)
		}
	} else if st, err := os.Lstat(aside); os.IsNotExist(err) || err == nil && st.IsDir() {
		_ = os.Rename(aside, at) // the link was removed in its place
	}
	_ = os.RemoveAll(aside)
	list, err := d.Client.ListWorkspaces(t.Context(), runtime.ListFilter{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(list.Items, func(a runtime.Workspace) bool { return a.ID == ws && a.Status != runtime.WorkspaceRemoved }) && strings.Contains(rel, string(ws)) {
		// Removed while the link stood in its place: what came back is no workspace any more.
		_ = os.RemoveAll(filepath.Join(d.Root, "execution-workspaces", string(ws)))
	}
	for _, left := range list.Items { // forks too
		if _, err := d.Client.RemoveWorkspace(t.Context(), left.ID, runtime.RemoveWorkspaceRequest{Discard: true, Stop: true}); err != nil {
			t.Errorf("removing it afterwards: %v\n%s", err, d.Helper.Log())
		}
	}
}

// helperAtWork asks for what the helper does below the Runtime root, any of which may
// be refused, and returns what a Worker said.
func helperAtWork(t *testing.T, d *rig.Daemons, ws policy.AllocationID) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c := d.Client
	var said strings.Builder
	w, err := c.SpawnWorker(ctx, runtime.SpawnWorkerRequest{AllocationID: ws, Command: []string{"sh", "-c",
		"for d in /workspace/small /scratch /run/yoi; do touch $d/by-the-worker; find $d -name of-the-host; done; rm -rf /scratch/*; echo more >>README.md"}})
	if err == nil {
		_, _ = c.WaitWorker(ctx, w.ID)
		_, _ = c.WorkerLogs(ctx, w.ID, runtime.LogsRequest{}, &said)
	}
	_, _ = c.DiffWorkspace(ctx, ws, runtime.ResultRequest{})
	_, _ = c.WorkspaceDisk(ctx, ws)
	if fork, err := c.ForkWorkspace(ctx, ws, runtime.ForkRequest{}); err == nil {
		_, _ = c.RemoveWorkspace(ctx, fork.ID, runtime.RemoveWorkspaceRequest{Discard: true})
	}
	return said.String()
}
