package systemd

import (
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/api"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/host"
)

// dial is a client of the machine's daemon.
func dial(t *testing.T, h *host.Host) *api.Client {
	t.Helper()
	c := api.NewClient(h.Path("/run/yoi/runtimed.sock"))
	t.Cleanup(func() { c.Close() })
	return c
}

// each runs f for 0 to n-1, at most so many at once, and fails with its errors.
func each(t *testing.T, n, atOnce int, f func(i int) error) {
	t.Helper()
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := f(i); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

func create(t *testing.T, c *api.Client) (policy.AllocationID, error) {
	ws, err := c.CreateWorkspace(t.Context(), runtime.CreateWorkspaceRequest{
		Repositories: []runtime.RepositoryRequest{{RepositoryID: "app"}}, Cleanup: policy.CleanupPolicy{Mode: policy.KeepUntil},
	})
	return ws.ID, err
}

func remove(t *testing.T, c *api.Client, id policy.AllocationID) error {
	_, err := c.RemoveWorkspace(t.Context(), id, runtime.RemoveWorkspaceRequest{Discard: true, Stop: true})
	return err
}

// noUnits waits until the manager has forgotten all Workers and workspaces.
func noUnits(h *host.Host) {
	h.Eventually("no unit of a worker is left", func() bool {
		return h.OK("systemctl", "list-units", "--all", "--no-legend", "--plain", "yoi-w*") == "yoi-workspace.slice loaded active active Slice /yoi/workspace\n" ||
			h.OK("systemctl", "list-units", "--all", "--no-legend", "--plain", "yoi-wk-*", "yoi-workspace-*") == ""
	})
}

// TestFifty starts fifty Workers at once: each gets a scope of its own in a slice of
// its own, and one stop of their slice ends them all, by name.
func TestFifty(t *testing.T) {
	h := installed(t)
	yoi(h, "repo", "add", "/srv/app").Want(0)
	c := dial(t, h)
	const n = 50
	var workers [n]runtime.Worker
	each(t, n, n, func(i int) (err error) {
		ws, err := create(t, c)
		if err != nil {
			return err
		}
		workers[i], err = c.SpawnWorker(t.Context(), runtime.SpawnWorkerRequest{AllocationID: ws, Command: []string{"sleep", "987654"}})
		return err
	})
	scopes := strings.Fields(h.OK("sh", "-c", "systemctl list-units --no-legend --plain --state=running 'yoi-wk-*.scope' | cut -d' ' -f1"))
	if len(scopes) != n {
		t.Errorf("%d workers have %d scopes", n, len(scopes))
	}
	for _, w := range workers {
		if len(w.Diagnostics) != 0 {
			t.Errorf("%s: %+v", w.ID, w.Diagnostics)
		}
	}
	slices := make(map[string]bool)
	for s := range strings.Lines(h.OK(append([]string{"systemctl", "show", "--property=Slice", "--value"}, scopes...)...)) {
		if s = strings.TrimSpace(s); s != "" {
			slices[s] = true
		}
	}
	if len(slices) != n {
		t.Errorf("%d workspaces have %d slices", n, len(slices))
	}
	h.OK("systemctl", "stop", "yoi-workspace.slice")
	each(t, n, n, func(i int) error {
		w, err := c.WaitWorker(t.Context(), workers[i].ID)
		if err == nil && (w.Outcome == nil || !w.Outcome.Stopped || w.Outcome.Lost) {
			err = fmt.Errorf("%s: %+v", w.ID, w.Outcome)
		}
		return err
	})
	each(t, n, 8, func(i int) error { return remove(t, c, workers[i].AllocationID) })
	noUnits(h)
}

// TestBusGoneAndBack: neither a bus that is down nor a manager that reads its units
// again costs a Worker its scope.
func TestBusGoneAndBack(t *testing.T) {
	h := installed(t)
	yoi(h, "repo", "add", "/srv/app").Want(0)
	c := dial(t, h)
	ws, err := create(t, c)
	if err != nil {
		t.Fatal(err)
	}
	for _, act := range [][]string{
		{"systemctl", "start", "dbus.socket", "dbus.service"},
		{"systemctl", "stop", "dbus.socket", "dbus.service"},
		{"systemctl", "start", "dbus.socket", "dbus.service"},
		{"systemctl", "daemon-reload"},
	} {
		h.Direct(act...)
		w, err := c.SpawnWorker(t.Context(), runtime.SpawnWorkerRequest{AllocationID: ws, Command: []string{"sleep", "987654"}})
		if err != nil {
			t.Fatalf("after %q: %v", act, err)
		}
		if len(w.Diagnostics) != 0 || h.Direct("systemctl", "show", "--property=SubState", "--value", "yoi-"+string(w.ID)+".scope") != "running\n" {
			t.Errorf("after %q the worker has no scope: %+v", act, w.Diagnostics)
		}
		h.Direct("systemctl", "stop", "yoi-"+string(w.ID)+".scope")
		if w, err = c.WaitWorker(t.Context(), w.ID); err != nil || w.Outcome == nil || !w.Outcome.Stopped {
			t.Errorf("after %q: %+v %v", act, w.Outcome, err)
		}
	}
	if err := remove(t, c, ws); err != nil {
		t.Error(err)
	}
	noUnits(h)
}

// TestSustained launches one Worker after the other, YOI_TEST_LAUNCHES of them, and
// then descriptors, mounts, control groups and units are where they began, and both
// idle daemons together have less memory than 40 MiB.
func TestSustained(t *testing.T) {
	launches := 60
	if s := os.Getenv("YOI_TEST_LAUNCHES"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		launches = n
	}
	h := installed(t)
	// What idle daemons do, they do soon.
	for _, u := range []string{"yoi-runtimed", "yoi-helper"} {
		h.Write("/run/systemd/system/"+u+".service.d/quick.conf", "[Service]\nWatchdogSec=10\n", 0o644)
	}
	h.OK("systemctl", "daemon-reload")
	yoi(h, "repo", "add", "/srv/app").Want(0)
	c := dial(t, h)
	const callers = 4
	places := make(chan policy.AllocationID, callers)
	each(t, callers, 1, func(int) error {
		ws, err := create(t, c)
		places <- ws
		return err
	})
	run := func(n int) {
		each(t, n, callers, func(int) error {
			ws := <-places
			defer func() { places <- ws }()
			w, err := c.SpawnWorker(t.Context(), runtime.SpawnWorkerRequest{AllocationID: ws, Command: []string{"true"}, Limits: policy.Limits{Tasks: 100}})
			if err == nil {
				w, err = c.WaitWorker(t.Context(), w.ID)
			}
			if err == nil && (w.Outcome == nil || w.Outcome.ExitCode != 0) {
				err = fmt.Errorf("%s: %+v", w.ID, w.Outcome)
			}
			return err
		})
		c.Close() // idle connections are descriptors of the daemon's
	}
	census := func() host.Census { return h.Census("yoi-runtimed", "yoi-helper") }
	run(2 * callers)
	// What follows a launch behind it, as the networks made in advance, is there then.
	var before host.Census
	h.Eventually("the daemons come to rest", func() bool {
		before = census()
		time.Sleep(2 * time.Second)
		return reflect.DeepEqual(before, census())
	})
	run(launches)
	var after host.Census
	h.Eventually("what the launches had is gone", func() bool {
		after = census()
		return !after.More(before)
	})
	h.Eventually("both daemons together have less than 40 MiB", func() bool {
		r, p := h.Resident("yoi-runtimed"), h.Resident("yoi-helper")
		t.Logf("after %d launches yoi-runtimed has %d KiB, yoi-helper %d", launches, r>>10, p>>10)
		return r+p < 40<<20
	})
	each(t, callers, 1, func(int) error { return remove(t, c, <-places) })
}
