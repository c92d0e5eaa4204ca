package gitcache

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
)

// rebooted lets the rest of a test be another boot.
func rebooted(t *testing.T, id string) {
	t.Helper()
	was := bootID
	bootID = func() string { return id }
	t.Cleanup(func() { bootID = was })
}

// imported is a second host with a tree that came out of an archive.
func importedTree(t *testing.T) (i *importer, r *repo, p *Pristine) {
	t.Helper()
	f := newFixture(t)
	archive, digest := f.archive(f.resolve(f.source(testenv.RepoSmall(t).Dir), "HEAD"))
	i = newImporter(t)
	i.store[digest] = archive
	q, err := i.from(digest)
	if err != nil {
		t.Fatal(err)
	}
	r, err = i.repo(q.RepositoryID)
	if err != nil {
		t.Fatal(err)
	}
	p, _ = i.pristine(q)
	return i, r, p
}

// birth tells a directory from another that got its inode number.
func birth(t *testing.T, path string) unix.StatxTimestamp {
	t.Helper()
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BTIME, &st); err != nil {
		t.Fatal(err)
	}
	return st.Btime
}

// checkedOut is a tree that git made.
func checkedOut(t *testing.T) (r *repo, p *Pristine) {
	t.Helper()
	f := newFixture(t)
	point := f.resolve(f.source(testenv.RepoSmall(t).Dir), "HEAD")
	p, _ = f.pristine(point)
	r, err := f.repo(point.RepositoryID)
	if err != nil {
		t.Fatal(err)
	}
	return r, p
}

// A tree is good for this boot at once, and for ever when it is settled.
func TestSettle(t *testing.T) {
	t.Run("imported", func(t *testing.T) {
		_, r, p := importedTree(t)
		settles(t, r, p)
	})
	t.Run("checked out", func(t *testing.T) {
		r, p := checkedOut(t)
		settles(t, r, p)
	})
}

// A fork outlives a power failure, whatever its original would have done.
func TestHoldLikeSettles(t *testing.T) {
	f := newFixture(t)
	point := f.resolve(f.source(testenv.RepoSmall(t).Dir), "HEAD")
	p, _, err := f.Hold(t.Context(), point, "ws-run")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	hold, err := f.HoldLike(t.Context(), point, p.Key, "ws-fork", "ws-run")
	if err == nil {
		err = hold(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	if m, ok := p.r.readMarker(p.Key); !ok || m.Boot != "" {
		t.Errorf("the fork's tree is good for boot %q, %v", m.Boot, ok)
	}
}

// A tree that takes the place of one in use is durable at once: its holder may be there
// after a power failure.
func TestReplacingSettles(t *testing.T) {
	f := newFixture(t)
	point := f.resolve(f.source(testenv.RepoSmall(t).Dir), "HEAD")
	p, _, err := f.Hold(t.Context(), point, "ws-kept")
	if err == nil {
		err = errors.Join(p.Settle(t.Context()), p.Close(), os.Remove(filepath.Join(f.path(p.RelPath), ".git/HEAD")))
	}
	if err != nil {
		t.Fatal(err)
	}
	q, _ := f.pristine(point)
	if m, ok := q.r.readMarker(q.Key); !ok || m.Boot != "" {
		t.Errorf("the new tree is good for boot %q, %v", m.Boot, ok)
	}
	if _, err := os.Stat(filepath.Join(f.path(q.RelPath), ".git/HEAD")); err != nil {
		t.Errorf("it was not built anew: %v", err)
	}
}

func settles(t *testing.T, r *repo, p *Pristine) {
	t.Helper()
	marker := func() string {
		m, ok := r.readMarker(p.Key)
		if !ok {
			t.Fatal("the tree has no marker")
		}
		return m.Boot
	}
	if got := marker(); got == "" || got != bootID() {
		t.Fatalf("the marker names boot %q", got)
	}
	if err := p.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := marker(); got != "" {
		t.Errorf("a settled tree's marker names boot %q", got)
	}
	rebooted(t, "another")
	if _, ok := r.sound(p.Key); !ok {
		t.Error("a settled tree is not good in another boot")
	}
}

// GC settles what nobody did.
func TestGCSettles(t *testing.T) {
	i, r, p := importedTree(t)
	if _, err := i.GC(t.Context(), r.id, GCOptions{}); err != nil {
		t.Fatal(err)
	}
	if m, ok := r.readMarker(p.Key); !ok || m.Boot != "" {
		t.Errorf("after GC the marker has boot %q, %v", m.Boot, ok)
	}
}

// In another boot a tree that is whole stays, and one that is not is made anew.
func TestSurvived(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, dir string){
		"": nil,
		"an empty file": func(t *testing.T, dir string) {
			if err := os.Truncate(filepath.Join(dir, "README.md"), 0); err != nil {
				t.Fatal(err)
			}
		},
		"a lost file": func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, "Makefile")); err != nil {
				t.Fatal(err)
			}
		},
		"a lost index": func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, ".git/index")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		i, r, p := importedTree(t)
		top := i.path(p.RelPath)
		before := birth(t, top)
		if damage != nil {
			damage(t, top)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		rebooted(t, "another "+name)
		if _, ok := r.sound(p.Key); ok {
			t.Errorf("%q: a tree of an earlier boot is good as it is", name)
		}
		m, _ := r.readMarker(p.Key)
		q, err := i.from(only(i.store))
		if err != nil {
			t.Fatal(err)
		}
		i.pristine(q)
		if rebuilt := birth(t, top) != before; rebuilt != (damage != nil) {
			t.Errorf("%q: built anew: %v", name, rebuilt)
		}
		want := "" // what was read and found whole is durable
		if damage != nil {
			want = bootID()
		}
		if m, _ = r.readMarker(p.Key); m.Boot != want {
			t.Errorf("%q: the marker names boot %q, want %q", name, m.Boot, want)
		}
	}
}

func only(store map[string][]byte) (digest string) {
	for digest = range store {
	}
	return digest
}

// Content is compared, not only stat data: what a power failure leaves in a file
// has no ctime of its own.
func TestHolds(t *testing.T) {
	i, _, p := importedTree(t)
	top, err := os.Open(i.path(p.RelPath))
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	x, err := readIndex(top)
	if err != nil {
		t.Fatal(err)
	}
	for n := range x.Len() {
		e := x.Entry(n)
		if e.IsGitlink() {
			continue
		}
		if !holds(top, e) {
			t.Errorf("%s is not its object", e.Path)
		}
		path := filepath.Join(top.Name(), string(e.Path))
		if e.Mode&unix.S_IFMT == unix.S_IFLNK {
			err = os.Remove(path)
			if err == nil {
				err = os.Symlink("elsewhere", path)
			}
		} else {
			var b []byte
			if b, err = os.ReadFile(path); err == nil && len(b) > 0 {
				b[0] ^= 1
				err = os.WriteFile(path, b, 0o644)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		if holds(top, e) {
			t.Errorf("%s counts as its object after a bit of it has changed", e.Path)
		}
	}
}
