package cow_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/cow/cowtest"
	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

// liveDirs is a source and an empty target, opened, in dir.
func liveDirs(t *testing.T, dir string) (src, dst string, r cow.LiveRequest) {
	t.Helper()
	src, dst = filepath.Join(dir, "source"), filepath.Join(dir, "target")
	for _, d := range []string{src, dst} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return src, dst, cow.LiveRequest{Source: open(t, src), Target: open(t, dst)}
}

func open(t *testing.T, dir string) *os.File {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func put(t testing.TB, name, content string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(name), 0o755)
	if err == nil {
		err = os.WriteFile(name, []byte(content), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// ownOwner makes a listing one of the caller's own files: Live keeps no owner,
// and without it no set-user-ID bit and no capability.
func ownOwner(l cowtest.Listing) cowtest.Listing {
	for name, v := range l {
		f := strings.Fields(v)
		if f[1] != fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid()) || strings.Contains(v, "security.capability") {
			delete(l, name)
		} else if kept, _, ok := strings.Cut(v, " user.overlay."); ok { // which nothing copies
			l[name] = kept
		}
	}
	return l
}

// TestLiveIsExact copies the awkward tree, which stands still, on each file system.
func TestLiveIsExact(t *testing.T) {
	for _, fs := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fs, func(t *testing.T) {
			testenv.Root(t)
			src, dst, r := liveDirs(t, testenv.FS(t, fs, 320))
			cowtest.PlantTree(t, src)
			special := cowtest.PlantSpecial(t, src)
			res, err := cow.Live(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			if res.Rounds != 2 || len(res.Warnings) != special {
				t.Errorf("%d rounds, warnings %v", res.Rounds, res.Warnings)
			}
			if (fs != "ext4") != (res.Cloned > 0) {
				t.Errorf("%d files cloned on %s", res.Cloned, fs)
			}
			if err := os.RemoveAll(filepath.Join(src, "special")); err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(filepath.Join(dst, "special")); err != nil {
				t.Fatal(err)
			}
			want, got := ownOwner(cowtest.List(t, src)), cowtest.List(t, dst)
			delete(want, "") // its entries have just changed
			for name, v := range want {
				if got[name] != v {
					t.Errorf("%q is %s, want %s", name, got[name], v)
				}
			}
			if len(want) < 50 {
				t.Errorf("only %d entries were compared", len(want))
			}
		})
	}
}

// TestLiveFilter takes only what the filter takes, and opens nothing else: the
// names that are left out are mount points and unreadable.
func TestLiveFilter(t *testing.T) {
	src, dst, r := liveDirs(t, t.TempDir())
	put(t, filepath.Join(src, "a/keep"), "x")
	put(t, filepath.Join(src, "a/leave/b"), "x")
	put(t, filepath.Join(src, "leave"), "a file")
	put(t, filepath.Join(dst, ".git/HEAD"), "stays")
	put(t, filepath.Join(src, ".git/HEAD"), "x")
	r.Filter = func(dir string) func(string, bool) bool {
		return func(name string, isDir bool) bool { return name != ".git" && (name != "leave" || !isDir) }
	}
	if _, err := cow.Live(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	var names []string
	for name := range cowtest.List(t, dst) {
		names = append(names, name)
	}
	if len(names) != 6 { // the top, .git, .git/HEAD, a, a/keep, leave
		t.Errorf("copied %q", names)
	}
	if b, _ := os.ReadFile(filepath.Join(dst, ".git/HEAD")); string(b) != "stays" {
		t.Errorf("the target's own file is %q", b)
	}
}

// TestLiveFollowsChanges changes the source after the first look at it, at a
// moment that the filter marks, in every way there is. The copy is what was
// there in the end.
func TestLiveFollowsChanges(t *testing.T) {
	for name, change := range map[string]func(src string) error{
		"content": func(src string) error { return os.WriteFile(filepath.Join(src, "f"), []byte("new"), 0o644) },
		"same size, mtime restored": func(src string) error {
			return errors.Join(os.WriteFile(filepath.Join(src, "f"), []byte("neW"), 0o644), os.Chtimes(filepath.Join(src, "f"), time.Unix(1, 0), time.Unix(1, 0)))
		},
		"mode":    func(src string) error { return os.Chmod(filepath.Join(src, "f"), 0o700) },
		"removed": func(src string) error { return os.Remove(filepath.Join(src, "f")) },
		"new":     func(src string) error { return os.WriteFile(filepath.Join(src, "sub/new"), nil, 0o644) },
		"renamed over": func(src string) error {
			return errors.Join(os.WriteFile(filepath.Join(src, "tmp"), []byte("over"), 0o644), os.Rename(filepath.Join(src, "tmp"), filepath.Join(src, "f")))
		},
		"directory renamed": func(src string) error { return os.Rename(filepath.Join(src, "sub"), filepath.Join(src, "moved")) },
		"directory removed": func(src string) error { return os.RemoveAll(filepath.Join(src, "sub")) },
		"file became a directory": func(src string) error {
			return errors.Join(os.Remove(filepath.Join(src, "f")), os.Mkdir(filepath.Join(src, "f"), 0o755))
		},
		"directory became a link": func(src string) error {
			return errors.Join(os.RemoveAll(filepath.Join(src, "sub")), os.Symlink("f", filepath.Join(src, "sub")))
		},
		"file became a FIFO": func(src string) error {
			return errors.Join(os.Remove(filepath.Join(src, "f")), unix.Mkfifo(filepath.Join(src, "f"), 0o644))
		},
		"link's target": func(src string) error {
			return errors.Join(os.Remove(filepath.Join(src, "l")), os.Symlink("other", filepath.Join(src, "l")))
		},
		"directory's mode":               func(src string) error { return os.Chmod(filepath.Join(src, "sub"), 0o500) },
		"hard link":                      func(src string) error { return os.Link(filepath.Join(src, "sub/a"), filepath.Join(src, "sub/z")) },
		"name of a hard link, rewritten": func(src string) error { return os.WriteFile(filepath.Join(src, "h1"), []byte("both"), 0o644) },
		"attribute":                      func(src string) error { return unix.Setxattr(filepath.Join(src, "f"), "user.a", []byte("v"), 0) },
	} {
		t.Run(name, func(t *testing.T) {
			src, dst, r := liveDirs(t, testenv.TmpFS(t, 16))
			put(t, filepath.Join(src, "f"), "old")
			put(t, filepath.Join(src, "sub/a"), "a")
			put(t, filepath.Join(src, "sub/deep/b"), "b")
			put(t, filepath.Join(src, "h1"), "one")
			if err := errors.Join(os.Link(filepath.Join(src, "h1"), filepath.Join(src, "sub/h2")), os.Symlink("f", filepath.Join(src, "l")),
				os.Chtimes(filepath.Join(src, "f"), time.Unix(1, 0), time.Unix(1, 0))); err != nil {
				t.Fatal(err)
			}
			asked := 0
			r.Filter = func(dir string) func(string, bool) bool {
				if asked++; asked == 4 { // the first directory of the second round, or the last of the first
					if err := change(src); err != nil {
						t.Error(err)
					}
				}
				return nil
			}
			res, err := cow.Live(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			if res.Rounds < 3 {
				t.Errorf("the change was not noticed: %d rounds", res.Rounds)
			}
			if name == "file became a FIFO" {
				if err := os.Remove(filepath.Join(src, "f")); err != nil {
					t.Fatal(err)
				}
				want, got := cowtest.List(t, src), cowtest.List(t, dst)
				delete(want, "")
				delete(got, "")
				cowtest.Compare(t, want, got)
				return
			}
			cowtest.Compare(t, cowtest.List(t, src), cowtest.List(t, dst))
		})
	}
}

// TestLiveGivesUp never lets the tree stand still.
func TestLiveGivesUp(t *testing.T) {
	src, _, r := liveDirs(t, t.TempDir())
	put(t, filepath.Join(src, "busy"), "0")
	put(t, filepath.Join(src, "calm"), "0")
	n := 0
	r.Filter = func(string) func(string, bool) bool {
		n++
		put(t, filepath.Join(src, "busy"), fmt.Sprint(n))
		return nil
	}
	_, err := cow.Live(t.Context(), r)
	if !errors.Is(err, policy.CodeSourceChanged) {
		t.Fatal(err)
	}
	if d := policy.AsDiagnostic(err); !strings.Contains(d.Fields["paths"], "busy") || strings.Contains(d.Fields["paths"], "calm") {
		t.Errorf("it names %q", d.Fields["paths"])
	}
}

// TestLiveIsAMoment has a writer that keeps two files equal, one always changed
// before the other: no copy may show the second newer than the first.
func TestLiveIsAMoment(t *testing.T) {
	src, dst, r := liveDirs(t, t.TempDir())
	for i := range 200 {
		put(t, filepath.Join(src, fmt.Sprintf("m/%03d", i)), "x")
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	write := func(i int) {
		for _, name := range []string{"a", "z/z"} {
			put(t, filepath.Join(src, ".new"), fmt.Sprint(i))
			if err := os.Rename(filepath.Join(src, ".new"), filepath.Join(src, name)); err != nil {
				t.Error(err)
			}
		}
	}
	put(t, filepath.Join(src, "z/z"), "")
	write(0)
	go func() {
		defer close(done)
		for i := 1; ctx.Err() == nil; i++ {
			write(i)
			time.Sleep(time.Duration(i%7) * 10 * time.Millisecond)
		}
	}()
	good := 0
	for range 10 {
		_, err := cow.Live(t.Context(), r)
		if err == nil {
			good++
			a, _ := os.ReadFile(filepath.Join(dst, "a"))
			z, _ := os.ReadFile(filepath.Join(dst, "z/z"))
			var na, nz int
			if _, err := fmt.Sscan(string(a)+" "+string(z), &na, &nz); err != nil || na < nz || na > nz+1 {
				t.Errorf("a copy holds a=%q z=%q: no moment had both", a, z)
			}
		} else if !errors.Is(err, policy.CodeSourceChanged) {
			t.Error(err)
		}
		if err := cow.RemoveTree(t.Context(), open(t, filepath.Dir(dst)), "target", cow.RemoveOptions{KeepTop: true}); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	<-done
	t.Logf("%d of 10 copies succeeded", good)
}

// TestLiveRefusals are what a working tree may hold that is not its own.
func TestLiveRefusals(t *testing.T) {
	testenv.Root(t)
	t.Run("mount point", func(t *testing.T) {
		src, _, r := liveDirs(t, t.TempDir())
		put(t, filepath.Join(src, "d/m/x"), "")
		bind(t, testenv.TmpFS(t, 1), filepath.Join(src, "d/m"))
		refusedAt(t, r, policy.CodeNestedFileSystem, "d/m")
	})
	t.Run("bind mount of the same file system", func(t *testing.T) {
		dir := t.TempDir()
		src, _, r := liveDirs(t, dir)
		put(t, filepath.Join(src, "m/x"), "")
		put(t, filepath.Join(dir, "elsewhere/x"), "")
		bind(t, filepath.Join(dir, "elsewhere"), filepath.Join(src, "m"))
		refusedAt(t, r, policy.CodeNestedFileSystem, "m")
	})
	t.Run("bind mount of a file", func(t *testing.T) {
		dir := t.TempDir()
		src, _, r := liveDirs(t, dir)
		put(t, filepath.Join(src, "f"), "")
		put(t, filepath.Join(dir, "elsewhere"), "")
		bind(t, filepath.Join(dir, "elsewhere"), filepath.Join(src, "f"))
		refusedAt(t, r, policy.CodeNestedFileSystem, "f")
	})
	t.Run("subvolume", func(t *testing.T) {
		src, _, r := liveDirs(t, testenv.FS(t, "btrfs", 120))
		if err := cow.MakeTop(open(t, src), "sub"); err != nil {
			t.Fatal(err)
		}
		refusedAt(t, r, policy.CodeNestedFileSystem, "sub")
	})
}

func bind(t *testing.T, from, to string) {
	t.Helper()
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(to, 0); err != nil {
			t.Error(err)
		}
	})
}

func refusedAt(t *testing.T, r cow.LiveRequest, code policy.Code, path string) {
	t.Helper()
	_, err := cow.Live(t.Context(), r)
	if !errors.Is(err, code) || policy.AsDiagnostic(err).Fields["path"] != path {
		t.Errorf("got %v, want %s at %s", err, code, path)
	}
}

func TestLiveUnreadable(t *testing.T) {
	testenv.AsUser(t, 64330, func(t *testing.T) {
		src, _, r := liveDirs(t, t.TempDir())
		put(t, filepath.Join(src, "secret"), "x")
		if err := os.Chmod(filepath.Join(src, "secret"), 0); err != nil {
			t.Fatal(err)
		}
		refusedAt(t, r, policy.CodeSourceUnreadable, "secret")
	})
}

// TestDigest wants the same digest for what is the same, and another for what
// is not.
func TestDigest(t *testing.T) {
	dir := t.TempDir()
	src := filepath.Join(dir, "t")
	put(t, filepath.Join(src, "a/f"), "x")
	put(t, filepath.Join(src, "b"), "y")
	put(t, filepath.Join(src, ".git/x"), "does not count")
	if err := os.Symlink("b", filepath.Join(src, "l")); err != nil {
		t.Fatal(err)
	}
	sum := func() string {
		t.Helper()
		d, err := cow.Digest(t.Context(), cow.DigestRequest{Tree: open(t, src), Skip: ".git"})
		if err != nil {
			t.Fatal(err)
		}
		if d.Files < 1 || d.Bytes < 1 {
			t.Errorf("counted %+v", d)
		}
		return d.Digest
	}
	first := sum()
	if err := os.Chtimes(filepath.Join(src, "b"), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(src, ".git/y"), "neither")
	if again := sum(); again != first || !strings.HasPrefix(first, "sha256:") || len(first) != 71 {
		t.Errorf("the same tree is %s and %s", first, again)
	}
	seen := map[string]string{first: "the first"}
	for name, change := range map[string]func() error{
		"content":  func() error { return os.WriteFile(filepath.Join(src, "b"), []byte("z"), 0o644) },
		"mode":     func() error { return os.Chmod(filepath.Join(src, "b"), 0o755) },
		"dir mode": func() error { return os.Chmod(filepath.Join(src, "a"), 0o700) },
		"name":     func() error { return os.Rename(filepath.Join(src, "b"), filepath.Join(src, "c")) },
		"target": func() error {
			return errors.Join(os.Remove(filepath.Join(src, "l")), os.Symlink("c", filepath.Join(src, "l")))
		},
		"kind": func() error {
			return errors.Join(os.Remove(filepath.Join(src, "l")), os.WriteFile(filepath.Join(src, "l"), []byte("c"), 0o777))
		},
		"moved":     func() error { return os.Rename(filepath.Join(src, "a/f"), filepath.Join(src, "f")) },
		"empty dir": func() error { return os.Remove(filepath.Join(src, "a")) },
	} {
		before := sum()
		if err := change(); err != nil {
			continue // depends on another that has not come yet
		}
		if d := sum(); d == before {
			t.Errorf("%s makes no difference", name)
		} else {
			seen[d] = name
		}
	}
	if len(seen) < 6 {
		t.Errorf("only %d changes were made", len(seen))
	}
}
