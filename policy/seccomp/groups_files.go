package seccomp

import "strings"

// allow is one unconditional rule for each name.
func allow(names string) []Rule { return all(Allow, names) }

// refuse answers EPERM: these exist, and are not for a Worker.
func refuse(names string) []Rule { return all(Errno(ePERM), names) }

func all(a Action, names string) []Rule {
	var rules []Rule
	for n := range strings.FieldsSeq(names) {
		rules = append(rules, Rule{Call: n, Action: a})
	}
	return rules
}

var fileContents = Group{
	Name: "file contents",
	Why:  "Reading and writing files that the mount namespace already limits.",
	Rules: allow(`open openat openat2 creat close close_range read write pread64 pwrite64
		readv writev preadv pwritev preadv2 pwritev2 lseek sendfile copy_file_range
		fallocate ftruncate truncate fsync fdatasync sync syncfs sync_file_range
		fadvise64 readahead flock`),
}

var filePaths = Group{
	Name: "names and metadata",
	Why:  "Directories, links, modes, times and extended attributes. mknod is here for FIFOs and sockets: devices need a capability that no Worker has.",
	Rules: allow(`access faccessat faccessat2 stat lstat fstat newfstatat statx statfs fstatfs
		readlink readlinkat getcwd chdir fchdir mkdir mkdirat rmdir unlink unlinkat
		rename renameat renameat2 link linkat symlink symlinkat getdents getdents64
		chmod fchmod fchmodat chown fchown lchown fchownat umask mknod mknodat
		utime utimes utimensat futimesat name_to_handle_at
		getxattr lgetxattr fgetxattr setxattr lsetxattr fsetxattr
		listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr`),
}

var descriptors = Group{
	Name: "descriptors and waiting",
	Why:  "Duplicating, polling and waking: every event loop (libuv, asyncio, the Go runtime) needs them.",
	Rules: allow(`dup dup2 dup3 fcntl pipe pipe2 poll ppoll select pselect6
		epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
		eventfd eventfd2 signalfd signalfd4 timerfd_create timerfd_settime timerfd_gettime
		inotify_init inotify_init1 inotify_add_watch inotify_rm_watch`),
}

// The values are from <asm-generic/ioctls.h>.
const (
	tiocsti   = 0x5412
	tioclinux = 0x541c
	tiocsetd  = 0x5423
)

var ioctlGroup = Group{
	Name: "ioctl",
	Why: "Everything but pushing bytes into a terminal's input (TIOCSTI, and TIOCLINUX's paste: CVE-2016-2568, CVE-2023-1523) " +
		"and changing its line discipline (TIOCSETD loads kernel modules). Compared on the low 32 bits, as the kernel reads it (CVE-2019-7303).",
	Rules: decide("ioctl", choice{
		arg: 1, mask: low32,
		branches:  []branch{{values: []uint64{tiocsti, tioclinux, tiocsetd}, action: Errno(ePERM)}},
		otherwise: Allow,
	}),
}

var pipesAndAIO = Group{
	Name:  "splicing and kernel AIO",
	Why:   "Moving data between pipes and files, and the old asynchronous I/O of databases. Faster ways to do what the groups above do, and so not in strict.",
	Rules: allow(`splice tee vmsplice io_setup io_submit io_getevents io_pgetevents io_cancel io_destroy`),
}

var anonymousFiles = Group{
	Name:  "anonymous and by-descriptor programs",
	Why:   "memfd_create and execveat run a program that has no path. JITs and container tools use them; strict has no need.",
	Rules: allow(`memfd_create execveat`),
}
