package nsexec

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/replay"
	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/policy"
)

// worker is what the second process does: from here on only the Worker's own
// properties are set, and its program is executed.
func (b *script) worker() error {
	s := b.spec
	b.step("preparing the Worker's process", policy.CodeLaunchFailed, "")
	if s.OOMScoreAdj != 0 {
		b.oomScore()
	}
	return b.command(-1)
}

// command is what the Worker and a session of it have in common, down to the
// execution of their program. The descriptor kept, if there is one, is closed by
// that, and the last capability, which keeps other processes of the sandbox from
// tracing this one, is taken away by that.
func (b *script) command(keep int) error {
	s := b.spec
	b.Add(unix.SYS_SETSID)
	b.step("setting the limits", policy.CodeLimitsInvalid, "")
	if s.Nice > niceValue() { // lowering it needs a privilege: the launcher's own value stays
		b.Add(unix.SYS_SETPRIORITY, num(unix.PRIO_PROCESS), num(0), num(s.Nice))
	}
	for _, r := range s.Rlimits {
		b.Add(unix.SYS_PRLIMIT64, num(0), num(r.Resource), replay.Struct(b.Program, unix.Rlimit{Cur: r.Soft, Max: r.Hard}), num(0))
	}
	mask := s.Umask
	if mask == 0 {
		mask = 0o022
	}
	b.Add(unix.SYS_UMASK, num(mask))
	b.stdio()
	b.cwd()
	if err := b.landlock(); err != nil {
		return err
	}
	if keep < 0 {
		b.step("dropping the last capability", policy.CodeLaunchFailed, "")
		b.capset(0)
	}
	if s.Notify {
		b.listener()
	}
	b.step("closing the launcher's descriptors", policy.CodeLaunchFailed, "")
	if keep >= 0 {
		b.Add(unix.SYS_FCNTL, num(keep), num(unix.F_SETFD), num(unix.FD_CLOEXEC))
		b.Add(unix.SYS_CLOSE_RANGE, num(keep+1), num(^uint32(0)), num(0))
	} else {
		b.Add(unix.SYS_CLOSE_RANGE, num(3), num(^uint32(0)), num(0))
	}
	b.Add(unix.SYS_RT_SIGPROCMASK, num(unix.SIG_SETMASK), replay.Struct(b.Program, uint64(0)), num(0), num(8))
	if len(s.Filter) > 0 && !s.Notify {
		b.filter(0)
	}
	b.exec()
	return nil
}

func (b *script) filter(flags int) replay.Call {
	b.step("loading the system call filter", policy.CodeSeccompInvalid, "")
	f := b.spec.Filter
	prog := replay.Struct(b.Program, [2]uint64{uint64(len(f) / 8), replay.Address(b.Bytes(f))})
	return b.Add(unix.SYS_SECCOMP, num(unix.SECCOMP_SET_MODE_FILTER), num(flags), prog)
}

// listener loads the filter a little earlier and sends its listener to the
// launcher. What comes between it and the exec every profile allows.
func (b *script) listener() {
	message, control := b.message("l", 1)
	b.filter(unix.SECCOMP_FILTER_FLAG_NEW_LISTENER).Store(control, rightsAt)
	b.Add(unix.SYS_SENDMSG, num(b.syncFD), message, num(unix.MSG_NOSIGNAL)).Expect(1)
}

// niceValue is the launcher's own, which the Worker inherits.
func niceValue() int {
	v, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return 0
	}
	return 20 - v // getpriority(2): the raw call returns 20 - nice
}

// oomScore sets oom_score_adj. With an id range only the launcher may write it.
func (b *script) oomScore() {
	b.step("setting the OOM score", policy.CodeLimitsInvalid, "")
	if !b.spec.ownID() {
		b.Add(unix.SYS_WRITE, num(b.syncFD), b.Str("o"), num(1)).Expect(1)
		b.waitForLauncher()
		return
	}
	v := strconv.Itoa(b.spec.OOMScoreAdj)
	b.Add(unix.SYS_OPENAT, atCwd, b.Str(procOf(b.spec.Plan)+"/self/oom_score_adj"), num(unix.O_WRONLY|unix.O_CLOEXEC), num(0)).Save(slotFD)
	b.Add(unix.SYS_WRITE, slotFD.Arg(), b.Str(v), num(len(v))).Expect(uint64(len(v)))
}

// procOf is where the plan has its proc, or "".
func procOf(p mounts.Plan) string {
	for _, op := range p.Ops {
		if o, ok := op.(mounts.Proc); ok {
			return o.Target
		}
	}
	return ""
}

// stdio puts the three descriptors in place, by way of higher numbers, since
// they may be any permutation of 0, 1 and 2 in the launcher.
func (b *script) stdio() {
	s := b.spec
	b.step("setting up the standard descriptors", policy.CodeLaunchFailed, "")
	for i, f := range s.Stdio {
		slot := slotStdio + replay.Slot(i)
		dup := func(fd replay.Arg) {
			b.Add(unix.SYS_FCNTL, fd, num(unix.F_DUPFD_CLOEXEC), num(3)).Save(slot)
		}
		switch {
		case f != nil && b.stdioFD != nil:
			dup(num(b.stdioFD(i)))
		case f != nil:
			dup(num(f.Fd()))
		case s.Terminal:
			dup(slotSlave.Arg())
		case b.logged(i):
			dup(num(b.pipes[i].write.Fd()))
		default:
			b.Add(unix.SYS_OPENAT, atCwd, b.Str("/dev/null"), num(unix.O_RDWR|unix.O_CLOEXEC), num(0)).Save(slot)
			dup(slot.Arg())
		}
	}
	for i := range s.Stdio {
		b.Add(unix.SYS_DUP3, (slotStdio + replay.Slot(i)).Arg(), num(i), num(0))
	}
	if s.Terminal {
		b.Add(unix.SYS_IOCTL, slotSlave.Arg(), num(unix.TIOCSCTTY), num(0))
	}
}

// cwd resolves the working directory as the Worker, in the finished sandbox:
// the kernel itself refuses to leave CwdRoot, whatever the tree holds and
// however it changes meanwhile.
func (b *script) cwd() {
	s := b.spec
	root := s.CwdRoot
	if root == "" {
		root = "/"
	}
	b.step("opening the working directory's root", policy.CodeLaunchFailed, root)
	b.Add(unix.SYS_OPENAT, atCwd, b.Str(root), num(unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC), num(0)).Save(slotFD)
	b.step("entering the working directory", policy.CodeCwdMissing, s.RelativeCwd)
	if rel := s.RelativeCwd; rel != "" && rel != "." {
		how := replay.Struct(b.Program, unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS})
		b.Add(unix.SYS_OPENAT2, slotFD.Arg(), b.Str(rel), how, num(unix.SizeofOpenHow)).Save(slotFD).Retry()
	}
	b.Add(unix.SYS_FCHDIR, slotFD.Arg())
}

const defaultPath = "/usr/local/bin:/usr/bin:/bin"

// maxCandidates bounds the search along PATH.
const maxCandidates = 64

// candidates lists the paths that execvp(3) would try.
func candidates(name string, env []string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	search := defaultPath
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			search = v
		}
	}
	var out []string
	for _, dir := range strings.Split(search, ":") {
		if len(out) == maxCandidates {
			break
		}
		if dir == "" {
			dir = "." // as POSIX has it
		}
		out = append(out, strings.TrimSuffix(dir, "/")+"/"+name)
	}
	return out
}

// environment is Env and the secret variables, whose values are copied from the
// caller's memory to the program's and nowhere else.
func (b *script) environment() replay.Arg {
	secrets := b.spec.SecretEnv
	if len(secrets) == 0 {
		return b.Strs(b.spec.Env)
	}
	isSecret := make(map[string]bool, len(secrets))
	for _, v := range secrets {
		isSecret[v.Name] = true
	}
	var entries []replay.Arg
	for _, kv := range b.spec.Env {
		if name, _, _ := strings.Cut(kv, "="); !isSecret[name] {
			entries = append(entries, b.Str(kv))
		}
	}
	for _, v := range secrets {
		entries = append(entries, b.Join([]byte(v.Name), []byte("="), v.Value, []byte{0}))
	}
	return b.Pointers(entries)
}

// exec tries each candidate; the access check behind it tells a missing
// program from one whose interpreter is missing.
func (b *script) exec() {
	b.step("executing the command", policy.CodeCommandNotFound, "")
	argv, env := b.Strs(b.spec.Argv), b.environment()
	for _, c := range candidates(b.spec.Argv[0], b.spec.Env) {
		name := b.Str(c)
		at := candidate{exec: b.Next()}
		b.Add(unix.SYS_EXECVE, name, argv, env).
			Tolerate(uint16(unix.ENOENT), uint16(unix.ENOTDIR), uint16(unix.EACCES), uint16(unix.ENAMETOOLONG))
		at.access = b.Next()
		b.Add(unix.SYS_FACCESSAT, atCwd, name, num(unix.F_OK)).Tolerant()
		b.execs = append(b.execs, at)
	}
	// None of them: fail at this step, without an errno of its own.
	b.Add(unix.SYS_GETPID).Expect(0)
}
