package seccomp

var memory = Group{
	Name: "memory",
	Why:  "Mapping, protecting and locking the process's own memory. JIT compilers need executable mappings.",
	Rules: allow(`brk mmap munmap mremap mprotect madvise mincore msync membarrier
		mlock mlock2 munlock mlockall munlockall
		pkey_alloc pkey_free pkey_mprotect remap_file_pages`),
}

var processes = Group{
	Name: "processes",
	Why:  "Starting, waiting for and ending the Worker's own processes; its pid namespace holds no others.",
	Rules: allow(`fork vfork execve exit exit_group wait4 waitid
		getpid getppid gettid getpgid getpgrp setpgid getsid setsid set_tid_address
		kill tkill tgkill pidfd_open pidfd_send_signal prctl arch_prctl
		getrlimit setrlimit prlimit64 getrusage times sysinfo uname getcpu
		capget capset getpriority setpriority ioprio_get ioprio_set`),
}

var signals = Group{
	Name: "signals and timers",
	Why:  "Handling signals, sleeping, reading clocks.",
	Rules: allow(`rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait
		rt_sigqueueinfo rt_tgsigqueueinfo rt_sigsuspend sigaltstack restart_syscall
		pause alarm getitimer setitimer nanosleep time gettimeofday
		clock_gettime clock_getres clock_nanosleep
		timer_create timer_settime timer_gettime timer_getoverrun timer_delete`),
}

var threads = Group{
	Name: "threads and scheduling",
	Why:  "What a C library's threads stand on. Raising a priority needs a capability that no Worker has.",
	Rules: allow(`futex futex_waitv set_robust_list get_robust_list rseq sched_yield
		sched_getaffinity sched_setaffinity sched_getparam sched_setparam
		sched_getscheduler sched_setscheduler sched_getattr sched_setattr
		sched_get_priority_max sched_get_priority_min sched_rr_get_interval`),
}

var identity = Group{
	Name: "ids and randomness",
	Why:  "Reading one's ids, and setting them to what they are already: the user namespace maps no others that a Worker could take.",
	Rules: allow(`getuid geteuid getgid getegid getgroups getresuid getresgid
		setuid setgid setreuid setregid setresuid setresgid setgroups setfsuid setfsgid
		getrandom`),
}

var sandboxing = Group{
	Name:  "sandboxes of one's own",
	Why:   "A program that confines itself further (an agent's own sandbox, a browser's) must be able to: both can only take rights away.",
	Rules: allow(`seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self`),
}

// The bits of clone's and unshare's flags that make namespaces. CLONE_NEWTIME
// exists for unshare only: in clone its bit belongs to the exit signal.
const (
	cloneNewMask   = 0x7e020000
	cloneNewTime   = 0x00000080
	unshareNewMask = cloneNewMask | cloneNewTime
)

var plainClone = Group{
	Name: "clone without namespaces",
	Why: "Threads and processes, but no CLONE_NEW* flag (mask 0x7e020000): a new user namespace gives capabilities over code that is otherwise out of reach, " +
		"the first step of most kernel exploits of the last ten years.",
	Rules: append(
		decide("clone", choice{arg: 0, mask: cloneNewMask, branches: []branch{{values: []uint64{0}, action: Allow}}, otherwise: Errno(ePERM)}),
		decide("unshare", choice{arg: 0, mask: unshareNewMask, branches: []branch{{values: []uint64{0}, action: Allow}}, otherwise: Errno(ePERM)})...,
	),
}

// PER_* and ADDR_NO_RANDOMIZE are personality(2)'s; 0xffffffff only asks.
const (
	perLinux        = 0
	perLinux32      = 0x8
	uname26         = 0x20000
	addrNoRandomize = 0x40000
	perQuery        = 0xffffffff
)

var harmlessPersonality = Group{
	Name:  "personality",
	Why:   "Only the values that change what uname says, and the question. The others weaken memory protection (READ_IMPLIES_EXEC, ADDR_COMPAT_LAYOUT).",
	Rules: personality(),
}

func personality(more ...uint64) []Rule {
	values := append([]uint64{perLinux, perLinux32, uname26, uname26 | perLinux32, perQuery}, more...)
	return decide("personality", choice{
		arg: 0, mask: low32, branches: []branch{{values: values, action: Allow}}, otherwise: Errno(ePERM),
	})
}
