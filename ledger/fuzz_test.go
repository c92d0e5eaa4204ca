package ledger

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

// FuzzSegment gives a reader arbitrary bytes as the last segment of a stream. It
// must not panic, and must not find a chain where one byte of a good one changed
// and later records vouch for it.
func FuzzSegment(f *testing.F) {
	dir := filepath.Join(f.TempDir(), "ledger")
	l := openTest(f, dir)
	ctx := context.Background()
	for range 3 {
		r := res("ws-1", "a/b")
		must(f, l.Intend(ctx, r))
		must(f, l.Done(r.ID, Identity{Ino: 1}))
		must(f, l.Keep(ctx, "ws-1"))
		must(f, l.Release(r.ID))
	}
	must(f, l.Close())
	good, err := os.ReadFile(filepath.Join(dir, l.Stream(), segmentName(1)))
	must(f, err)
	p := parseSegment(good, nil)
	f.Add(good[:p.end])
	f.Add(good[:p.end-5])
	f.Add(append(append([]byte{}, good[:p.end]...), make([]byte, 64)...))
	f.Add([]byte(`{"seq":1,"t":"x","d":0,"k":"head","h":"00"}`))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newReplay()
		p := parseSegment(b, s.apply)
		if p.brk == nil && p.head == nil {
			t.Fatal("a segment without a head passed")
		}
		if p.end > int64(len(b)) || p.end < 0 || p.torn < 0 {
			t.Fatalf("end %d, torn %d of %d bytes", p.end, p.torn, len(b))
		}
		if p.brk == nil {
			// What was accepted is accepted again, alone.
			again := parseSegment(b[:p.end], nil)
			if again.brk != nil || again.records != p.records {
				t.Fatalf("the accepted part is refused: %+v", again.brk)
			}
		}
	})
}
