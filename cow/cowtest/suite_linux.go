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
	t.Run("exact", f.exact)
	t.Run("reported", f.reported)
	t.Run("independent", f.independent)
	t.Run("special files", f.special)
	t.Run("refusals", f.refusals)
	t.Run("removed", f.removed)
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
	f.source(t, "source", func(dir string) { PlantTree(t, dir) })
	f.want = List(t, filepath.Join(dir, "source"))
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		Compare(t, f.want, List(t, filepath.Join(dir, "source"))) // nothing may change it
		f.remove(t, "source")
		f.nothingLeft(t)
	})
	return f
}

// source makes a sealed pristine tree.
func (f *fixture) source(t *testing.T, name string, plant func(dir string)) {
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

// remove takes away a target with its layers and mount.
func (f *fixture) remove(t *testing.T, name string) {
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

// exact: what the Worker sees is what the source holds.
func (f *fixture) exact(t *testing.T) {
	defer f.remove(t, "exact")
	path, res := f.materialize(t, "source", "exact", nil)
	if len(res.Warnings) > 0 {
		t.Errorf("warnings: %v", res.Warnings)
	}
	if path == "" {
		return
	}
	want, got := f.want, List(t, path)
	if f.s.Name() != policy.StrategyBtrfsSnapshot {
		want = want.withoutPlanted()
	}
	if f.s.Name() == policy.StrategyOverlay {
		got = got.withoutPlanted() // a lower layer's own are shown or hidden by the kernel
	}
	Compare(t, want, got)
}

// reported: OnFile tells the truth about every file and symbolic link, once.
func (f *fixture) reported(t *testing.T) {
	defer f.remove(t, "reported")
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

// independent: whatever is done in the target, the source does not change
// (the fixture compares it at the end).
func (f *fixture) independent(t *testing.T) {
	defer f.remove(t, "independent")
	path, _ := f.materialize(t, "source", "independent", nil)
	if path == "" {
		return
	}
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
}

// special: FIFOs, sockets and device nodes do not come along, and it is said.
func (f *fixture) special(t *testing.T) {
	defer f.remove(t, "special")
	defer f.remove(t, "special-source")
	n := 0
	f.source(t, "special-source", func(dir string) { n = PlantSpecial(t, dir) })
	called := 0
	path, res := f.materialize(t, "special-source", "special", func(r *cow.Request) {
		r.Warn = func(d policy.Diagnostic) { called++ }
	})
	if name := f.s.Name(); name == policy.StrategyOverlay || name == policy.StrategyBtrfsSnapshot {
		return // they look at no file; nodes are inert under nodev
	}
	if left, err := os.ReadDir(filepath.Join(path, "special")); err != nil || len(left) > 0 {
		t.Errorf("came along: %v %v", left, err)
	}
	if len(res.Warnings) != n || called != n {
		t.Errorf("%d special files, %d warnings, %d calls", n, len(res.Warnings), called)
	}
	for _, w := range res.Warnings {
		if w.Code != policy.CodeFileSkipped || w.Severity != policy.SeverityWarning || !strings.HasPrefix(w.Fields["path"], "special/") {
			t.Errorf("%+v", w)
		}
	}
}

// refusals: each wrong request has its code.
func (f *fixture) refusals(t *testing.T) {
	r, done := f.request(t, "source", "refused")
	defer done()
	defer f.remove(t, "refused")
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

// removed: removal is idempotent and leaves no trace.
func (f *fixture) removed(t *testing.T) {
	f.materialize(t, "source", "removed", nil)
	f.remove(t, "removed")
	f.remove(t, "removed")
}
