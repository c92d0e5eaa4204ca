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
// until back. Root, who is no longer the namespace's owner, needs capabilities of its
// own to enter it: CAP_SYS_ADMIN, CAP_SYS_CHROOT and CAP_SYS_PTRACE.
func ownedBy(uid int) (back func(), err error) {
	if uid == 0 {
		return func() {}, nil
	}
	const keep = ^uintptr(0)
	setEUID := func(id int) unix.Errno {
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(id), keep) // this thread's alone
		return errno
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
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	_, _, errno := unix.RawSyscall(unix.SYS_CAPGET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&caps[0])), 0)
	if errno == 0 {
		for i := range caps {
			caps[i].Effective = caps[i].Permitted
		}
		_, _, errno = unix.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&caps[0])), 0)
	}
	if errno != 0 {
		back()
		return nil, failed("capset", errno)
	}
	return back, nil
}
