package runtime

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/ledger/registry"
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
