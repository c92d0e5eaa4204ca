package daemon

import (
	"errors"
	"os"
	"sync"
	"testing"

	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/policy/seccomp"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// A daemon that asks for several Workers of one id at once gets one, whose directory and
// outcome the refusals leave alone, and later none.
func TestLaunchTwice(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", yoiUser)
	d := rig.StartDaemons(t, p, 0)
	repo := p.Give(t, testenv.RepoSmall(t))
	ws := d.Workspace(t, repo.Dir, func(r *runtime.CreateWorkspaceRequest) { r.Strategy = policy.StrategyCopy })
	filter, err := seccomp.Filter(policy.SandboxPolicy{}.Normalize())
	if err != nil {
		t.Fatal(err)
	}
	tree := helper.RepositoryTree{RepositoryID: ws.Points[0].RepositoryID, TreeKey: repo.Tree, Strategy: policy.StrategyCopy}
	launch := func(h *helper.Remote, id policy.WorkerID) error {
		l, err := h.Launch(t.Context(), helper.LaunchRequest{
			WorkerID: id, AllocationID: ws.ID, Repositories: []helper.RepositoryTree{tree}, RepositoryID: tree.RepositoryID,
			Command: []string{"/bin/sh", "-c", "exit 7"}, Root: policy.RootSystem, Logs: true, ReadOnly: true, // else the workspace is taken
		}, helper.LaunchFiles{Filter: filter})
		if err == nil {
			l.Pidfd.Close()
		}
		return err
	}
	const callers = 4
	var links []*helper.Remote
	for range callers {
		h := helper.Dial(d.HelperSoc)
		defer h.Close()
		links = append(links, h)
	}
	for range 20 {
		id := policy.NewWorkerID()
		errs := make([]error, callers)
		var wg sync.WaitGroup
		for i, h := range links {
			wg.Go(func() { errs[i] = launch(h, id) })
		}
		wg.Wait()
		won := 0
		for _, err := range errs {
			switch {
			case err == nil:
				won++
			case !errors.Is(err, policy.CodeConflict):
				t.Errorf("refused with %v", err)
			}
		}
		if won != 1 {
			t.Errorf("%d launches of %s: %v", won, id, errs)
		}
		if o, err := links[0].Wait(t.Context(), id); err != nil || o.ExitCode != 7 || o.Lost {
			t.Errorf("it ended with %+v, %v", o, err)
		}
		wantCode(t, launch(links[1], id), policy.CodeConflict)
		if _, err := os.Stat(d.Root + "/workers/" + string(id) + "/metadata/outcome"); err != nil {
			t.Error(err)
		}
	}
	if _, err := d.Client.RemoveWorkspace(t.Context(), ws.ID, runtime.RemoveWorkspaceRequest{Discard: true}); err != nil {
		t.Error(err)
	}
	d.Stop(t)
	rig.Clean(t, d.Root)
}
