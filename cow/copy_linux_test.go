package cow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

// job is one Materialize of dir/source into dir/target.
func job(t testing.TB, dir string) Request {
	return Request{Source: openForTest(t, filepath.Join(dir, "source")), TargetParent: openForTest(t, dir), TargetName: "target"}
}

func reflinkOf(r *Request, ficlone func(dst, src int) error) *walk {
	return &walk{op: "cow.test", clone: true, ficlone: ficlone, req: r}
}

// One file's refusal to be cloned is no reason not to clone the next.
func TestOneRefusalIsOneFile(t *testing.T) {
	for _, refusal := range []error{unix.EXDEV, unix.EOPNOTSUPP, unix.EINVAL, unix.EPERM, unix.ETXTBSY, unix.ENOTTY} {
		t.Run(refusal.Error(), func(t *testing.T) {
			dir := testenv.FS(t, "xfs", 320)
			want := map[string][]byte{}
			for i := range 20 {
				name := filepath.Join("source", fmt.Sprint("f", i))
				want[name] = bytes.Repeat([]byte(name), 10_000*i+1)
				plant(t, dir, name)
				must(t, os.WriteFile(filepath.Join(dir, name), want[name], 0o644))
			}
			r := job(t, dir)
			var calls atomic.Int64
			res, err := reflinkOf(&r, func(dst, src int) error {
				if calls.Add(1)%2 == 1 {
					return refusal
				}
				return ficlone(dst, src)
			}).materialize(t.Context(), policy.StrategyReflink)
			if err != nil || res.Cloned != 10 || res.Copied != 10 || res.Files != 20 {
				t.Fatalf("%+v %v", res, err)
			}
			for name, content := range want {
				got, err := os.ReadFile(filepath.Join(dir, strings.Replace(name, "source", "target", 1)))
				if err != nil || !bytes.Equal(got, content) {
					t.Errorf("%s: %d bytes, want %d: %v", name, len(got), len(content), err)
				}
			}
		})
	}
}

// The real refusal of btrfs: a no-CoW file into a CoW one.
func TestNoCowFileIsCopied(t *testing.T) {
	dir := testenv.FS(t, "btrfs", 128)
	plant(t, dir, "source/cow")
	f, err := os.Create(filepath.Join(dir, "source", "nocow"))
	must(t, err)
	must(t, unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, 0x800000)) // FS_NOCOW_FL
	_, err = f.Write(make([]byte, 1<<20))
	must(t, err)
	must(t, f.Close())
	must(t, os.WriteFile(filepath.Join(dir, "source", "cow"), make([]byte, 1<<20), 0o644))
	res, err := treeCopy{clone: true}.Materialize(t.Context(), job(t, dir))
	if err != nil || res.Cloned != 1 || res.Copied != 1 || res.Bytes != 2<<20 {
		t.Fatalf("%+v %v", res, err)
	}
}

func TestDiskFull(t *testing.T) {
	for kind, s := range map[string]treeCopy{"ext4": {}, "btrfs": {}, "xfs": {}} {
		t.Run(kind, func(t *testing.T) {
			noLeaks(t)
			size := map[string]int{"ext4": 16, "btrfs": 128, "xfs": 320}[kind]
			from, to := testenv.TmpFS(t, 512), testenv.FS(t, kind, size)
			for i := range 48 {
				name := filepath.Join(from, fmt.Sprintf("d%d/f%d", i%7, i))
				plant(t, from, fmt.Sprintf("d%d/", i%7))
				must(t, os.WriteFile(name, bytes.Repeat([]byte{byte(i)}, 8<<20), 0o644))
			}
			r := Request{Source: openForTest(t, from), TargetParent: openForTest(t, to), TargetName: "target"}
			if _, err := s.Materialize(t.Context(), r); !errors.Is(err, policy.CodeDiskFull) || !errors.Is(err, unix.ENOSPC) {
				t.Fatalf("got %v", err)
			}
			for range 2 {
				must(t, RemoveTree(t.Context(), r.TargetParent, "target", RemoveOptions{}))
			}
			if exists(filepath.Join(to, "target")) {
				t.Error("the half-made target is still there")
			}
		})
	}
}

// What the target's parent hands down must not show: its group, its default ACL.
func TestParentsInheritance(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs", "btrfs"} {
		for name, opts := range map[string]string{"set-group-ID": "", "grpid": "grpid"} {
			if kind == "btrfs" && opts != "" {
				continue // btrfs has no such option
			}
			t.Run(kind+"/"+name, func(t *testing.T) {
				mib := map[string]int{"ext4": 16, "xfs": 320, "btrfs": 128}[kind]
				dir := testenv.FSWith(t, kind, mib, testenv.FSOptions{MountOptions: opts})
				plant(t, dir, "source/sub/file", "source/file", "p/")
				must(t, os.Symlink("file", filepath.Join(dir, "source", "link")))
				p := filepath.Join(dir, "p")
				must(t, os.Chown(p, 0, 777))
				must(t, unix.Chmod(p, 0o2755))
				acl := []byte("\x02\x00\x00\x00\x01\x00\x07\x00\xff\xff\xff\xff\x02\x00\x07\x00\x39\x30\x00\x00\x04\x00\x07\x00\xff\xff\xff\xff\x10\x00\x07\x00\xff\xff\xff\xff\x20\x00\x07\x00\xff\xff\xff\xff")
				must(t, unix.Setxattr(p, "system.posix_acl_default", acl, 0))
				r := job(t, dir)
				r.TargetParent = openForTest(t, p)
				_, err := treeCopy{}.Materialize(t.Context(), r)
				must(t, err)
				for _, n := range []string{"", "sub", "sub/file", "file", "link"} {
					var a, b unix.Stat_t
					must(t, unix.Lstat(filepath.Join(dir, "source", n), &a))
					must(t, unix.Lstat(filepath.Join(p, "target", n), &b))
					if a.Mode != b.Mode || a.Gid != b.Gid || a.Uid != b.Uid {
						t.Errorf("%q: %o %d:%d, want %o %d:%d", n, b.Mode, b.Uid, b.Gid, a.Mode, a.Uid, a.Gid)
					}
					list := make([]byte, 1024)
					if k, err := unix.Llistxattr(filepath.Join(p, "target", n), list); err != nil || k > 0 {
						t.Errorf("%q has attributes: %q %v", n, list[:k], err)
					}
				}
			})
		}
	}
}

func TestNestedFileSystems(t *testing.T) {
	noLeaks(t)
	dir := testenv.FS(t, "btrfs", 128)
	parent := openForTest(t, dir)
	t.Run("mount", func(t *testing.T) {
		plant(t, dir, "source/a/mnt/", "source/b")
		m := filepath.Join(dir, "source/a/mnt")
		must(t, unix.Mount("none", m, "tmpfs", 0, ""))
		_, err := treeCopy{}.Materialize(t.Context(), job(t, dir))
		must(t, unix.Unmount(m, 0))
		wantNested(t, err, "a/mnt")
		must(t, RemoveTree(t.Context(), parent, "target", RemoveOptions{}))
	})
	t.Run("mount on a file", func(t *testing.T) {
		m := filepath.Join(dir, "source/b")
		must(t, unix.Mount("/dev/null", m, "", unix.MS_BIND, ""))
		_, err := treeCopy{}.Materialize(t.Context(), job(t, dir))
		must(t, unix.Unmount(m, 0))
		wantNested(t, err, "b")
		must(t, RemoveTree(t.Context(), parent, "target", RemoveOptions{}))
	})
	must(t, RemoveTree(t.Context(), parent, "source", RemoveOptions{}))
	t.Run("subvolume", func(t *testing.T) {
		must(t, MakeTop(parent, "source"))
		plant(t, dir, "source/a/")
		must(t, MakeTop(openForTest(t, filepath.Join(dir, "source/a")), "inner"))
		_, err := treeCopy{clone: true}.Materialize(t.Context(), job(t, dir))
		wantNested(t, err, "a/inner")
		must(t, RemoveTree(t.Context(), parent, "target", RemoveOptions{}))
		_, err = btrfsSnapshot{}.Materialize(t.Context(), job(t, dir))
		wantNested(t, err, "a/inner")
		if exists(filepath.Join(dir, "target")) {
			t.Error("a snapshot was made all the same")
		}
	})
	t.Run("no subvolume", func(t *testing.T) {
		must(t, RemoveTree(t.Context(), parent, "source", RemoveOptions{}))
		plant(t, dir, "source/")
		if _, err := (btrfsSnapshot{}).Materialize(t.Context(), job(t, dir)); !errors.Is(err, policy.CodeStrategyUnsupported) {
			t.Errorf("got %v", err)
		}
	})
}

func wantNested(t *testing.T, err error, path string) {
	t.Helper()
	if d := policy.AsDiagnostic(err); d == nil || d.Code != policy.CodeNestedFileSystem || d.Fields["path"] != path {
		t.Errorf("got %v, want %s at %s", err, policy.CodeNestedFileSystem, path)
	}
}

func TestTargetInsideSource(t *testing.T) {
	dir := testenv.TmpFS(t, 8)
	plant(t, dir, "source/a", "source/in/")
	r := job(t, dir)
	r.TargetParent = openForTest(t, filepath.Join(dir, "source/in"))
	if _, err := (treeCopy{}).Materialize(t.Context(), r); !errors.Is(err, policy.CodeBadRequest) {
		t.Fatalf("got %v", err)
	}
}

// A source that changes while it is read is not taken for a copy of itself.
func TestSourceChanges(t *testing.T) {
	for what, change := range map[string]func(name string) error{
		"removed":   os.Remove,
		"truncated": func(name string) error { return os.Truncate(name, 1) }, // seen at open: a smaller file is a file
		"symlink":   func(name string) error { return errors.Join(os.Remove(name), os.Symlink("/etc/passwd", name)) },
		"fifo":      func(name string) error { return errors.Join(os.Remove(name), unix.Mkfifo(name, 0o600)) },
		"directory": func(name string) error { return errors.Join(os.Remove(name), os.Mkdir(name, 0o700)) },
	} {
		t.Run(what, func(t *testing.T) {
			dir := testenv.TmpFS(t, 8)
			for i := range 50 {
				plant(t, dir, fmt.Sprint("source/f", i))
			}
			r := job(t, dir)
			r.Parallel = 1
			once := false
			r.OnFile = func(rel string, _ *Statx) {
				if once {
					return
				}
				once = true
				for i := range 50 {
					if name := fmt.Sprint("f", i); name != rel {
						must(t, change(filepath.Join(dir, "source", name)))
					}
				}
			}
			_, err := treeCopy{}.Materialize(t.Context(), r)
			if what == "truncated" {
				must(t, err)
			} else if !errors.Is(err, policy.CodeSourceChanged) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestBusySource: of a source that others write to, the stat data of a file that is
// written to while it is copied, or was a moment before, is not what was copied.
func TestBusySource(t *testing.T) {
	for _, busy := range []bool{true, false} {
		dir := testenv.FS(t, "xfs", 320)
		for _, name := range []string{"still", "young", "meanwhile"} {
			plant(t, dir, filepath.Join("source", name))
			must(t, os.WriteFile(filepath.Join(dir, "source", name), []byte("a"), 0o644))
		}
		time.Sleep(2 * settled)
		r := job(t, dir)
		r.Busy = busy
		var told sync.Map
		r.OnCopy = func(rel string, _, _ *Statx) { told.Store(rel, true) }
		must(t, os.WriteFile(filepath.Join(dir, "source/young"), []byte("b"), 0o644))
		_, err := reflinkOf(&r, func(dst, src int) error {
			name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", src))
			if err == nil && filepath.Base(name) == "meanwhile" {
				err = os.WriteFile(name, []byte("c"), 0o644)
			}
			return errors.Join(err, ficlone(dst, src))
		}).materialize(t.Context(), policy.StrategyReflink)
		must(t, err)
		for name, want := range map[string]bool{"still": true, "young": !busy, "meanwhile": !busy} {
			if _, ok := told.Load(name); ok != want {
				t.Errorf("busy %t: OnCopy was called for %s: %t", busy, name, ok)
			}
		}
	}
}

func TestCancelOnTheWay(t *testing.T) {
	noLeaks(t)
	dir := testenv.TmpFS(t, 64)
	for i := range 2000 {
		plant(t, dir, fmt.Sprintf("source/%d/%d/f", i%50, i))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := job(t, dir)
	var n atomic.Int64
	r.OnFile = func(string, *Statx) {
		if n.Add(1) == 100 {
			cancel()
		}
	}
	_, err := treeCopy{}.Materialize(ctx, r)
	if !errors.Is(err, policy.CodeCanceled) || n.Load() > 1500 {
		t.Errorf("%d files, %v", n.Load(), err)
	}
}

// Neither depth nor breadth may use up descriptors.
func TestDeepAndWideWithFewDescriptors(t *testing.T) {
	for _, budget := range []int32{1, 8, 256} {
		t.Run(fmt.Sprint(budget), func(t *testing.T) {
			noLeaks(t)
			dir := testenv.FS(t, "xfs", 320)
			plant(t, dir, "source/")
			plantDeep(t, filepath.Join(dir, "source"), 1200, 100)
			for i := range 300 {
				plant(t, dir, fmt.Sprintf("source/w%d/x/f", i), fmt.Sprintf("source/w%d/y/z/f", i))
			}
			r := job(t, dir)
			r.Parallel = 4
			var open atomic.Int64
			r.OnFile = func(string, *Statx) {
				l, _ := os.ReadDir("/proc/self/fd")
				open.Store(max(open.Load(), int64(len(l))))
			}
			w := reflinkOf(&r, ficlone)
			w.maxNodes = budget
			res, err := w.materialize(t.Context(), policy.StrategyReflink)
			if err != nil || res.Files != 601 || res.Directories != 1200+300*4 {
				t.Fatalf("%+v %v", res, err)
			}
			if most := int64(2*budget + 64); open.Load() > most {
				t.Errorf("%d descriptors open with a budget of %d directories", open.Load(), budget)
			}
			for _, name := range []string{"target", "source"} {
				must(t, RemoveTree(t.Context(), r.TargetParent, name, RemoveOptions{}))
			}
		})
	}
}

// ext4 takes 65000 names for an inode, xfs more: the rest get a second file.
func TestMoreHardLinksThanTheTargetTakes(t *testing.T) {
	const names = 65_010
	from, to := testenv.FS(t, "xfs", 320), testenv.FS(t, "ext4", 64)
	first := filepath.Join(from, "f")
	must(t, os.WriteFile(first, []byte("linked"), 0o644))
	for i := range names - 1 {
		must(t, unix.Link(first, fmt.Sprintf("%s%d", first, i)))
	}
	var reported atomic.Int64
	r := Request{Source: openForTest(t, from), TargetParent: openForTest(t, to), TargetName: "target", Parallel: 4,
		OnFile: func(string, *Statx) { reported.Add(1) }}
	res, err := treeCopy{}.Materialize(t.Context(), r)
	if err != nil || res.Files != names || res.Bytes != 2*6 || reported.Load() != names {
		t.Fatalf("%+v %d %v", res, reported.Load(), err)
	}
}

// Attributes that the target does not take are said, not silently lost.
func TestAttributesDropped(t *testing.T) {
	from, to := testenv.FS(t, "ext4", 16), filepath.Join(testenv.TmpFS(t, 8), "ramfs")
	plant(t, from, "a", "b")
	for _, name := range []string{"a", "b"} {
		must(t, unix.Setxattr(filepath.Join(from, name), "user.x", []byte("y"), 0))
	}
	must(t, os.Mkdir(to, 0o755))
	must(t, unix.Mount("ramfs", to, "ramfs", 0, "")) // has no attributes
	t.Cleanup(func() { must(t, unix.Unmount(to, 0)) })
	r := Request{Source: openForTest(t, from), TargetParent: openForTest(t, to), TargetName: "target"}
	res, err := treeCopy{}.Materialize(t.Context(), r)
	if err != nil || len(res.Warnings) != 1 || res.Warnings[0].Code != policy.CodeAttributesDropped {
		t.Fatalf("%+v %v", res, err)
	}
}

func TestWarningsAreBounded(t *testing.T) {
	dir := testenv.TmpFS(t, 8)
	plant(t, dir, "source/")
	for i := range 250 {
		must(t, unix.Mkfifo(filepath.Join(dir, "source", fmt.Sprint(i)), 0o600))
	}
	res, err := treeCopy{}.Materialize(t.Context(), job(t, dir))
	if err != nil || len(res.Warnings) != maxWarnings+1 || res.Warnings[maxWarnings].Fields["count"] != "150" {
		t.Fatalf("%d warnings, %v", len(res.Warnings), err)
	}
}
