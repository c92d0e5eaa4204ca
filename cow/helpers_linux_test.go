package cow

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func openForTest(t testing.TB, dir string) *os.File {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// plant makes files with their own name as content; names ending in / are directories.
func plant(t testing.TB, dir string, names ...string) {
	t.Helper()
	for _, n := range names {
		p := filepath.Join(dir, n)
		if n[len(n)-1] == '/' {
			must(t, os.MkdirAll(p, 0o755))
			continue
		}
		must(t, os.MkdirAll(filepath.Dir(p), 0o755))
		must(t, os.WriteFile(p, []byte(n), 0o644))
	}
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// noLeaks fails the test if it ends with more descriptors than it began with.
func noLeaks(t testing.TB) {
	t.Helper()
	count := func() int {
		l, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(l)
	}
	before := count()
	t.Cleanup(func() {
		if after := count(); after > before {
			t.Errorf("%d descriptors before, %d after", before, after)
		}
	})
}

// plantDeep makes a chain of directories, each name as long as wanted, through
// descriptors: its path is far beyond PATH_MAX.
func plantDeep(t testing.TB, dir string, levels, nameLen int) {
	t.Helper()
	name := newCname(strings.Repeat("n", nameLen))
	cur, err := openBeneath(fd(openForTest(t, dir)), newCname("."), openDir)
	must(t, err)
	for range levels {
		must(t, mkdirat(cur, name, 0o755))
		next, err := openBeneath(cur, name, openDir)
		must(t, err)
		closeFd(cur)
		cur = next
	}
	f, err := makeFile(cur, "bottom", []byte("bottom"))
	must(t, err)
	closeFd(f)
	closeFd(cur)
}
