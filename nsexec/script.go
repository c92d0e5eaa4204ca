package nsexec

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/replay"
	"yoi.dev/yoi-runtime/policy"
)

// Slots of the child's program.
const (
	slotRoot   replay.Slot = iota + 1 // the root tmpfs
	slotStage                         // the layers' tmpfs, dropped with the old root
	slotTree                          // the mount being attached
	slotCtx                           // a file system context
	slotFD                            // short-lived
	slotFD2                           // short-lived
	slotLogs                          // the detached log directory
	slotMaster                        // the pty
	slotSlave
	slotConsole // the log of stdout, or of a resident terminal
	slotErrors  // the pipe from stderr
	slotErrorsLog
	slotSignals
	slotTimer
	slotOutcome
	slotParent
	slotInit
	slotStdio // three
	_
	_
	slotMemoryEvents
	slotPidsEvents
	slotHold // maxHold
)

const maxHold = 16

// step is what a diagnostic says about a group of operations.
type step struct {
	what string // "… failed"
	code policy.Code
	at   string // a path of the sandbox
}

// script is the program of one launch under construction.
type script struct {
	*replay.Program
	spec  *Spec
	steps []step
	// syncFD is the child's end of the socket to the launcher.
	syncFD int
	// parentFD is a pidfd of this process, or of Spec.DieWith, or -1.
	parentFD int
	initFD   int
	outcome  int
	// setupUID and setupGID are who builds the mount tree, inside.
	setupUID, setupGID uint32
	layers             int
	// counters is where the names of Spec.Counters' files go, once they are known.
	counters [2]replay.Arg
	// pipes are those of Spec.Logs, by descriptor of the Worker: its end and PID 1's.
	pipes [3]pipe
	execs []candidate
	// stdioFD is where the Spec's Stdio are in the process; nil is where the
	// launcher has them.
	stdioFD           func(i int) int
	empty, dot, slash replay.Arg
}

// candidate is one path that the Worker's program was looked for at: the
// execve and the access check behind it.
type candidate struct{ exec, access int }

func (b *script) step(what string, code policy.Code, at string) {
	b.Tag(len(b.steps))
	b.steps = append(b.steps, step{what, code, at})
}

var atCwd = replay.N(unix.AT_FDCWD)

func num[T ~int | ~uint | ~uint32 | ~uint64 | ~uintptr | ~int32 | ~int64](v T) replay.Arg {
	return replay.N(v)
}

// build writes the whole program, in the order in which it runs.
func (b *script) build() error {
	b.empty, b.dot, b.slash = b.Str(""), b.Str("."), b.Str("/")
	b.isolate()
	b.namespaces()
	if err := b.tree(); err != nil {
		return err
	}
	b.pivot()
	b.parked()
	b.confine()
	b.openLogs()
	b.terminal()
	b.beforeFork()
	b.step("starting the Worker's process", policy.CodeLaunchFailed, "")
	fork := b.Fork(unix.SYS_CLONE, num(unix.CLONE_VM|unix.CLONE_VFORK|int(unix.SIGCHLD)), num(0), num(0), num(0), num(0))
	b.Mark()
	b.becomeInit()
	b.Child(fork)
	return b.worker()
}

// isolate takes the child out of the launcher's reach and the other way round.
func (b *script) isolate() {
	b.step("preparing the sandbox's first process", policy.CodeLaunchFailed, "")
	if b.spec.DieWithParent {
		b.dieWithParent()
	}
	// The table of descriptors was copied. What others do not need to see held open
	// meanwhile (a pipe's end, a file open for writing that someone will exec) goes.
	b.onlyOpen(b.needed())
	b.defaultSignals()
	b.Add(unix.SYS_UMASK, num(0))
}

// defaultSignals: ignored ones stay ignored over clone and exec (nohup(1), background
// jobs of a shell), and an ignored SIGCHLD would cost us the Worker's status.
func (b *script) defaultSignals() {
	ign := b.Space(32) // struct kernel_sigaction: SIG_DFL
	for sig := 1; sig <= 64; sig++ {
		if s := unix.Signal(sig); s != unix.SIGKILL && s != unix.SIGSTOP {
			b.Add(unix.SYS_RT_SIGACTION, num(sig), ign, num(0), num(8))
		}
	}
}

func (b *script) dieWithParent() {
	b.Add(unix.SYS_PRCTL, num(unix.PR_SET_PDEATHSIG), num(int(unix.SIGKILL)), num(0), num(0), num(0))
}

// needed lists the launcher's descriptors that the program uses, sorted.
func (b *script) needed() []int {
	fds := []int{b.syncFD, b.initFD, b.outcome}
	if b.parentFD >= 0 {
		fds = append(fds, b.parentFD)
	}
	add := func(fs ...*os.File) {
		for _, f := range fs {
			if f != nil {
				fds = append(fds, int(f.Fd()))
			}
		}
	}
	add(b.spec.Stdio[:]...)
	add(b.spec.Hold...)
	add(b.spec.Tasks...)
	if c := b.spec.Counters; c != nil {
		add(c.Mount)
	}
	add(b.spec.Logs.Dir.Mount)
	for _, p := range b.pipes {
		add(p.read, p.write)
	}
	for _, l := range b.spec.Plan.Layers {
		add(l.Mount)
	}
	for _, op := range b.spec.Plan.Ops {
		add(sourcesOf(op)...)
	}
	slices.Sort(fds)
	return slices.Compact(fds)
}
