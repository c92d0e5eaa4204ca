// Package nsexec starts a program in a sandbox of its own: new user, pid,
// mount, network, IPC, UTS and cgroup namespaces, a root file system made of
// exactly what a mounts.Plan names, no capability, no descriptor but 0, 1 and
// 2, and a system call filter.
//
// # Why it is made like this
//
// A second start of a Go program between clone and exec costs as much as all
// of bubblewrap, so there is none. The launcher writes the whole set-up down as
// a list of raw system calls, which a child that shares its memory replays
// (package internal/replay). The order is
//
//	launcher                      PID 1                            Worker
//	clone3(NEWUSER|NEWPID) ─────▶ close what is not needed
//	write the id maps             unshare the other namespaces
//	                              mount propagation private
//	release ────────────────────▶ become the sandbox's uid 0 or the only uid
//	                              new root on a tmpfs, all mounts by descriptor
//	                              pivot_root, old root detached, root read-only
//	Parked(pid), release ───────▶ control groups, cgroup namespace
//	                              capabilities, ids, no_new_privs, keyring
//	                              clone(VFORK) ──────────────────▶ setsid, limits, stdio
//	                                                              cwd beneath its root
//	                                                              close_range, filter
//	                              exec of the init ◀───────────── exec of the command
//	Launch returns                reap, forward signals, keep time
//
// The filter comes last, since it may refuse what comes before it. The kernel
// itself tells the launcher when the child has left the shared memory
// (CLONE_CHILD_CLEARTID), and an operation that failed is named by a typed
// diagnostic.
//
// # PID 1
//
// The init is 700 bytes of machine code in a sealed memory file. It reaps,
// forwards signals from outside to the Worker's process group, kills everything
// when the wall clock runs out or the Worker has ended, and writes the outcome
// record, so that an outcome reaches the disk whoever else has died. It is out
// of the Worker's reach at every moment: until its exec it has a capability
// that the Worker lacks (ptrace(2)), from its exec on it is not dumpable because
// its file is unreadable, and proc is mounted with hidepid=invisible.
//
// # Entering
//
// Enter runs a command in a running sandbox, as another list of system calls, in a
// process that shares no memory with the launcher (replay.NewDetached): see there, and
// enter.go, for why. From the moment in which it has the Worker's uid in the Worker's
// pid namespace, the Worker can stop or kill it, but neither see nor trace it.
//
// # Lifetime
//
// With DieWithParent the sandbox ends with the launcher, however that dies: by
// the parent-death signal of the launching thread, which is kept for that, and
// because PID 1 watches a pidfd of the launcher (a parent that dies before the
// signal is set would be missed otherwise, prctl(2)). Without it the sandbox
// goes on, and SignalPidfd reaches it by any pidfd of its PID 1.
//
// # What it does not promise
//
// A kernel bug reachable through the allowed calls ends the isolation. Without
// an id range (Spec.UIDMap nil) the Worker has the caller's own uid: whatever
// the plan shows it, it may do what the caller may do there. Supplementary
// groups can then not be dropped (setgroups is denied in such namespaces), so
// they keep giving access to what the plan shows. The path in the fourth field
// of /proc/self/mountinfo is the kernel's to show: package mounts says how to
// avoid it. A Stdio descriptor that was opened by a host path shows that path in
// /proc/self/fd: use Logs or pipes. Without Landlock's restriction of files (an
// old kernel, or Workers that mount) a command or script whose interpreter is
// /proc/self/exe runs the launcher's program inside, whose file a Worker with the
// caller's own uid may write to once no launcher runs it: install it as root.
//
// A launcher with an id range becomes non-dumpable by its first launch, because
// the child changes its ids while it shares the launcher's memory
// (PR_SET_DUMPABLE in prctl(2)); for a privileged process that is as it should
// be.
package nsexec
