package cowtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/policy"
)

// Maker is a strategy as the common part of the suite uses it: a cow.Strategy, or
// one that other packages make, by way of the program that users have.
type Maker interface {
	Name() policy.StrategyName
	// Source makes a source that plant fills.
	Source(t *testing.T, name string, plant func(dir string))
	// Make makes target of a source. At path it can be looked at and changed as
	// its Worker could; "" is where only a Worker can.
	Make(t *testing.T, source, target string) (path string, res cow.Result)
	// Remove takes away a target or a source, if it is there, without a trace.
	Remove(t *testing.T, name string)
	// Arrives is what a target has to show of a source's listing.
	Arrives(source Listing) Listing
	// List lists a target.
	List(t *testing.T, path string) Listing
}

// Common is the part of the suite that holds for every strategy whatever makes it.
// The caller looks afterwards that nothing is left.
func Common(t *testing.T, m Maker) {
	dir := ""
	m.Source(t, "source", func(d string) { dir = d; PlantTree(t, d) })
	want := List(t, dir)
	common(t, m, want)
	Compare(t, want, List(t, dir)) // nothing may change it
	m.Remove(t, "source")
}

func common(t *testing.T, m Maker, want Listing) {
	t.Run("exact", func(t *testing.T) { exact(t, m, want) })
	t.Run("independent", func(t *testing.T) { independent(t, m) })
	t.Run("special files", func(t *testing.T) { special(t, m) })
	t.Run("removed", func(t *testing.T) { removed(t, m) })
}

// exact: what the Worker sees is what the source holds.
func exact(t *testing.T, m Maker, want Listing) {
	defer m.Remove(t, "exact")
	path, res := m.Make(t, "source", "exact")
	if len(res.Warnings) > 0 {
		t.Errorf("warnings: %v", res.Warnings)
	}
	if path != "" {
		Compare(t, m.Arrives(want), m.List(t, path))
	}
}

// independent: whatever is done in the target, neither another one nor the source
// changes (the source is compared at the end).
func independent(t *testing.T, m Maker) {
	defer m.Remove(t, "independent")
	defer m.Remove(t, "sibling")
	path, _ := m.Make(t, "source", "independent")
	if path == "" {
		return
	}
	sibling, _ := m.Make(t, "source", "sibling")
	before := m.List(t, sibling)
	for _, name := range []string{"plain", "sparse/dense", "links/hard-b"} {
		file, err := os.OpenFile(filepath.Join(path, name), os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteAt([]byte("changed"), 0); err != nil {
			t.Error(err)
		}
		file.Close()
	}
	if err := os.Remove(filepath.Join(path, "-rf")); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(filepath.Join(path, "Case"), 0); err != nil {
		t.Error(err)
	}
	Compare(t, before, m.List(t, sibling))
}

// special: FIFOs, sockets and device nodes do not come along, and it is said by
// whoever looks at each file.
func special(t *testing.T, m Maker) {
	defer m.Remove(t, "special-source")
	defer m.Remove(t, "special")
	n := 0
	m.Source(t, "special-source", func(dir string) { n = PlantSpecial(t, dir) })
	path, res := m.Make(t, "special-source", "special")
	switch m.Name() {
	case policy.StrategyOverlay, policy.StrategyBtrfsSnapshot:
		return // they look at no file; nodes are inert under nodev
	case policy.StrategyCopy, policy.StrategyReflink:
		if len(res.Warnings) != n {
			t.Errorf("%d special files, %d warnings", n, len(res.Warnings))
		}
	}
	if path == "" {
		return
	}
	for rel := range m.List(t, path) {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(path, rel), &st); err != nil {
			t.Fatal(err)
		}
		if f := st.Mode & unix.S_IFMT; f != unix.S_IFDIR && f != unix.S_IFREG && f != unix.S_IFLNK {
			t.Errorf("%s came along: mode %o", rel, st.Mode)
		}
	}
	for _, w := range res.Warnings {
		if w.Code != policy.CodeFileSkipped || w.Severity != policy.SeverityWarning || !strings.HasPrefix(w.Fields["path"], "special/") {
			t.Errorf("%+v", w)
		}
	}
}

// removed: removal is idempotent and leaves no trace.
func removed(t *testing.T, m Maker) {
	m.Make(t, "source", "removed")
	m.Remove(t, "removed")
	m.Remove(t, "removed")
}
