package attack

import (
	"encoding/hex"
	"strconv"
)

// try is one attack with its arguments.
type try struct {
	name string
	args []string
	// weak is the set-up in which it is shown to succeed.
	weak weakness
}

// weakness is a sandbox with holes.
type weakness string

const (
	// bare: root with every capability and no filter, in namespaces of its own
	// (but for user and network), as PID 2.
	bare weakness = "bare"
	// host: no sandbox at all.
	host weakness = "host"
	// ajar: a descriptor left open across the exec.
	ajar weakness = "ajar"
	// unshown: no set-up in which it succeeds may be tried on a machine that is
	// to live on.
	unshown weakness = "unshown"
)

// tries are the attacks that need nothing but themselves. secrets are host
// paths that must be absent.
func tries(secrets []string) []try {
	table := []try{
		{"see", append([]string{"/root", "/home/root", "/etc/shadow", "/etc/ssh", "/etc/machine-id", "/etc/hostname.bak", "/var/lib", "/var/log", "/boot", "/sys", "/media", "/srv", "/opt", "/mnt", "/run/systemd", "/run/docker.sock", "/var/run/docker.sock", "/proc/1/root/root", "/proc/self/root/etc/shadow"}, secrets...), host},
		{"list", []string{"/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/timer_list", "/proc/sched_debug", "/proc/interrupts", "/proc/kmsg", "/proc/1/environ", "/proc/1/maps", "/proc/1/fd", "/proc/1/root", "/proc/1/cwd", "/dev/kmsg", "/dev/mem", "/dev/vda", "/dev/sda", "/sys/kernel", "/var/lib", "/proc/acpi", "/proc/scsi"}, host},
		{"write", []string{"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/user/max_user_namespaces", "/proc/sysrq-trigger", "/proc/irq/default_smp_affinity", "/proc/self/setgroups", "/proc/1/oom_score_adj", "/proc/1/uid_map", "/usr/bin/env", "/bin/sh", "/etc/passwd", "/etc/ld.so.cache", "/etc/gitconfig", "/dev/kmsg"}, bare},
		{"grep", encoded(secrets), host},
		{"descriptors", nil, ajar},
		{"init-descriptors", nil, bare},
		{"ptrace-init", nil, bare},
		{"kill-init", nil, unshown},
		{"processes", nil, host},
		{"setns", nil, bare},
		{"remount", nil, bare},
		{"mknod", nil, bare},
		{"clone3", nil, bare},
		{"uid", nil, bare},
		{"capabilities", nil, bare},
		{"nice", nil, bare},
	}
	for _, call := range []string{
		"mount", "umount2", "pivot_root", "chroot", "fsopen", "open_tree", "move_mount", "mount_setattr", "unshare-user",
		"unshare-mount", "unshare-net", "bpf", "perf_event_open", "io_uring_setup", "userfaultfd", "add_key", "request_key",
		"keyctl", "init_module", "finit_module", "delete_module", "kexec_load", "reboot", "swapon", "acct", "quotactl", "iopl",
		"ioperm", "modify_ldt", "settimeofday", "clock_adjtime", "syslog", "open_by_handle_at", "fanotify_init", "sethostname",
		"setdomainname", "vhangup", "personality", "ptrace-traceme", "process_vm_readv", "kcmp", "lookup_dcookie", "nfsservctl",
		"setns", "move_pages",
	} {
		table = append(table, try{"syscall", []string{call}, bare})
	}
	const stream, datagram, raw = 1, 2, 3
	for _, s := range [][3]int{
		{2, raw, 1},       // IPv4 raw: ICMP
		{10, raw, 58},     // IPv6 raw
		{15, raw, 2},      // AF_KEY
		{16, raw, 9},      // netlink: audit
		{16, raw, 12},     // netlink: netfilter
		{16, raw, 15},     // netlink: kobject_uevent
		{16, raw, 16},     // netlink: generic
		{17, raw, 768},    // AF_PACKET
		{29, raw, 1},      // AF_CAN
		{31, raw, 1},      // AF_BLUETOOTH
		{38, 5, 0},        // AF_ALG, CVE-2026-31431
		{40, stream, 0},   // AF_VSOCK
		{44, raw, 0},      // AF_XDP
		{30, datagram, 0}, // AF_TIPC
	} {
		table = append(table, try{"socket", []string{strconv.Itoa(s[0]), strconv.Itoa(s[1]), strconv.Itoa(s[2])}, bare})
	}
	return table
}

// encoded hides words from the search for them in the searcher's own arguments.
func encoded(words []string) []string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = hex.EncodeToString([]byte(w))
	}
	return out
}
