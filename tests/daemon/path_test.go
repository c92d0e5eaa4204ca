package daemon

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// yoiUser is the uid of the unprivileged daemon.
const yoiUser = 64400

func wait(t *testing.T, d *rig.Daemons, id policy.WorkerID) runtime.Worker {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w, err := d.Client.WaitWorker(ctx, id)
	if err != nil {
		t.Fatalf("waiting for %s: %v\n%s\n%s", id, err, d.Runtimed.Log(), d.Helper.Log())
	}
	return w
}

func logs(t *testing.T, d *rig.Daemons, id policy.WorkerID, stream string) string {
	t.Helper()
	var b strings.Builder
	if _, err := d.Client.WorkerLogs(t.Context(), id, runtime.LogsRequest{Stream: stream}, &b); err != nil {
		t.Fatalf("logs of %s: %v", id, err)
	}
	return b.String()
}

func ended(t *testing.T, d *rig.Daemons, id policy.WorkerID, code int) {
	t.Helper()
	w := wait(t, d, id)
	if w.Status != runtime.WorkerExited || w.Outcome == nil || w.Outcome.ExitCode != code || w.Outcome.Lost {
		t.Errorf("%s is %s with outcome %+v, want exit %d", id, w.Status, w.Outcome, code)
	}
}

func wantCode(t *testing.T, err error, code policy.Code) {
	t.Helper()
	if !errors.Is(err, code) {
		t.Errorf("got %v, want %s", err, code)
	}
}

func discard(t *testing.T, d *rig.Daemons, id policy.AllocationID) {
	t.Helper()
	ws, err := d.Client.RemoveWorkspace(t.Context(), id, runtime.RemoveWorkspaceRequest{Discard: true, Stop: true})
	if err != nil || ws.Status != runtime.WorkspaceRemoved {
		t.Errorf("removing %s: %v, %s\n%s", id, err, ws.Status, d.Runtimed.Log())
	}
}

// TestMainPath goes from a repository to a Worker and back to nothing through
// both processes, for every strategy.
func TestMainPath(t *testing.T) {
	testenv.Root(t)
	small := testenv.RepoSmall(t)
	for _, fs := range rig.FileSystems() {
		for name, helperUID := range map[string]int{"privileged": 0, "user": yoiUser} {
			t.Run(fs+"/"+name, func(t *testing.T) {
				p := rig.NewPlace(t, fs, yoiUser)
				machine := rig.Before(t)
				repo := p.Give(t, small)
				d := rig.NewDaemons(t, p, helperUID)
				rig.Configure(t, d.Root, yoiUser, rig.Cloning)
				d.Start(t)
				for _, s := range append(rig.Strategies(fs), policy.StrategyExternal, policy.StrategyGitSparse) {
					t.Run(string(s), func(t *testing.T) { mainPath(t, d, repo, s) })
				}
				d.Stop(t)
				rig.Clean(t, d.Root)
				machine.Unchanged(t)
			})
		}
	}
}

func mainPath(t *testing.T, d *rig.Daemons, repo testenv.Repo, s policy.StrategyName) {
	by := func(r *runtime.CreateWorkspaceRequest) {
		if r.Strategy = s; s == policy.StrategyGitSparse {
			r.Repositories[0].Scope = []string{"src"}
		}
	}
	ws := d.Workspace(t, repo.Dir, by)
	if ws.Strategy != s || ws.Points[0].CommitID != repo.Commit || ws.Roots[0] != "/workspace/small" {
		t.Errorf("the workspace is %+v", ws)
	}
	first := d.Spawn(t, ws.ID, "id -u; pwd; git status --porcelain; git log --format=%H -1; echo problem >&2; exit 7")
	ended(t, d, first.ID, 7)
	if got, want := logs(t, d, first.ID, "stdout"), "1000\n/workspace/small\n"+repo.Commit+"\n"; got != want {
		t.Errorf("the Worker says\n%s\nwant\n%s", got, want)
	}
	if got := logs(t, d, first.ID, "stderr"); got != "problem\n" {
		t.Errorf("on stderr: %q", got)
	}
	// A second Worker sees what the first left, and makes a commit.
	ended(t, d, d.Spawn(t, ws.ID, "echo x >new && git add new && git commit -q -m work").ID, 0)
	ended(t, d, d.Spawn(t, ws.ID, "test -e new && git log -1 --format=%s | grep -q work").ID, 0)
	_, err := d.Client.RemoveWorkspace(t.Context(), ws.ID, runtime.RemoveWorkspaceRequest{})
	wantCode(t, err, policy.CodeUncollectedWork)
	ev, err := d.Client.WorkspaceEvidence(t.Context(), ws.ID)
	if err != nil || ev.Points[0].TreeID != repo.Tree || len(ev.Workers) != 3 {
		t.Errorf("evidence %+v, %v", ev, err)
	}
	discard(t, d, ws.ID)
	discard(t, d, ws.ID) // again: nothing to do
	clean := d.Workspace(t, repo.Dir, by)
	ended(t, d, d.Spawn(t, clean.ID, "git status >/dev/null && rm -f nothing").ID, 0)
	if _, err := d.Client.RemoveWorkspace(t.Context(), clean.ID, runtime.RemoveWorkspaceRequest{}); err != nil {
		t.Errorf("a workspace without work is not removed: %v", err)
	}
}

// TestRemovalOfALiveWorkspace is refused unless the caller says to stop.
func TestRemovalOfALiveWorkspace(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", yoiUser)
	d := rig.StartDaemons(t, p, 0)
	ws := d.Workspace(t, p.Give(t, testenv.RepoSmall(t)).Dir, nil)
	w := d.Spawn(t, ws.ID, "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done")
	said(t, d, w.ID, "ready\n")
	_, err := d.Client.RemoveWorkspace(t.Context(), ws.ID, runtime.RemoveWorkspaceRequest{Discard: true})
	wantCode(t, err, policy.CodeAllocationInUse)
	got, err := d.Client.StopWorker(t.Context(), w.ID, runtime.StopRequest{Grace: 10 * time.Second})
	if err != nil || got.Outcome == nil || got.Outcome.ExitCode != 9 {
		t.Errorf("stopped as %+v, %v", got.Outcome, err)
	}
	discard(t, d, ws.ID)
	d.Stop(t)
	rig.Clean(t, d.Root)
}

// TestTwoWorkersAtOnce: either the second is refused, or they work on one tree.
func TestTwoWorkersAtOnce(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", yoiUser)
	d := rig.StartDaemons(t, p, 0)
	repo := p.Give(t, testenv.RepoSmall(t))
	for _, s := range []policy.StrategyName{policy.StrategyOverlay, policy.StrategyCopy} {
		ws := d.Workspace(t, repo.Dir, func(r *runtime.CreateWorkspaceRequest) { r.Strategy = s })
		waits := d.Spawn(t, ws.ID, "echo ready; for i in $(seq 3000); do test -e go && test -e /scratch/go && exit 0; sleep 0.02; done; exit 1")
		said(t, d, waits.ID, "ready\n")
		_, err := d.Client.SpawnWorker(t.Context(), runtime.SpawnWorkerRequest{AllocationID: ws.ID, Command: []string{"sh", "-c", "touch go /scratch/go"}})
		if err != nil {
			wantCode(t, err, policy.CodeAllocationInUse)
			if err := d.Client.SignalWorker(t.Context(), waits.ID, runtime.SignalRequest{Signal: "KILL"}); err != nil {
				t.Error(err)
			}
			ended(t, d, waits.ID, 137)
		} else {
			ended(t, d, waits.ID, 0)
		}
		discard(t, d, ws.ID)
	}
}

// TestSignals: by name and number; KILL is 137.
func TestSignals(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", yoiUser)
	d := rig.StartDaemons(t, p, 0)
	ws := d.Workspace(t, p.Give(t, testenv.RepoSmall(t)).Dir, nil)
	for signal, code := range map[string]int{"USR1": 11, "SIGUSR2": 12, "10": 11, "KILL": 137, "9": 137} {
		w := d.Spawn(t, ws.ID, "trap 'exit 11' USR1; trap 'exit 12' USR2; echo ready; while :; do sleep 0.02; done")
		said(t, d, w.ID, "ready\n")
		if err := d.Client.SignalWorker(t.Context(), w.ID, runtime.SignalRequest{Signal: signal}); err != nil {
			t.Errorf("signal %s: %v", signal, err)
		}
		ended(t, d, w.ID, code)
	}
	for _, s := range []string{"", "0", "65", "NOSUCH", "-9"} {
		wantCode(t, d.Client.SignalWorker(t.Context(), "wk-none", runtime.SignalRequest{Signal: s}), policy.CodeSignalInvalid)
	}
	discard(t, d, ws.ID)
}

func TestIdempotencyKeys(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", yoiUser)
	d := rig.StartDaemons(t, p, 0)
	repo := p.Give(t, testenv.RepoSmall(t)).Dir
	keyed := func(r *runtime.CreateWorkspaceRequest) { r.IdempotencyKey = "once" }
	first, second := d.Workspace(t, repo, keyed), d.Workspace(t, repo, keyed)
	if first.ID != second.ID {
		t.Errorf("one key made %s and %s", first.ID, second.ID)
	}
	d.Runtimed.Kill(t)
	d.StartRuntimed(t)
	if third := d.Workspace(t, repo, keyed); third.ID != first.ID {
		t.Errorf("after a restart the key made %s", third.ID)
	}
	discard(t, d, first.ID)
}
