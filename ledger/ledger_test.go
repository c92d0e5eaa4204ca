package ledger

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"yoi.dev/yoi-runtime/policy"
)

func openTest(t testing.TB, dir string, change ...func(*Options)) *Ledger {
	t.Helper()
	d, err := OpenDir(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	o := Options{Dir: d, Role: RoleRuntime}
	for _, f := range change {
		f(&o)
	}
	l, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func scanTest(t testing.TB, dir string) *State {
	t.Helper()
	d, err := OpenDir(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	s, err := Scan(context.Background(), d)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func verifyTest(t testing.TB, dir string) *Report {
	t.Helper()
	d, err := OpenDir(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	r, err := Verify(context.Background(), d)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func res(owner, path string) Resource {
	return Resource{ID: NewResourceID(), Kind: KindDirectory, Owner: owner, Path: path}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestIntentDoneRelease(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ledger")
	ctx := context.Background()
	l := openTest(t, dir)
	a, b := res("ws-1", "execution-workspaces/ws-1"), res("ws-2", "x/\xff\n%41")
	must(t, l.Intend(ctx, a, b))
	must(t, l.Done(a.ID, Identity{Ino: 7, Dev: 3}))
	must(t, l.Sync(ctx))
	s := scanTest(t, dir)
	if len(s.Held) != 2 || !s.Held[0].Live || !s.Held[0].Done || s.Held[0].Resource.Identity.Ino != 7 || s.Held[1].Done {
		t.Fatalf("state %+v", s)
	}
	if s.Held[1].Resource.Path != b.Path {
		t.Fatalf("path came back as %q", s.Held[1].Resource.Path)
	}
	must(t, l.Release(a.ID))
	must(t, l.Close())
	s = scanTest(t, dir)
	if len(s.Held) != 1 || s.Held[0].Live || len(s.Leftovers()) != 1 {
		t.Fatalf("after close %+v", s)
	}
	// The next session continues the chain; what the last one held is not live.
	l = openTest(t, dir)
	c := res("ws-3", "c")
	must(t, l.Intend(ctx, c))
	s = scanTest(t, dir)
	if len(s.Held) != 2 || s.Held[0].Live || !s.Held[1].Live {
		t.Fatalf("in the second session %+v", s)
	}
	must(t, l.Close())
	if r := verifyTest(t, dir); !r.OK || len(r.Streams) != 1 {
		t.Fatalf("verify %+v", r)
	}
}

func TestKeepAcrossStreams(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ledger")
	ctx := context.Background()
	a, b := openTest(t, dir), openTest(t, dir)
	if a.Stream() == b.Stream() {
		t.Fatal("two writers have one stream")
	}
	r := res("ws-1", "p")
	must(t, a.Intend(ctx, r))
	must(t, a.Keep(ctx, "ws-1"))
	must(t, a.Close())
	if s := scanTest(t, dir); len(s.Leftovers()) != 0 || !s.Held[0].Kept {
		t.Fatalf("kept: %+v", s)
	}
	must(t, b.Unkeep(ctx, "ws-1"))
	if s := scanTest(t, dir); len(s.Leftovers()) != 1 {
		t.Fatalf("unkept from another stream: %+v", s)
	}
	must(t, b.Release(r.ID))
	must(t, b.Close())
	if s := scanTest(t, dir); len(s.Held) != 0 {
		t.Fatalf("released from another stream: %+v", s)
	}
}

// TestRotationCarries: the state survives many rotations, a tombstone lasts as
// long as the intent does, and old segments go.
func TestRotationCarries(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ledger")
	ctx := context.Background()
	small := func(o *Options) { o.SegmentSize = 4 << 10 }
	a, b := openTest(t, dir, small), openTest(t, dir, small)
	held, foreign := res("ws-held", "held"), res("ws-foreign", "foreign")
	must(t, a.Intend(ctx, held, foreign))
	must(t, a.Done(held.ID, Identity{Ino: 42}))
	must(t, a.Keep(ctx, "ws-held"))
	must(t, b.Release(foreign.ID)) // a tombstone in b
	must(t, b.Sync(ctx))
	churn := func(l *Ledger) {
		for i := range 100 {
			r := res("ws-churn", fmt.Sprintf("churn/%d", i))
			must(t, l.Intend(ctx, r))
			must(t, l.Release(r.ID))
		}
	}
	check := func(when string) {
		t.Helper()
		s := scanTest(t, dir)
		seen := map[string]bool{}
		for _, h := range s.Held {
			seen[h.Resource.Owner] = true
			if h.Resource.ID == held.ID && (h.Resource.Identity.Ino != 42 || !h.Kept) {
				t.Fatalf("%s: the held resource became %+v", when, h)
			}
		}
		if !seen["ws-held"] || seen["ws-foreign"] {
			t.Fatalf("%s: held %v", when, seen)
		}
		if r := verifyTest(t, dir); !r.OK {
			t.Fatalf("%s: %+v", when, r)
		}
	}
	churn(b)
	check("b rotated first")
	if len(b.state.gone) == 0 {
		t.Fatal("the tombstone went before the intent")
	}
	churn(a)
	check("a rotated")
	churn(b)
	check("b rotated again")
	if len(b.state.gone) != 0 {
		t.Fatalf("tombstones are carried for ever: %v", b.state.gone)
	}
	must(t, a.Sync(ctx))
	numbers, err := segmentNumbers(a.dir)
	must(t, err)
	if len(numbers) > keepSegments+1 || numbers[0] == 1 {
		t.Fatalf("segments %v", numbers)
	}
	must(t, a.Close())
	must(t, b.Close())
	check("closed")
}

func TestManyWritersOneStream(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ledger")
	ctx := context.Background()
	l := openTest(t, dir, func(o *Options) { o.SegmentSize = 16 << 10 })
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := range 50 {
				r := res(fmt.Sprintf("ws-%d", w), fmt.Sprintf("%d/%d", w, i))
				if err := l.Intend(ctx, r); err != nil {
					t.Error(err)
				}
				if i%2 == 0 {
					if err := l.Release(r.ID); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	must(t, l.Sync(ctx))
	if s := scanTest(t, dir); len(s.Held) != 16*25 {
		t.Fatalf("%d held, want %d", len(s.Held), 16*25)
	}
	must(t, l.Close())
	if r := verifyTest(t, dir); !r.OK {
		t.Fatalf("%+v", r)
	}
}

// TestTornTailAtEveryOffset cuts the last segment at every byte, as zeros and
// as missing bytes: recovery gives a prefix, and the next writer goes on.
func TestTornTailAtEveryOffset(t *testing.T) {
	base := shmDir(t)
	ctx := context.Background()
	dir := filepath.Join(base, "ledger")
	l := openTest(t, dir)
	var ids []string
	for i := range 3 {
		r := res("ws-1", fmt.Sprintf("p%d", i))
		ids = append(ids, r.ID)
		must(t, l.Intend(ctx, r))
	}
	end := l.seg.off
	start := l.segStart
	l.lock.Close() // as if killed: no close record
	file := filepath.Join(dir, l.Stream(), segmentName(1))
	whole, err := os.ReadFile(file)
	must(t, err)
	for cut := start; cut <= end; cut++ {
		for _, zeros := range []bool{false, true} {
			b := append([]byte(nil), whole[:cut]...)
			if zeros {
				b = append(b, make([]byte, end-cut+512)...)
			}
			must(t, os.WriteFile(file, b, 0o600))
			s := scanTest(t, dir)
			for i, h := range s.Held {
				if h.Resource.ID != ids[i] {
					t.Fatalf("cut at %d: not a prefix: %+v", cut, s.Held)
				}
			}
			n := len(s.Held)
			l := openTest(t, dir)
			must(t, l.Intend(ctx, res("ws-new", "new")))
			must(t, l.Close())
			if s := scanTest(t, dir); len(s.Held) != n+1 {
				t.Fatalf("cut at %d (zeros %v): %d held after healing, want %d", cut, zeros, len(s.Held), n+1)
			}
			if r := verifyTest(t, dir); !r.OK {
				t.Fatalf("cut at %d: %+v", cut, r.Streams[0].Break)
			}
		}
	}
}

// TestDamageIsFound flips bits of what was acknowledged and vouched for by later
// records. Each flip must be found, and must stop Scan and Open.
func TestDamageIsFound(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ledger")
	ctx := context.Background()
	l := openTest(t, dir)
	for i := range 4 {
		must(t, l.Intend(ctx, res("ws-1", fmt.Sprintf("p%d", i))))
	}
	must(t, l.Close())
	file := filepath.Join(dir, l.Stream(), segmentName(1))
	whole, err := os.ReadFile(file)
	must(t, err)
	p := parseSegment(whole, nil)
	if p.brk != nil {
		t.Fatal(p.brk)
	}
	d, err := OpenDir(dir, false)
	must(t, err)
	defer d.Close()
	// The last two records may pass for torn: nothing later vouches for them.
	vouched := lastLines(whole[:p.end], 2)
	for i := 0; i < vouched; i++ {
		for _, bit := range []byte{0x01, 0x20, 0x80} {
			b := append([]byte(nil), whole...)
			b[i] ^= bit
			must(t, os.WriteFile(file, b, 0o600))
			r := verifyTest(t, dir)
			if r.OK || r.Streams[0].Break == nil || r.Streams[0].Break.Line == 0 {
				t.Fatalf("byte %d ^ %#x (%q) was not found: %+v", i, bit, whole[i], r)
			}
			if _, err := Scan(ctx, d); !errors.Is(err, policy.CodeLedgerBroken) {
				t.Fatalf("Scan over damage: %v", err)
			}
			if _, err := Open(ctx, Options{Dir: d, Role: RoleRuntime}); !errors.Is(err, policy.CodeLedgerBroken) {
				t.Fatalf("Open over damage: %v", err)
			}
		}
	}
}

// lastLines returns the offset at which the last n lines begin.
func lastLines(b []byte, n int) int {
	i := len(b) - 1
	for ; n > 0 && i > 0; n-- {
		for i--; i > 0 && b[i] != '\n'; i-- {
		}
	}
	return i
}

func TestRecoverLock(t *testing.T) {
	d, err := OpenDir(filepath.Join(t.TempDir(), "ledger"), true)
	must(t, err)
	defer d.Close()
	unlock, err := RecoverLock(d)
	must(t, err)
	if _, err := RecoverLock(d); !errors.Is(err, policy.CodeLedgerBusy) {
		t.Fatalf("second lock: %v", err)
	}
	unlock()
	unlock, err = RecoverLock(d)
	must(t, err)
	unlock()
}

func TestBadRequests(t *testing.T) {
	l := openTest(t, filepath.Join(t.TempDir(), "ledger"))
	defer l.Close()
	ctx := context.Background()
	for name, r := range map[string]Resource{
		"absolute": {ID: "r-1", Kind: KindDirectory, Path: "/etc"},
		"dotdot":   {ID: "r-1", Kind: KindDirectory, Path: "../x"},
		"no id":    {Kind: KindDirectory, Path: "x"},
		"newline":  {ID: "r\n1", Kind: KindDirectory, Path: "x"},
		"attr":     {ID: "r-1", Kind: KindDirectory, Attrs: map[string]string{"a": "\xff"}},
	} {
		if err := l.Intend(ctx, r); !errors.Is(err, policy.CodeBadRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
