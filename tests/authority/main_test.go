package authority

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// yoiUser is the uid of the unprivileged daemon.
const yoiUser = 64400

// embedded runs body as root and as an ordinary user.
func embedded(t *testing.T, body func(t *testing.T, p rig.Place, y rig.Yoi, repo string)) {
	t.Helper()
	testenv.Root(t)
	small := testenv.RepoSmall(t)
	for _, uid := range []int{0, rig.Ordinary} {
		t.Run("uid "+strconv.Itoa(uid), func(t *testing.T) {
			p := rig.NewPlace(t, "disk", uid)
			repo := p.Give(t, small)
			machine := rig.Before(t)
			y := p.Yoi(t)
			body(t, p, y, repo.Dir)
			rig.Clean(t, y.Root)
			machine.Unchanged(t)
		})
	}
}

// pairs runs body with a privileged helper and with one of the daemon's user.
func pairs(t *testing.T, prepare func(p rig.Place, d *rig.Daemons), body func(t *testing.T, d *rig.Daemons, repo string)) {
	t.Helper()
	testenv.Root(t)
	small := testenv.RepoSmall(t)
	for name, uid := range map[string]int{"privileged": 0, "user": yoiUser} {
		t.Run(name, func(t *testing.T) {
			p := rig.NewPlace(t, "disk", yoiUser)
			repo := p.Give(t, small)
			machine := rig.Before(t)
			d := rig.NewDaemons(t, p, uid)
			if prepare != nil {
				prepare(p, d)
			}
			d.Start(t)
			body(t, d, repo.Dir)
			d.Stop(t)
			rig.Clean(t, d.Root)
			machine.Unchanged(t)
		})
	}
}

// workspace makes one of the repository, under a policy.
func workspace(t *testing.T, d *rig.Daemons, repo string, p policy.SandboxPolicy) runtime.Workspace {
	t.Helper()
	return d.Workspace(t, repo, func(r *runtime.CreateWorkspaceRequest) { r.Sandbox = p })
}

// ended waits for a Worker and returns its output.
func ended(t *testing.T, d *rig.Daemons, id policy.WorkerID) (runtime.Worker, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	w, err := d.Client.WaitWorker(ctx, id)
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, d.Runtimed.Log(), d.Helper.Log())
	}
	var b strings.Builder
	for _, stream := range []string{"stdout", "stderr"} {
		if _, err := d.Client.WorkerLogs(t.Context(), id, runtime.LogsRequest{Stream: stream}, &b); err != nil {
			t.Fatal(err)
		}
	}
	return w, b.String()
}

func remove(t *testing.T, d *rig.Daemons, id policy.AllocationID) {
	t.Helper()
	if _, err := d.Client.RemoveWorkspace(t.Context(), id, runtime.RemoveWorkspaceRequest{Discard: true, Stop: true}); err != nil {
		t.Fatal(err)
	}
}

// write makes a file of uid's with mode 0600.
func write(t *testing.T, name, content string, uid int) string {
	t.Helper()
	err := os.WriteFile(name, []byte(content), 0o600)
	if err == nil {
		err = os.Chown(name, uid, uid)
	}
	if err != nil {
		t.Fatal(err)
	}
	return name
}
