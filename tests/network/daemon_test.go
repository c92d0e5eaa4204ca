package network

import (
	"context"
	"strings"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// Behind a daemon both modes that lead out do, whoever the helper is: root, which is
// handed the daemon's network, or an ordinary user, who could not enter it.
func TestDaemons(t *testing.T) {
	for name, helperUID := range map[string]int{"privileged": 0, "user": rig.Ordinary} {
		t.Run(name, func(t *testing.T) {
			w := newWorker(t, rig.Ordinary)
			before := rig.Before(t)
			d := rig.NewDaemons(t, w.place, helperUID)
			rig.Configure(t, d.Root, rig.Ordinary, "[sandbox]\nallow_host_network = true\n")
			d.HelperEnv = append(d.HelperEnv, "YOI_EGRESS="+rig.Program(t, "yoi-egress"))
			d.Start(t)
			repo, err := d.Client.AddRepository(t.Context(), runtime.AddRepositoryRequest{Source: w.repo})
			if err != nil {
				t.Fatal(err)
			}
			for _, mode := range []policy.NetworkMode{policy.NetworkAllowlist, policy.NetworkHost} {
				got := says(t, d, repo.ID, mode, "curl -sS http://web.example/; curl -sS --max-time 5 http://other.example/")
				if !strings.HasPrefix(got, "http for web.example\n") || strings.Contains(got, "http for other.example\n") != (mode == policy.NetworkHost) {
					t.Errorf("%s: the Worker reached %q", mode, got)
				}
			}
			d.Stop(t)
			rig.Clean(t, d.Root)
			before.Unchanged(t)
		})
	}
}

// says is what a Worker writes.
func says(t *testing.T, d *rig.Daemons, repo policy.RepositoryID, mode policy.NetworkMode, script string) string {
	t.Helper()
	n := policy.NetworkPolicy{Mode: mode}
	if mode == policy.NetworkAllowlist {
		n.Rules = []string{"web.example:80"}
	}
	ws, err := d.Client.CreateWorkspace(t.Context(), runtime.CreateWorkspaceRequest{
		Repositories: []runtime.RepositoryRequest{{RepositoryID: repo}}, Sandbox: policy.SandboxPolicy{Network: n},
	})
	if err != nil {
		t.Fatal(err)
	}
	w, err := d.Client.SpawnWorker(t.Context(), runtime.SpawnWorkerRequest{AllocationID: ws.ID, Command: []string{"sh", "-c", script}})
	if err != nil {
		t.Fatalf("%v\n%s", err, d.Helper.Log())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := d.Client.WaitWorker(ctx, w.ID); err != nil {
		t.Fatal(err)
	}
	out := said(t, d, w.ID)
	if _, err := d.Client.RemoveWorkspace(t.Context(), ws.ID, runtime.RemoveWorkspaceRequest{Discard: true}); err != nil {
		t.Error(err)
	}
	return out
}

func said(t *testing.T, d *rig.Daemons, id policy.WorkerID) string {
	t.Helper()
	var out strings.Builder
	if _, err := d.Client.WorkerLogs(t.Context(), id, runtime.LogsRequest{Stream: "stdout"}, &out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}
