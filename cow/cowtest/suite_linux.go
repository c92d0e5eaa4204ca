package cowtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/policy"
)

// Suite holds the strategy to the promises of cow's doc.go. makeFS returns an
// empty directory on the file system in question.
func Suite(t *testing.T, s cow.Strategy, makeFS func(t testing.TB) string) {
	f := newFixture(t, s, makeFS(t))
	common(t, f, f.want)
	t.Run("reported", f.reported)
	t.Run("refusals", f.refusals)
}

type fixture struct {
	s      cow.Strategy
	dir    string
	parent *os.File
	want   Listing // of the source
}

func newFixture(t *testing.T, s cow.Strategy, dir string) *fixture {
	t.Helper()
	parent, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { parent.Close() })
	f := &fixture{s: s, dir: dir, parent: parent}
	f.Source(t, "source", func(dir string) { PlantTree(t, dir) })
	f.want = List(t, filepath.Join(dir, "source"))
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		Compare(t, f.want, List(t, filepath.Join(dir, "source"))) // nothing may change it
		f.Remove(t, "source")
		f.nothingLeft(t)
	})
	return f
}

func (f *fixture) Name() policy.StrategyName { return f.s.Name() }

// Source makes a sealed pristine tree.
func (f *fixture) Source(t *testing.T, name string, plant func(dir string)) {
	t.Helper()
	if err := cow.MakeTop(f.parent, name); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(f.dir, name)
	plant(dir)
	if err := os.Chmod(dir, 0o751); err != nil {
		t.Fatal(err)
	}
	ts := unix.NsecToTimespec(when.UnixNano())
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, dir, []unix.Timespec{ts, ts}, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Syncfs(int(f.parent.Fd())); err != nil {
		t.Fatal(err)
	}
	if err := cow.SealTop(f.parent, name); err != nil {
		t.Fatal(err)
	}
}

// materialize makes target out of source as a Worker will see it, and returns
// its path. An overlay is mounted only as root; else path is "".
func (f *fixture) materialize(t *testing.T, source, target string, more func(*cow.Request)) (string, cow.Result) {
	t.Helper()
	r, done := f.request(t, source, target)
	defer done()
	if more != nil {
		more(&r)
	}
	res, err := f.s.Materialize(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if res.Strategy != f.s.Name() || res.Overlay != (f.s.Name() == policy.StrategyOverlay) {
		t.Errorf("result %+v", res)
	}
	if err := unix.Syncfs(int(f.parent.Fd())); err != nil { // delayed allocation hides how sparse a file is
		t.Fatal(err)
	}
	path := filepath.Join(f.dir, target)
	if !res.Overlay {
		return path, res
	}
	if os.Geteuid() != 0 {
		return "", res
	}
	layers := path + ".layers"
	opts := "userxattr,lowerdir=" + filepath.Join(f.dir, source) + ",upperdir=" + filepath.Join(layers, cow.UpperName) + ",workdir=" + filepath.Join(layers, cow.WorkName)
	if err := unix.Mount("overlay", path, "overlay", 0, opts); err != nil {
		t.Fatal("mount overlay: ", err)
	}
	return path, res
}

func (f *fixture) request(t *testing.T, source, target string) (cow.Request, func()) {
	t.Helper()
	src, err := os.Open(filepath.Join(f.dir, source))
	if err != nil {
		t.Fatal(err)
	}
	r := cow.Request{Source: src, TargetParent: f.parent, TargetName: target}
	if f.s.Name() != policy.StrategyOverlay {
		return r, func() { src.Close() }
	}
	layers := filepath.Join(f.dir, target+".layers")
	if err := os.MkdirAll(layers, 0o700); err != nil {
		t.Fatal(err)
	}
	if r.Layers, err = os.Open(layers); err != nil {
		t.Fatal(err)
	}
	return r, func() { src.Close(); r.Layers.Close() }
}

// Remove takes away a target with its layers and mount, or a source.
func (f *fixture) Remove(t *testing.T, name string) {
	t.Helper()
	_ = unix.Unmount(filepath.Join(f.dir, name), unix.UMOUNT_NOFOLLOW) // EINVAL: not mounted
	for _, n := range []string{name, name + ".layers"} {
		if err := cow.RemoveTree(context.Background(), f.parent, n, cow.RemoveOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(filepath.Join(f.dir, n)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", n, err)
		}
	}
}

func (f *fixture) nothingLeft(t *testing.T) {
	t.Helper()
	left, err := os.ReadDir(f.dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// Make makes target of source. Every warning is also told as it happens.
func (f *fixture) Make(t *testing.T, source, target string) (string, cow.Result) {
	t.Helper()
	told := 0
	path, res := f.materialize(t, source, target, func(r *cow.Request) {
		r.Warn = func(policy.Diagnostic) { told++ }
	})
	if told != len(res.Warnings) {
		t.Errorf("%d warnings, %d calls", len(res.Warnings), told)
	}
	return path, res
}

// Arrives is all of the source, but for what would redirect an overlay's lookups.
func (f *fixture) Arrives(l Listing) Listing {
	if f.s.Name() != policy.StrategyBtrfsSnapshot {
		return l.withoutPlanted()
	}
	return l
}

// List lists a target.
func (f *fixture) List(t *testing.T, path string) Listing {
	t.Helper()
	l := List(t, path)
	if f.s.Name() == policy.StrategyOverlay {
		return l.withoutPlanted() // a lower layer's own are shown or hidden by the kernel
	}
	return l
}

// reported: OnFile tells the truth about every file and symbolic link, once.
func (f *fixture) reported(t *testing.T) {
	defer f.Remove(t, "reported")
	var mu sync.Mutex
	seen := map[string]cow.Statx{}
	path, res := f.materialize(t, "source", "reported", func(r *cow.Request) {
		r.Parallel = 3
		r.OnFile = func(rel string, st *cow.Statx) {
			mu.Lock()
			defer mu.Unlock()
			if _, twice := seen[rel]; twice {
				t.Errorf("%.80q was reported twice", rel)
			}
			seen[rel] = *st
		}
	})
	if n := f.s.Name(); n == policy.StrategyOverlay || n == policy.StrategyBtrfsSnapshot {
		if len(seen) > 0 {
			t.Errorf("%s reported files although stat data is kept", n)
		}
		return
	}
	if int64(len(seen)) != res.Files+res.Symlinks {
		t.Errorf("%d reported, %+v", len(seen), res)
	}
	for rel, s := range f.want {
		if strings.HasPrefix(s, "4") || rel == "" {
			continue // a directory
		}
		got, ok := seen[rel]
		if !ok {
			t.Errorf("%.80q was not reported", rel)
			continue
		}
		var st unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, filepath.Join(path, rel), unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS, &st); err != nil {
			t.Fatal(err)
		}
		if got.Ino != st.Ino || got.Ctime != st.Ctime || got.Mtime != st.Mtime || got.Size != st.Size || got.Mode != st.Mode {
			t.Errorf("%.80q: reported %+v, is %+v", rel, got, st)
		}
	}
}

// refusals: each wrong request has its code.
func (f *fixture) refusals(t *testing.T) {
	r, done := f.request(t, "source", "refused")
	defer done()
	defer f.Remove(t, "refused")
	for name, want := range map[string]policy.Code{
		"": policy.CodeBadRequest, ".": policy.CodeBadRequest, "..": policy.CodeBadRequest, "a/b": policy.CodeBadRequest, "source": policy.CodeConflict,
	} {
		bad := r
		bad.TargetName = name
		if _, err := f.s.Materialize(t.Context(), bad); !errors.Is(err, want) {
			t.Errorf("target %q: %v, want %s", name, err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.s.Materialize(ctx, r); !errors.Is(err, policy.CodeCanceled) {
		t.Errorf("canceled: %v", err)
	}
}
