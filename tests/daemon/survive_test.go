package daemon

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// untilGo runs until it is told to go on. Its marker finds the process without
// the daemons.
func untilGo(marker string) string {
	return "trap 'echo after; exit 42' USR1; echo before; while :; do sleep 0.02; done # " + marker
}

// letGo tells it, once it listens: before its trap the signal would end it.
func letGo(t *testing.T, d *rig.Daemons, id policy.WorkerID, marker string) {
	t.Helper()
	said(t, d, id, "before\n")
	rig.SignalMarked(t, marker, syscall.SIGUSR1)
}

// said waits until a Worker's output begins so: it is that far.
func said(t *testing.T, d *rig.Daemons, id policy.WorkerID, text string) {
	t.Helper()
	rig.Eventually(t, "the worker says "+text, func() bool {
		b, err := os.ReadFile(filepath.Join(d.Root, "workers", string(id), "logs/stdout"))
		return err == nil && bytes.HasPrefix(b, []byte(text))
	})
}

// TestWorkerSurvives kills one or both processes under a live Worker. It ends
// while they are down or after their restart; either way its exit code and its
// output are not lost, and it can be removed.
func TestWorkerSurvives(t *testing.T) {
	testenv.Root(t)
	small := testenv.RepoSmall(t)
	for _, c := range []struct {
		name             string
		helper, runtimed bool
	}{{"helper", true, false}, {"runtimed", false, true}, {"both", true, true}} {
		for _, when := range []string{"ends while they are down", "ends after the restart"} {
			for set, uid := range map[string]int{"privileged": 0, "user": yoiUser} {
				t.Run(c.name+"/"+when+"/"+set, func(t *testing.T) {
					p := rig.NewPlace(t, "disk", yoiUser)
					machine := rig.Before(t)
					d := rig.StartDaemons(t, p, uid)
					ws := d.Workspace(t, p.Give(t, small).Dir, nil)
					marker := policy.NewID("marker-")
					w := d.Spawn(t, ws.ID, untilGo(marker))
					if c.runtimed {
						d.Runtimed.Kill(t)
					}
					if c.helper {
						d.Helper.Kill(t)
					}
					if when == "ends while they are down" {
						letGo(t, d, w.ID, marker)
						settle(t, d, w.ID)
					}
					if c.helper {
						d.StartHelper(t)
					}
					if c.runtimed {
						d.StartRuntimed(t)
					}
					if when != "ends while they are down" {
						if got, err := d.Client.GetWorker(t.Context(), w.ID); err != nil || got.Status != runtime.WorkerRunning {
							t.Errorf("after the restart the Worker is %q, %v", got.Status, err)
						}
						letGo(t, d, w.ID, marker)
					}
					ended(t, d, w.ID, 42)
					if got := logs(t, d, w.ID, "stdout"); got != "before\nafter\n" {
						t.Errorf("the log is %q", got)
					}
					ended(t, d, d.Spawn(t, ws.ID, "exit 5").ID, 5)
					discard(t, d, ws.ID)
					d.Stop(t)
					rig.Clean(t, d.Root)
					machine.Unchanged(t)
				})
			}
		}
	}
}

// settle waits until a Worker's PID 1 has written its outcome.
func settle(t *testing.T, d *rig.Daemons, id policy.WorkerID) {
	t.Helper()
	rig.Eventually(t, "the outcome is on the disk", func() bool {
		b, err := os.ReadFile(filepath.Join(d.Root, "workers", string(id), "metadata/outcome"))
		return err == nil && len(bytes.Trim(b, "\x00")) > 0
	})
}

// TestOrderlyRestart: TERM, as `systemctl restart` sends it, leaves Workers
// alone too, and a killed Worker's signal is told by the next process.
func TestOrderlyRestart(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", yoiUser)
	d := rig.StartDaemons(t, p, 0)
	repo := p.Give(t, testenv.RepoSmall(t)).Dir
	ws, other := d.Workspace(t, repo, nil), d.Workspace(t, repo, nil)
	marker := policy.NewID("marker-")
	lives, dies := d.Spawn(t, ws.ID, untilGo(marker)), d.Spawn(t, other.ID, "while :; do sleep 0.02; done")
	d.Stop(t)
	d.Start(t)
	if err := d.Client.SignalWorker(t.Context(), dies.ID, runtime.SignalRequest{Signal: "KILL"}); err != nil {
		t.Errorf("a Worker of an earlier process cannot be signalled: %v", err)
	}
	ended(t, d, dies.ID, 137)
	letGo(t, d, lives.ID, marker)
	ended(t, d, lives.ID, 42)
	discard(t, d, ws.ID)
	discard(t, d, other.ID)
}

// TestFollowingClientSurvivesTheHelper: a caller that waits is not told a lie
// when the helper goes away under it.
func TestFollowingClientSurvivesTheHelper(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", yoiUser)
	d := rig.StartDaemons(t, p, 0)
	ws := d.Workspace(t, p.Give(t, testenv.RepoSmall(t)).Dir, nil)
	marker := policy.NewID("marker-")
	w := d.Spawn(t, ws.ID, untilGo(marker))
	got := make(chan runtime.Worker, 1)
	go func() {
		v, _ := d.Client.WaitWorker(t.Context(), w.ID) // an error leaves v empty, which fails below
		got <- v
	}()
	d.Helper.Kill(t)
	d.StartHelper(t)
	letGo(t, d, w.ID, marker)
	if v := <-got; v.Outcome == nil || v.Outcome.ExitCode != 42 {
		t.Errorf("the waiting caller was told %s %+v\n%s", v.Status, v.Outcome, d.Runtimed.Log())
	}
	discard(t, d, ws.ID)
}
