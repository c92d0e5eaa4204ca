package cow

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

const ordinary = 64998

// remove is RemoveTree of dir/tree, which must succeed and again the second time.
func remove(t *testing.T, dir string) {
	t.Helper()
	parent := openForTest(t, dir)
	for range 2 {
		if err := RemoveTree(t.Context(), parent, "tree", RemoveOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if exists(filepath.Join(dir, "tree")) {
		t.Fatal("the tree is still there")
	}
}

func kinds(t *testing.T, body func(t *testing.T, dir string)) {
	for kind, mib := range map[string]int{"ext4": 64, "xfs": 320, "btrfs": 256} {
		t.Run(kind, func(t *testing.T) { body(t, testenv.FS(t, kind, mib)) })
	}
}

func TestRemoveFollowsNoSymlink(t *testing.T) {
	noLeaks(t)
	dir := testenv.TmpFS(t, 8)
	plant(t, dir, "outside/dir/canary", "outside/file", "tree/sub/x")
	for name, target := range map[string]string{"d": "../outside/dir", "f": "../outside/file", "sub/up": "../..", "root": "/"} {
		must(t, os.Symlink(target, filepath.Join(dir, "tree", name)))
	}
	must(t, os.Link(filepath.Join(dir, "outside/file"), filepath.Join(dir, "tree/hard")))
	remove(t, dir)
	must(t, os.Symlink("outside", filepath.Join(dir, "tree"))) // the top itself
	remove(t, dir)
	plant(t, dir, "tree") // and a file
	remove(t, dir)
	for _, n := range []string{"outside/dir/canary", "outside/file"} {
		if !exists(filepath.Join(dir, n)) {
			t.Errorf("%s is gone", n)
		}
	}
}

func TestRemoveWithModesInTheWay(t *testing.T) {
	testenv.AsUserWith(t, ordinary, func() []string {
		dir := testenv.FS(t, "ext4", 16)
		must(t, os.Chown(dir, ordinary, ordinary))
		return []string{"COW_DIR=" + dir}
	}, func(t *testing.T) {
		for _, mode := range []os.FileMode{0, 0o100, 0o200, 0o300, 0o400, 0o500, 0o600} {
			t.Run(fmt.Sprintf("%o", mode), func(t *testing.T) {
				dir := os.Getenv("COW_DIR")
				plant(t, dir, "tree/a/b/c/file", "tree/a/file", "tree/a/empty/")
				for _, n := range []string{"tree/a/b/c", "tree/a/b", "tree/a/empty", "tree/a", "tree"} {
					must(t, os.Chmod(filepath.Join(dir, n), mode))
				}
				remove(t, dir)
			})
		}
	})
}

// Kernels before 6.6 have no fchmodat2(2).
func TestChmodByProc(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "d"), 0))
	f, err := openBeneath(fd(openForTest(t, dir)), newCname("d"), unix.O_PATH|unix.O_DIRECTORY)
	must(t, err)
	defer closeFd(f)
	must(t, chmodByProc(f, 0o700))
	if st, err := os.Stat(filepath.Join(dir, "d")); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v %v", st.Mode(), err)
	}
}

func TestRemoveFlaggedFiles(t *testing.T) {
	kinds(t, func(t *testing.T, dir string) {
		plant(t, dir, "tree/d/immutable", "tree/d/append", "tree/d/plain", "tree/e/x")
		for n, flag := range map[string]int{"tree/d/immutable": 0x10, "tree/d/append": 0x20, "tree/e": 0x10, "tree/d": 0x20, "tree": 0x10} {
			f, err := os.Open(filepath.Join(dir, n))
			must(t, err)
			setFlag(t, f, flag)
			f.Close()
		}
		remove(t, dir)
	})
}

// setFlag is chattr(1): 0x10 +i, 0x20 +a.
func setFlag(t *testing.T, f *os.File, flag int) {
	t.Helper()
	flags, err := unix.IoctlGetInt(fd(f), unix.FS_IOC_GETFLAGS)
	must(t, err)
	must(t, unix.IoctlSetPointerInt(fd(f), unix.FS_IOC_SETFLAGS, flags|flag))
}

// The tree's parent is not ours to unlock.
func TestRemoveLeavesParentsFlags(t *testing.T) {
	dir := testenv.FS(t, "ext4", 16)
	plant(t, dir, "p/tree/x")
	p := openForTest(t, filepath.Join(dir, "p"))
	setFlag(t, p, 0x10)
	err := RemoveTree(t.Context(), p, "tree", RemoveOptions{})
	if !errors.Is(err, policy.CodeCleanupIncomplete) || !errors.Is(err, unix.EPERM) {
		t.Errorf("got %v", err)
	}
	clearFlags(fd(p))
	remove(t, filepath.Join(dir, "p"))
}

func TestRemoveCrossesNoMount(t *testing.T) {
	for _, inside := range []string{"tree/a/mnt", "tree"} {
		t.Run(inside, func(t *testing.T) {
			noLeaks(t)
			dir := testenv.TmpFS(t, 8)
			plant(t, dir, "canary/file", "tree/a/mnt/", "tree/b/c")
			m := filepath.Join(dir, inside)
			must(t, unix.Mount(filepath.Join(dir, "canary"), m, "", unix.MS_BIND, ""))
			err := RemoveTree(t.Context(), openForTest(t, dir), "tree", RemoveOptions{})
			must(t, unix.Unmount(m, 0))
			if !errors.Is(err, policy.CodeCleanupIncomplete) || !errors.Is(err, policy.CodeNestedFileSystem) {
				t.Errorf("got %v", err)
			}
			if inside != "tree" && exists(filepath.Join(dir, "tree/b")) {
				t.Error("one obstacle kept the rest")
			}
			if !exists(filepath.Join(dir, "canary/file")) {
				t.Error("the mounted directory was emptied")
			}
			remove(t, dir)
		})
	}
}

func plantSubvolumes(t *testing.T, dir string) {
	t.Helper()
	must(t, MakeTop(openForTest(t, dir), "tree"))
	plant(t, dir, "tree/d/file")
	for i, at := range []string{"tree/d", "tree/d/s0", "tree/d/s0/s1", "tree"} {
		p := openForTest(t, filepath.Join(dir, at))
		name := fmt.Sprint("s", i)
		must(t, MakeTop(p, name))
		plant(t, dir, filepath.Join(at, name, "x/y/file"))
	}
	must(t, SealTop(openForTest(t, filepath.Join(dir, "tree/d/s0/s1")), "s2"))
	must(t, SealTop(openForTest(t, dir), "tree"))
}

func TestRemoveNestedSubvolumes(t *testing.T) {
	dir := testenv.FS(t, "btrfs", 128)
	plantSubvolumes(t, dir)
	remove(t, dir)
}

func TestRemoveNestedSubvolumesAsUser(t *testing.T) {
	testenv.AsUserWith(t, ordinary, func() []string {
		dir := testenv.FS(t, "btrfs", 128)
		must(t, os.Chown(dir, ordinary, ordinary))
		return []string{"COW_DIR=" + dir}
	}, func(t *testing.T) {
		dir := os.Getenv("COW_DIR")
		plantSubvolumes(t, dir)
		remove(t, dir)
	})
}

func TestRemoveDeepAndWide(t *testing.T) {
	kinds(t, func(t *testing.T, dir string) {
		noLeaks(t)
		plant(t, dir, "tree/")
		plantDeep(t, filepath.Join(dir, "tree"), 1500, 100)
		for i := range 3000 {
			plant(t, dir, fmt.Sprintf("tree/wide/%d", i), fmt.Sprintf("tree/dirs/%d/", i))
		}
		remove(t, dir)
	})
}

// An overlay's work directory has mode 000 inside.
func TestRemoveAfterOverlay(t *testing.T) {
	dir := testenv.FS(t, "ext4", 16)
	plant(t, dir, "tree/lower/a", "tree/upper/", "tree/work/", "tree/merged/")
	in := func(n string) string { return filepath.Join(dir, "tree", n) }
	must(t, unix.Mount("overlay", in("merged"), "overlay", 0, "userxattr,lowerdir="+in("lower")+",upperdir="+in("upper")+",workdir="+in("work")))
	must(t, os.Remove(in("merged/a"))) // a whiteout: a character device in upper
	must(t, unix.Unmount(in("merged"), 0))
	remove(t, dir)
}

func TestRemoveKeepTop(t *testing.T) {
	kinds(t, func(t *testing.T, dir string) {
		must(t, MakeTop(openForTest(t, dir), "tree"))
		plant(t, dir, "tree/a/b", "tree/c")
		must(t, SealTop(openForTest(t, dir), "tree"))
		must(t, RemoveTree(t.Context(), openForTest(t, dir), "tree", RemoveOptions{KeepTop: true}))
		if left, err := os.ReadDir(filepath.Join(dir, "tree")); err != nil || len(left) > 0 {
			t.Errorf("%v %v", left, err)
		}
		remove(t, dir)
	})
}

func TestRemoveRefusals(t *testing.T) {
	dir := openForTest(t, t.TempDir())
	for _, name := range []string{"", ".", "..", "a/b", "a\x00"} {
		if err := RemoveTree(t.Context(), dir, name, RemoveOptions{}); !errors.Is(err, policy.CodeBadRequest) {
			t.Errorf("%q: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := RemoveTree(ctx, dir, "x", RemoveOptions{}); !errors.Is(err, policy.CodeCanceled) {
		t.Errorf("canceled: %v", err)
	}
}

// A live process that moves directories and puts symbolic links in their place
// can delay removal, and must not lead it outside.
func TestRemoveAgainstARacer(t *testing.T) {
	kinds(t, func(t *testing.T, dir string) {
		plant(t, dir, "outside/canary", "outside/deep/canary")
		stop := make(chan struct{})
		var wg sync.WaitGroup
		build := func(seed uint64) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			for n := 0; n < 400; n++ {
				at := filepath.Join(dir, "tree", fmt.Sprint(rnd.IntN(3)), fmt.Sprint(rnd.IntN(3)), fmt.Sprint(rnd.IntN(3)))
				_ = os.MkdirAll(at, 0o755)
				_ = os.WriteFile(filepath.Join(at, "f"), nil, 0o644)
			}
		}
		build(7)
		plantDeep(t, filepath.Join(dir, "tree"), 400, 4) // beyond the window of open directories
		for seed := range uint64(2) {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(seed, 2))
				pick := func() string {
					p := filepath.Join(dir, "tree")
					for range 1 + rnd.IntN(3) {
						p = filepath.Join(p, fmt.Sprint(rnd.IntN(3)))
					}
					return p
				}
				for {
					select {
					case <-stop:
						return
					default:
					}
					a, b := pick(), pick()
					switch rnd.IntN(4) {
					case 0:
						_ = os.Rename(a, b)
					case 1:
						_ = unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
					case 2:
						if os.Rename(a, a+"-away") == nil {
							_ = os.Symlink(filepath.Join(dir, "outside"), a)
							_ = os.Rename(a+"-away", b)
						}
					case 3:
						_ = os.MkdirAll(filepath.Join(a, "again"), 0o755)
					}
				}
			})
		}
		parent := openForTest(t, dir)
		end := time.Now().Add(500 * time.Millisecond)
		for time.Now().Before(end) {
			if err := RemoveTree(t.Context(), parent, "tree", RemoveOptions{}); err != nil && !errors.Is(err, policy.CodeCleanupIncomplete) {
				t.Error(err)
			}
			build(uint64(time.Now().UnixNano()))
		}
		close(stop)
		wg.Wait()
		remove(t, dir)
		for _, n := range []string{"outside/canary", "outside/deep/canary"} {
			if !exists(filepath.Join(dir, n)) {
				t.Errorf("%s is gone", n)
			}
		}
	})
}
