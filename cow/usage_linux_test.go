package cow

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
)

func TestOverlapping(t *testing.T) {
	for _, c := range []struct {
		name string
		in   []byteRange
		want int64
	}{
		{"nothing", nil, 0},
		{"once", []byteRange{{0, 10}}, 0},
		{"side by side", []byteRange{{0, 10}, {10, 20}}, 0},
		{"twice", []byteRange{{0, 10}, {0, 10}}, 10},
		{"three times count once", []byteRange{{0, 10}, {0, 10}, {0, 10}}, 10},
		{"a part", []byteRange{{0, 10}, {6, 20}}, 4},
		{"inside", []byteRange{{0, 100}, {10, 20}, {15, 18}}, 10},
		{"backwards is nothing", []byteRange{{10, 0}, {10, 0}}, 0},
	} {
		if got := overlapping(c.in); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func measure(t *testing.T, parent string, names ...string) Usage {
	t.Helper()
	m := NewMeter()
	for _, n := range names {
		must(t, m.Add(t.Context(), openForTest(t, parent), n))
	}
	return m.Usage()
}

func writeFile(t *testing.T, name string, size int) {
	t.Helper()
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i*7 + size)
	}
	must(t, os.WriteFile(name, b, 0o644))
}

func cloneFile(t *testing.T, to, from string) {
	t.Helper()
	src, err := os.Open(from)
	must(t, err)
	defer src.Close()
	dst, err := os.Create(to)
	must(t, err)
	defer dst.Close()
	must(t, ficlone(int(dst.Fd()), int(src.Fd())))
}

const mib = 1 << 20

// TestUsageOfSharedExtents is the account on each file system: what the tree that
// a workspace came from shares is not its own, what it wrote is, and a file
// cloned onto its neighbour counts once, or cloning would be a way round a limit.
func TestUsageOfSharedExtents(t *testing.T) {
	testenv.Root(t)
	for _, fs := range []string{"xfs", "btrfs"} {
		t.Run(fs, func(t *testing.T) {
			noLeaks(t)
			dir := testenv.FS(t, fs, 300)
			must(t, os.Mkdir(filepath.Join(dir, "ws"), 0o700))
			writeFile(t, filepath.Join(dir, "pristine"), 4*mib)
			cloneFile(t, filepath.Join(dir, "ws/tree"), filepath.Join(dir, "pristine"))
			unix.Sync()
			untouched := measure(t, dir, "ws")
			if untouched.Exclusive > 64<<10 || untouched.Referenced < 4*mib || untouched.Inodes != 2 || untouched.Partial {
				t.Errorf("a cloned file: %+v", untouched)
			}
			writeFile(t, filepath.Join(dir, "ws/new"), mib)
			unix.Sync()
			written := measure(t, dir, "ws")
			if own := written.Exclusive - untouched.Exclusive; own < mib || own > mib+64<<10 {
				t.Errorf("a written MiB counts %d", own)
			}
			cloneFile(t, filepath.Join(dir, "ws/copy"), filepath.Join(dir, "ws/new"))
			unix.Sync()
			if cloned := measure(t, dir, "ws"); cloned.Exclusive < written.Exclusive || cloned.Exclusive > written.Exclusive+64<<10 {
				t.Errorf("its own clone beside it: %d, before %d", cloned.Exclusive, written.Exclusive)
			}
		})
	}
}

// TestUsageOfSnapshot has files so small that btrfs keeps them in the tree itself,
// where no reference count tells that they are shared.
func TestUsageOfSnapshot(t *testing.T) {
	testenv.Root(t)
	dir := testenv.FS(t, "btrfs", 300)
	parent := openForTest(t, dir)
	must(t, MakeTop(parent, "pristine"))
	for _, n := range []string{"a", "b", "c", "d"} {
		writeFile(t, filepath.Join(dir, "pristine", n), 1000)
	}
	writeFile(t, filepath.Join(dir, "pristine/large"), mib)
	unix.Sync()
	must(t, snapCreate(int(parent.Fd()), fd(openForTest(t, filepath.Join(dir, "pristine"))), "ws"))
	u := measure(t, dir, "ws")
	if u.Exclusive != 0 || u.Inodes != 6 {
		t.Errorf("an untouched snapshot: %+v", u)
	}
	nextTick(t)
	writeFile(t, filepath.Join(dir, "ws/a"), 1200)
	unix.Sync()
	if u = measure(t, dir, "ws"); u.Exclusive < 1200 || u.Exclusive > 64<<10 {
		t.Errorf("one small file written: %+v", u)
	}
}

// nextTick waits until files get another time than those before.
func nextTick(t *testing.T) {
	t.Helper()
	var first, now unix.Timespec
	must(t, unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &first))
	for now = first; now == first; {
		must(t, unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now))
	}
}

// TestUsageOfHostileTree plants what a Worker could: FIFOs that block an open,
// names for one inode, links that lead out, chains deeper than any path.
func TestUsageOfHostileTree(t *testing.T) {
	noLeaks(t)
	dir := t.TempDir()
	plant(t, dir, "ws/sub/", "outside/")
	writeFile(t, filepath.Join(dir, "outside/big"), 8*mib)
	must(t, os.Symlink("../outside", filepath.Join(dir, "ws/link")))
	must(t, os.Symlink("/", filepath.Join(dir, "ws/sub/root")))
	must(t, unix.Mkfifo(filepath.Join(dir, "ws/fifo"), 0o644))
	writeFile(t, filepath.Join(dir, "ws/one"), mib)
	must(t, os.Link(filepath.Join(dir, "ws/one"), filepath.Join(dir, "ws/sub/two")))
	plantDeep(t, filepath.Join(dir, "ws"), 1000, 200)
	u := measure(t, dir, "ws")
	if u.Partial || u.Inodes != 2+2+1+1+1001 {
		t.Errorf("%+v", u)
	}
	if u.Exclusive < mib || u.Exclusive > 8*mib {
		t.Errorf("%d bytes: a link was followed, or a file counted twice", u.Exclusive)
	}
	if u := measure(t, dir, "nothing"); u != (Usage{}) {
		t.Errorf("what is not there: %+v", u)
	}
}
