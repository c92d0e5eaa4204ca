package daemon

import (
	"context"
	"errors"
	"path/filepath"
	goruntime "runtime"
	"sync/atomic"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// inProcess is a daemon's Runtime in this process, which does the helper's work too,
// with a repository.
func inProcess(t *testing.T, clock func() time.Time) (*runtime.Runtime, policy.RepositoryID) {
	t.Helper()
	testenv.Root(t)
	p := rig.NewPlace(t, "ext4", 0)
	r, err := runtime.Open(t.Context(), runtime.Options{Root: filepath.Join(p.Dir, "rt"), Daemon: true, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	repo, err := r.AddRepository(t.Context(), runtime.AddRepositoryRequest{Source: p.Give(t, testenv.RepoSmall(t)).Dir})
	if err != nil {
		t.Fatal(err)
	}
	return r, repo.ID
}

// TestClockJumps: the wall clock is set back a day, then forward two. Who follows the
// timeline misses nothing, no workspace goes before its time is over, those whose time
// is over go, and a running Worker is none of the clock's business.
func TestClockJumps(t *testing.T) {
	var jump atomic.Int64
	r, repo := inProcess(t, func() time.Time { return time.Now().Add(time.Duration(jump.Load())) })
	workspace := func(cleanup policy.CleanupPolicy) policy.AllocationID {
		t.Helper()
		ws, err := r.CreateWorkspace(t.Context(), runtime.CreateWorkspaceRequest{Repositories: []runtime.RepositoryRequest{{RepositoryID: repo}}, Cleanup: cleanup})
		if err != nil {
			t.Fatal(err)
		}
		return ws.ID
	}
	spawn := func(ws policy.AllocationID, command ...string) policy.WorkerID {
		t.Helper()
		w, err := r.SpawnWorker(t.Context(), runtime.SpawnWorkerRequest{AllocationID: ws, Command: command, Limits: policy.Limits{WallClock: time.Hour}})
		if err != nil {
			t.Fatal(err)
		}
		return w.ID
	}
	remains := func(ws policy.AllocationID) bool {
		t.Helper()
		if _, err := r.GC(t.Context(), runtime.GCRequest{}); err != nil {
			t.Fatal(err)
		}
		v, err := r.GetWorkspace(t.Context(), ws)
		if err != nil {
			t.Fatal(err)
		}
		return v.Status != runtime.WorkspaceRemoved
	}

	short := workspace(policy.CleanupPolicy{Mode: policy.KeepFor, For: 2 * time.Hour})
	if _, err := r.WaitWorker(t.Context(), spawn(short, "true")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	told, done := make(chan string, 100), make(chan error, 1)
	go func() {
		done <- r.Events(ctx, runtime.EventsRequest{Follow: true}, func(e runtime.Event) bool {
			told <- e.Kind + " " + e.Owner
			return true
		})
	}()
	await := func(event string) {
		t.Helper()
		for {
			select {
			case e := <-told:
				if e == event {
					return
				}
			case err := <-done:
				t.Fatalf("the timeline ends before %q: %v", event, err)
			case <-t.Context().Done():
				t.Fatalf("nobody is told %q", event)
			case <-time.After(time.Minute):
				t.Fatalf("nobody is told %q within a minute", event)
			}
		}
	}
	await("workspace.created " + string(short))

	jump.Store(int64(-24 * time.Hour))
	if !remains(short) {
		t.Error("a clock that was set back ended a workspace's time")
	}
	long := workspace(policy.CleanupPolicy{Mode: policy.KeepFor, For: 2 * time.Hour})
	wk := spawn(long, "sleep", "1000")
	await("worker.started " + string(wk))

	jump.Store(int64(24 * time.Hour))
	if remains(short) {
		t.Error("a workspace is there after its time")
	}
	await("workspace.removed " + string(short))
	if !remains(long) {
		t.Error("a clock that was set forward took a running Worker's workspace")
	}
	if w, err := r.GetWorker(t.Context(), wk); err != nil || w.Status != runtime.WorkerRunning {
		t.Errorf("%+v %v", w.Status, err)
	}
	if s, err := r.Status(t.Context()); err != nil || s.Workers != 1 {
		t.Errorf("%+v %v", s, err)
	}
	cancel()
	if err := <-done; err != nil && !errors.Is(err, policy.CodeCanceled) {
		t.Error(err)
	}
	if _, err := r.RemoveWorkspace(t.Context(), long, runtime.RemoveWorkspaceRequest{Stop: true, Discard: true}); err != nil {
		t.Error(err)
	}
}

// TestGoroutines: what a launch starts in the daemon ends with the Worker.
func TestGoroutines(t *testing.T) {
	r, repo := inProcess(t, nil)
	ws, err := r.CreateWorkspace(t.Context(), runtime.CreateWorkspaceRequest{Repositories: []runtime.RepositoryRequest{{RepositoryID: repo}}})
	if err != nil {
		t.Fatal(err)
	}
	launch := func(n int) {
		t.Helper()
		for range n {
			w, err := r.SpawnWorker(t.Context(), runtime.SpawnWorkerRequest{AllocationID: ws.ID, Command: []string{"true"}, Limits: policy.Limits{WallClock: time.Hour}})
			if err == nil {
				w, err = r.WaitWorker(t.Context(), w.ID)
			}
			if err != nil || w.Outcome == nil || w.Outcome.ExitCode != 0 {
				t.Fatalf("%+v %v", w.Outcome, err)
			}
		}
	}
	launch(3) // what is started once
	before := goruntime.NumGoroutine()
	launch(30)
	rig.Eventually(t, "the launches' goroutines have ended", func() bool { return goruntime.NumGoroutine() <= before })
	if _, err := r.RemoveWorkspace(t.Context(), ws.ID, runtime.RemoveWorkspaceRequest{}); err != nil {
		t.Error(err)
	}
}

// TestCollectBesideWorkers: gc while a Worker runs leaves it to who follows it, and its
// end is told once.
func TestCollectBesideWorkers(t *testing.T) {
	r, repo := inProcess(t, nil)
	ws, err := r.CreateWorkspace(t.Context(), runtime.CreateWorkspaceRequest{
		Repositories: []runtime.RepositoryRequest{{RepositoryID: repo}}, Cleanup: policy.CleanupPolicy{Mode: policy.KeepFor, For: time.Hour},
	})
	if err != nil {
		t.Fatal(err)
	}
	w, err := r.SpawnWorker(t.Context(), runtime.SpawnWorkerRequest{AllocationID: ws.ID, Command: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := r.GC(t.Context(), runtime.GCRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.StopWorker(t.Context(), w.ID, runtime.StopRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.RemoveWorkspace(t.Context(), ws.ID, runtime.RemoveWorkspaceRequest{}); err != nil {
		t.Error(err)
	}
	ends := 0
	if err := r.Events(t.Context(), runtime.EventsRequest{}, func(e runtime.Event) bool {
		if e.Kind == string(policy.EventWorkerEnded) {
			ends++
		}
		return true
	}); err != nil || ends != 1 {
		t.Errorf("the end is told %d times: %v", ends, err)
	}
}
