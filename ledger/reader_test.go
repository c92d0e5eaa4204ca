package ledger

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"yoi.dev/yoi-runtime/policy"
)

// reading is a Reader with what it has yielded.
type reading struct {
	Reader
	dir *os.File
	got []Record
}

func newReading(t testing.TB, dir string) *reading {
	d, err := OpenDir(dir, false)
	must(t, err)
	t.Cleanup(func() { d.Close() })
	return &reading{dir: d}
}

func (r *reading) next() error {
	return r.Next(context.Background(), r.dir, func(v Record) { r.got = append(r.got, v) })
}

// chained checks that no stream's records have a gap or come twice.
func (r *reading) chained(t *testing.T) {
	t.Helper()
	last := map[string]uint64{}
	for _, v := range r.got {
		// A seal takes no part in the chain: the next head has its number.
		if was, ok := last[v.Stream]; ok && v.Seq != was+1 {
			t.Fatalf("%s: record %d (%s) comes after %d", v.Stream, v.Seq, v.Kind, was)
		}
		if v.Kind != RecordSeal {
			last[v.Stream] = v.Seq
		}
	}
}

// TestReaderTakesInWhatIsNew: whenever it is asked, through rotations, it yields what
// Records would, each record once, and parses no byte twice.
func TestReaderTakesInWhatIsNew(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ledger")
	ctx := context.Background()
	small := func(o *Options) { o.SegmentSize = 8 << 10 }
	a, b := openTest(t, dir, small), openTest(t, dir, small)
	r := newReading(t, dir)
	for i := range 200 {
		v := res("ws-1", fmt.Sprint("p", i))
		must(t, a.Intend(ctx, v))
		must(t, b.Event("e", "ws-1", nil))
		must(t, errors.Join(a.Release(v.ID), b.Sync(ctx)))
		if i%7 == 0 {
			must(t, r.next())
		}
	}
	must(t, errors.Join(a.Close(), b.Close()))
	must(t, r.next())
	r.chained(t)
	at := func(v Record) string { return fmt.Sprint(v.Stream, " ", v.Segment, " ", v.Seq, " ", v.Kind) }
	var all []string
	must(t, Records(ctx, r.dir, func(v Record) bool { all = append(all, at(v)); return true }))
	var got []string
	gone := 0
	for _, v := range r.got {
		if r.Gone(v.Stream, v.Segment) {
			gone++
			continue
		}
		got = append(got, at(v))
	}
	slices.Sort(all)
	slices.Sort(got)
	if !slices.Equal(got, all) || gone == 0 {
		t.Errorf("%d records were yielded that still stand, %d stand; %d are gone", len(got), len(all), gone)
	}
	before := r.taken
	must(t, r.next())
	if r.taken != before {
		t.Errorf("%d bytes are parsed although nothing is new", r.taken-before)
	}
	l := openTest(t, dir)
	must(t, errors.Join(l.Event("last", "ws-1", nil), l.Sync(ctx)))
	must(t, r.next())
	if n := r.taken - before; n == 0 || n > 1<<10 || r.got[len(r.got)-1].Event != "last" {
		t.Errorf("%d bytes are parsed for a claim and an event; %+v", n, r.got[len(r.got)-1])
	}
	must(t, l.Close())
}

// TestReaderBesideWriters: it takes no write in progress for damage, and misses nothing.
func TestReaderBesideWriters(t *testing.T) {
	for name, base := range map[string]string{"overwrite": t.TempDir(), "append": shmDir(t)} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(base, "ledger")
			l := openTest(t, dir, func(o *Options) { o.SegmentSize = 64 << 10 })
			r := newReading(t, dir)
			var writers sync.WaitGroup
			const each = 100
			for range 4 {
				writers.Go(func() {
					for range each {
						if err := errors.Join(l.Event("e", "ws-1", nil), l.Sync(context.Background())); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			done := make(chan struct{})
			go func() { writers.Wait(); close(done) }()
			for going := true; going; {
				select {
				case <-done:
					going = false
				default:
				}
				must(t, r.next())
			}
			must(t, l.Close())
			r.chained(t)
			n := 0
			for _, v := range r.got {
				if v.Kind == RecordEvent {
					n++
				}
			}
			if n != 4*each {
				t.Errorf("%d events were yielded of %d", n, 4*each)
			}
		})
	}
}

// TestReaderFindsDamage in what is new, each time, and goes on when it is mended.
func TestReaderFindsDamage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ledger")
	ctx := context.Background()
	l := openTest(t, dir)
	r := newReading(t, dir)
	must(t, l.Intend(ctx, res("ws-1", "a")))
	must(t, r.next())
	whole := len(r.got)
	var stream string
	for stream = range r.at { // the one
	}
	at := r.at[stream].parsed.end
	must(t, l.Intend(ctx, res("ws-1", "b"), res("ws-1", "c")))
	must(t, l.Close())
	path := filepath.Join(dir, stream, segmentName(1))
	good, err := os.ReadFile(path)
	must(t, err)
	bad := slices.Clone(good)
	bad[at+100] ^= 1
	must(t, os.WriteFile(path, bad, 0o600))
	for range 2 {
		if err := r.next(); !errors.Is(err, policy.CodeLedgerBroken) || len(r.got) != whole {
			t.Errorf("damage: %v, %d records", err, len(r.got)-whole)
		}
	}
	must(t, os.WriteFile(path, good, 0o600))
	must(t, r.next())
	r.chained(t)
	if len(r.got) != whole+3 { // two intents and the close
		t.Errorf("%d records come behind the mended ones", len(r.got)-whole)
	}
}

// TestReaderFindsAForeignSegment: whole by itself, and not what follows.
func TestReaderFindsAForeignSegment(t *testing.T) {
	here, there := filepath.Join(t.TempDir(), "ledger"), filepath.Join(t.TempDir(), "ledger")
	a, b := openTest(t, here), openTest(t, there, func(o *Options) { o.SegmentSize = 4 << 10 })
	must(t, errors.Join(a.Event("e", "ws-1", nil), a.Close()))
	r := newReading(t, here)
	must(t, r.next())
	read := len(r.got)
	for range 30 {
		must(t, errors.Join(b.Event("e", "ws-1", nil), b.Sync(context.Background())))
	}
	foreign, err := os.ReadFile(filepath.Join(there, b.Stream(), segmentName(2)))
	must(t, errors.Join(err, b.Close()))
	must(t, os.WriteFile(filepath.Join(here, a.Stream(), segmentName(2)), foreign, 0o600))
	if err := r.next(); !errors.Is(err, policy.CodeLedgerBroken) || len(r.got) != read {
		t.Errorf("a foreign segment: %v, %d records", err, len(r.got)-read)
	}
}

// The cost of one event for who follows, behind a ledger of some megabytes.
func benchFollow(b *testing.B, next func(*reading) error) {
	dir := filepath.Join(b.TempDir(), "ledger")
	l := openTest(b, dir)
	for range 20000 {
		must(b, l.Event("worker.started", "wk-0123456789abcdef", map[string]string{"workspace": "ws-0123456789abcdef"}))
	}
	must(b, l.Sync(context.Background()))
	r := newReading(b, dir)
	must(b, r.next())
	b.ResetTimer()
	for b.Loop() {
		must(b, l.Event("worker.ended", "wk-0123456789abcdef", nil))
		must(b, l.Sync(context.Background()))
		must(b, next(r))
	}
	b.StopTimer()
	must(b, l.Close())
}

func BenchmarkFollowReader(b *testing.B) {
	benchFollow(b, (*reading).next)
}

func BenchmarkFollowRecords(b *testing.B) {
	benchFollow(b, func(r *reading) error {
		return Records(context.Background(), r.dir, func(Record) bool { return true })
	})
}
