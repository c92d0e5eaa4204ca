package nsexec

import (
	"path"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/replay"
	"yoi.dev/yoi-runtime/policy"
)

// cloneFlags are the namespaces that clone itself must make: the pid namespace,
// because only a child can enter one, the user namespace, which owns the
// others, and the mount namespace, which Parked may want to hold: there must be
// no moment in which /proc/<pid>/ns/mnt is still the host's. The others are made
// by the child, so that their cost is not the launcher's thread's.
const cloneFlags = unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS

// namespaces makes the other namespaces and waits for the id maps, which the
// launcher writes meanwhile.
func (b *script) namespaces() {
	flags := unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	newNetwork := !b.spec.HostNetwork && b.spec.Network == nil
	if newNetwork {
		flags |= unix.CLONE_NEWNET
	}
	b.step("making the namespaces", policy.CodeNamespacesUnavailable, "")
	b.Add(unix.SYS_UNSHARE, num(flags))

	b.step("setting the host name", policy.CodeNamespacesUnavailable, "")
	name := b.spec.Hostname
	if name == "" {
		name = "worker"
	}
	b.Add(unix.SYS_SETHOSTNAME, b.Str(name), num(len(name)))
	if newNetwork {
		b.loopback()
	}
	// Nothing that we mount may propagate to the host, and nothing that the host
	// mounts later may appear here. This comes before every other mount.
	b.step("making mount propagation private", policy.CodeNamespacesUnavailable, "")
	b.setattr(atCwd, b.slash, unix.AT_RECURSIVE, unix.MountAttr{Propagation: unix.MS_PRIVATE})

	b.step("waiting for the id maps", policy.CodeLaunchFailed, "")
	b.waitForLauncher()
	b.listen()
	if b.spec.UIDMap == nil {
		return // the caller's own ids: nothing to change, and setgroups is denied
	}
	b.step("changing to the sandbox's ids", policy.CodeLaunchFailed, "")
	b.Add(unix.SYS_SETGROUPS, num(0), num(0))
	b.Add(unix.SYS_SETRESGID, num(b.setupGID), num(b.setupGID), num(b.setupGID))
	b.Add(unix.SYS_SETRESUID, num(b.setupUID), num(b.setupUID), num(b.setupUID))
	if b.spec.DieWithParent {
		b.dieWithParent() // a change of ids clears it (prctl(2))
	}
}

// waitForLauncher reads one byte; an end of file means that the launcher died.
func (b *script) waitForLauncher() {
	b.Add(unix.SYS_READ, num(b.syncFD), b.Space(1), num(1)).Retry().Expect(1)
}

// loopback sets lo up. A kernel without IPv4 has none to set up.
func (b *script) loopback() {
	b.step("setting up the loopback interface", policy.CodeLaunchFailed, "")
	var ifreq [40]byte
	copy(ifreq[:], "lo")
	ifreq[16] = unix.IFF_UP
	b.Add(unix.SYS_SOCKET, num(unix.AF_INET), num(unix.SOCK_DGRAM|unix.SOCK_CLOEXEC), num(0)).
		Save(slotFD).Tolerate(uint16(unix.EAFNOSUPPORT)).Skip(2)
	b.Add(unix.SYS_IOCTL, slotFD.Arg(), num(unix.SIOCSIFFLAGS), b.Bytes(ifreq[:]))
	b.Add(unix.SYS_CLOSE, slotFD.Arg())
}

// pivot makes the new root the root and drops everything of the host's.
func (b *script) pivot() {
	b.step("changing the root", policy.CodeMountFailed, "")
	b.Add(unix.SYS_FCHDIR, slotRoot.Arg())
	// With both arguments "." the old root ends up stacked on the new one, so no
	// directory is needed for it (pivot_root(2)).
	b.Add(unix.SYS_PIVOT_ROOT, b.dot, b.dot)
	b.Add(unix.SYS_UMOUNT2, b.dot, num(unix.MNT_DETACH))
	if needsStage(b.spec.Plan) {
		// That was the stage, which lay on the old root.
		b.Add(unix.SYS_UMOUNT2, b.dot, num(unix.MNT_DETACH))
	}
	b.Add(unix.SYS_CHDIR, b.slash)
	b.step("making the root read-only", policy.CodeMountFailed, "")
	b.setattr(slotRoot.Arg(), b.empty, unix.AT_EMPTY_PATH, unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	b.Add(unix.SYS_CLOSE, slotRoot.Arg())
}

// parked waits until others have done what has to be done before anything of the
// Worker's runs: whoever serves the sandbox's sockets was started while its root was
// made, and the launcher moves us into a scope. Only then may the cgroup namespace be
// made, since its root is where we are at that moment.
func (b *script) parked() {
	b.listened()
	if b.spec.Parked != nil {
		b.step("waiting for the launcher", policy.CodeLaunchFailed, "")
		b.waitForLauncher()
		b.openCounters()
	}
	tasks := make([]int, len(b.spec.Tasks))
	for i, f := range b.spec.Tasks {
		tasks[i] = int(f.Fd())
	}
	b.enterGroups(tasks)
	b.step("making the cgroup namespace", policy.CodeNamespacesUnavailable, "")
	b.Add(unix.SYS_UNSHARE, num(unix.CLONE_NEWCGROUP))
}

// counterFiles are what Spec.Counters is about, in the order of the outcome file.
var counterFiles = [2]string{"memory.events", "pids.events"}

// maxCounterName bounds a file's name below Counters.Mount, with the zero behind it.
const maxCounterName = 1024

// openCounters opens files of which the launcher has written the names meanwhile. In
// place of one that is not there stands the directory, of which nothing can be read.
func (b *script) openCounters() {
	if b.spec.Counters == nil {
		return
	}
	b.step("opening the control group's counters", policy.CodeLimitsUnavailable, "")
	for i, slot := range []replay.Slot{slotMemoryEvents, slotPidsEvents} {
		b.counters[i] = b.Space(maxCounterName)
		mount := num(b.spec.Counters.Mount.Fd())
		b.Add(unix.SYS_FCNTL, mount, num(unix.F_DUPFD_CLOEXEC), num(0)).Save(slot)
		b.Add(unix.SYS_OPENAT, mount, b.counters[i], num(unix.O_RDONLY|unix.O_CLOEXEC), num(0)).Save(slot).Tolerant()
	}
}

// nameCounters is the launcher's part. A name that is too long is none.
func (b *script) nameCounters() {
	c := b.spec.Counters
	if c == nil || c.Group == "" {
		return
	}
	for i, file := range counterFiles {
		var name [maxCounterName]byte
		if s := path.Join(c.Group, file); len(s) < len(name) {
			copy(name[:], s)
			replay.Put(b.Program, b.counters[i], name)
		}
	}
}

// enterGroups has the process, which has one thread, write itself into cgroup v1
// groups by their files tasks.
func (b *script) enterGroups(tasks []int) {
	b.step("entering the control groups", policy.CodeLimitsUnavailable, "")
	for _, fd := range tasks {
		b.Add(unix.SYS_WRITE, num(fd), b.Str("0"), num(1)).Expect(1)
		b.Add(unix.SYS_CLOSE, num(fd))
	}
}

const secureBits = 1 | 2 | // NOROOT and its lock: uid 0 gains nothing at exec
	4 | 8 | // NO_SETUID_FIXUP
	32 | // KEEP_CAPS locked off
	64 | 128 // NO_CAP_AMBIENT_RAISE

// lastCap is the highest capability that the kernel may know; EINVAL ends there.
const lastCap = 63

// confine drops what PID 1 and the Worker both do without. PID 1 keeps one
// permitted (not effective) capability until it becomes the init: a process may
// only be traced by one that has all its capabilities (ptrace(2)), so the
// Worker cannot reach PID 1 in the moment in which that still shares the
// launcher's memory. Exec takes the capability away.
func (b *script) confine() {
	b.step("dropping the capabilities", policy.CodeLaunchFailed, "")
	for c := range lastCap + 1 {
		b.Add(unix.SYS_PRCTL, num(unix.PR_CAPBSET_DROP), num(c), num(0), num(0), num(0)).
			Tolerate(uint16(unix.EINVAL)).Skip(lastCap - c)
	}
	b.Add(unix.SYS_PRCTL, num(unix.PR_SET_SECUREBITS), num(secureBits), num(0), num(0), num(0))
	b.Add(unix.SYS_PRCTL, num(unix.PR_CAP_AMBIENT), num(unix.PR_CAP_AMBIENT_CLEAR_ALL), num(0), num(0), num(0))
	b.step("changing to the Worker's ids", policy.CodeLaunchFailed, "")
	uid, gid := b.spec.uid(), b.spec.gid()
	b.Add(unix.SYS_SETRESGID, num(gid), num(gid), num(gid))
	b.Add(unix.SYS_SETRESUID, num(uid), num(uid), num(uid))
	if b.spec.DieWithParent {
		b.dieWithParent()
	}
	b.Add(unix.SYS_PRCTL, num(unix.PR_SET_NO_NEW_PRIVS), num(1), num(0), num(0), num(0))
	b.capset(1 << unix.CAP_SETPCAP)
	// Keyrings are not namespaced: without one of our own the Worker would hold the
	// caller's session keyring (session-keyring(7)).
	b.step("making a session keyring", policy.CodeLaunchFailed, "")
	b.Add(unix.SYS_KEYCTL, num(unix.KEYCTL_JOIN_SESSION_KEYRING), num(0)).Tolerate(uint16(unix.ENOSYS))
	b.Add(unix.SYS_SETSID)
}

// capset sets the permitted set and empties the others.
func (b *script) capset(permitted uint32) {
	header := replay.Struct(b.Program, capHeader)
	b.Add(unix.SYS_CAPSET, header, replay.Struct(b.Program, [2]unix.CapUserData{{Permitted: permitted}}))
}
