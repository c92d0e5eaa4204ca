package inside

import (
	"os"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow/layers"
	"yoi.dev/yoi-runtime/policy"
)

// Where the store is once confined.
const (
	storeAt = "/store"
	runAt   = "/run"
)

// confine changes the root to a tmpfs that holds the store, a proc of this pid
// namespace and nothing else, and gives up the capabilities that unpacking does
// not take. Nothing of the archive has been read before.
func confine(req layers.Request) error {
	steps := confinement{req: req}
	for _, s := range []struct {
		what string
		do   func() error
	}{
		{"making the mounts private", steps.private},
		{"finding the store", steps.findStore},
		{"making the root", steps.makeRoot},
		{"mounting the store", steps.mountStore},
		{"mounting proc", steps.mountProc},
		{"changing the root", steps.pivot},
		{"dropping capabilities", dropCapabilities},
	} {
		if err := s.do(); err != nil {
			return policy.Errorf(policy.CodeImageProgramFailed, "layers.confine", "confining the image program failed: %s", s.what).Because(err)
		}
	}
	return nil
}

type confinement struct {
	req         layers.Request
	store, root int
}

func (c *confinement) private() error {
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
}

const storeAttrs = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC

// findStore takes the mount that root passed, or clones the user's own directory.
func (c *confinement) findStore() error {
	if c.req.StorePath == "" {
		c.store = layers.StoreFD
		unix.CloseOnExec(c.store)
		return nil
	}
	top, err := unix.Open(c.req.StorePath, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(top)
	dir, err := unix.Openat2(top, c.req.StoreBeneath, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if c.store, err = unix.OpenTree(dir, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH); err != nil {
		return err
	}
	return unix.MountSetattr(c.store, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: storeAttrs})
}

func (c *confinement) makeRoot() (err error) {
	if c.root, err = mountNew("tmpfs", "mode", "0755", "size", "67108864"); err != nil {
		return err
	}
	// Stacked on the copy of the host's root: no directory of the host is needed.
	if err := unix.MoveMount(c.root, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return err
	}
	for _, d := range []string{"store", "run", "proc", "tmp"} {
		if err := unix.Mkdirat(c.root, d, 0o700); err != nil {
			return err
		}
	}
	return nil
}

func mountNew(kind string, options ...string) (int, error) {
	ctx, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(ctx)
	for i := 0; i < len(options); i += 2 {
		if err := unix.FsconfigSetString(ctx, options[i], options[i+1]); err != nil {
			return -1, err
		}
	}
	if err := unix.FsconfigCreate(ctx); err != nil {
		return -1, err
	}
	return unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
}

func (c *confinement) mountStore() error {
	defer unix.Close(c.store)
	return unix.MoveMount(c.store, "", c.root, "store", unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// mountProc is for /proc/self/exe, by which the library starts this program again.
func (c *confinement) mountProc() error {
	fd, err := mountNew("proc", "hidepid", "2")
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.MoveMount(fd, "", c.root, "proc", unix.MOVE_MOUNT_F_EMPTY_PATH)
}

func (c *confinement) pivot() error {
	defer unix.Close(c.root)
	if err := unix.Fchdir(c.root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	return os.Chdir("/")
}

// kept are the capabilities that unpacking takes: owners and modes of any file,
// chroot, and the overlay mounts by which the driver learns what the kernel can
// do. All of them count in this user namespace only.
var kept = map[uintptr]bool{
	unix.CAP_CHOWN: true, unix.CAP_DAC_OVERRIDE: true, unix.CAP_FOWNER: true, unix.CAP_FSETID: true,
	unix.CAP_SYS_CHROOT: true, unix.CAP_SYS_ADMIN: true, unix.CAP_KILL: true,
}

// dropCapabilities takes the others out of the bounding set of every thread, and
// out of this program's own sets by that of its children, which exec.
func dropCapabilities() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for c := uintptr(0); c < 64; c++ {
		if kept[c] {
			continue
		}
		if _, _, errno := syscall.AllThreadsSyscall(syscall.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0); errno == syscall.EINVAL {
			break // the kernel knows no higher one
		} else if errno != 0 {
			return errno
		}
	}
	if _, _, errno := syscall.AllThreadsSyscall6(syscall.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return errno
	}
	return unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
}

// withoutPaths is an error's text for a diagnostic's cause on the other side,
// where only the store's own names mean anything.
func withoutPaths(err error) string { return strings.ReplaceAll(err.Error(), storeAt+"/", "") }
