package nsexec

import (
	"path"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/replay"
	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/policy"
)

// logTree takes a detached mount of the log directory, while the host's tree is
// there: of a file opened through it the kernel has no more of the path to show
// than its name.
func (b *script) logTree() {
	b.step("opening the log directory", policy.CodeLaunchFailed, "")
	b.openTree(b.spec.Logs.Dir, false, false, 0)
	b.Add(unix.SYS_DUP, slotTree.Arg()).Save(slotLogs)
	b.Add(unix.SYS_CLOSE, slotTree.Arg())
}

// openLogs opens the files as the Worker: through an idmapped mount nobody else
// may be mapped.
func (b *script) openLogs() {
	l := b.spec.Logs
	if l.Dir == (mounts.Source{}) {
		return
	}
	b.step("opening the log files", policy.CodeLaunchFailed, "")
	how := replay.Struct(b.Program, unix.OpenHow{Flags: unix.O_WRONLY | unix.O_APPEND | unix.O_CREAT | unix.O_CLOEXEC, Mode: 0o600,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS})
	open := func(name string, slot replay.Slot) {
		b.Add(unix.SYS_OPENAT2, slotLogs.Arg(), b.Str(name), how, num(unix.SizeofOpenHow)).Save(slot).Retry()
	}
	if b.spec.Resident || b.logged(1) {
		open(l.Stdout, slotConsole)
	}
	if b.logged(2) {
		open(l.Stderr, slotErrorsLog)
	}
	b.Add(unix.SYS_CLOSE, slotLogs.Arg())
}

// ptmx is the plan's own pty multiplexer, or "".
func ptmx(p mounts.Plan) string {
	for _, op := range p.Ops {
		switch o := op.(type) {
		case mounts.DevPts:
			return path.Join(o.Target, "ptmx")
		case mounts.Dev:
			return path.Join(o.Target, "pts/ptmx")
		}
	}
	return ""
}

// terminal makes a pty of the sandbox's devpts, so that ttyname(3) works
// inside, and sends the master to the launcher.
func (b *script) terminal() {
	if !b.spec.Terminal {
		return
	}
	b.step("allocating the terminal", policy.CodeLaunchFailed, "")
	message, control := b.message("t", 1)
	b.Add(unix.SYS_OPENAT, atCwd, b.Str(ptmx(b.spec.Plan)), num(unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC), num(0)).
		Save(slotMaster).Store(control, rightsAt)
	b.Add(unix.SYS_IOCTL, slotMaster.Arg(), num(unix.TIOCSPTLCK), b.Space(4))
	if w := b.spec.Winsize; w.Rows != 0 || w.Cols != 0 {
		b.Add(unix.SYS_IOCTL, slotMaster.Arg(), num(unix.TIOCSWINSZ), replay.Struct(b.Program, unix.Winsize{Row: w.Rows, Col: w.Cols}))
	}
	b.Add(unix.SYS_IOCTL, slotMaster.Arg(), num(unix.TIOCGPTPEER), num(unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)).Save(slotSlave)
	if b.spec.Resident {
		return
	}
	b.Add(unix.SYS_SENDMSG, num(b.syncFD), message, num(unix.MSG_NOSIGNAL)).Expect(1)
	b.Add(unix.SYS_CLOSE, slotMaster.Arg())
}

// rightsAt is where the first descriptor stands in a message's control data (cmsg(3)).
const rightsAt = unix.SizeofCmsghdr

// message is one for the launcher with n descriptors, to be stored from rightsAt of
// control on.
func (b *script) message(text string, n int) (message, control replay.Arg) {
	control = b.Space(unix.CmsgSpace(4 * n))
	replay.Put(b.Program, control, unix.Cmsghdr{Len: uint64(unix.CmsgLen(4 * n)), Level: unix.SOL_SOCKET, Type: unix.SCM_RIGHTS})
	iov := replay.Struct(b.Program, [2]uint64{replay.Address(b.Str(text)), uint64(len(text))})
	return replay.Struct(b.Program, [7]uint64{0, 0, replay.Address(iov), 1, replay.Address(control), uint64(unix.CmsgSpace(4 * n)), 0}), control
}

// beforeFork opens what PID 1 needs as the init and looks a last time whether
// the launcher still lives.
func (b *script) beforeFork() {
	b.step("preparing the sandbox's init", policy.CodeLaunchFailed, "")
	b.Add(unix.SYS_SIGNALFD4, num(-1), replay.Struct(b.Program, ^uint64(0)), num(8), num(unix.SFD_CLOEXEC)).Save(slotSignals)
	if d := b.spec.WallClock; d > 0 {
		b.Add(unix.SYS_TIMERFD_CREATE, num(unix.CLOCK_MONOTONIC), num(unix.TFD_CLOEXEC)).Save(slotTimer)
		b.Add(unix.SYS_TIMERFD_SETTIME, slotTimer.Arg(), num(0),
			replay.Struct(b.Program, unix.ItimerSpec{Value: unix.NsecToTimespec(d.Nanoseconds())}), num(0))
	}
	if b.parentFD >= 0 {
		fds := replay.Struct(b.Program, unix.PollFd{Fd: int32(b.parentFD), Events: unix.POLLIN})
		b.Add(unix.SYS_PPOLL, fds, num(1), replay.Struct(b.Program, unix.Timespec{}), num(0), num(8)).Expect(0)
	}
}

// counterFD is where those of Spec.Counters are: behind all that can be held, whose
// numbers other processes look at (FirstHold).
const counterFD = FirstHold + maxHold

// becomeInit puts the init's descriptors where init_amd64.s expects them, and
// those to hold behind them, and executes it. All else is close-on-exec.
func (b *script) becomeInit() {
	b.step("starting the sandbox's init", policy.CodeLaunchFailed, "")
	type place struct {
		slot replay.Slot
		fd   replay.Arg
		used bool
	}
	places := []place{
		{slotSignals, slotSignals.Arg(), true},
		{slotOutcome, num(b.outcome), true},
		{slotTimer, slotTimer.Arg(), b.spec.WallClock > 0},
		{slotParent, num(b.parentFD), b.parentFD >= 0},
		{slotMaster, slotMaster.Arg(), b.spec.Resident},
		{slotConsole, slotConsole.Arg(), b.spec.Resident || b.logged(1)},
		{slotSlave, slotSlave.Arg(), b.spec.Resident},
		{slotErrors, replay.Arg{}, b.logged(2)},
		{slotErrorsLog, slotErrorsLog.Arg(), b.logged(2)},
	}
	if b.logged(1) {
		places[4].fd, places[4].used = num(b.pipes[1].read.Fd()), true
	}
	if b.logged(2) {
		places[7].fd = num(b.pipes[2].read.Fd())
	}
	for i, f := range b.spec.Hold {
		p := places[0]
		p.slot, p.fd = slotHold+replay.Slot(i), num(f.Fd())
		places = append(places, p)
	}
	if b.spec.Counters != nil {
		for len(places) < counterFD {
			places = append(places, place{})
		}
		places = append(places, place{slotMemoryEvents, slotMemoryEvents.Arg(), true}, place{slotPidsEvents, slotPidsEvents.Arg(), true})
	}
	// First all away from the final numbers, then to them.
	b.Add(unix.SYS_FCNTL, num(b.initFD), num(unix.F_DUPFD_CLOEXEC), num(len(places))).Save(slotInit)
	for _, p := range places {
		if p.used {
			b.Add(unix.SYS_FCNTL, p.fd, num(unix.F_DUPFD_CLOEXEC), num(len(places))).Save(p.slot)
		}
	}
	for i, p := range places {
		if p.used {
			b.Add(unix.SYS_DUP3, p.slot.Arg(), num(i), num(0))
		} else {
			b.Add(unix.SYS_CLOSE, num(i)).Tolerant()
		}
	}
	b.Add(unix.SYS_CLOSE_RANGE, num(len(places)), num(^uint32(0)), num(unix.CLOSE_RANGE_CLOEXEC))
	b.Add(unix.SYS_EXECVEAT, slotInit.Arg(), b.empty, b.Strs([]string{InitName}), b.Strs(b.logLimit()), num(unix.AT_EMPTY_PATH))
}
