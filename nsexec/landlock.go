package nsexec

import (
	"os"
	"path"
	"unsafe"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/replay"
	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/policy"
)

// Landlock is a second wall behind the mounts (landlock(7)): the Worker changes
// files beneath the named hierarchies only, mounts nothing, and reaches no
// process and no abstract socket outside its own domain, even if a mount of the
// plan were writable by mistake. Reading is the mount plan's matter alone: what
// is mounted is meant to be read, and every open would pay for asking again.
//
// It executes only what is beneath its root. Until its first exec the Worker's
// process has the launcher's memory, so /proc/self/exe, named as the command or
// by a script's first line, would be the launcher's program (CVE-2019-5736).
//
// TCP is not restricted: a sandbox without a network has no route, and servers
// on its own loopback interface are what tests are made of.
type Landlock struct {
	// Writable are directories of the sandbox in which the Worker may make, change
	// and remove anything but device nodes. One that is missing fails the launch.
	Writable []string
	// Mounts lets the Worker mount in namespaces of its own. Landlock takes that
	// from everybody whose files it restricts, so it then restricts scopes only.
	Mounts bool
}

// Rights of linux/landlock.h.
const (
	fsExecute    = 1 << 0
	fsWriteFile  = 1 << 1
	fsRemoveDir  = 1 << 4
	fsRemoveFile = 1 << 5
	fsMakeChar   = 1 << 6
	fsMakeDir    = 1 << 7
	fsMakeReg    = 1 << 8
	fsMakeSock   = 1 << 9
	fsMakeFifo   = 1 << 10
	fsMakeBlock  = 1 << 11
	fsMakeSym    = 1 << 12
	fsRefer      = 1 << 13 // ABI 2
	fsTruncate   = 1 << 14 // ABI 3
	fsIoctlDev   = 1 << 15 // ABI 5

	scopeAbstractUnixSocket = 1 << 0 // ABI 6
	scopeSignal             = 1 << 1 // ABI 6

	rulePathBeneath = 1
)

// rulesetAttr is struct landlock_ruleset_attr, as long as ABI 6 has it. Kernels
// before take a longer one whose unknown end is zero (landlock_create_ruleset(2)).
type rulesetAttr struct {
	fs     uint64
	_      uint64 // of TCP: nothing is restricted
	scoped uint64
}

// pathBeneathAttr is the packed struct landlock_path_beneath_attr.
type pathBeneathAttr struct {
	access [2]uint32
	parent int32
}

// LandlockABI is the version of the kernel's Landlock, 0 without it.
func LandlockABI() int {
	const version = 1 // LANDLOCK_CREATE_RULESET_VERSION
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, version)
	if errno != 0 {
		return 0
	}
	return int(abi)
}

// restricts is what l comes to on a kernel of that ABI; nothing at all is worth
// nothing. Before ABI 2 no file could be renamed into another directory, which
// git does all day.
func (l *Landlock) restricts(abi int) (a rulesetAttr) {
	if abi >= 2 && !l.Mounts {
		a.fs = fsExecute | fsWriteFile | fsRemoveDir | fsRemoveFile | fsMakeChar | fsMakeDir | fsMakeReg | fsMakeSock | fsMakeFifo |
			fsMakeBlock | fsMakeSym | fsRefer
		if abi >= 3 {
			a.fs |= fsTruncate
		}
		if abi >= 5 {
			a.fs |= fsIoctlDev
		}
	}
	if abi >= 6 {
		a.scoped = scopeAbstractUnixSocket | scopeSignal
	}
	return a
}

// Applies reports whether l restricts anything on a kernel of that ABI.
func (l *Landlock) Applies(abi int) bool { return l.restricts(abi) != rulesetAttr{} }

// landlock makes the ruleset in the finished sandbox and enters its domain.
func (b *script) landlock() error {
	l := b.spec.Landlock
	if l == nil {
		return nil
	}
	attr := l.restricts(LandlockABI())
	if attr == (rulesetAttr{}) {
		return policy.Errorf(policy.CodeKernelFeatureMissing, opLaunch, "the kernel has no Landlock that could hold the worker").
			With("feature", "landlock").Because(os.NewSyscallError("landlock_create_ruleset", unix.EOPNOTSUPP))
	}
	b.step("making the Landlock rules", policy.CodeLaunchFailed, "")
	b.Add(unix.SYS_LANDLOCK_CREATE_RULESET, replay.Struct(b.Program, attr), num(unsafe.Sizeof(attr)), num(0)).Save(slotCtx)
	if attr.fs != 0 {
		const device = fsWriteFile | fsTruncate | fsIoctlDev
		b.beneath("/", fsExecute)
		for _, w := range l.Writable {
			b.beneath(w, attr.fs&^(fsExecute|fsMakeChar|fsMakeBlock|fsIoctlDev))
		}
		for _, d := range b.deviceDirs() {
			b.beneath(d, attr.fs&device)
		}
		if at := procOf(b.spec.Plan); at != "" {
			b.beneath(at, attr.fs&(fsWriteFile|fsTruncate)) // what of it is the host's is mounted read-only
		}
	}
	b.step("entering the Landlock domain", policy.CodeLaunchFailed, "")
	b.Add(unix.SYS_LANDLOCK_RESTRICT_SELF, slotCtx.Arg(), num(0))
	b.Add(unix.SYS_CLOSE, slotCtx.Arg())
	return nil
}

// deviceDirs are where the plan has devices and terminals.
func (b *script) deviceDirs() (dirs []string) {
	for _, op := range b.spec.Plan.Ops {
		switch o := op.(type) {
		case mounts.Dev:
			dirs = append(dirs, o.Target)
		case mounts.DevPts:
			dirs = append(dirs, o.Target)
		}
	}
	return dirs
}

// beneath allows access beneath a directory of the sandbox.
func (b *script) beneath(dir string, access uint64) {
	rule := replay.Struct(b.Program, pathBeneathAttr{access: [2]uint32{uint32(access), uint32(access >> 32)}})
	b.Add(unix.SYS_OPENAT, atCwd, b.Str(path.Clean("/"+dir)), num(unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC), num(0)).Save(slotFD).
		Store(rule, int(unsafe.Offsetof(pathBeneathAttr{}.parent)))
	b.Add(unix.SYS_LANDLOCK_ADD_RULE, slotCtx.Arg(), num(rulePathBeneath), rule, num(0))
	b.Add(unix.SYS_CLOSE, slotFD.Arg())
}
