package crash

import (
	"context"
	"strings"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

const yoiUser = 64400

// TestDaemons walks through a workspace's life with two processes, cutting off
// one of them; at every second point the other dies with it.
func TestDaemons(t *testing.T) {
	testenv.Root(t)
	small := testenv.RepoSmall(t)
	for _, c := range []struct {
		victim   string
		fs       string
		strategy policy.StrategyName
		points   stride
	}{
		{"runtimed", "btrfs", policy.StrategyBtrfsSnapshot, every}, {"helper", "btrfs", policy.StrategyBtrfsSnapshot, stride{1, 2}},
		{"runtimed", "ext4", policy.StrategyGitWorktree, every}, {"helper", "ext4", policy.StrategyOverlay, stride{2, 2}},
	} {
		t.Run(c.victim+"/"+string(c.strategy), func(t *testing.T) {
			p := rig.NewPlace(t, c.fs, yoiUser)
			repo := p.Give(t, small).Dir
			d := rig.NewDaemons(t, p, 0, tag)
			d.Start(t)
			if _, err := d.Client.AddRepository(t.Context(), runtime.AddRepositoryRequest{Source: repo}); err != nil {
				t.Fatal(err)
			}
			d.Stop(t)
			c.points.walk(t, func(t *testing.T, n int) bool { return cutDaemons(t, d, c.victim, c.strategy, n) })
		})
	}
}

func cutDaemons(t *testing.T, d *rig.Daemons, victim string, s policy.StrategyName, n int) bool {
	t.Helper()
	machine := rig.Before(t)
	l := life{d: d, strategy: s}
	env := []string{crashAt(n)}
	if victim == "helper" {
		// Its proxy has records of its own, and is started between the Worker's.
		l.sandbox.Network = policy.NetworkPolicy{Mode: policy.NetworkAllowlist, Rules: []string{"a.example:443"}}
		d.HelperEnv = append(env, "YOI_EGRESS="+rig.Program(t, "yoi-egress"))
	} else {
		d.RuntimedEnv = env
	}
	if d.TryStart(t) {
		l.live(t.Context())
	}
	killed := d.Died()
	switch {
	case !killed: // the end in good order has points too
		// One that has just died is told by its end only.
		if killed = d.End(t); !killed && l.commit == "" {
			t.Errorf("no Worker made its commit\n%s\n%s", d.Runtimed.Log(), d.Helper.Log())
		}
	case otherwise(n):
		d.KillBoth(t)
	}
	d.HelperEnv, d.RuntimedEnv = nil, nil
	d.Restart(t)
	l.check(t)
	l.end(t)
	d.Stop(t)
	rig.Clean(t, d.Root)
	machine.Unchanged(t)
	return killed
}

// life is a workspace's: what the caller knows of it when a process dies.
type life struct {
	d        *rig.Daemons
	strategy policy.StrategyName
	sandbox  policy.SandboxPolicy
	commit   string // told by the Worker
	removing bool
}

// live goes as far as it can.
func (l *life) live(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	ws, err := l.d.Client.CreateWorkspace(ctx, runtime.CreateWorkspaceRequest{
		Repositories: []runtime.RepositoryRequest{{RepositoryID: "small"}}, Strategy: l.strategy, Sandbox: l.sandbox,
	})
	if err != nil {
		return
	}
	w, err := l.d.Client.SpawnWorker(ctx, runtime.SpawnWorkerRequest{AllocationID: ws.ID, Command: []string{"sh", "-c", commits}})
	if err != nil {
		return
	}
	if _, err = l.d.Client.WaitWorker(ctx, w.ID); err != nil {
		return
	}
	var b strings.Builder
	if _, err = l.d.Client.WorkerLogs(ctx, w.ID, runtime.LogsRequest{}, &b); err != nil {
		return
	}
	_, l.commit, _ = strings.Cut(strings.TrimSpace(b.String()), "committed ")
	l.removing = true
	_, _ = l.d.Client.RemoveWorkspace(ctx, ws.ID, runtime.RemoveWorkspaceRequest{Discard: true}) // may be cut off
}

// check looks at what the restarted processes know.
func (l *life) check(t *testing.T) {
	t.Helper()
	list, err := l.d.Client.ListWorkspaces(t.Context(), runtime.ListFilter{})
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, ws := range list.Items {
		if ws.Status != runtime.WorkspaceActive && ws.Status != runtime.WorkspaceStopped {
			continue
		}
		found = true
		if l.commit != "" && !l.removing {
			holdsCommit(t, l.d.Root, ws, "small", l.commit)
		}
	}
	if l.commit != "" && !l.removing && !found {
		t.Error("the workspace with the commit is gone")
	}
	workers, err := l.d.Client.ListWorkers(t.Context(), runtime.ListFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range workers.Items {
		if w.Status != runtime.WorkerStarting && w.Status != runtime.WorkerRunning {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		got, err := l.d.Client.WaitWorker(ctx, w.ID)
		cancel()
		if err == nil && got.Status == runtime.WorkerFailed {
			continue // the helper died before it answered the launch
		}
		if err != nil || got.Outcome == nil || (got.Outcome.ExitCode != 0 && !got.Outcome.Lost) {
			t.Errorf("%s survived the crash, and ended as %s %+v, %v\n%s", w.ID, got.Status, got.Outcome, err, l.d.Runtimed.Log())
		}
	}
}

// end removes what is left by the ordinary way.
func (l *life) end(t *testing.T) {
	t.Helper()
	list, err := l.d.Client.ListWorkspaces(t.Context(), runtime.ListFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, ws := range list.Items {
		if ws.Status == runtime.WorkspaceRemoved {
			continue
		}
		if _, err := l.d.Client.RemoveWorkspace(t.Context(), ws.ID, runtime.RemoveWorkspaceRequest{Discard: true, Stop: true}); err != nil {
			t.Errorf("%s (%s) cannot be removed: %v\n%s", ws.ID, ws.Status, err, l.d.Runtimed.Log())
		}
	}
}
