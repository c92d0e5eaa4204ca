package depcache

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/policy"
)

func TestDigest(t *testing.T) {
	files := map[string]string{"lock": "1", "other": "1"}
	digest := func(path string, keys ...string) string {
		t.Helper()
		d, err := Digest(policy.DependencyCache{Path: path, Key: keys}, func(n string) ([]byte, bool, error) {
			s, ok := files[n]
			return []byte(s), ok, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	all := []string{digest("a", "lock"), digest("b", "lock"), digest("a", "other"), digest("a", "lock", "other"), digest("a", "other", "lock")}
	files["lock"] = "2"
	all = append(all, digest("a", "lock"))
	for i, d := range all {
		if !(Key{Name: d}).Valid() || slices.Contains(all[:i], d) {
			t.Errorf("digest %d is %q of %q", i, d, all)
		}
	}
	if d := digest("a", "lock", "missing"); d != "" {
		t.Errorf("without a key file: %q", d)
	}
	refused := errors.New("refused")
	if _, err := Digest(policy.DependencyCache{Path: "a", Key: []string{"x"}}, func(string) ([]byte, bool, error) { return nil, false, refused }); !errors.Is(err, refused) {
		t.Errorf("an unreadable key file: %v", err)
	}
}

// memory is a ledger that a test can look into.
type memory struct{ held map[string]string }

func (m *memory) Intend(_ context.Context, path string) (string, error) {
	m.held[path] = path
	return path, nil
}
func (m *memory) Made(string, *os.File) error { return nil }
func (m *memory) Release(id string) error     { delete(m.held, id); return nil }

func newStore(t *testing.T) (*Store, *memory) {
	t.Helper()
	root, err := rootdir.Create(filepath.Join(t.TempDir(), "rt"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	m := &memory{held: map[string]string{}}
	return &Store{Root: root, Journal: m}, m
}

func key(set string) Key { return Key{Set: set, Name: NewGeneration()} }

// put publishes an entry of the given files.
func put(t *testing.T, s *Store, k Key, names ...string) {
	t.Helper()
	ok, err := s.Publish(t.Context(), k, Marker{}, func(_ context.Context, staging *os.File) error {
		for _, n := range names {
			if err := os.WriteFile(filepath.Join(s.Root.Path, k.dir(), staging.Name(), n), []byte(n), 0o644); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || !ok {
		t.Fatalf("%v: %v %v", k, ok, err)
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	es, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var out []string
	for _, e := range es {
		out = append(out, e.Name())
	}
	return out
}

// TestPublishFails: an entry that cannot be filled is not there, nor anything of it.
func TestPublishFails(t *testing.T) {
	s, m := newStore(t)
	k := key(DependencySet("app"))
	broken := errors.New("broken")
	ok, err := s.Publish(t.Context(), k, Marker{}, func(_ context.Context, staging *os.File) error {
		d, err := s.Root.MkdirAt(staging, "half", 0o700)
		if err != nil {
			return err
		}
		d.Close()
		return broken
	})
	if ok || !errors.Is(err, broken) {
		t.Errorf("%v %v", ok, err)
	}
	if left := names(t, filepath.Join(s.Root.Path, k.dir())); len(left) > 0 || len(m.held) > 0 {
		t.Errorf("left behind: %q, in the ledger %q", left, m.held)
	}
	put(t, s, k, "f")
	if again, err := s.Publish(t.Context(), k, Marker{}, func(context.Context, *os.File) error { return broken }); again || err != nil {
		t.Errorf("an entry that is there was made again: %v %v", again, err)
	}
}

// TestEvict: the least recently used goes first, superseded generations always,
// what is used or being held never, what has no marker anyhow.
func TestEvict(t *testing.T) {
	s, _ := newStore(t)
	old, used, fresh := key("deps/a"), key("deps/a"), key("deps/b")
	first, second := key("work/p"), key("work/p")
	for _, k := range []Key{old, used, fresh, first, second} {
		put(t, s, k, "f")
	}
	for i, k := range []Key{used, old, fresh} {
		at := time.Now().Add(time.Duration(i+1) * time.Hour)
		if err := os.Chtimes(filepath.Join(s.Root.Path, k.lock()), at, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(s.Root.Path, "build-cache/deps/a", NewGeneration()), 0o700); err != nil {
		t.Fatal(err)
	}
	inUse := func(k Key) (bool, error) { return k == used, nil }
	entries, err := s.Entries()
	if err != nil || len(entries) != 5 {
		t.Fatalf("%d entries: %v", len(entries), err)
	}
	one := entries[0].Bytes
	for _, dry := range []bool{true, false} {
		ev, err := s.Evict(t.Context(), 3*one, dry, inUse)
		if err != nil || len(ev.Removed) != 2 || ev.Removed[0].Key != first || ev.Removed[1].Key != second && ev.Removed[1].Key != old {
			t.Errorf("dry %v: %+v %v", dry, ev, err)
		}
	}
	if _, ok := s.Read(used); !ok {
		t.Error("an entry in use is gone")
	}
	release, ok, err := s.Hold(fresh)
	if err != nil || !ok {
		t.Fatalf("%v %v", ok, err)
	}
	if _, err := s.Evict(t.Context(), 0, false, func(Key) (bool, error) { return false, nil }); err != nil {
		t.Fatal(err)
	}
	if _, ok := s.Read(fresh); !ok {
		t.Error("an entry was evicted that somebody held")
	}
	release()
	if ev, err := s.Evict(t.Context(), 0, false, func(Key) (bool, error) { return false, nil }); err != nil || len(ev.Removed) != 1 {
		t.Errorf("%+v %v", ev, err)
	}
	for _, set := range []string{"deps/a", "deps/b", "work/p"} {
		if left := names(t, filepath.Join(s.Root.Path, "build-cache", set)); len(left) > 0 {
			t.Errorf("%s holds %q", set, left)
		}
	}
}

// TestFillBuild: a generation is what the last one had, but for what the upper
// layer replaces or hides; the last one stays as it is.
func TestFillBuild(t *testing.T) {
	s, _ := newStore(t)
	base, upper := filepath.Join(s.Root.Path, "tmp/base"), filepath.Join(s.Root.Path, "tmp/upper")
	for name, content := range map[string]string{
		base + "/both": "old", base + "/kept": "kept", base + "/gone": "x", base + "/d/kept": "kept", base + "/d/both": "old",
		base + "/hidden/below": "x", base + "/file": "x", base + "/dir/f": "x", base + "/ro/f": "kept",
		upper + "/both": "new", upper + "/added": "new", upper + "/d/both": "new", upper + "/hidden/new": "new",
		upper + "/file/now-a-directory": "new", upper + "/dir": "now a file",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(base+"/ro", 0o555); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(base+"/ro", 0o755) })
	if err := unix.Mknod(upper+"/gone", unix.S_IFCHR, 0); err != nil { // a whiteout: any user may, Linux 5.8
		t.Fatal(err)
	}
	if err := unix.Setxattr(upper+"/hidden", "user.overlay.opaque", []byte("y"), 0); err != nil {
		t.Fatal(err)
	}
	k := key(BuildSet("p"))
	ok, err := s.Publish(t.Context(), k, Marker{}, func(ctx context.Context, staging *os.File) error {
		u, err := s.Root.OpenDir("tmp/upper")
		if err != nil {
			return err
		}
		defer u.Close()
		b, err := s.Root.OpenDir("tmp/base")
		if err != nil {
			return err
		}
		defer b.Close()
		return s.FillBuild(ctx, staging, u, b)
	})
	if err != nil || !ok {
		t.Fatalf("%v %v", ok, err)
	}
	got := filepath.Join(s.Root.Path, k.BuildPath())
	t.Cleanup(func() { os.Chmod(got+"/ro", 0o755) })
	for name, want := range map[string]string{
		"both": "new", "kept": "kept", "added": "new", "d/kept": "kept", "d/both": "new", "hidden/new": "new",
		"file/now-a-directory": "new", "dir": "now a file", "ro/f": "kept",
	} {
		if b, err := os.ReadFile(filepath.Join(got, name)); err != nil || string(b) != want {
			t.Errorf("%s: %q %v", name, b, err)
		}
	}
	for _, name := range []string{"gone", "hidden/below"} {
		if _, err := os.Lstat(filepath.Join(got, name)); !os.IsNotExist(err) {
			t.Errorf("%s is there: %v", name, err)
		}
	}
	if st, err := os.Stat(got + "/ro"); err != nil || st.Mode().Perm() != 0o555 {
		t.Errorf("the mode of a directory that only the last generation had: %v %v", st.Mode(), err)
	}
	if b, err := os.ReadFile(base + "/both"); err != nil || string(b) != "old" {
		t.Errorf("the last generation changed: %q %v", b, err)
	}
}
