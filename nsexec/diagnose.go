package nsexec

import (
	"errors"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/replay"
	"yoi.dev/yoi-runtime/policy"
)

// callNames are the calls that a kernel, or a filter around the launcher, may
// not have. Others are named by number.
var callNames = map[uintptr]string{
	unix.SYS_UNSHARE: "unshare", unix.SYS_FSOPEN: "fsopen", unix.SYS_FSCONFIG: "fsconfig", unix.SYS_FSMOUNT: "fsmount",
	unix.SYS_OPEN_TREE: "open_tree", unix.SYS_MOVE_MOUNT: "move_mount", unix.SYS_MOUNT_SETATTR: "mount_setattr",
	unix.SYS_OPENAT2: "openat2", unix.SYS_CLOSE_RANGE: "close_range", unix.SYS_SECCOMP: "seccomp",
	unix.SYS_PIVOT_ROOT: "pivot_root", unix.SYS_UMOUNT2: "umount2", unix.SYS_EXECVEAT: "execveat", unix.SYS_EXECVE: "execve",
	unix.SYS_SIGNALFD4: "signalfd4", unix.SYS_TIMERFD_CREATE: "timerfd_create", unix.SYS_PPOLL: "ppoll",
	unix.SYS_PRCTL: "prctl", unix.SYS_CAPSET: "capset", unix.SYS_KEYCTL: "keyctl", unix.SYS_SETHOSTNAME: "sethostname",
	unix.SYS_OPENAT: "openat", unix.SYS_MKDIRAT: "mkdirat", unix.SYS_PRLIMIT64: "prlimit64", unix.SYS_SETPRIORITY: "setpriority",
	unix.SYS_WRITE: "write", unix.SYS_READ: "read", unix.SYS_IOCTL: "ioctl", unix.SYS_FCHDIR: "fchdir", unix.SYS_SYMLINKAT: "symlinkat",
	unix.SYS_LANDLOCK_CREATE_RULESET: "landlock_create_ruleset", unix.SYS_LANDLOCK_ADD_RULE: "landlock_add_rule",
	unix.SYS_LANDLOCK_RESTRICT_SELF: "landlock_restrict_self",
	unix.SYS_SETRESUID:              "setresuid", unix.SYS_SETNS: "setns", unix.SYS_SETRESGID: "setresgid", unix.SYS_SETGROUPS: "setgroups", unix.SYS_CLONE: "clone", unix.SYS_FCNTL: "fcntl", unix.SYS_DUP3: "dup3",
}

func callName(nr uintptr) string {
	if n, ok := callNames[nr]; ok {
		return n
	}
	return "system call " + strconv.Itoa(int(nr))
}

// failed is a failure on the launcher's own side.
func failed(call string, err error) error {
	if errors.Is(err, unix.ENOSYS) {
		return featureMissing(call, err)
	}
	return policy.Errorf(policy.CodeLaunchFailed, opLaunch, "%s failed: %v", call, err).
		With("call", call).Because(os.NewSyscallError(call, err))
}

func featureMissing(call string, err error) *policy.Diagnostic {
	return policy.Errorf(policy.CodeKernelFeatureMissing, opLaunch, "the kernel lacks %s, or a filter hides it", call).
		With("feature", call).Because(os.NewSyscallError(call, err))
}

// cloneFailed explains clone3's errno.
func cloneFailed(err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return policy.Errorf(policy.CodeLaunchFailed, opLaunch, "the sandbox's first process could not be prepared").Because(err)
	}
	const what = "the sandbox's first process could not be made: %v"
	switch errno {
	case unix.ENOSYS:
		return featureMissing("clone3", errno)
	case unix.EPERM, unix.ENOSPC, unix.EUSERS, unix.EINVAL:
		return policy.Errorf(policy.CodeNamespacesUnavailable, opLaunch, what, errno).With("call", "clone3").Because(err)
	}
	return policy.Errorf(policy.CodeLaunchFailed, opLaunch, what, errno).With("call", "clone3").Because(err)
}

// verdict decides, when the child has left our memory, whether the Worker runs.
// On failure the sandbox is reaped before its memory may be used again.
func (l *launching) verdict(attended error) error {
	f := l.child.Failure()
	if attended == nil && f == nil && l.child.Marked() {
		return nil
	}
	if _, err := l.process.waitid(); err != nil && attended == nil {
		attended = failed("waitid", err)
	}
	switch {
	case l.ctx.Err() != nil:
		return policy.Errorf(policy.CodeCanceled, opLaunch, "the launch was canceled").Because(l.ctx.Err())
	case f != nil && !(attended != nil && f.NR == unix.SYS_READ):
		return l.diagnose(f)
	case attended != nil:
		return attended
	}
	return policy.Errorf(policy.CodeLaunchFailed, opLaunch, "the sandbox was killed while it was started")
}

// diagnose turns the failed operation into what the user has to know.
func (b *script) diagnose(f *replay.Failure) error {
	st := b.steps[f.Tag]
	var cause error
	if f.Errno != 0 {
		cause = os.NewSyscallError(callName(f.NR), f.Errno)
	}
	switch {
	case f.Errno == unix.ENOSYS:
		return featureMissing(callName(f.NR), f.Errno).With("step", st.what)
	case st.code == policy.CodeCwdMissing:
		return cwdFailed(f, st, cause)
	case st.code == policy.CodeCommandNotFound:
		return b.execFailed(f, cause)
	}
	code := st.code
	if f.NR == unix.SYS_FACCESSAT2 && f.Errno == unix.EROFS {
		return policy.Errorf(policy.CodeDiskFull, opLaunch, "there is no room for what overlayfs makes at a mount: it could only be mounted read-only").With("target", st.at)
	}
	if f.NR == unix.SYS_FSCONFIG { // overlayfs writes into its work directory when it is made
		switch f.Errno {
		case unix.ENOSPC:
			code = policy.CodeDiskFull
		case unix.EDQUOT:
			code = policy.CodeQuotaExceeded
		}
	}
	d := policy.Errorf(code, opLaunch, "%s failed: %s", st.what, reason(f)).With("call", callName(f.NR)).Because(cause)
	if st.at != "" {
		d.With("target", st.at)
	}
	return d
}

func reason(f *replay.Failure) string {
	if f.Errno == 0 {
		return "an unexpected result of " + callName(f.NR)
	}
	return f.Errno.Error()
}

func cwdFailed(f *replay.Failure, st step, cause error) error {
	code, why := policy.CodeLaunchFailed, "cannot be entered: "+reason(f)
	switch f.Errno {
	case unix.EXDEV, unix.ELOOP:
		code, why = policy.CodeCwdSymlinkEscape, "leads out of the workspace by a symbolic link, or in a circle"
	case unix.ENOENT, unix.ENAMETOOLONG:
		code, why = policy.CodeCwdMissing, "does not exist"
	case unix.ENOTDIR:
		code, why = policy.CodeCwdNotDirectory, "is not a directory"
	case unix.EACCES:
		code, why = policy.CodeCwdMissing, "cannot be entered by the Worker"
	}
	return policy.Errorf(code, opLaunch, "relative_cwd %q %s", policy.Printable(st.at), why).With("relative_cwd", st.at).Because(cause)
}

// execFailed tells apart, as a shell does, what is missing from what cannot run.
func (b *script) execFailed(f *replay.Failure, cause error) error {
	name := b.spec.Argv[0]
	d := func(code policy.Code, why string) error {
		return policy.Errorf(code, opLaunch, "%q %s", policy.Printable(name), why).With("command", name).Because(cause)
	}
	switch f.Errno {
	case 0:
	case unix.ENOEXEC:
		return d(policy.CodeCommandNotExecutable, "is neither a program of this machine nor a script with an interpreter line")
	case unix.EINVAL, unix.EISDIR, unix.ETXTBSY, unix.ELIBBAD, unix.ELOOP, unix.EPERM:
		return d(policy.CodeCommandNotExecutable, "cannot be executed: "+f.Errno.Error())
	case unix.E2BIG:
		return d(policy.CodeCommandInvalid, "has arguments and an environment that are too large together")
	default:
		return policy.Errorf(policy.CodeLaunchFailed, opLaunch, "executing the command failed: %v", f.Errno).Because(cause)
	}
	for _, c := range b.execs {
		switch result := syscall.Errno(-b.Result(c.exec)); {
		case result == unix.EACCES:
			return d(policy.CodeCommandNotExecutable, "is not executable")
		case result == unix.ENOENT && b.Result(c.access) == 0:
			return d(policy.CodeCommandNotExecutable, "needs an interpreter that does not exist in the sandbox")
		}
	}
	return d(policy.CodeCommandNotFound, "does not exist in the sandbox")
}
