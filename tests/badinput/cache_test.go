package badinput

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// TestCorruptedCache damages the cache in every part. The next run works or
// says cache_corrupt; the one after it works; and none gives the Worker a
// wrong tree.
func TestCorruptedCache(t *testing.T) {
	testenv.Root(t)
	repo := testenv.RepoSmall(t)
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, cache string)
	}{
		{"pack cut short", func(t *testing.T, cache string) { each(t, cache, "bare.git/objects/pack/*.pack", cutShort) }},
		{"pack garbled", func(t *testing.T, cache string) { each(t, cache, "bare.git/objects/pack/*.pack", garble) }},
		{"pack index removed", func(t *testing.T, cache string) { each(t, cache, "bare.git/objects/pack/*.idx", remove) }},
		{"no objects", func(t *testing.T, cache string) { each(t, cache, "bare.git/objects", remove) }},
		{"HEAD removed", func(t *testing.T, cache string) { each(t, cache, "bare.git/HEAD", remove) }},
		{"config garbled", func(t *testing.T, cache string) { each(t, cache, "bare.git/config", garble) }},
		{"packed-refs garbled", func(t *testing.T, cache string) { each(t, cache, "bare.git/packed-refs", garble) }},
		{"no mirror", func(t *testing.T, cache string) { each(t, cache, "bare.git", remove) }},
		{"marker garbled", func(t *testing.T, cache string) { each(t, cache, "trees/*.json", garble) }},
		{"marker empty", func(t *testing.T, cache string) { each(t, cache, "trees/*.json", empty) }},
		{"tree removed", func(t *testing.T, cache string) { eachTree(t, cache, "", remove) }},
		{"tree's git directory removed", func(t *testing.T, cache string) { eachTree(t, cache, ".git", remove) }},
		{"tree's index garbled", func(t *testing.T, cache string) { eachTree(t, cache, ".git/index", garble) }},
		{"state garbled", func(t *testing.T, cache string) { each(t, cache, "state.json", garble) }},
		{"state empty", func(t *testing.T, cache string) { each(t, cache, "state.json", empty) }},
		{"source garbled", func(t *testing.T, cache string) { each(t, cache, "source.json", garble) }},
		{"a stale lock of git's", func(t *testing.T, cache string) {
			for _, f := range []string{"packed-refs.lock", "HEAD.lock", "config.lock", "shallow.lock"} {
				write(t, filepath.Join(cache, "bare.git", f), "")
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			y := warmed(t, rig.NewPlace(t, "disk", 0), repo.Dir)
			c.damage(t, filepath.Join(y.Root, "repository-cache/git/small"))
			args := []string{"run", "--repo", repo.Dir, "--", "sh", "-c", "git status --porcelain && git fsck --full && git log --format=%H && cat README.md src/util.c"}
			want := strings.Join(strings.Fields(repo.Git(t, "log", "--format=%H")), "\n") + "\n# small\n\nChanged.\nint util(void) { return 1; }\n"
			r := y.Run(t, args...)
			if r.Code != 0 {
				r.Refused(t, 125, policy.CodeCacheCorrupt)
				r = y.Run(t, args...).Want(t, 0)
			}
			if r.Stdout != want {
				t.Errorf("the Worker sees\n%s\nwant\n%s", r.Stdout, want)
			}
			rig.Clean(t, y.Root)
		})
	}
}

func each(t *testing.T, cache, pattern string, do func(*testing.T, string)) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(cache, pattern))
	if err != nil || len(found) == 0 {
		t.Fatalf("the cache has no %s (%v)", pattern, err)
	}
	for _, f := range found {
		do(t, f)
	}
}

func eachTree(t *testing.T, cache, below string, do func(*testing.T, string)) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(cache, "trees", strings.Repeat("?", 40)))
	if err != nil || len(found) == 0 {
		t.Fatalf("the cache has no tree (%v)", err)
	}
	for _, f := range found {
		do(t, filepath.Join(f, below))
	}
}

func cutShort(t *testing.T, file string) {
	t.Helper()
	st, err := os.Stat(file)
	if err == nil {
		err = os.Truncate(file, st.Size()/2)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func garble(t *testing.T, file string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := len(b) / 3; i < len(b)/2+1 && i < len(b); i++ {
		b[i] ^= 0x55
	}
	// A new file: git's packs are read-only and may be hard links.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	write(t, file, string(b))
}

func empty(t *testing.T, file string) {
	t.Helper()
	if err := os.Truncate(file, 0); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}
