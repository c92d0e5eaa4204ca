package seccomp

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/policy/seccomp/internal/cbpf"
)

const (
	x8664 = unix.AUDIT_ARCH_X86_64
	i386  = unix.AUDIT_ARCH_I386
	arm64 = unix.AUDIT_ARCH_AARCH64
	x32   = 0x40000000
	high  = 0xdead_beef << 32
)

func program(t *testing.T, name policy.SeccompProfile) cbpf.Program {
	t.Helper()
	b, err := Filter(policy.SandboxPolicy{Seccomp: name})
	if err != nil {
		t.Fatal(err)
	}
	p, err := cbpf.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func verdict(t *testing.T, p cbpf.Program, arch uint32, nr int32, args ...uint64) Action {
	t.Helper()
	d := cbpf.Data{Nr: nr, Arch: arch}
	copy(d.Args[:], args)
	v, _, err := p.Run(d)
	if err != nil {
		t.Fatal(err)
	}
	return Action(v)
}

// Expectations written by hand, from the manual pages: not from the profiles.
func TestDefaultVerdicts(t *testing.T) {
	perm, nosys := Errno(ePERM), Errno(eNOSYS)
	for _, c := range []struct {
		name string
		nr   int32
		args []uint64
		want Action
	}{
		{"read", unix.SYS_READ, nil, Allow},
		{"execve", unix.SYS_EXECVE, nil, Allow},
		{"seccomp", unix.SYS_SECCOMP, nil, Allow},
		{"landlock", unix.SYS_LANDLOCK_RESTRICT_SELF, nil, Allow},
		{"clone3", unix.SYS_CLONE3, nil, nosys},
		{"io_uring_setup", unix.SYS_IO_URING_SETUP, nil, nosys},
		{"newer than the profiles", 467, nil, nosys},
		{"far beyond the table", 0x3fffffff, nil, nosys},
		{"a tracer's skipped call", -1, nil, nosys},

		{"mount", unix.SYS_MOUNT, nil, perm},
		{"fsopen", unix.SYS_FSOPEN, nil, perm},
		{"open_tree", unix.SYS_OPEN_TREE, nil, perm},
		{"move_mount", unix.SYS_MOVE_MOUNT, nil, perm},
		{"mount_setattr", unix.SYS_MOUNT_SETATTR, nil, perm},
		{"pivot_root", unix.SYS_PIVOT_ROOT, nil, perm},
		{"chroot", unix.SYS_CHROOT, nil, perm},
		{"setns", unix.SYS_SETNS, nil, perm},
		{"ptrace", unix.SYS_PTRACE, nil, perm},
		{"process_vm_readv", unix.SYS_PROCESS_VM_READV, nil, perm},
		{"pidfd_getfd", unix.SYS_PIDFD_GETFD, nil, perm},
		{"bpf", unix.SYS_BPF, nil, perm},
		{"perf_event_open", unix.SYS_PERF_EVENT_OPEN, nil, perm},
		{"keyctl", unix.SYS_KEYCTL, nil, perm},
		{"add_key", unix.SYS_ADD_KEY, nil, perm},
		{"request_key", unix.SYS_REQUEST_KEY, nil, perm},
		{"kexec_load", unix.SYS_KEXEC_LOAD, nil, perm},
		{"init_module", unix.SYS_INIT_MODULE, nil, perm},
		{"swapon", unix.SYS_SWAPON, nil, perm},
		{"reboot", unix.SYS_REBOOT, nil, perm},
		{"open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, nil, perm},
		{"userfaultfd", unix.SYS_USERFAULTFD, nil, perm},
		{"sethostname", unix.SYS_SETHOSTNAME, nil, perm},
		{"clock_settime", unix.SYS_CLOCK_SETTIME, nil, perm},
		{"fanotify_init", unix.SYS_FANOTIFY_INIT, nil, perm},

		{"a thread", unix.SYS_CLONE, []uint64{0x3d0f00}, Allow},
		{"a process", unix.SYS_CLONE, []uint64{uint64(unix.SIGCHLD)}, Allow},
		{"vfork's clone", unix.SYS_CLONE, []uint64{unix.CLONE_VM | unix.CLONE_VFORK | uint64(unix.SIGCHLD)}, Allow},
		{"the exit signal is no time namespace", unix.SYS_CLONE, []uint64{0x80}, Allow},
		{"CLONE_NEWUSER", unix.SYS_CLONE, []uint64{unix.CLONE_NEWUSER}, perm},
		{"CLONE_NEWNS", unix.SYS_CLONE, []uint64{unix.CLONE_NEWNS | 0x11}, perm},
		{"CLONE_NEWCGROUP", unix.SYS_CLONE, []uint64{unix.CLONE_NEWCGROUP}, perm},
		{"CLONE_NEWUTS", unix.SYS_CLONE, []uint64{unix.CLONE_NEWUTS}, perm},
		{"CLONE_NEWIPC", unix.SYS_CLONE, []uint64{unix.CLONE_NEWIPC}, perm},
		{"CLONE_NEWPID", unix.SYS_CLONE, []uint64{unix.CLONE_NEWPID}, perm},
		{"CLONE_NEWNET", unix.SYS_CLONE, []uint64{unix.CLONE_NEWNET}, perm},
		{"all of them", unix.SYS_CLONE, []uint64{0x7e020000}, perm},
		{"a namespace under high bits", unix.SYS_CLONE, []uint64{high | unix.CLONE_NEWUSER}, perm},
		{"unshare files", unix.SYS_UNSHARE, []uint64{unix.CLONE_FILES | unix.CLONE_FS}, Allow},
		{"unshare user", unix.SYS_UNSHARE, []uint64{unix.CLONE_NEWUSER}, perm},
		{"unshare time", unix.SYS_UNSHARE, []uint64{unix.CLONE_NEWTIME}, perm},
		{"unshare under high bits", unix.SYS_UNSHARE, []uint64{high | unix.CLONE_NEWNET}, perm},

		{"TCGETS", unix.SYS_IOCTL, []uint64{0, unix.TCGETS}, Allow},
		{"TIOCGWINSZ", unix.SYS_IOCTL, []uint64{0, unix.TIOCGWINSZ}, Allow},
		{"FICLONE", unix.SYS_IOCTL, []uint64{0, unix.FICLONE}, Allow},
		{"TIOCSTI", unix.SYS_IOCTL, []uint64{0, unix.TIOCSTI}, perm},
		{"CVE-2019-7303: TIOCSTI under high bits", unix.SYS_IOCTL, []uint64{0, 1<<32 | unix.TIOCSTI}, perm},
		{"TIOCSTI under all high bits", unix.SYS_IOCTL, []uint64{0, 0xffffffff<<32 | unix.TIOCSTI}, perm},
		{"TIOCLINUX", unix.SYS_IOCTL, []uint64{0, 0x541c}, perm},
		{"TIOCLINUX under high bits", unix.SYS_IOCTL, []uint64{0, high | 0x541c}, perm},
		{"TIOCSETD", unix.SYS_IOCTL, []uint64{0, 0x5423}, perm},
		{"TIOCSTI's number elsewhere", unix.SYS_IOCTL, []uint64{unix.TIOCSTI, 0, unix.TIOCSTI}, Allow},

		{"socket unix", unix.SYS_SOCKET, []uint64{unix.AF_UNIX}, Allow},
		{"socket inet", unix.SYS_SOCKET, []uint64{unix.AF_INET, 1, 6}, Allow},
		{"socket inet6", unix.SYS_SOCKET, []uint64{unix.AF_INET6, 2, 17}, Allow},
		{"netlink route", unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, 3, 0}, Allow},
		{"netlink route, high bits", unix.SYS_SOCKET, []uint64{high | unix.AF_NETLINK, 3, high}, Allow},
		{"netlink netfilter", unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, 3, unix.NETLINK_NETFILTER}, Errno(ePROTONOSUPPORT)},
		{"netlink audit", unix.SYS_SOCKET, []uint64{high | unix.AF_NETLINK, 3, high | unix.NETLINK_AUDIT}, Errno(ePROTONOSUPPORT)},
		{"AF_ALG", unix.SYS_SOCKET, []uint64{unix.AF_ALG, 5, 0}, Errno(eAFNOSUPPORT)},
		{"AF_ALG under high bits", unix.SYS_SOCKET, []uint64{high | unix.AF_ALG}, Errno(eAFNOSUPPORT)},
		{"AF_VSOCK", unix.SYS_SOCKET, []uint64{unix.AF_VSOCK}, Errno(eAFNOSUPPORT)},
		{"AF_PACKET", unix.SYS_SOCKET, []uint64{unix.AF_PACKET}, Errno(eAFNOSUPPORT)},
		{"AF_UNSPEC", unix.SYS_SOCKET, []uint64{0}, Errno(eAFNOSUPPORT)},
		{"a negative family", unix.SYS_SOCKET, []uint64{^uint64(0)}, Errno(eAFNOSUPPORT)},
		{"socketpair unix", unix.SYS_SOCKETPAIR, []uint64{unix.AF_UNIX}, Allow},
		{"socketpair tipc", unix.SYS_SOCKETPAIR, []uint64{unix.AF_TIPC}, Errno(eAFNOSUPPORT)},

		{"personality 0", unix.SYS_PERSONALITY, []uint64{0}, Allow},
		{"personality asks", unix.SYS_PERSONALITY, []uint64{0xffffffff}, Allow},
		{"no randomization", unix.SYS_PERSONALITY, []uint64{0x40000}, perm},
		{"READ_IMPLIES_EXEC", unix.SYS_PERSONALITY, []uint64{0x400000}, perm},
		{"READ_IMPLIES_EXEC under high bits", unix.SYS_PERSONALITY, []uint64{high | 0x400000}, perm},
	} {
		for _, profile := range []policy.SeccompProfile{policy.SeccompDefault, ""} {
			if got := verdict(t, program(t, profile), x8664, c.nr, c.args...); got != c.want {
				t.Errorf("%s: %v, want %v", c.name, got, c.want)
			}
		}
	}
}

func TestProfileVerdicts(t *testing.T) {
	perm, nosys := Errno(ePERM), Errno(eNOSYS)
	for _, c := range []struct {
		profile policy.SeccompProfile
		name    string
		nr      int32
		args    []uint64
		want    Action
	}{
		{policy.SeccompDebug, "ptrace", unix.SYS_PTRACE, nil, Allow},
		{policy.SeccompDebug, "no randomization", unix.SYS_PERSONALITY, []uint64{0x40000}, Allow},
		{policy.SeccompDebug, "READ_IMPLIES_EXEC", unix.SYS_PERSONALITY, []uint64{0x400000}, perm},
		{policy.SeccompDebug, "perf_event_open", unix.SYS_PERF_EVENT_OPEN, nil, perm},
		{policy.SeccompDebug, "CLONE_NEWUSER", unix.SYS_CLONE, []uint64{unix.CLONE_NEWUSER}, perm},
		{policy.SeccompDebug, "TIOCSTI", unix.SYS_IOCTL, []uint64{0, 1<<32 | unix.TIOCSTI}, perm},

		{policy.SeccompNested, "CLONE_NEWUSER", unix.SYS_CLONE, []uint64{unix.CLONE_NEWUSER}, Allow},
		{policy.SeccompNested, "mount", unix.SYS_MOUNT, nil, Allow},
		{policy.SeccompNested, "pivot_root", unix.SYS_PIVOT_ROOT, nil, Allow},
		{policy.SeccompNested, "ptrace", unix.SYS_PTRACE, nil, perm},
		{policy.SeccompNested, "bpf", unix.SYS_BPF, nil, perm},
		{policy.SeccompNested, "keyctl", unix.SYS_KEYCTL, nil, perm},
		{policy.SeccompNested, "open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, nil, perm},
		{policy.SeccompNested, "clone3", unix.SYS_CLONE3, nil, nosys},
		{policy.SeccompNested, "TIOCSTI", unix.SYS_IOCTL, []uint64{0, unix.TIOCSTI}, perm},
		{policy.SeccompNested, "AF_ALG", unix.SYS_SOCKET, []uint64{unix.AF_ALG}, Errno(eAFNOSUPPORT)},

		{policy.SeccompStrict, "socket unix", unix.SYS_SOCKET, []uint64{unix.AF_UNIX}, Allow},
		{policy.SeccompStrict, "socket inet", unix.SYS_SOCKET, []uint64{unix.AF_INET}, Errno(eAFNOSUPPORT)},
		{policy.SeccompStrict, "netlink route", unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, 3, 0}, Errno(eAFNOSUPPORT)},
		{policy.SeccompStrict, "memfd_create", unix.SYS_MEMFD_CREATE, nil, nosys},
		{policy.SeccompStrict, "shmget", unix.SYS_SHMGET, nil, nosys},
		{policy.SeccompStrict, "mount", unix.SYS_MOUNT, nil, perm},

		{policy.SeccompAudit, "unknown", 467, nil, nosys},
		{policy.SeccompAudit, "mount", unix.SYS_MOUNT, nil, perm},
		{policy.SeccompAudit, "clone3", unix.SYS_CLONE3, nil, nosys},
		{policy.SeccompAudit, "io_uring_setup", unix.SYS_IO_URING_SETUP, nil, nosys},
		{policy.SeccompAudit, "CLONE_NEWUSER", unix.SYS_CLONE, []uint64{unix.CLONE_NEWUSER}, perm},
	} {
		if got := verdict(t, program(t, c.profile), x8664, c.nr, c.args...); got != c.want {
			t.Errorf("%s: %s: %v, want %v", c.profile, c.name, got, c.want)
		}
	}
}

// i386's and x32's numbers mean other calls: whatever they are, the process dies.
func TestForeignABI(t *testing.T) {
	for _, p := range Profiles() {
		prog := program(t, p.Name)
		for nr := int32(0); nr < 600; nr++ {
			for name, got := range map[string]Action{
				"i386":         verdict(t, prog, i386, nr),
				"x32":          verdict(t, prog, x8664, nr|x32),
				"arm64":        verdict(t, prog, arm64, nr),
				"i386 and x32": verdict(t, prog, i386, nr|x32),
				"no such arch": verdict(t, prog, 0, nr),
			} {
				if got != KillProcess {
					t.Fatalf("%s: %s call %d: %v", p.Name, name, nr, got)
				}
			}
		}
		// The highest x32 numbers, short of the tracer's -1.
		if got := verdict(t, prog, x8664, -2); got != KillProcess {
			t.Errorf("%s: call -2: %v", p.Name, got)
		}
	}
}

// The length of the program is a part of every launch, that of a call's way
// through it of every call that depends on its arguments.
func TestFiltersAreShort(t *testing.T) {
	for _, p := range Profiles() {
		prog := program(t, p.Name)
		for _, nr := range []int32{unix.SYS_READ, unix.SYS_OPENAT, unix.SYS_FUTEX, unix.SYS_LANDLOCK_CREATE_RULESET} {
			_, steps, err := prog.Run(cbpf.Data{Nr: nr, Arch: x8664})
			if err != nil || steps > 14 {
				t.Errorf("%s: call %d takes %d instructions (%v)", p.Name, nr, steps, err)
			}
		}
		if len(prog) > 150 {
			t.Errorf("%s: %d instructions", p.Name, len(prog))
		}
	}
}

func TestFilterRefuses(t *testing.T) {
	if _, err := Filter(policy.SandboxPolicy{Seccomp: "unconfined"}); !errors.Is(err, policy.CodePolicyInvalid) {
		t.Errorf("unknown profile: %v", err)
	}
	if _, err := Filter(policy.SandboxPolicy{SeccompAllow: []string{"acct"}}); !errors.Is(err, policy.CodeUnsupported) {
		t.Errorf("further calls: %v", err)
	}
}
