package gitcache

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

func (f *fixture) packs(id string) []string {
	f.t.Helper()
	m, err := filepath.Glob(f.bare(id) + "/objects/pack/*.pack")
	if err != nil || len(m) == 0 {
		f.t.Fatalf("no packs: %v", err)
	}
	return m
}

// rot changes a file's content as a failing disk does: stat tells nothing.
func rot(t *testing.T, path string) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	scribble(t, path)
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{st.Atim, st.Mtim}, 0); err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) sound(id string) {
	f.t.Helper()
	run(f.t, "git", "--git-dir="+f.bare(id), "fsck", "--full")
}

// A pack of the right size that was written again is read before it is used.
func TestGarbledPack(t *testing.T) {
	for name, use := range map[string]func(f *fixture, src Source) error{
		"fetch": func(f *fixture, src Source) error { _, err := f.Fetch(f.t.Context(), src); return err },
		"gc":    func(f *fixture, src Source) error { _, err := f.GC(f.t.Context(), src.ID, GCOptions{}); return err },
		"resolve": func(f *fixture, src Source) error {
			_, _, err := f.Resolve(f.t.Context(), src, policy.Selector{}, ResolveOptions{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			src := f.source(testenv.RepoSmall(t).Dir)
			p := f.resolve(src, "HEAD")
			if err := f.Pin(t.Context(), p, "ws-1"); err != nil {
				t.Fatal(err)
			}
			for _, pack := range f.packs("small") {
				scribble(t, pack)
			}
			if err := use(f, src); err != nil {
				t.Fatal(err)
			}
			f.sound("small")
			if !exists(filepath.Join(f.bare("small"), pinRef("ws-1", p.CommitID))) {
				t.Error("the pin is lost")
			}
			checkClean(t, f, p)
		})
	}
}

// Bit rot that no stat tells is found when git reads.
func TestRottenPack(t *testing.T) {
	for name, use := range map[string]func(f *fixture, src Source, p policy.RepositoryPoint) error{
		"pristine": func(f *fixture, _ Source, p policy.RepositoryPoint) error {
			tree, _, err := f.Pristine(f.t.Context(), p)
			if err == nil {
				err = tree.Close()
			}
			return err
		},
		"worktree": func(f *fixture, _ Source, p policy.RepositoryPoint) error {
			_, _, err := f.AddWorktree(f.t.Context(), p, "ws-2", filepath.Join(f.t.TempDir(), "w"))
			return err
		},
		"gc": func(f *fixture, src Source, _ policy.RepositoryPoint) error {
			_, err := f.GC(f.t.Context(), src.ID, GCOptions{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			src := f.source(testenv.RepoSmall(t).Dir)
			p := f.resolve(src, "HEAD")
			for _, pack := range f.packs("small") {
				rot(t, pack)
			}
			if err := use(f, src, p); err != nil {
				t.Fatal(err)
			}
			f.sound("small")
			checkClean(t, f, p)
		})
	}
}

// Verifying is for packs that changed: an ordinary fetch reads none again.
func TestVerifiedPacksAreRemembered(t *testing.T) {
	f := newFixture(t)
	src := f.source(testenv.RepoSmall(t).Dir)
	f.resolve(src, "HEAD")
	fetch := func() int64 {
		t.Helper()
		before := f.spawns.Load()
		if _, err := f.Fetch(t.Context(), src); err != nil {
			t.Fatal(err)
		}
		return f.spawns.Load() - before
	}
	plain := fetch()
	for _, pack := range f.packs("small") {
		if err := os.Chtimes(pack, time.Unix(1e9, 0), time.Unix(1e9, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if n := fetch(); n != plain+1 {
		t.Errorf("%d git processes for a pack with another time, want %d", n, plain+1)
	}
	if n := fetch(); n != plain {
		t.Errorf("%d git processes, want %d", n, plain)
	}
}

// While the source is away a damaged mirror stays where it is: a workspace may
// still read most of it.
func TestDamagedMirrorStaysUntilReplaced(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoSmall(t)
	src := f.source(repo.Dir)
	p := f.resolve(src, "HEAD")
	for _, pack := range f.packs("small") {
		scribble(t, pack)
	}
	if err := os.Rename(repo.Dir, repo.Dir+".gone"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err := f.GC(t.Context(), src.ID, GCOptions{})
		wantCode(t, err, policy.CodeCacheCorrupt)
		_, err = f.Fetch(t.Context(), src)
		wantCode(t, err, policy.CodeSourceUnreadable)
		if !exists(f.bare("small")) {
			t.Fatal("the mirror is gone")
		}
	}
	if err := os.Rename(repo.Dir+".gone", repo.Dir); err != nil {
		t.Fatal(err)
	}
	f.resolve(src, "HEAD")
	f.sound("small")
	checkClean(t, f, p)
}
