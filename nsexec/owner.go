package nsexec

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// owner is the host's user that the Worker is, 0 where there is no other than the
// launcher.
func (s *Spec) owner() int {
	if os.Geteuid() != 0 {
		return 0
	}
	return max(outside(s.UIDMap, s.uid()), 0)
}

// ownedBy makes that user the maker of what user namespaces this thread clones. What the
// kernel counts by user (user_namespaces(7): inotify instances, namespaces, queued
// signals and more) it counts in each namespace for whoever made it, too: some Workers
// of one launcher, taking each what it may have, would leave nothing to root, nor to
// other Workers. The thread keeps its capabilities, and nothing but clone may happen
// until back.
func ownedBy(uid int) (back func(), err error) {
	if uid == 0 {
		return func() {}, nil
	}
	const keep = ^uintptr(0)
	setEUID := func(id int) unix.Errno {
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(id), keep) // this thread's alone
		return errno
	}
	caps, err := allEffective()
	if err != nil {
		return nil, err
	}
	runtime.LockOSThread() // nor makes the Go runtime a thread out of it
	if errno := setEUID(uid); errno != 0 {
		runtime.UnlockOSThread()
		return nil, failed("setresuid", errno)
	}
	back = func() {
		// To 0 from another makes what is permitted effective (capabilities(7)). It can
		// fail for want of memory alone.
		for setEUID(0) != 0 {
		}
		runtime.UnlockOSThread()
	}
	hdr := capHeader
	if _, _, errno := unix.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&caps[0])), 0); errno != 0 {
		back()
		return nil, failed("capset", errno)
	}
	return back, nil
}

var capHeader = unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}

// allEffective are this thread's capabilities with all in effect that it is permitted:
// a change of the effective user id from 0 leaves those, and none in effect.
func allEffective() (caps [2]unix.CapUserData, err error) {
	hdr := capHeader
	if err := unix.Capget(&hdr, &caps[0]); err != nil {
		return caps, failed("capget", err)
	}
	for i := range caps {
		caps[i].Effective = caps[i].Permitted
	}
	return caps, nil
}

// nsGetOwnerUID is NS_GET_OWNER_UID, ioctl_ns(2), Linux 4.11.
const nsGetOwnerUID = 0xb704

// ownerOf is who made a process's user namespace, as the caller counts users. Whoever has
// that effective user id has all capabilities over it (user_namespaces(7)), which root
// may lack: a service's are bounded.
func ownerOf(proc string) (uid uint32, err error) {
	ns, err := os.Open(proc + "/ns/user")
	if err != nil {
		return 0, err
	}
	defer ns.Close()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, ns.Fd(), nsGetOwnerUID, uintptr(unsafe.Pointer(&uid))); errno != 0 {
		return 0, os.NewSyscallError("ioctl", errno)
	}
	return uid, nil
}
