package runtime

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"yoi.dev/yoi-runtime/ledger"
)

// TestTimelineIsReadOnce: whoever asks gets what is new for them, in order; what comes
// late from another process is new too, and what the ledger drops is forgotten.
func TestTimelineIsReadOnce(t *testing.T) {
	dir, err := ledger.OpenDir(filepath.Join(t.TempDir(), "ledger"), true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	open := func() *ledger.Ledger {
		l, err := ledger.Open(t.Context(), ledger.Options{Dir: dir, Role: ledger.RoleRuntime, SegmentSize: 4 << 10})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	one, two := open(), open()
	write := func(l *ledger.Ledger, kind string) {
		t.Helper()
		if err := errors.Join(l.Event(kind, "ws-1", nil), l.Sync(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	var line timeline
	since := func(number int, kinds ...string) int {
		t.Helper()
		got, last, err := line.since(t.Context(), dir, number, func(e Event) bool { return e.Kind != "other" })
		if err != nil {
			t.Fatal(err)
		}
		var have []string
		for _, e := range got {
			have = append(have, e.Kind)
		}
		if !slices.Equal(have, kinds) {
			t.Errorf("behind %d come %q, want %q", number, have, kinds)
		}
		return last
	}
	write(two, "a")
	write(one, "b")
	write(one, "other")
	write(two, "c")
	first := since(0, "a", "b", "c")
	since(first)
	write(one, "d")
	write(two, "e")
	second := since(first, "d", "e")
	since(0, "a", "b", "c", "d", "e") // another, from the beginning
	since(second)
	for range 200 { // some segments
		write(one, "other")
	}
	since(0, "a", "c", "e")
	if n := len(line.events); n > 120 {
		t.Errorf("%d events are held of a ledger of five segments", n)
	}
}
