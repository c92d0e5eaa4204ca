package runtime

import (
	"bytes"
	"context"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/nsexec"
	"yoi.dev/yoi-runtime/policy"
)

// TestWorkerLogs reads the log of a Worker that has ended: in part, beyond its end,
// where it is empty, and where it is gone.
func TestWorkerLogs(t *testing.T) {
	dir := t.TempDir()
	r := &Runtime{now: time.Now}
	var err error
	if r.root, err = rootdir.Open(dir); err != nil {
		t.Fatal(err)
	}
	defer r.root.Close()
	if r.registry, err = registry.Open(t.Context(), filepath.Join(dir, "r.db")); err != nil {
		t.Fatal(err)
	}
	defer r.registry.Close()
	worker := func(log string) policy.WorkerID {
		id := policy.NewWorkerID()
		if err := r.registry.PutWorker(t.Context(), registry.Worker{
			ID: id, AllocationID: "ws-1", WorkspaceID: "default", Status: registry.WorkerExited, CreatedAt: time.Now(),
		}); err != nil {
			t.Fatal(err)
		}
		logs := filepath.Join(dir, rootdir.Worker(id), "logs")
		if err := os.MkdirAll(logs, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(logs+"/stdout", []byte(log), 0o600); err != nil {
			t.Fatal(err)
		}
		return id
	}
	six, empty, gone := worker("abcdef"), worker(""), worker("abcdef")
	if err := os.RemoveAll(filepath.Join(dir, rootdir.Worker(gone))); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		id            policy.WorkerID
		offset, limit int64
		want          string
		next          int64
	}{
		{six, 0, 0, "abcdef", 6},
		{six, 2, 3, "cde", 5},
		{six, 4, 100, "ef", 6},
		{six, 1, math.MaxInt64, "bcdef", 6},
		{six, 6, 0, "", 6},
		{six, 7, 0, "", 6},
		{six, 1 << 62, 1, "", 6},
		{six, math.MaxInt64, math.MaxInt64, "", 6},
		{empty, 0, 0, "", 0},
		{empty, 5, 1, "", 0},
		{gone, 0, 0, "", 0},
		{gone, 5, 1, "", 0},
	} {
		for _, follow := range []bool{false, true} {
			var out bytes.Buffer
			next, err := r.WorkerLogs(t.Context(), c.id, LogsRequest{Offset: c.offset, Limit: c.limit, Follow: follow}, &out)
			if err != nil || out.String() != c.want || next != c.next {
				t.Errorf("from %d, at most %d, follow %t: %q, next %d, %v; want %q, %d", c.offset, c.limit, follow, out.String(), next, err, c.want, c.next)
			}
		}
	}
}

// slowLook is a helper whose Worker ended at once, while what it did takes long to look
// at.
type slowLook struct {
	helper.Helper
	killed chan struct{}
}

func (slowLook) Wait(context.Context, policy.WorkerID) (nsexec.Outcome, error) {
	return nsexec.Outcome{}, nil
}
func (slowLook) Signal(context.Context, policy.WorkerID, int) error { return nil }
func (h slowLook) Kill(context.Context, policy.WorkerID) error {
	close(h.killed)
	return nil
}

// TestStopSlowLook: a Worker that has ended is not one that cannot be killed, however
// long its record takes.
func TestStopSlowLook(t *testing.T) {
	h := slowLook{killed: make(chan struct{})}
	r := &Runtime{now: time.Now, helper: h, daemon: true}
	var err error
	if r.registry, err = registry.Open(t.Context(), filepath.Join(t.TempDir(), "r.db")); err != nil {
		t.Fatal(err)
	}
	defer r.registry.Close()
	w := registry.Worker{ID: policy.NewWorkerID(), AllocationID: "ws-1", WorkspaceID: "default", Status: registry.WorkerRunning, CreatedAt: time.Now()}
	if err := r.registry.PutWorker(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	recorded := make(chan error, 1)
	go func() {
		<-h.killed
		time.Sleep(deathGrace + 500*time.Millisecond)
		_, err := r.registry.UpdateWorker(t.Context(), w.ID, func(w *registry.Worker) error {
			w.Status = registry.WorkerExited
			return nil
		})
		recorded <- err
	}()
	got, err := r.StopWorker(t.Context(), w.ID, StopRequest{Grace: time.Millisecond})
	if err != nil || got.Status != WorkerExited {
		t.Errorf("%+v, %v", got, err)
	}
	if err := <-recorded; err != nil {
		t.Error(err)
	}
}
