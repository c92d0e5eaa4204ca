package attack

import (
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
)

// try is one attack with its arguments.
type try struct {
	class string
	// cve is the best-known hole of this kind, "" without one.
	cve  string
	name string
	args []string
	// weak are the protections without which it is shown to succeed in an otherwise
	// whole sandbox (nsexec/weaken_on.go), or one of the set-ups below.
	weak []string
}

func (t try) String() string {
	s := t.class + ": " + t.name
	if len(t.args) > 0 && len(t.args[0]) < 40 {
		s += " " + strings.Join(t.args, " ")
	}
	if t.cve != "" {
		s += " (" + t.cve + ")"
	}
	return s
}

// Set-ups for what no weakened sandbox lets through, because the user namespace
// alone refuses it.
const (
	// bare: root with every capability and no filter, in namespaces of its own
	// (but for user and network), as PID 2.
	bare = "bare"
	// host: no sandbox at all.
	host = "host"
	// unshown: no set-up in which it succeeds may be tried on a machine that is
	// to live on, or the kernel always refuses it.
	unshown = "unshown"
)

// Sets of protections that come off together, since each of them stops the attack.
var (
	filter    = []string{"filter"}
	mounting  = []string{"filter", "capabilities", "landlock"}
	initAlone = []string{"filter", "hidepid", "init", "capabilities", "landlock"}
	stranger  = []string{"network", "landlock"}
	unfenced  = []string{"filter", "landlock", "no-new-privs"}
	atHost    = []string{host}
	atBare    = []string{bare}
	never     = []string{unshown}
)

// tries are the attacks that need nothing but themselves. secrets are host
// paths that must be absent.
func tries(secrets []string) []try {
	var table []try
	add := func(class, cve string, weak []string, name string, args ...string) {
		table = append(table, try{class, cve, name, args, weak})
	}
	each := func(class, cve string, weak []string, name string, args ...string) {
		for _, a := range args {
			add(class, cve, weak, name, a)
		}
	}

	const launcher = "launcher files and descriptors"
	add(launcher, "CVE-2024-21626", []string{"descriptors"}, "descriptors")
	add(launcher, "CVE-2024-21626", []string{"descriptors"}, "directory-descriptors")
	add(launcher, "CVE-2024-21626", []string{"descriptors", "cwd"}, "cwd-outside")
	add(launcher, "", []string{"descriptors"}, "rights")
	add(launcher, "CVE-2019-5736", initAlone, "init-descriptors")
	add(launcher, "", atHost, "parent-environment")

	const proc = "/proc and /sys"
	each(proc, "", []string{"read-only-proc", "landlock", "ids", "capabilities"}, "write",
		"/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sys/vm/overcommit_memory",
		"/proc/sys/kernel/panic", "/proc/irq/default_smp_affinity")
	each(proc, "", []string{"read-only-proc", "landlock", "ids", "capabilities"}, "write", "/proc/sys/kernel/hostname", "/proc/sys/user/max_user_namespaces", "/proc/sys/net/ipv4/ip_forward")
	each(proc, "", atHost, "write", "/proc/1/oom_score_adj", "/dev/kmsg")
	each(proc, "", never, "write", "/proc/sysrq-trigger", "/proc/sys/kernel/modprobe", "/sys/kernel/uevent_helper", "/proc/1/uid_map", "/proc/1/mem", "/proc/self/setgroups") // absent here, or written once
	each(proc, "CVE-2025-31133", []string{"masks", "ids"}, "list", "/proc/keys", "/proc/key-users", "/proc/interrupts")
	each(proc, "CVE-2025-31133", atHost, "list", "/proc/timer_list")
	each(proc, "", never, "list", "/proc/kcore", "/proc/sched_debug", "/proc/kmsg", "/proc/latency_stats", "/proc/acpi", "/proc/scsi") // not on every kernel
	add(proc, "", atHost, "list", "/sys/kernel")
	each(proc, "", initAlone, "list", "/proc/1/maps", "/proc/1/fd", "/proc/1/root", "/proc/1/cwd")
	each(proc, "", never, "list", "/proc/1/environ") // the init's is empty
	add(proc, "", atHost, "kernel-addresses")
	add(proc, "CVE-2025-52881", append([]string{"masks", "read-only-proc"}, mounting...), "proc-anew")
	add(proc, "", atHost, "grep", encoded(secrets)...)
	add(proc, "", atHost, "see", append([]string{"/root", "/home/root", "/etc/shadow", "/etc/ssh", "/etc/machine-id", "/var/lib", "/var/log", "/boot", "/sys", "/media", "/srv", "/opt", "/mnt", "/run/systemd", "/run/docker.sock", "/var/run/docker.sock", "/proc/1/root/root", "/proc/self/root/etc/shadow"}, secrets...)...)

	const mounts = "mounts"
	each(mounts, "", mounting, "syscall", "mount", "umount2", "pivot_root", "chroot", "fsopen", "open_tree", "move_mount", "mount_setattr")
	add(mounts, "CVE-2025-31133", mounting, "remount")
	add(mounts, "CVE-2014-3519", atBare, "syscall", "open_by_handle_at")
	add(mounts, "CVE-2022-0492", mounting, "cgroup-mount")
	add(mounts, "CVE-2022-0492", []string{"cgroup-namespace"}, "cgroup-path")
	add(mounts, "", unfenced, "overlay-mount")
	add(mounts, "", never, "rename-walk") // a race that the kernel has closed for all roots
	each(mounts, "", []string{"read-only", "landlock", "ids", "capabilities"}, "write", "/usr/bin/env", "/bin/sh", "/etc/passwd", "/etc/ld.so.cache", "/etc/gitconfig")
	for _, flag := range []string{"nosuid", "nodev"} {
		add(mounts, "", []string{flag}, "mount-flags", flag)
	}

	const namespaces = "namespaces"
	for _, ns := range []string{"user", "mnt", "net", "pid", "ipc", "uts", "cgroup"} {
		add(namespaces, "", filter, "unshare", ns)
		add(namespaces, "", filter, "clone", ns)
	}
	add(namespaces, "", filter, "unshare", "time") // clone(2) has no such flag
	add(namespaces, "", filter, "clone3")
	add(namespaces, "", mounting, "setns")
	add(namespaces, "", filter, "syscall", "setns")

	const terminal = "terminal and session"
	add(terminal, "CVE-2017-5226", filter, "terminal-ioctl", "0x5412") // TIOCSTI
	add(terminal, "CVE-2016-2568", filter, "terminal-ioctl", "0x541c") // TIOCLINUX
	add(terminal, "", filter, "terminal-ioctl", "0x5423")              // TIOCSETD

	const signals = "signals and ptrace"
	add(signals, "", initAlone, "ptrace-init")
	add(signals, "", initAlone, "read-init")
	add(signals, "", never, "kill-init")
	add(signals, "", atHost, "processes")
	each(signals, "", filter, "syscall", "ptrace-traceme", "process_vm_readv", "kcmp")

	const calls = "system calls"
	add(calls, "", filter, "i386")
	add(calls, "", filter, "x32")
	add(calls, "", filter, "future")
	add(calls, "", filter, "user-notif")
	each(calls, "", filter, "syscall", "io_uring_setup", "modify_ldt", "personality", "move_pages")
	each(calls, "", atBare, "syscall", "bpf", "perf_event_open", "userfaultfd", "acct", "quotactl", "settimeofday",
		"clock_adjtime", "syslog", "fanotify_init", "vhangup", "swapon", "reboot", "sethostname", "setdomainname")
	each(calls, "", never, "syscall", "init_module", "finit_module", "delete_module", "kexec_load", "lookup_dcookie", "nfsservctl", "iopl", "ioperm") // not in every kernel

	const privilege = "privilege"
	add(privilege, "", atBare, "uid")
	add(privilege, "", []string{"capabilities"}, "capabilities")
	add(privilege, "", []string{"bounding-set"}, "privileges", "bounding-set")
	add(privilege, "", unfenced, "privileges", "no-new-privs")
	add(privilege, "", []string{"capabilities", "filter", "landlock"}, "setxattr", "security.capability")
	add(privilege, "", []string{"groups"}, "groups")
	each(privilege, "", []string{"filter"}, "syscall", "add_key", "request_key", "keyctl")
	add(privilege, "", atBare, "nice")
	add(privilege, "", []string{"rlimits"}, "raise-limit")
	add(privilege, "", []string{"capabilities"}, "set-mm")
	add(privilege, "", never, "oom-score") // takes CAP_SYS_RESOURCE on the host

	const sockets = "network and sockets"
	each(sockets, "", stranger, "route", "169.254.169.254:80", "192.0.2.77:53")
	const stream, datagram, raw = 1, 2, 3
	for _, s := range []struct {
		numbers [3]int
		weak    []string
	}{
		{[3]int{2, raw, 1}, atBare},         // IPv4 raw: ICMP
		{[3]int{10, raw, 58}, atBare},       // IPv6 raw
		{[3]int{15, raw, 2}, never},         // AF_KEY
		{[3]int{16, raw, 9}, filter},        // netlink: audit
		{[3]int{16, raw, 12}, filter},       // netlink: netfilter
		{[3]int{16, raw, 15}, filter},       // netlink: kobject_uevent
		{[3]int{16, raw, 16}, filter},       // netlink: generic
		{[3]int{17, raw, 768}, atBare},      // AF_PACKET
		{[3]int{40, stream, 0}, filter},     // AF_VSOCK
		{[3]int{29, raw, 1}, never},         // AF_CAN: these are not in every kernel
		{[3]int{31, raw, 1}, never},         // AF_BLUETOOTH
		{[3]int{38, 5, 0}, never},           // AF_ALG, CVE-2026-31431
		{[3]int{44, raw, 0}, never},         // AF_XDP
		{[3]int{30, datagram, 0}, never},    // AF_TIPC
		{[3]int{21, datagram, 0}, never},    // AF_RDS
		{[3]int{43, stream, 0}, never},      // AF_SMC
		{[3]int{1, stream, 1 << 16}, never}, // AF_UNIX with a protocol that does not exist
	} {
		var args []string
		for _, n := range s.numbers {
			args = append(args, strconv.Itoa(n))
		}
		add(sockets, "", s.weak, "socket", args...)
	}

	const files = "files"
	add(files, "", atBare, "mknod")
	add(files, "", atHost, "whiteout")
	add(files, "", atHost, "immutable")
	add(files, "", never, "hard-link") // the kernel makes none across mounts
	each(files, "", atHost, "setxattr", "trusted.overlay.redirect", "trusted.overlay.metacopy")
	add(files, "", []string{"devices"}, "see", "/dev/mem", "/dev/kmsg", "/dev/fuse", "/dev/loop-control")
	return table
}

// sets are the tries by what they are shown without. With capabilities a try may
// spoil the sandbox for the next: each has one of its own.
func sets(table []try) [][]int {
	var out [][]int
	at := map[string]int{}
	for i, a := range table {
		if slices.Contains([]string{bare, host, unshown}, a.weak[0]) {
			continue
		}
		key := strings.Join(a.weak, ",")
		if n, ok := at[key]; ok && !slices.Contains(a.weak, "capabilities") {
			out[n] = append(out[n], i)
			continue
		}
		at[key] = len(out)
		out = append(out, []int{i})
	}
	return out
}

// encoded hides words from the search for them in the searcher's own arguments.
func encoded(words []string) []string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = hex.EncodeToString([]byte(w))
	}
	return out
}
