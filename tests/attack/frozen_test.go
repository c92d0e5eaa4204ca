package attack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// mountingFUSE tries to get a FUSE file system, whose requests it would never answer:
// the device, a node for it, and a mount in namespaces of its own.
const mountingFUSE = `
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def said(what, ok): print(what, "REACHED" if ok else "no")
for d in ["/dev", "/tmp", "/scratch", "/dev/shm", os.environ["HOME"], "."]:
    p = d + "/fuse"
    try: os.mknod(p, 0o20666, os.makedev(10, 229))
    except OSError: pass
    try: os.close(os.open(p, os.O_RDWR)); said(p, True)
    except OSError: said(p, False)
nested = libc.unshare(0x10020000) == 0
fd = os.open("/dev/null", os.O_RDWR)
said("mount", libc.mount(b"x", b"/tmp", b"fuse", 0, b"fd=%d,rootmode=40000,user_id=0,group_id=0" % fd) == 0)
said("fsopen", libc.syscall(430, b"fuse", 0) >= 0 and not nested)
`

// TestAttackFUSE: no Worker gets the device, so that none has a file system of its own
// whose answers the kernel waits for, whatever its profile lets it mount.
func TestAttackFUSE(t *testing.T) {
	testenv.Root(t)
	for _, uid := range []int{0, rig.Ordinary} {
		for _, profile := range []string{"default", "nested"} {
			t.Run(fmt.Sprint(uid, profile), func(t *testing.T) {
				s := newStand(t, uid)
				out := s.y.OK(t, "run", "--repo", s.repo.Dir, "--seccomp", profile, "--", "python3", "-c", mountingFUSE)
				if strings.Contains(out, "REACHED") || strings.Count(out, " no\n") != 8 {
					t.Errorf("it says\n%s", out)
				}
				rig.Clean(t, s.y.Root)
			})
		}
	}
}

// frozen is a FUSE file system of the host's whose one name is never answered: what
// looks it up sleeps uninterruptibly once the question has been read.
type frozen struct {
	device int
	asked  chan struct{} // closed at the first question
	thaw   func()
}

func freeze(t *testing.T, dir string) *frozen {
	t.Helper()
	node := filepath.Join(t.TempDir(), "fuse") // the machine's own may be missing where the kernel has FUSE
	if err := unix.Mknod(node, unix.S_IFCHR|0o600, int(unix.Mkdev(10, 229))); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(node, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		testenv.MissingKernelFeature(t, "FUSE", err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("frozen", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)); err != nil {
		t.Fatal(err)
	}
	f := &frozen{device: fd, asked: make(chan struct{})}
	// It ends the file system for everybody: the kernel answers in its place.
	f.thaw = sync.OnceFunc(func() {
		if err := unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(f.thaw)
	go f.serve()
	return f
}

// The operations that are answered (include/uapi/linux/fuse.h).
const (
	fuseLookup  = 1
	fuseForget  = 2
	fuseGetattr = 3
	fuseInit    = 26
	fuseStop    = 36 // FUSE_INTERRUPT
	fuseForgets = 42
)

func (f *frozen) serve() {
	defer unix.Close(f.device)
	le := binary.LittleEndian
	in := make([]byte, 1<<20)
	seen := false
	for {
		n, err := unix.Read(f.device, in)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil || n < 40 {
			return
		}
		var out []byte
		errno := int32(0)
		switch le.Uint32(in[4:]) {
		case fuseLookup:
			if !seen {
				seen = true
				close(f.asked)
			}
			continue
		case fuseForget, fuseForgets, fuseStop:
			continue
		case fuseInit:
			out = make([]byte, 64)
			le.PutUint32(out, 7)
			le.PutUint32(out[4:], 31)
			le.PutUint32(out[20:], 4096) // max_write
		case fuseGetattr:
			out = make([]byte, 104)
			le.PutUint64(out, 3600)
			le.PutUint64(out[16:], 1)
			le.PutUint32(out[16+60:], unix.S_IFDIR|0o755)
			le.PutUint32(out[16+64:], 2)
		default:
			errno = -int32(unix.ENOSYS)
		}
		head := make([]byte, 16)
		le.PutUint32(head, uint32(16+len(out)))
		le.PutUint32(head[4:], uint32(errno))
		copy(head[8:], in[8:16])
		if _, err := unix.Write(f.device, append(head, out...)); err != nil {
			return
		}
	}
}

// TestAttackUninterruptible: a Worker that cannot be killed, for the time being. Who
// stops it or removes its workspace is told so, and its end is recorded when it comes.
func TestAttackUninterruptible(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", rig.Ordinary)
	repo := p.Give(t, testenv.RepoSmall(t)).Dir
	at := filepath.Join(repo, "mnt")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	f := freeze(t, at)
	machine := rig.Before(t)
	d := rig.StartDaemons(t, p, rig.Ordinary)
	ws := d.Workspace(t, repo, func(r *runtime.CreateWorkspaceRequest) { r.DirtyState = policy.DirectLegacyMount }).ID
	w := d.Spawn(t, ws, "stat mnt/name; echo awake").ID
	select {
	case <-f.asked:
	case <-time.After(time.Minute):
		t.Fatal("the Worker has not asked")
	}
	_, err := d.Client.StopWorker(t.Context(), w, runtime.StopRequest{Grace: 100 * time.Millisecond})
	if !errors.Is(err, policy.CodeWorkerUnkillable) {
		t.Errorf("stopping: %v", err)
	}
	if got, err := d.Client.GetWorker(t.Context(), w); err != nil || got.Status != runtime.WorkerRunning {
		t.Errorf("the Worker is %s, %v", got.Status, err)
	}
	if _, err := d.Client.RemoveWorkspace(t.Context(), ws, runtime.RemoveWorkspaceRequest{Discard: true}); !errors.Is(err, policy.CodeAllocationInUse) {
		t.Errorf("removing: %v", err)
	}
	// Daemons that restart meanwhile do not wait for it either.
	d.Stop(t)
	d.Start(t)
	f.thaw()
	got, err := d.Client.WaitWorker(t.Context(), w)
	if err != nil || got.Outcome == nil || got.Status == runtime.WorkerRunning {
		t.Errorf("its end: %+v, %v", got, err)
	}
	if _, err := d.Client.RemoveWorkspace(t.Context(), ws, runtime.RemoveWorkspaceRequest{Discard: true}); err != nil {
		t.Error(err)
	}
	d.Stop(t)
	rig.Clean(t, d.Root)
	machine.Unchanged(t)
}
