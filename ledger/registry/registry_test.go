package registry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/policy"
)

func openTest(t testing.TB, path string) *Registry {
	t.Helper()
	r, err := Open(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func allocation(i int) Allocation {
	return Allocation{
		ID: policy.AllocationID(fmt.Sprintf("ws-%03d", i)), WorkspaceID: "default", Status: AllocationActive,
		CreatedAt:        time.Unix(int64(1000+i), 5).UTC(),
		RepositoryPoints: []policy.RepositoryPoint{{RepositoryID: "app", CommitID: "c"}},
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestPersistence(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "a b%?.db")
	r := openTest(t, path)
	id, err := r.RuntimeID(ctx)
	must(t, err)
	must(t, r.PutRepository(ctx, Repository{ID: "app", Source: "/src"}))
	must(t, r.PutAllocation(ctx, allocation(1)))
	must(t, r.Close())
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("runtime.db: %v %v", st, err)
	}
	r = openTest(t, path)
	if again, err := r.RuntimeID(ctx); err != nil || again != id {
		t.Fatalf("the identity changed: %q %q %v", id, again, err)
	}
	a, err := r.GetAllocation(ctx, "ws-001")
	if err != nil || !a.CreatedAt.Equal(allocation(1).CreatedAt) || a.RepositoryPoints[0].CommitID != "c" {
		t.Fatalf("%+v %v", a, err)
	}
}

func TestNewerAndBroken(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "r.db")
	r := openTest(t, path)
	_, err := r.db.Exec("PRAGMA user_version = 99")
	must(t, err)
	must(t, r.Close())
	if _, err := Open(ctx, path); !errors.Is(err, policy.CodeRuntimeRootNewer) {
		t.Fatalf("newer: %v", err)
	}
	must(t, os.WriteFile(path, []byte("this is not a database, whatever it says it is.........."), 0o600))
	if _, err := Open(ctx, path); !errors.Is(err, policy.CodeRegistryFailed) {
		t.Fatalf("broken: %v", err)
	}
}

// TestRelaxed: what an abandoned registry was told is there for the next.
func TestRelaxed(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "r.db")
	r, err := OpenRelaxed(ctx, path)
	must(t, err)
	defer r.Close()
	must(t, r.PutAllocation(ctx, allocation(1)))
	r.Abandon()
	if _, err := openTest(t, path).GetAllocation(ctx, "ws-001"); err != nil {
		t.Fatal(err)
	}
}

func TestNegativeVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.db")
	r := openTest(t, path)
	_, err := r.db.Exec("PRAGMA user_version = -1")
	must(t, err)
	must(t, r.Close())
	if _, err := Open(context.Background(), path); !errors.Is(err, policy.CodeRegistryFailed) {
		t.Fatalf("negative: %v", err)
	}
}

// TestProcesses has several processes open one new database at once, and kills
// them with SIGKILL: what they had acknowledged is there.
func TestProcesses(t *testing.T) {
	if path := os.Getenv("REGISTRY_TEST_WRITER"); path != "" {
		writer(path)
	}
	for round := range 5 {
		path := filepath.Join(t.TempDir(), "r.db")
		var procs []*exec.Cmd
		var acked []*os.File
		for i := range 4 {
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestProcesses$")
			cmd.Env = append(os.Environ(), "REGISTRY_TEST_WRITER="+path, fmt.Sprintf("REGISTRY_TEST_N=%d", i))
			out, err := os.Create(fmt.Sprintf("%s.%d", path, i))
			must(t, err)
			defer out.Close()
			cmd.Stdout, cmd.Stderr = out, os.Stderr
			must(t, cmd.Start())
			procs, acked = append(procs, cmd), append(acked, out)
		}
		for end := time.Now().Add(time.Minute); !anyWritten(t, acked) && time.Now().Before(end); { // a busy machine takes its time
			time.Sleep(5 * time.Millisecond)
		}
		time.Sleep(time.Duration(150+50*round) * time.Millisecond)
		for _, p := range procs {
			must(t, p.Process.Kill())
			if err := p.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
				t.Fatalf("a writer failed before it was killed: %v", err)
			}
		}
		r := openTest(t, path)
		total := 0
		for _, out := range acked {
			b, err := os.ReadFile(out.Name())
			must(t, err)
			for _, id := range strings.Fields(string(b)) {
				if len(id) != len("ws-0123456789abcdef") {
					continue // the last line may be cut off
				}
				total++
				if _, err := r.GetAllocation(context.Background(), policy.AllocationID(id)); err != nil {
					t.Fatalf("%s was acknowledged and is lost: %v", id, err)
				}
			}
		}
		if total == 0 {
			t.Fatal("no writer wrote anything")
		}
		must(t, r.Close())
	}
}

func anyWritten(t *testing.T, files []*os.File) bool {
	t.Helper()
	for _, f := range files {
		st, err := f.Stat()
		must(t, err)
		if st.Size() > 0 {
			return true
		}
	}
	return false
}

func writer(path string) {
	ctx := context.Background()
	for {
		r, err := Open(ctx, path)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		a := allocation(0)
		a.ID = policy.NewAllocationID()
		if err := r.PutAllocation(ctx, a); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(a.ID)
		r.Close()
	}
}

func TestRepositories(t *testing.T) {
	ctx := context.Background()
	r := openTest(t, filepath.Join(t.TempDir(), "r.db"))
	must(t, r.PutRepository(ctx, Repository{ID: "app", Source: "/a"}))
	must(t, r.PutRepository(ctx, Repository{ID: "app", Source: "/a"}))
	if err := r.PutRepository(ctx, Repository{ID: "app", Source: "/b"}); !errors.Is(err, policy.CodeRepositoryExists) {
		t.Errorf("another source: %v", err)
	}
	must(t, r.PutAllocation(ctx, allocation(1)))
	if err := r.DeleteRepository(ctx, "app"); !errors.Is(err, policy.CodeRepositoryInUse) {
		t.Errorf("in use: %v", err)
	}
	_, err := r.SetAllocationStatus(ctx, "ws-001", AllocationCleanupPending, AllocationActive)
	must(t, err)
	_, err = r.SetAllocationStatus(ctx, "ws-001", AllocationRemoved, AllocationCleanupPending)
	must(t, err)
	must(t, r.DeleteRepository(ctx, "app"))
	if err := r.DeleteRepository(ctx, "app"); !errors.Is(err, policy.CodeRepositoryUnknown) {
		t.Errorf("twice: %v", err)
	}
}

func TestStateMachines(t *testing.T) {
	ctx := context.Background()
	r := openTest(t, filepath.Join(t.TempDir(), "r.db"))
	const active, stopped, failed, pending, removed = AllocationActive, AllocationStopped, AllocationFailed, AllocationCleanupPending, AllocationRemoved
	// Rows are from, columns to.
	table := []struct {
		from AllocationStatus
		to   map[AllocationStatus]bool
	}{
		{active, map[AllocationStatus]bool{active: true, stopped: true, failed: true, pending: true, removed: true}},
		{stopped, map[AllocationStatus]bool{stopped: true, failed: true, pending: true}},
		{failed, map[AllocationStatus]bool{failed: true, pending: true}},
		{pending, map[AllocationStatus]bool{pending: true, removed: true}},
		{removed, map[AllocationStatus]bool{removed: true}},
	}
	n := 0
	for _, row := range table {
		for _, to := range []AllocationStatus{active, stopped, failed, pending, removed} {
			n++
			a := allocation(n)
			a.Status = row.from
			must(t, r.PutAllocation(ctx, a))
			_, err := r.UpdateAllocation(ctx, a.ID, func(v *Allocation) error { v.Status = to; return nil })
			if (err == nil) != row.to[to] || (err != nil && !errors.Is(err, policy.CodeConflict)) {
				t.Errorf("%s → %s: %v", row.from, to, err)
			}
		}
	}
	must(t, r.PutWorker(ctx, Worker{ID: "wk-1", Status: WorkerStarting}))
	for _, step := range []struct {
		to WorkerStatus
		ok bool
	}{{WorkerRunning, true}, {WorkerStarting, false}, {WorkerExited, true}, {WorkerRunning, false}, {WorkerLost, false}} {
		_, err := r.UpdateWorker(ctx, "wk-1", func(w *Worker) error { w.Status = step.to; return nil })
		if (err == nil) != step.ok {
			t.Errorf("worker → %s: %v", step.to, err)
		}
	}
}

func TestPaging(t *testing.T) {
	ctx := context.Background()
	r := openTest(t, filepath.Join(t.TempDir(), "r.db"))
	for i := range 25 {
		a := allocation(i)
		if i%2 == 1 {
			a.CreatedAt = allocation(i - 1).CreatedAt // ties are broken by id
		}
		if i%5 == 0 {
			a.Status, a.WorkspaceID = AllocationFailed, "other"
		}
		must(t, r.PutAllocation(ctx, a))
	}
	seen := map[policy.AllocationID]bool{}
	var last policy.AllocationID
	for after, pages := "", 0; ; pages++ {
		p, err := r.ListAllocations(ctx, Filter{Limit: 4, After: after})
		must(t, err)
		for _, a := range p.Items {
			if seen[a.ID] || (last != "" && a.ID > last) {
				t.Fatalf("%s out of order or twice", a.ID)
			}
			seen[a.ID], last = true, a.ID
		}
		if after = p.Next; after == "" {
			if pages != 6 {
				t.Errorf("%d pages", pages+1)
			}
			break
		}
	}
	if len(seen) != 25 {
		t.Fatalf("%d of 25 seen", len(seen))
	}
	for name, c := range map[string]struct {
		f Filter
		n int
	}{
		"status":     {Filter{Status: []string{"failed"}}, 5},
		"statuses":   {Filter{Status: []string{"failed", "active"}}, 25},
		"workspace":  {Filter{WorkspaceID: "other"}, 5},
		"repository": {Filter{RepositoryID: "app"}, 25},
		"none":       {Filter{RepositoryID: "nope"}, 0},
	} {
		p, err := r.ListAllocations(ctx, c.f)
		if err != nil || len(p.Items) != c.n {
			t.Errorf("%s: %d items, %v", name, len(p.Items), err)
		}
	}
	for _, bad := range []Filter{{Limit: -1}, {Limit: 1001}, {After: "!"}, {After: "MQ"}} {
		if _, err := r.ListAllocations(ctx, bad); !errors.Is(err, policy.CodeBadRequest) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestExpired(t *testing.T) {
	ctx := context.Background()
	r := openTest(t, filepath.Join(t.TempDir(), "r.db"))
	now := time.Unix(5000, 0)
	for i, d := range []time.Duration{0, -time.Second, time.Second} {
		a := allocation(i)
		a.Status = AllocationStopped
		if d != 0 {
			a.CleanupDeadline = now.Add(d)
		}
		must(t, r.PutAllocation(ctx, a))
	}
	got, err := r.ExpiredAllocations(ctx, now)
	if err != nil || len(got) != 1 || got[0].ID != "ws-001" {
		t.Fatalf("%+v %v", got, err)
	}
}

func TestIdempotencyKeys(t *testing.T) {
	ctx := context.Background()
	r := openTest(t, filepath.Join(t.TempDir(), "r.db"))
	claim, first, err := r.ClaimKey(ctx, "k", "d1")
	if err != nil || !first {
		t.Fatalf("first claim: %v %v", first, err)
	}
	if _, _, err := r.ClaimKey(ctx, "k", "d1"); !errors.Is(err, policy.CodeConflict) {
		t.Errorf("under way: %v", err)
	}
	must(t, r.AnswerKey(ctx, claim, []byte(`{"id":1}`)))
	k, first, err := r.ClaimKey(ctx, "k", "d1")
	if err != nil || first || string(k.Response) != `{"id":1}` {
		t.Errorf("answered: %+v %v %v", k, first, err)
	}
	if _, _, err := r.ClaimKey(ctx, "k", "d2"); !errors.Is(err, policy.CodeConflict) {
		t.Errorf("another request: %v", err)
	}
	// A claim whose process died is free again after a while.
	late, _, err := r.ClaimKey(ctx, "dead", "d")
	must(t, err)
	_, err = r.db.Exec("UPDATE idempotency_keys SET created_at = created_at - ? WHERE key = 'dead'", int64(claimTimeout))
	must(t, err)
	next, first, err := r.ClaimKey(ctx, "dead", "d")
	if err != nil || !first {
		t.Errorf("dead claim: %v %v", first, err)
	}
	// The first claimant was only slow: it must not undo what its successor did.
	must(t, r.AnswerKey(ctx, next, []byte(`"second"`)))
	must(t, r.ForgetKey(ctx, late))
	must(t, r.AnswerKey(ctx, late, []byte(`"first"`)))
	if k, first, err := r.ClaimKey(ctx, "dead", "d"); err != nil || first || string(k.Response) != `"second"` {
		t.Errorf("after a late claimant: %s %v %v", k.Response, first, err)
	}
}

func TestTwoHandlesAtOnce(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "r.db")
	a, b := openTest(t, path), openTest(t, path)
	done := make(chan error, 2)
	for n, r := range []*Registry{a, b} {
		go func() {
			var err error
			for i := 0; i < 50 && err == nil; i++ {
				err = r.PutAllocation(ctx, allocation(n*100+i))
			}
			done <- err
		}()
	}
	must(t, <-done)
	must(t, <-done)
	if p, err := a.ListAllocations(ctx, Filter{Limit: 1000}); err != nil || len(p.Items) != 100 {
		t.Fatalf("%d, %v", len(p.Items), err)
	}
}

func FuzzToken(f *testing.F) {
	f.Add(token(12345, "ws-001"))
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		at, id, err := parseToken(s)
		if err == nil && token(at, id) != s {
			t.Fatalf("%q was read as %d %q", s, at, id)
		}
	})
}

func BenchmarkOpenPutClose(b *testing.B) {
	ctx := context.Background()
	path := filepath.Join(b.TempDir(), "r.db")
	openTest(b, path).Close()
	for i := 0; b.Loop(); i++ {
		r, err := Open(ctx, path)
		must(b, err)
		a := allocation(0)
		a.ID = policy.NewAllocationID()
		must(b, r.PutAllocation(ctx, a))
		must(b, r.Close())
	}
}

// TestCounts: what is gone is not counted, and what there is none of is not there.
func TestCounts(t *testing.T) {
	ctx := context.Background()
	r := openTest(t, filepath.Join(t.TempDir(), "runtime.db"))
	for i := range 4 {
		must(t, r.PutAllocation(ctx, allocation(i)))
		must(t, r.PutWorker(ctx, Worker{ID: policy.WorkerID(fmt.Sprintf("wk-%d", i)), AllocationID: "ws-001", WorkspaceID: "default", Status: WorkerRunning}))
	}
	for _, s := range []AllocationStatus{AllocationCleanupPending, AllocationRemoved} {
		_, err := r.SetAllocationStatus(ctx, "ws-000", s, AllocationActive, AllocationCleanupPending)
		must(t, err)
	}
	_, err := r.SetAllocationStatus(ctx, "ws-001", AllocationStopped, AllocationActive)
	must(t, err)
	_, err = r.UpdateWorker(ctx, "wk-0", func(w *Worker) error { w.Status = WorkerExited; return nil })
	must(t, err)
	as, ws, err := r.Counts(ctx)
	if err != nil || len(as) != 2 || as[AllocationActive] != 2 || as[AllocationStopped] != 1 || len(ws) != 1 || ws[WorkerRunning] != 3 {
		t.Errorf("%v %v %v", as, ws, err)
	}
}
