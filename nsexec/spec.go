package nsexec

import (
	"net/netip"
	"os"
	"time"

	"yoi.dev/yoi-runtime/mounts"
)

// IDMap is a line of uid_map or gid_map.
type IDMap = mounts.IDMap

// DefaultID is the Worker's uid and gid inside every sandbox.
const DefaultID = 1000

// InitName is all of the command line of every sandbox's PID 1. TerminalFD is
// where it has the master of a resident terminal, FirstHold the first of Spec.Hold: in
// this version, while a sandbox may be of an older one.
const (
	InitName   = "yoi-init"
	TerminalFD = 4
	FirstHold  = 9
)

// Spec is everything that one launch needs. Launch reads it only.
type Spec struct {
	// Argv is the command. A name without a slash is looked up along Env's PATH,
	// inside the sandbox.
	Argv []string
	// Env is the whole environment, as NAME=VALUE. Nothing is inherited.
	Env []string
	// SecretEnv are variables whose values are not to be in Go's strings. They go
	// before Env's of the same names, and are read at the launch only.
	SecretEnv []SecretVar
	// CwdRoot is an absolute path of the sandbox ("" is /); RelativeCwd is resolved
	// beneath it by the kernel.
	CwdRoot, RelativeCwd string

	// Stdio are the Worker's descriptors 0, 1 and 2. A nil entry is the pty when
	// Terminal is set, else Logs, else the sandbox's /dev/null.
	Stdio [3]*os.File
	// Terminal allocates a pty of the sandbox's own devpts (Plan needs a Dev or
	// DevPts), makes it the controlling terminal and returns its master as
	// Process.Terminal.
	Terminal bool
	// Resident leaves the master with PID 1, as TerminalFD, for the sandbox's life: it
	// copies what the terminal shows to the log Logs.Stdout, and whoever may take
	// descriptors from it (pidfd_getfd(2)) can type and resize. Nobody but PID 1 may
	// read it.
	Resident bool
	// Winsize is the pty's first size; zero leaves the kernel's.
	Winsize struct{ Rows, Cols uint16 }
	// Logs, when Dir is set, are files for those of descriptors 1 and 2 whose Stdio
	// is nil. The Worker has pipes, whose other ends are PID 1's.
	Logs Logs

	// Plan is the sandbox's root file system.
	Plan mounts.Plan
	// UIDMap and GIDMap are the user namespace's maps; nil maps UID (and GID) to
	// the caller's own effective ids, without any privilege.
	UIDMap, GIDMap []IDMap
	// MapPrograms are newuidmap and newgidmap, for a caller that may not write the maps
	// itself. The Worker's id is the caller's own, then, which also builds the root.
	MapPrograms *[2]string
	// UID and GID are the Worker's ids inside; zero is DefaultID.
	UID, GID    uint32
	Hostname    string // "" is "worker"
	HostNetwork bool   // share the host's network namespace
	// Network is a network namespace of NewNetwork's for this sandbox alone, or
	// another that its program is to be in. Nil
	// makes one, which costs the launch half a millisecond.
	Network *os.File
	// Listen are sockets to open in the sandbox's own network, at addresses of its
	// loopback interface, before anything of the Worker's runs. Listening gets them
	// in that order, with a pidfd of the sandbox's PID 1; the Worker is not started
	// if it fails. The files stay owned by Launch.
	Listen    []Listen
	Listening func(sockets []*os.File, pidfd *os.File) error
	// Landlock is nil for none. One that the kernel cannot apply fails the launch.
	Landlock *Landlock
	// Filter is the seccomp program as raw struct sock_filter entries. Empty means
	// no filter; only tests want that.
	Filter []byte
	// Notify makes Process.Notifications of the filter, which answers with
	// SECCOMP_RET_USER_NOTIF (seccomp.Notifying). Whoever takes it must answer, or
	// close it.
	Notify bool

	// UserLimits need a Proc in the Plan.
	UserLimits  []UserLimit
	Rlimits     []Rlimit
	Nice        int // never less than the launcher's own
	OOMScoreAdj int
	Umask       uint32 // 0 is 022

	// WallClock ends the Worker with SIGKILL; zero is no limit.
	WallClock time.Duration
	// DieWithParent ends the sandbox when the calling process ends, however.
	DieWithParent bool
	// DieWith, a pidfd, ends the sandbox when that process ends. It excludes
	// DieWithParent.
	DieWith *os.File
	// Hold are descriptors that PID 1 keeps open until the sandbox has ended:
	// flock(2)ed files, which tell others that it lives.
	Hold []*os.File
	// Outcome receives the outcome record from PID 1, which does not sync it. Nil keeps it in
	// memory, for Wait only.
	Outcome *os.File
	// Parked, if set, is called with the sandbox's PID 1 before the Worker is
	// started, and the sandbox goes on when it returns nil. It is where a scope is
	// made. The pidfd stays owned by Launch.
	Parked func(pid int, pidfd *os.File) error
	// Counters has PID 1 put what its control group has counted into the outcome. Where
	// a service manager made the group, it takes it away with its last process, before
	// anybody outside could look.
	Counters *Counters
	// Cgroup, a directory of cgroup2, is where PID 1 is born (CLONE_INTO_CGROUP).
	Cgroup *os.File
	// Tasks are the files tasks of cgroup v1 groups, open for writing, into which PID 1
	// writes itself after Parked. A thread that moves only itself does not wait for an
	// RCU grace period, as whoever moves another process does (cgroup_procs_write_start
	// in kernel/cgroup/cgroup.c, since Linux 5.5).
	Tasks []*os.File
}

// UserLimit bounds what the sandbox's user namespace may have of something that the
// kernel counts by user: Name is an entry of /proc/sys/user (namespaces(7)). It is
// counted again for whoever made the namespace, so that without a bound of its own a
// sandbox can take all that there is for its launcher, and for every other sandbox of
// the same launcher.
type UserLimit struct {
	Name string
	Max  int32
}

// Counters is a control group whose memory.events and pids.events, those that there
// are, PID 1 opens once Parked has returned.
type Counters struct {
	// Mount is a directory of cgroup2, which may be a descriptor of O_PATH.
	Mount *os.File
	// Group is the group below it, for Parked to set. Empty is none.
	Group string
}

// maxTasks bounds Spec.Tasks: there are not as many controllers that limit.
const maxTasks = 8

// SecretVar is a variable of the environment. Value is the caller's to wipe.
type SecretVar struct {
	Name  string
	Value []byte
}

// Logs names files in a directory of the host.
type Logs struct {
	Dir            mounts.Source
	Stdout, Stderr string // names; opened O_APPEND, made 0600 if absent
	// Limit bounds what each has of the disk: of more, the first half and the newest
	// of the rest stay (LogGap). At least MinLog; 0 is none.
	Limit uint64
}

// Listen is a listening TCP socket, or a bound UDP one.
type Listen struct {
	Addr netip.AddrPort // IPv4
	UDP  bool
}

// Rlimit is one setrlimit(2).
type Rlimit struct {
	Resource   int
	Soft, Hard uint64
}
