package seccomp

var oldKernel = Group{
	Name: "as on an older kernel",
	Why: "ENOSYS. clone3's flags lie behind a pointer, which no filter can read: the C library falls back to clone, but not from EPERM. " +
		"io_uring does its work out of the filter's sight. Named, so that no other default answer (audit) ever lets them through.",
	Rules: all(Errno(eNOSYS), `clone3 io_uring_setup io_uring_enter io_uring_register`),
}

const mountCalls = `mount umount2 pivot_root chroot move_mount open_tree fsopen fsconfig fsmount fspick mount_setattr`

var noMounts = Group{
	Name:  "mounting",
	Why:   "The sandbox's walls are mounts.",
	Rules: refuse(mountCalls),
}

var noForeignNamespaces = Group{
	Name:  "entering namespaces",
	Why:   "setns needs a descriptor of a namespace that a Worker must not get.",
	Rules: refuse(`setns`),
}

const traceCalls = `ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp process_madvise`

var noTracing = Group{
	Name:  "tracing",
	Why:   "Reading and steering another process of the Worker. Debuggers need it: the profile debug.",
	Rules: refuse(traceCalls),
}

var noKernelControl = Group{
	Name: "the kernel itself",
	Why:  "Programs in the kernel, modules, another kernel, its log, swap, accounting, quotas, port access. Most need a capability as well; a bug in that check is then not enough.",
	Rules: refuse(`bpf perf_event_open init_module finit_module delete_module
		kexec_load kexec_file_load reboot swapon swapoff syslog acct quotactl quotactl_fd
		iopl ioperm lookup_dcookie vhangup fanotify_init fanotify_mark modify_ldt
		move_pages migrate_pages mbind set_mempolicy`),
}

var noHostState = Group{
	Name:  "the machine's name and clock",
	Why:   "They belong to the machine.",
	Rules: refuse(`sethostname setdomainname settimeofday clock_settime clock_adjtime adjtimex`),
}

var noKeyrings = Group{
	Name:  "keyrings",
	Why:   "Keyrings are not namespaced: a key of the same uid elsewhere would be in reach.",
	Rules: refuse(`add_key request_key keyctl`),
}

var noExploitHelpers = Group{
	Name: "handles and fault handling",
	Why: "open_by_handle_at opens a file outside every mount of the sandbox (CVE-2014-3519's way out). " +
		"userfaultfd stops the kernel in the middle of a copy, which turns races into certainties.",
	Rules: refuse(`open_by_handle_at userfaultfd`),
}

// What the other profiles allow instead.

var tracing = Group{
	Name:  "tracing (debug)",
	Why:   "gdb, strace, sanitizers and profilers on the Worker's own processes; the pid namespace holds no others.",
	Rules: allow(traceCalls),
}

var debugPersonality = Group{
	Name:  "personality (debug)",
	Why:   "As in default, and ADDR_NO_RANDOMIZE (0x40000), which gdb sets for what it starts.",
	Rules: personality(addrNoRandomize, addrNoRandomize|perLinux32),
}

var namespaces = Group{
	Name: "namespaces (nested)",
	Why: "For Chromium, bubblewrap and rootless containers inside the Worker: user namespaces, and mounting within them. " +
		"The Worker still has no capability over anything outside, but much more of the kernel is in reach: choose it for what needs it.",
	Rules: allow(`clone unshare setns sethostname setdomainname ` + mountCalls),
}

var noHostClock = Group{
	Name:  "the machine's clock",
	Why:   "It belongs to the machine; no namespace holds it.",
	Rules: refuse(`settimeofday clock_settime clock_adjtime adjtimex`),
}
