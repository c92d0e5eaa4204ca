package main

import (
	"time"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// workerByDaemons is a Worker as a Backend has it: asked of yoi-runtimed, until its end
// is known, on disk, with what it left in its workspace, which is looked at in a sandbox
// of its own. bubblewrap does the first half of that.
func workerByDaemons(r *room) {
	p := rig.NewPlace(r, "disk", rig.Ordinary)
	d := rig.StartDaemons(r, p, 0)
	repo := p.Give(r, testenv.RepoSmall(r))
	added, err := d.Client.AddRepository(r.ctx, runtime.AddRepositoryRequest{Source: repo.Dir})
	r.must(err)
	ws, err := d.Client.CreateWorkspace(r.ctx, runtime.CreateWorkspaceRequest{Repositories: []runtime.RepositoryRequest{{RepositoryID: added.ID}}})
	r.must(err)
	worker := func(command ...string) side {
		return func() time.Duration {
			return timed(func() {
				w, err := d.Client.SpawnWorker(r.ctx, runtime.SpawnWorkerRequest{AllocationID: ws.ID, Command: command})
				r.must(err)
				w, err = d.Client.WaitWorker(r.ctx, w.ID)
				r.must(err)
				if w.Outcome == nil || w.Outcome.ExitCode != 0 || len(w.Outcome.Work) != 1 {
					r.Fatalf("it ended so: %+v", w)
				}
			})
		}
	}
	dir := r.TempDir()
	byHand := func() time.Duration { return timed(func() { r.bwrapIn(dir) }) }
	own, peer := r.turns(r.runs(60), worker("true"), byHand)
	r.times("a Worker by the daemons: request to recorded end and work", "bwrap", 0, own, peer)
	own, peer = r.turns(r.runs(60), worker("sh", "-c", "date >now"), byHand)
	r.times("the same, which has written a file", "bwrap", 0, own, peer)
	r.must(errOf(d.Client.RemoveWorkspace(r.ctx, ws.ID, runtime.RemoveWorkspaceRequest{Discard: true})))
}

func errOf[T any](_ T, err error) error { return err }
