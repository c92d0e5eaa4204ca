package ledger

import (
	"context"
	"encoding/json"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"
)

// The peer of a ledger record is bbolt's Update of the same bytes, on the same
// file system: run both with -bench . and compare.

// inParallel runs f b.N times, by writers goroutines for each processor, or with
// one writer in this one.
func inParallel(b *testing.B, writers int, f func() error) {
	b.SetParallelism(writers)
	b.ResetTimer()
	if writers == 1 {
		for range b.N {
			must(b, f())
		}
		return
	}
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := f(); err != nil {
				b.Error(err)
			}
		}
	})
}

func benchIntend(b *testing.B, writers int) {
	l := openTest(b, filepath.Join(b.TempDir(), "ledger"))
	defer l.Close()
	ctx := context.Background()
	inParallel(b, writers, func() error {
		r := res("ws-0123456789abcdef", "execution-workspaces/ws-0123456789abcdef")
		if err := l.Intend(ctx, r); err != nil {
			return err
		}
		return l.Release(r.ID)
	})
}

func BenchmarkIntend1(b *testing.B)  { benchIntend(b, 1) }
func BenchmarkIntend32(b *testing.B) { benchIntend(b, 16) } // times GOMAXPROCS of 2

func benchBolt(b *testing.B, writers int) {
	db, err := bbolt.Open(filepath.Join(b.TempDir(), "bolt.db"), 0o600, nil)
	must(b, err)
	defer db.Close()
	must(b, db.Update(func(tx *bbolt.Tx) error { _, err := tx.CreateBucket([]byte("b")); return err }))
	inParallel(b, writers, func() error {
		r := res("ws-0123456789abcdef", "execution-workspaces/ws-0123456789abcdef")
		doc, err := json.Marshal(r)
		if err != nil {
			return err
		}
		return db.Update(func(tx *bbolt.Tx) error { return tx.Bucket([]byte("b")).Put([]byte(r.ID), doc) })
	})
}

func BenchmarkBolt1(b *testing.B)  { benchBolt(b, 1) }
func BenchmarkBolt32(b *testing.B) { benchBolt(b, 16) }

// BenchmarkOpenScanClose is what one process start pays for the ledger: the
// stream is claimed, looked over and closed again. full is how much stands in
// the last segment; four segments are there.
func BenchmarkOpenScanClose(b *testing.B) {
	for name, full := range map[string]int64{"128KiB": 128 << 10, "4MiB": 4 << 20} {
		b.Run(name, func(b *testing.B) {
			dir := filepath.Join(b.TempDir(), "ledger")
			ctx := context.Background()
			size := func(o *Options) { o.SegmentSize = full }
			l := openTest(b, dir, size)
			for l.seg.number < 4 || l.written() < full*7/10 {
				rs := make([]Resource, 50)
				for i := range rs {
					rs[i] = res("ws-0123456789abcdef", "execution-workspaces/ws-0123456789abcdef")
				}
				must(b, l.Intend(ctx, rs...))
				for _, r := range rs {
					must(b, l.Release(r.ID))
				}
			}
			must(b, l.Close())
			d, err := OpenDir(dir, false)
			must(b, err)
			defer d.Close()
			for b.Loop() {
				l := openTest(b, dir, size)
				if _, err := Scan(ctx, d); err != nil {
					b.Fatal(err)
				}
				must(b, l.Close())
			}
		})
	}
}
