package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

// TestClaimIsSeenAtOnce: recovery opens the ledger and scans it, before it has
// anything to commit. What the dead writer of the claimed stream held must not
// pass for the new one's.
func TestClaimIsSeenAtOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ledger")
	ctx := context.Background()
	l := openTest(t, dir)
	must(t, l.Intend(ctx, res("ws-1", "p")))
	l.closeFiles() // dies
	l = openTest(t, dir)
	defer l.Close()
	s := scanTest(t, dir)
	if len(s.Leftovers()) != 1 || !s.Streams[0].Live {
		t.Fatalf("after the claim: %+v", s)
	}
}

// TestLivenessAroundRead: whoever claims a stream between probe and read is
// never called dead, and what a writer wrote while it died is read.
func TestLivenessAroundRead(t *testing.T) {
	for name, c := range map[string]struct {
		locked []bool // the answers, in order
		live   bool
		reads  int
	}{
		"dead":            {[]bool{false, false}, false, 1},
		"live":            {[]bool{true, true}, true, 1},
		"claimed between": {[]bool{false, true, true, true}, true, 2},
		"died between":    {[]bool{true, false, false, false}, false, 2},
		"never at rest":   {[]bool{false, true, false, true, false, true, false, true, false, true}, true, 5},
	} {
		answers, reads := c.locked, 0
		live, err := aroundRead(
			func() (bool, error) { a := answers[0]; answers = answers[1:]; return a, nil },
			func() error { reads++; return nil })
		if live != c.live || err != nil || reads != c.reads || len(answers) > 0 {
			t.Errorf("%s: live %v after %d reads, %d answers left, %v", name, live, reads, len(answers), err)
		}
	}
}

// TestHalfSeenWrite: a read that saw an early page before a write and a late one
// after the next is read again; damage is damage at the second look too.
func TestHalfSeenWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ledger")
	l := openTest(t, dir)
	var at []int64
	for range 3 {
		at = append(at, l.seg.off)
		must(t, l.Intend(context.Background(), res("ws-1", "p")))
	}
	must(t, l.Close())
	whole, err := os.ReadFile(filepath.Join(dir, l.Stream(), segmentName(1)))
	must(t, err)
	half := slices.Clone(whole)
	clear(half[at[0]:at[1]])
	for name, c := range map[string]struct {
		reads [][]byte
		quiet bool
		ok    bool
	}{
		"seen half":        {[][]byte{half, half, whole}, false, true},
		"died meanwhile":   {[][]byte{half, whole}, true, true},
		"damaged and live": {[][]byte{half, half, half, half, half}, false, false},
		"damaged and dead": {[][]byte{half, half}, true, false},
	} {
		reads := c.reads
		_, p, err := lookAgain(func() ([]byte, error) { b := reads[0]; reads = reads[1:]; return b, nil }, checkOnly, func() bool { return c.quiet })
		if err != nil || (p.brk == nil) != c.ok || len(reads) > 0 {
			t.Errorf("%s: %+v, %d reads left, %v", name, p.brk, len(reads), err)
		}
	}
}

// TestReadersBesideWriters: readers never take a write in progress, a rotation
// or a pruned tombstone for damage or for a leftover.
func TestReadersBesideWriters(t *testing.T) {
	for name, base := range map[string]string{"overwrite": t.TempDir(), "append": shmDir(t)} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(base, "ledger")
			ctx := context.Background()
			small := func(o *Options) { o.SegmentSize = 8 << 10 }
			a, b := openTest(t, dir, small), openTest(t, dir, small)
			var stop atomic.Bool
			var writers sync.WaitGroup
			defer func() { stop.Store(true); writers.Wait(); a.Close(); b.Close() }()
			for range 4 {
				writers.Go(func() {
					for !stop.Load() {
						r := res("ws-1", "p")
						// a tombstone for each
						if err := errors.Join(a.Intend(ctx, r), b.Release(r.ID), b.Sync(ctx)); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			kept := res("ws-kept", "kept")
			must(t, a.Intend(ctx, kept))
			for i := range 150 {
				s := scanTest(t, dir)
				if !slices.ContainsFunc(s.Held, func(h Held) bool { return h.Resource.ID == kept.ID && h.Live }) {
					t.Errorf("scan %d lost a held resource", i)
				}
				if n := len(s.Leftovers()); n > 0 {
					t.Errorf("scan %d: %d leftovers of live writers", i, n)
				}
				if r := verifyTest(t, dir); !r.OK {
					t.Errorf("verify %d: %+v %+v", i, r.Streams[0].Break, r.Streams[1].Break)
				}
				if t.Failed() {
					break
				}
			}
		})
	}
}

// TestManyHeldDoNotRotateForEver: a state larger than a segment must not be
// carried over again at every commit.
func TestManyHeldDoNotRotateForEver(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ledger")
	ctx := context.Background()
	l := openTest(t, dir, func(o *Options) { o.SegmentSize = 4 << 10 })
	var rs []Resource
	for i := range 200 {
		rs = append(rs, res("ws-1", fmt.Sprint("p", i)))
	}
	must(t, l.Intend(ctx, rs...))
	before := l.seg.number
	for range 64 {
		must(t, l.Sync(ctx))
		r := res("ws-2", "q")
		must(t, l.Intend(ctx, r))
		must(t, l.Release(r.ID))
	}
	if n := l.seg.number - before; n > 12 {
		t.Fatalf("%d segments for 64 small commits", n)
	}
	must(t, l.Close())
}

// TestSyncFailureIsFinalWhateverTheErrno: a delayed allocation may report a full
// disk at fdatasync(2), when the pages are already lost.
func TestSyncFailureIsFinalWhateverTheErrno(t *testing.T) {
	d := &failingDisk{}
	dir := filepath.Join(t.TempDir(), "ledger")
	l := openTest(t, dir, func(o *Options) { o.disk = d })
	ctx := context.Background()
	d.onSync = unix.ENOSPC
	if err := l.Intend(ctx, res("ws-1", "p")); !errors.Is(err, policy.CodeLedgerFailed) {
		t.Fatalf("a failed fdatasync: %v", err)
	}
	d.onSync = nil
	if err := l.Intend(ctx, res("ws-1", "p")); !errors.Is(err, policy.CodeLedgerFailed) {
		t.Fatalf("after a failed fdatasync: %v", err)
	}
	l.Close()
	openTest(t, dir).Close()
	if r := verifyTest(t, dir); !r.OK {
		t.Fatalf("%+v", r.Streams[0].Break)
	}
}

// TestSyncTellsOfAFullDisk: releases that found no room are not durable, Sync
// must say so, and they must still get there once there is room.
func TestSyncTellsOfAFullDisk(t *testing.T) {
	d := &failingDisk{}
	dir := filepath.Join(shmDir(t), "ledger")
	l := openTest(t, dir, func(o *Options) { o.disk = d })
	ctx := context.Background()
	r := res("ws-1", "p")
	must(t, l.Intend(ctx, r))
	must(t, l.Release(r.ID))
	d.onWrite = unix.ENOSPC
	if err := l.Sync(ctx); !errors.Is(err, policy.CodeDiskFull) {
		t.Fatalf("Sync on a full disk: %v", err)
	}
	d.onWrite = nil
	must(t, l.Sync(ctx))
	if s := scanTest(t, dir); len(s.Held) != 0 {
		t.Fatalf("the release was dropped: %+v", s.Held)
	}
	must(t, l.Close())
	if rep := verifyTest(t, dir); !rep.OK {
		t.Fatalf("%+v", rep.Streams[0].Break)
	}
}

// TestReserve: on a file system that overwrites, a disk that is and stays full
// takes no intents, and still takes everything that recovery writes.
func TestReserve(t *testing.T) {
	testenv.Root(t)
	for _, kind := range []string{"ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) {
			size := map[string]int{"ext4": 32, "xfs": 320}[kind]
			mnt := testenv.FS(t, kind, size)
			dir := filepath.Join(mnt, "ledger")
			ctx := context.Background()
			l := openTest(t, dir)
			if !l.seg.alloc {
				t.Fatalf("%s is not overwritten", kind)
			}
			var made []string
			for range 3 {
				r := res("ws-1", "p")
				must(t, l.Intend(ctx, r))
				made = append(made, r.ID)
			}
			fill(t, mnt)
			var err error
			for i := 0; err == nil && i < 10000; i++ {
				err = l.Intend(ctx, res("ws-2", "q"))
			}
			if !errors.Is(err, policy.CodeDiskFull) {
				t.Fatalf("intents on a full disk: %v", err)
			}
			must(t, l.Release(made[0]))
			must(t, l.Sync(ctx))
			must(t, l.Release(made[1]))
			l.closeFiles() // dies; the next one has no more room
			l = openTest(t, dir)
			must(t, l.Release(made[1], made[2]))
			must(t, l.Sync(ctx))
			must(t, l.Close())
			for _, h := range scanTest(t, dir).Held {
				if slices.Contains(made, h.Resource.ID) {
					t.Errorf("the release of %s was lost", h.Resource.ID)
				}
			}
			if r := verifyTest(t, dir); !r.OK {
				t.Fatalf("%+v", r.Streams[0].Break)
			}
		})
	}
}

func fill(t *testing.T, mnt string) {
	t.Helper()
	f, err := os.Create(filepath.Join(mnt, "filler"))
	must(t, err)
	defer f.Close()
	for _, n := range []int{1 << 20, 4096} {
		for block := make([]byte, n); ; {
			if _, err := f.Write(block); err != nil {
				break
			}
		}
	}
	if err := f.Sync(); err != nil && !noSpace(err) {
		t.Fatal(err)
	}
}

// TestUncleanClaimWritesAgain: after a failed fdatasync the kernel holds pages
// for clean that never reached the disk; whoever reads them back must write them.
func TestUncleanClaimWritesAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ledger")
	ctx := context.Background()
	d := &powerDisk{}
	with := func(o *Options) { o.disk = d }
	l := openTest(t, dir, with)
	must(t, l.Intend(ctx, res("ws-1", "p")))
	end := l.seg.off
	l.closeFiles()
	from := len(d.ops)
	must(t, openTest(t, dir, with).Close())
	wrote := slices.IndexFunc(d.ops[from:], func(op powerOp) bool {
		return op.kind == "write" && op.off == 0 && int64(len(op.data)) == end
	})
	if wrote < 0 || d.ops[from+wrote+1].kind != "sync" {
		t.Fatal("what the dead writer left was taken over unwritten")
	}
	from = len(d.ops)
	must(t, openTest(t, dir, with).Close()) // and not after a close in good order
	if slices.ContainsFunc(d.ops[from:], func(op powerOp) bool { return op.kind == "write" && op.off == 0 }) {
		t.Fatal("a claim in good order writes everything again")
	}
}

// TestDamageElsewhere: lines removed, repeated and exchanged, a damaged older
// segment, a lost last or middle segment. Each stops Scan and is placed.
func TestDamageElsewhere(t *testing.T) {
	type files map[string][]byte
	lines := func(b []byte) [][]byte { return bytes.SplitAfter(bytes.TrimRight(b, "\x00"), []byte("\n")) }
	for name, c := range map[string]struct {
		damage  func(f files, last string)
		segment int // from the last
		line    int
	}{
		"removed":   {func(f files, s string) { l := lines(f[s]); f[s] = bytes.Join(slices.Delete(l, 2, 3), nil) }, 0, 3},
		"repeated":  {func(f files, s string) { l := lines(f[s]); f[s] = bytes.Join(slices.Insert(l, 3, l[2]), nil) }, 0, 4},
		"exchanged": {func(f files, s string) { l := lines(f[s]); l[2], l[3] = l[3], l[2]; f[s] = bytes.Join(l, nil) }, 0, 3},
		"older":     {func(f files, s string) { f[segmentName(3)][200] ^= 1 }, 2, 1},
		"lost last": {func(f files, s string) { delete(f, s) }, 1, -1},
		"lost middle": {func(f files, s string) {
			n, _ := segmentNumber(s)
			delete(f, segmentName(n-1))
		}, 0, 0},
		"emptied": {func(f files, s string) { f[s] = nil }, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(shmDir(t), "ledger")
			ctx := context.Background()
			l := openTest(t, dir, func(o *Options) { o.SegmentSize = 4 << 10 })
			for l.seg.number < 5 || l.written() < 2000 {
				r := res("ws-1", "p")
				must(t, l.Intend(ctx, r))
				must(t, l.Release(r.ID))
			}
			must(t, l.Close())
			stream := filepath.Join(dir, l.Stream())
			f := files{}
			numbers := []uint64{2, 3, 4, 5}
			for _, n := range numbers {
				b, err := os.ReadFile(filepath.Join(stream, segmentName(n)))
				must(t, err)
				f[segmentName(n)] = b
			}
			c.damage(f, segmentName(5))
			for _, n := range numbers {
				path := filepath.Join(stream, segmentName(n))
				must(t, os.Remove(path))
				if b, ok := f[segmentName(n)]; ok {
					must(t, os.WriteFile(path, b, 0o600))
				}
			}
			b := verifyTest(t, dir).Streams[0].Break
			if b == nil || b.Segment != segmentName(uint64(5-c.segment)) || c.line >= 0 && b.Line != c.line {
				t.Fatalf("found as %+v", b)
			}
			d, err := OpenDir(dir, false)
			must(t, err)
			defer d.Close()
			if _, err := Scan(ctx, d); !errors.Is(err, policy.CodeLedgerBroken) {
				t.Errorf("Scan: %v", err)
			}
			if _, err := Open(ctx, Options{Dir: d, Role: RoleRuntime}); !errors.Is(err, policy.CodeLedgerBroken) {
				t.Errorf("Open: %v", err)
			}
		})
	}
}

// TestOrderOnDisk: the directories above a new stream are durable before its
// first segment, whoever made them; and before a segment leaves anything out
// because of another stream's record, that record is durable.
func TestOrderOnDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ledger")
	ctx := context.Background()
	d := &powerDisk{}
	must(t, os.MkdirAll(filepath.Join(dir, RoleRuntime, streamName(0)), 0o755)) // made by one who died
	a := openTest(t, dir, func(o *Options) { o.disk, o.SegmentSize = d, 4<<10 })
	created := slices.IndexFunc(d.ops, func(op powerOp) bool { return op.kind == "create" })
	if created < 3 {
		t.Fatalf("only %d directories were synced before the first segment", created)
	}
	b := openTest(t, dir)
	r := res("ws-1", "p")
	must(t, a.Intend(ctx, r))
	must(t, b.Release(r.ID))
	must(t, b.Sync(ctx))
	from := len(d.ops)
	for a.seg.number == 1 {
		must(t, a.Intend(ctx, res("ws-2", "q")))
	}
	if _, held := a.state.held[r.ID]; held {
		t.Fatal("the released intent was carried")
	}
	synced := slices.IndexFunc(d.ops[from:], func(op powerOp) bool { return op.kind == "syncother" })
	named := slices.IndexFunc(d.ops[from:], func(op powerOp) bool { return op.kind == "rename" })
	if synced < 0 || synced > named {
		t.Fatalf("the tombstone was synced at %d, the new segment named at %d", synced, named)
	}
	must(t, a.Close())
	must(t, b.Close())
}
