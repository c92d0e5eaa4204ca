package cow

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

// probeIn probes dir with a scratch directory in it, and looks that nothing
// but the scratch and the kept answer is left.
func probeIn(t *testing.T, dir string) *Table {
	t.Helper()
	root := openForTest(t, dir)
	plant(t, dir, "tree/")
	tab, err := Probe(t.Context(), root, openForTest(t, filepath.Join(dir, "tree")))
	must(t, err)
	remove(t, dir)
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != cacheName {
		t.Errorf("left behind: %v %v", left, err)
	}
	return tab
}

var expected = map[string]map[policy.StrategyName]string{
	"ext4":  {policy.StrategyBtrfsSnapshot: no, policy.StrategyOverlay: yes, policy.StrategyReflink: no, policy.StrategyCopy: yes},
	"xfs":   {policy.StrategyBtrfsSnapshot: no, policy.StrategyOverlay: yes, policy.StrategyReflink: yes, policy.StrategyCopy: yes},
	"btrfs": {policy.StrategyBtrfsSnapshot: yes, policy.StrategyOverlay: yes, policy.StrategyReflink: yes, policy.StrategyCopy: yes},
	"tmpfs": {policy.StrategyBtrfsSnapshot: no, policy.StrategyOverlay: yes, policy.StrategyReflink: no, policy.StrategyCopy: yes},
}

func checkTable(t *testing.T, tab *Table, kind string, want map[policy.StrategyName]string) {
	t.Helper()
	if tab.FileSystem != kind {
		t.Errorf("file system %q, want %q", tab.FileSystem, kind)
	}
	for name, answer := range want {
		e, ok := tab.Lookup(name)
		if !ok || e.Support.OK != (answer != no) || e.Support.Costly != (answer == costly) || e.Support.Reason == "" {
			t.Errorf("%s: %+v, want %s", name, e, answer)
		}
	}
}

func TestProbe(t *testing.T) {
	for kind, want := range expected {
		t.Run(kind, func(t *testing.T) {
			noLeaks(t)
			dir := testenv.TmpFS(t, 8)
			if kind != "tmpfs" {
				dir = testenv.FS(t, kind, map[string]int{"ext4": 16, "xfs": 320, "btrfs": 128}[kind])
			}
			tab := probeIn(t, dir)
			checkTable(t, tab, kind, want)
			again := Cached(openForTest(t, dir))
			if again == nil || !again.ProbedAt.Equal(tab.ProbedAt) || len(again.Entries) != len(tab.Entries) {
				t.Errorf("kept %+v", again)
			}
		})
	}
}

// The overlay that is tried out does not sync the file system when it ends.
func TestOverlayProbeIsVolatile(t *testing.T) {
	dir := testenv.TmpFS(t, 8)
	if s := (overlay{}).Probe(t.Context(), ProbeDir{Dir: openForTest(t, dir), FileSystem: "tmpfs"}); !s.OK {
		t.Fatalf("%+v", s)
	}
	// overlayfs.rst, "Volatile mount": the mark is left.
	if _, err := os.Stat(filepath.Join(dir, "work/work/incompat/volatile")); err != nil {
		t.Error(err)
	}
}

// Without privileges a snapshot cannot be deleted as one, unless the mount
// allows it: auto then takes the overlay.
func TestProbeAsUser(t *testing.T) {
	for option, want := range map[string]string{"": costly, "user_subvol_rm_allowed": yes} {
		t.Run("option="+option, func(t *testing.T) {
			testenv.AsUserWith(t, ordinary, func() []string {
				dir := testenv.FSWith(t, "btrfs", 128, testenv.FSOptions{MountOptions: option})
				must(t, os.Chown(dir, ordinary, ordinary))
				return []string{"COW_DIR=" + dir}
			}, func(t *testing.T) {
				tab := probeIn(t, os.Getenv("COW_DIR"))
				checkTable(t, tab, "btrfs", map[policy.StrategyName]string{policy.StrategyBtrfsSnapshot: want, policy.StrategyOverlay: yes})
			})
		})
	}
}

// The privileged probe answers for the Runtime root's owner.
func TestProbeForAnotherOwner(t *testing.T) {
	dir := testenv.FS(t, "ext4", 16)
	must(t, os.Chown(dir, ordinary, ordinary))
	plant(t, dir, "tree/")
	must(t, os.Chown(filepath.Join(dir, "tree"), ordinary, ordinary))
	tab, err := Probe(t.Context(), openForTest(t, dir), openForTest(t, filepath.Join(dir, "tree")))
	must(t, err)
	checkTable(t, tab, "ext4", expected["ext4"])
	remove(t, dir)
}

// Without user namespaces the overlay's answer says so and how to mend it.
func TestProbeWithoutUserNamespaces(t *testing.T) {
	testenv.AsUser(t, ordinary, func(t *testing.T) {
		dir := openForTest(t, t.TempDir())
		step, err := runOverlayProbe(t.Context(), dir) // no layers were made
		if step != "mount" || err == nil {
			t.Errorf("a probe without layers: %q %v", step, err)
		}
		s := overlay{}.Probe(t.Context(), ProbeDir{Dir: openForTest(t, "/proc"), FileSystem: "proc"})
		if s.OK || s.Reason == "" {
			t.Errorf("a probe on procfs: %+v", s)
		}
	})
}

func TestDecodeCache(t *testing.T) {
	now := time.Now()
	good := &Table{FileSystem: "xfs", ProbedAt: now.Add(-time.Minute)}
	for _, s := range Strategies() {
		good.Entries = append(good.Entries, Entry{s.Name(), Support{OK: true}})
	}
	encode := func(change func(c *cacheFile, tab *Table)) []byte {
		tab := *good
		tab.Entries = append([]Entry(nil), good.Entries...)
		c := cacheFile{cacheVersion, "key", &tab}
		change(&c, &tab)
		b, err := json.Marshal(c)
		must(t, err)
		return b
	}
	for name, c := range map[string]struct {
		change func(c *cacheFile, tab *Table)
		want   bool
	}{
		"as written":    {func(*cacheFile, *Table) {}, true},
		"old success":   {func(_ *cacheFile, tab *Table) { tab.ProbedAt = now.Add(-1000 * time.Hour) }, true},
		"young failure": {func(_ *cacheFile, tab *Table) { tab.Entries[0].Support.OK = false }, true},
		"old failure":   {func(_ *cacheFile, tab *Table) { tab.Entries[0].Support.OK = false; tab.ProbedAt = now.Add(-time.Hour) }, false},
		"old costly": {func(_ *cacheFile, tab *Table) {
			tab.Entries[0].Support.Costly = true
			tab.ProbedAt = now.Add(-time.Hour)
		}, false},
		"from the future": {func(_ *cacheFile, tab *Table) { tab.ProbedAt = now.Add(time.Hour) }, false},
		"another key":     {func(c *cacheFile, _ *Table) { c.Key = "other" }, false},
		"another version": {func(c *cacheFile, _ *Table) { c.Version++ }, false},
		"no table":        {func(c *cacheFile, _ *Table) { c.Table = nil }, false},
		"a strategy more": {func(_ *cacheFile, tab *Table) { tab.Entries = append(tab.Entries, Entry{Name: "zfs"}) }, false},
		"an unknown name": {func(_ *cacheFile, tab *Table) { tab.Entries[1].Name = "zfs" }, false},
		"no entries":      {func(_ *cacheFile, tab *Table) { tab.Entries = nil }, false},
	} {
		if got := decodeCache(encode(c.change), "key", now) != nil; got != c.want {
			t.Errorf("%s: believed %v, want %v", name, got, c.want)
		}
	}
	for _, b := range []string{"", "{", "null", "[]", `{"version":1,"key":"key","table":{"entries":[{},{}]}}`} {
		if decodeCache([]byte(b), "key", now) != nil {
			t.Errorf("%q was believed", b)
		}
	}
}

// A probe.json that is no plain file is no reason to hang or to follow it.
func TestCachedOddities(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"symlink":   func(p string) error { return os.Symlink("/etc/passwd", p) },
		"directory": func(p string) error { return os.Mkdir(p, 0o700) },
		"huge":      func(p string) error { return os.WriteFile(p, make([]byte, 2*cacheMax), 0o600) },
	} {
		dir := t.TempDir()
		must(t, make(filepath.Join(dir, cacheName)))
		if tab := Cached(openForTest(t, dir)); tab != nil {
			t.Errorf("%s: %+v", name, tab)
		}
	}
}
