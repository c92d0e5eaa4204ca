package nsexec

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/mounts"
)

// runtimeRoot is a directory that only root can enter, with a workspace in it
// that belongs to a fixed owner on the disk.
func runtimeRoot(t *testing.T) (root, ids *os.File) {
	t.Helper()
	testenv.Privileged(t)
	dir, err := os.MkdirTemp("", "nsexec")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, d := range []string{"ws", "ws/sub", "lower", "data", "data/upper", "data/work", "logs"} {
		if err := errors.Join(os.Mkdir(dir+"/"+d, 0o700), os.Chown(dir+"/"+d, 4242, 4243)); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"ws/f", "lower/f"} {
		if err := errors.Join(os.WriteFile(dir+"/"+f, []byte("content\n"), 0o600), os.Chown(dir+"/"+f, 4242, 4243)); err != nil {
			t.Fatal(err)
		}
	}
	root, err = os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	worker := uint32(0x70010000 + 1000)
	ids, err = mounts.UserNS([]IDMap{{Inside: 4242, Outside: worker, Count: 1}}, []IDMap{{Inside: 4243, Outside: worker, Count: 1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ids.Close() })
	return root, ids
}

func detached(t *testing.T, root *os.File, rel string, ids *os.File) mounts.Source {
	t.Helper()
	m, err := mounts.CloneDetached(root, rel, mounts.Attr{NoSuid: true, NoDev: true}, ids, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return mounts.Source{Mount: m}
}

func TestIdmappedWorkspaceInAClosedRoot(t *testing.T) {
	root, ids := runtimeRoot(t)
	s := newSpec("/bin/sh", "-c", "stat -c %u:%g . f; cat f; echo new >sub/n; pwd")
	s.Plan = systemPlan(mounts.Bind{Target: "/workspace/app", Source: detached(t, root, "ws", ids)})
	s.CwdRoot = "/workspace/app"
	if out, _ := run(t, s); out != "1000:1000\n1000:1000\ncontent\n/workspace/app\n" {
		t.Errorf("got %q", out)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(root.Fd()), "ws/sub/n", &st, 0); err != nil || st.Uid != 4242 || st.Gid != 4243 {
		t.Errorf("on the disk %d:%d %v", st.Uid, st.Gid, err)
	}
}

func TestOverlayOfIdmappedLayers(t *testing.T) {
	root, ids := runtimeRoot(t)
	s := newSpec("/bin/sh", "-c", "stat -c %u:%g . f; cat f; echo changed >f; mkdir d; rm f; cat /proc/self/mountinfo")
	s.Plan = systemPlan(mounts.Overlay{Target: "/workspace/app", Lower: []mounts.Source{detached(t, root, "lower", ids)},
		Data: detached(t, root, "data", ids), Upper: "upper", Work: "work", Attr: mounts.Attr{NoSuid: true, NoDev: true}})
	s.CwdRoot = "/workspace/app"
	out, o := run(t, s)
	if !strings.HasPrefix(out, "1000:1000\n1000:1000\ncontent\n") || o.ExitCode != 0 || strings.Contains(out, "nsexec") {
		t.Errorf("%+v %q", o, out)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(root.Fd()), "data/upper/d", &st, 0); err != nil || st.Uid != 4242 {
		t.Errorf("on the disk %d %v", st.Uid, err)
	}
}

func TestIdmappedLogs(t *testing.T) {
	root, ids := runtimeRoot(t)
	s := newSpec("/bin/sh", "-c", "readlink /proc/$$/fd/1 | cut -d: -f1; stat -L -c %u /proc/self/fd/1; echo again >/dev/stdout")
	s.Logs = Logs{Dir: detached(t, root, "logs", ids), Stdout: "stdout.log", Stderr: "stderr.log"}
	run(t, s)
	f, err := mounts.OpenBeneath(root, "logs/stdout.log", unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 64)
	if n, _ := f.Read(b); string(b[:n]) != "pipe\n1000\nagain\n" {
		t.Errorf("got %q", b[:n])
	}
}

// TestLauncherStaysItself: whoever launches is the same user before and after, on every
// thread, whatever happens meanwhile.
func TestLauncherStaysItself(t *testing.T) {
	testenv.Privileged(t)
	var launches, others sync.WaitGroup
	var over atomic.Bool
	for range 4 { // so that goroutines change their threads
		others.Go(func() {
			for !over.Load() {
				runtime.Gosched()
			}
		})
	}
	for range 4 {
		launches.Go(func() {
			for range 50 {
				p, err := Launch(context.Background(), newSpec("/bin/true"))
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := p.Wait(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	launches.Wait()
	over.Store(true)
	others.Wait()
	threads, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil || len(threads) == 0 {
		t.Fatal(len(threads), err)
	}
	for _, name := range threads {
		b, err := os.ReadFile(name)
		if err == nil && !strings.Contains(string(b), "\nUid:\t0\t0\t0\t0\n") {
			t.Errorf("%s: %s", name, b)
		}
	}
}
