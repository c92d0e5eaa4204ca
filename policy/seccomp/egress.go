package seccomp

import (
	"yoi.dev/yoi-runtime/policy"
)

// egressName is the file of the filter of yoi-egress, which is no Worker's profile.
const egressName = "egress"

// Egress is the filter of the program yoi-egress: what a Go program with sockets of
// the internet's families needs, and nothing with which it could start, trace or
// signal anything, or reach a socket of the host's by name. execve is in it because
// the filter is there before the program.
func Egress() Profile {
	return Profile{
		Name: egressName,
		Groups: []Group{
			{Name: "memory, threads and time of a Go program", Rules: allow(`brk mmap munmap mremap mprotect madvise mincore
				futex set_robust_list rseq sched_yield sched_getaffinity set_tid_address arch_prctl gettid getpid
				rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack tgkill restart_syscall
				nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday getrandom uname prlimit64 getrlimit
				execve exit exit_group prctl mlock`)},
			{Name: "threads", Rules: decide("clone", choice{arg: 0, mask: cloneNewMask, branches: []branch{{values: []uint64{0}, action: Allow}}, otherwise: Errno(ePERM)})},
			{Name: "its files", Rules: allow(`openat read write pread64 close fstat newfstatat lseek fcntl getuid geteuid getgid getegid`)},
			{Name: "waiting and moving", Rules: allow(`epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 eventfd2 pipe2 splice ppoll poll`)},
			{Name: "using sockets", Rules: allow(`bind connect accept4 getsockname getpeername shutdown sendto recvfrom sendmsg recvmsg setsockopt getsockopt`)},
			{Name: "making sockets", Rules: decide("socket", choice{
				arg: 0, mask: low32,
				branches:  []branch{{values: []uint64{afInet, afInet6}, action: Allow}},
				otherwise: Errno(eAFNOSUPPORT),
			})},
		},
	}.complete()
}

// EgressFilter is Egress, compiled.
func EgressFilter() ([]byte, error) {
	b, err := builtin.ReadFile(builtinDir + egressName + ".bpf")
	if err != nil {
		return nil, policy.Errorf(policy.CodeSeccompUnavailable, "seccomp.filter", "there is no built-in filter for this processor architecture").
			With("profile", egressName).Because(err)
	}
	return b, nil
}
