package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func init() {
	runtime.LockOSThread() // main stays on the first thread, which has the signal at a parent's death
	attacks["processes"] = processes
	attacks["kill-everything"] = killEverything
	attacks["kill-init"] = killInit
	attacks["connect"] = connect
	attacks["tiocsti"] = tiocsti
	attacks["controlling-terminal"] = controllingTerminal
	attacks["shm"] = shm
	attacks["setns"] = setns
	attacks["nice"] = nice
	attacks["route"] = route
	attacks["terminal-ioctl"] = terminalIoctl
	attacks["raise-limit"] = raiseLimit
	attacks["oom-score"] = oomScore
	attacks["parent-environment"] = parentEnvironment
	attacks["groups"] = groups
	attacks["fork-many"] = many(forkMany)
	attacks["open-many"] = many(openMany)
	attacks["ptys"] = ptys
	attacks["zombies"] = many(zombies)
	attacks["inotify-many"] = many(inotifyMany)
	attacks["inotify-hold"] = many(inotifyHold)
	attacks["queue-many"] = many(queueMany)
	attacks["namespaces-many"] = many(namespacesMany)
	attacks["foreground"] = foreground
	attacks["set-mm"] = setMM
	attacks["outlive"] = outlive
	attacks["inodes"] = many(inodes)
}

// processes looks for any but itself and PID 1.
func processes([]string) (string, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return "", err
	}
	var got []string
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == 1 || pid == os.Getpid() {
			continue
		}
		b, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if s := strings.ReplaceAll(string(b), "\x00", " "); !strings.Contains(s, "intruder") {
			got = append(got, fmt.Sprintf("%d %s", pid, s))
		}
	}
	return any(got, "nobody else")
}

// killEverything is for the effect on others, which the test looks at.
func killEverything([]string) (string, error) {
	if err := unix.Kill(-1, unix.SIGKILL); err != nil {
		return "", err
	}
	return "whatever could be signalled is dead", nil
}

// killInit sends PID 1 what a process may send. Signals without a handler do not
// reach a namespace's PID 1 from inside, pid_namespaces(7). If one did, the
// kernel would kill everybody here, or nobody would record the outcome: the
// test notices both.
func killInit([]string) (string, error) {
	for _, s := range []unix.Signal{unix.SIGKILL, unix.SIGSTOP, unix.SIGSEGV, unix.SIGABRT, unix.SIGSYS, unix.SIGBUS} {
		_ = unix.Kill(1, s) // EPERM would be as good
	}
	time.Sleep(100 * time.Millisecond)
	return "", fmt.Errorf("PID 1 lives on")
}

// connect dials: network, address.
func connect(args []string) (string, error) {
	c, err := net.Dial(args[0], args[1])
	if err != nil {
		return "", err
	}
	c.Close()
	return "connected to " + args[1], nil
}

// tiocsti pushes a key into the terminal, with and without bits above the 32
// that the kernel looks at (CVE-2019-7303).
func tiocsti([]string) (string, error) {
	key := byte('x')
	var last unix.Errno
	for _, high := range []uintptr{0, 1 << 32, 0xffffffff << 32} {
		for _, request := range []uintptr{unix.TIOCSTI, unix.TIOCLINUX} {
			_, _, errno := unix.Syscall(unix.SYS_IOCTL, 0, request|high, uintptr(unsafe.Pointer(&key)))
			if errno == 0 {
				return fmt.Sprintf("request %#x", request|high), nil
			}
			last = errno
		}
	}
	return "", last
}

// controllingTerminal opens the terminal of the caller's session: one of the
// devpts with the given device number, whatever it is called here.
func controllingTerminal(args []string) (string, error) {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer tty.Close()
	var st unix.Stat_t
	if err := unix.Fstat(0, &st); err != nil {
		return "", err
	}
	const firstMajor, lastMajor = 136, 143 // of pseudo-terminals, admin-guide/devices.rst
	isPts := unix.Major(st.Rdev) >= firstMajor && unix.Major(st.Rdev) <= lastMajor
	if isPts && fmt.Sprint(st.Dev) != args[0] {
		return "", fmt.Errorf("a terminal of the sandbox's own")
	}
	return "the caller's terminal", nil
}

// shm attaches a System V segment by its number.
func shm(args []string) (string, error) {
	id, _ := strconv.Atoi(args[0])
	_, _, errno := unix.Syscall(unix.SYS_SHMAT, uintptr(id), 0, unix.SHM_RDONLY)
	if errno != 0 {
		return "", errno
	}
	return "attached segment " + args[0], nil
}

// setns joins namespaces that it can name.
func setns([]string) (string, error) {
	runtime.LockOSThread()
	for _, who := range []string{"1", "self"} {
		for _, ns := range []string{"net", "ipc", "uts", "mnt", "pid", "cgroup", "user"} {
			fd, err := unix.Open("/proc/"+who+"/ns/"+ns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				continue
			}
			err = unix.Setns(fd, 0)
			unix.Close(fd)
			if err == nil {
				return who + "/" + ns, nil
			}
		}
	}
	return "", unix.EPERM
}

// nice raises its own priority above what it was given.
func nice([]string) (string, error) {
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, -10); err != nil {
		return "", err
	}
	return "nice -10", nil
}

// route connects a datagram socket, which sends nothing but needs a route.
func route(args []string) (string, error) {
	c, err := net.Dial("udp", args[0])
	if err != nil {
		return "", err
	}
	defer c.Close()
	return "a route to " + args[0], nil
}

// terminalIoctl tries a request on a terminal of its own, with and without bits
// above the 32 that the kernel looks at (CVE-2019-7303).
func terminalIoctl(args []string) (string, error) {
	request, err := strconv.ParseUint(args[0], 0, 64)
	if err != nil {
		return "", err
	}
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(master)
	var value [16]byte // also the lock that TIOCSPTLCK opens
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCSPTLCK, uintptr(unsafe.Pointer(&value))); errno != 0 {
		return "", errno
	}
	slave, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return "", errno
	}
	// TIOCSTI is for the controlling terminal only.
	if _, err := unix.Setsid(); err != nil {
		return "", err
	}
	if err := unix.IoctlSetInt(int(slave), unix.TIOCSCTTY, 0); err != nil {
		return "", err
	}
	signal.Ignore(unix.SIGHUP)
	for _, high := range []uint64{0, 1 << 32, 0xffffffff << 32} {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, slave, uintptr(request|high), uintptr(unsafe.Pointer(&value)))
		if errno != unix.EPERM {
			return fmt.Sprintf("request %#x: %v", request|high, errno), nil
		}
	}
	return "", unix.EPERM
}

// raiseLimit lifts a hard limit that the launch has set.
func raiseLimit([]string) (string, error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &l); err != nil {
		return "", err
	}
	if l.Max != 0 {
		return "core files are possible", nil
	}
	l.Max, l.Cur = 1<<20, 1<<20
	if err := unix.Prlimit(0, unix.RLIMIT_CORE, &l, nil); err != nil {
		return "", err
	}
	return "core files", nil
}

// oomScore makes others die first.
func oomScore([]string) (string, error) {
	b, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return "", err
	}
	v, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return "", err
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(v-100)), 0); err != nil {
		return "", err
	}
	return fmt.Sprint(v - 100), nil
}

// parentEnvironment looks for what the caller of the sandbox has in its own: a
// parent outside of its pid namespace reads as 0.
func parentEnvironment([]string) (string, error) {
	for _, pid := range []int{os.Getppid(), 1} {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)); err == nil && strings.Contains(string(b), "SECRET_TOKEN") {
			return fmt.Sprintf("the caller's environment, of process %d", pid), nil
		}
	}
	if strings.Contains(strings.Join(os.Environ(), " "), "SECRET_TOKEN") {
		return "the caller's environment", nil
	}
	return "", fmt.Errorf("nothing of the caller's")
}

// groups looks for supplementary groups.
func groups([]string) (string, error) {
	got, err := unix.Getgroups()
	if err != nil {
		return "", err
	}
	if len(got) == 0 {
		return "", fmt.Errorf("none")
	}
	return fmt.Sprint(got), nil
}

// forkMany is a bounded fork bomb: so many children that do nothing.
func forkMany(n int) (string, error) {
	var pids []int
	defer func() {
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL) // a child, not reaped yet
			_, _ = unix.Wait4(pid, nil, 0, nil)
		}
	}()
	for range n {
		r, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno != 0 {
			return "", fmt.Errorf("%w after %d", errno, len(pids))
		}
		if r == 0 {
			for {
				unix.RawSyscall(unix.SYS_PAUSE, 0, 0, 0)
			}
		}
		pids = append(pids, int(r))
	}
	return fmt.Sprintf("%d processes", n), nil
}

// openMany opens so many files, with its limit raised as far as that goes.
func openMany(n int) (string, error) {
	l := unix.Rlimit{Cur: uint64(n + 16), Max: uint64(n + 16)}
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &l) // the opens below tell
	for i := range n {
		if _, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return "", fmt.Errorf("%w after %d", err, i)
		}
	}
	return fmt.Sprintf("%d open files", n), nil
}

// ptys takes every terminal that it gets and holds them until its input ends.
func ptys([]string) (string, error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return "", err
	}
	l.Cur = l.Max
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &l) // as many as it may
	n := 0
	for range 8192 {
		if _, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0); err != nil {
			break
		}
		n++
	}
	fmt.Println("holding", n)
	_, _ = os.Stdin.Read(make([]byte, 1)) // the end of the input
	return fmt.Sprintf("%d terminals", n), nil
}

// zombies leaves so many orphans that end at once, for PID 1 to reap, and counts
// those that are left.
func zombies(n int) (string, error) {
	for range n {
		r, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno != 0 {
			return "", errno
		}
		if r == 0 { // a child whose child outlives it
			unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
		_, _ = unix.Wait4(int(r), nil, 0, nil)
	}
	left := 0
	for range 1500 { // until PID 1 has had its turn
		left = 0
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return "", err
		}
		for _, e := range entries {
			b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
			if err == nil && strings.Contains(string(b), ") Z ") {
				left++
			}
		}
		if left == 0 {
			return "", fmt.Errorf("all are reaped")
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Sprintf("%d zombies", left), nil
}

// many is an attack that takes how often.
func many(f func(n int) (string, error)) func(args []string) (string, error) {
	return func(args []string) (string, error) {
		n, err := strconv.Atoi(args[0])
		if err != nil {
			return "", err
		}
		return f(n)
	}
}

// inotifyMany takes so many instances, of which a user of the host has few.
func inotifyMany(n int) (string, error) {
	for i := range n {
		if _, err := unix.InotifyInit1(unix.IN_CLOEXEC); err != nil {
			return "", fmt.Errorf("%w after %d", err, i)
		}
	}
	return fmt.Sprintf("%d instances", n), nil
}

// inotifyHold takes as many as it gets, up to n, says so, and keeps them.
func inotifyHold(n int) (string, error) {
	got := 0
	for ; got < n; got++ {
		if _, err := unix.InotifyInit1(unix.IN_CLOEXEC); err != nil {
			break
		}
	}
	fmt.Println("holding", got)
	time.Sleep(time.Minute)
	return "", errors.New("nobody ended it")
}

// queueMany has so many signals wait for itself. Timers are counted with them.
func queueMany(n int) (string, error) {
	runtime.LockOSThread()
	const number = 40 // one that is queued
	blocked := uint64(1) << (number - 1)
	if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_BLOCK, uintptr(unsafe.Pointer(&blocked)), 0, 8, 0, 0); errno != 0 {
		return "", errno
	}
	var info [128]byte                       // siginfo_t
	*(*int32)(unsafe.Pointer(&info[8])) = -1 // SI_QUEUE
	for i := range n {
		if _, _, errno := unix.RawSyscall6(unix.SYS_RT_TGSIGQUEUEINFO, uintptr(os.Getpid()), uintptr(unix.Gettid()), number, uintptr(unsafe.Pointer(&info)), 0, 0); errno != 0 {
			return "", fmt.Errorf("%w after %d", errno, i)
		}
	}
	return fmt.Sprintf("%d signals", n), nil
}

// namespacesMany makes so many of the cheapest kind in a user namespace of its own.
func namespacesMany(n int) (string, error) {
	l := unix.Rlimit{Cur: uint64(n + 64), Max: uint64(n + 64)}
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &l) // the child's exit status tells
	name := append([]byte("/proc/self/ns/uts"), 0)
	at := ^uintptr(99) // AT_FDCWD
	r, _, errno := unix.RawSyscall6(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return "", errno
	}
	if r == 0 { // one thread, in which Go's runtime does not work
		for range n {
			if _, _, errno := unix.RawSyscall(unix.SYS_UNSHARE, unix.CLONE_NEWUTS, 0, 0); errno != 0 {
				unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(errno), 0, 0)
			}
			if _, _, errno := unix.RawSyscall6(unix.SYS_OPENAT, at, uintptr(unsafe.Pointer(&name[0])), unix.O_RDONLY, 0, 0, 0); errno != 0 {
				unix.RawSyscall(unix.SYS_EXIT_GROUP, 255, 0, 0)
			}
		}
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	var ws unix.WaitStatus
	if _, err := unix.Wait4(int(r), &ws, 0, nil); err != nil {
		return "", err
	}
	if ws.ExitStatus() != 0 {
		return "", fmt.Errorf("a namespace: %w", unix.Errno(ws.ExitStatus()))
	}
	return fmt.Sprintf("%d namespaces", n), nil
}

// foreground makes itself the group that a terminal of the devpts with the given
// device number takes keys and signals for, or takes the terminal for its session.
func foreground(args []string) (string, error) {
	signal.Ignore(unix.SIGTTOU)
	fds := []int{0, 1, 2}
	if fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_CLOEXEC, 0); err == nil {
		fds = append(fds, fd)
	}
	for _, fd := range fds {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil || fmt.Sprint(st.Dev) != args[0] {
			continue // not the caller's
		}
		if unix.IoctlSetPointerInt(fd, unix.TIOCSPGRP, unix.Getpgrp()) == nil {
			return "the foreground of the caller's terminal", nil
		}
		if unix.IoctlSetInt(fd, unix.TIOCSCTTY, 1) == nil {
			return "the caller's terminal", nil
		}
	}
	return "", fmt.Errorf("no terminal of the caller's")
}

// setMM has the kernel show another program as its own (prctl(2), PR_SET_MM_MAP). What
// else there is to the map is as it was.
func setMM([]string) (string, error) {
	b, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return "", err
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	f := strings.Fields(rest) // from the third field on, proc_pid_stat(5)
	var m [13]uint64          // struct prctl_mm_map
	for i, field := range []int{26, 27, 45, 46, 47, 0, 28, 48, 49, 50, 51} {
		if field > 0 {
			if m[i], err = strconv.ParseUint(f[field-3], 10, 64); err != nil {
				return "", err
			}
		}
	}
	end, _, _ := unix.RawSyscall(unix.SYS_BRK, 0, 0, 0)
	m[5] = uint64(end)
	fd, err := unix.Open("/bin/sh", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	m[12] = uint64(fd) << 32     // behind the size of an auxiliary vector, 0
	const setMM, setMap = 35, 14 // PR_SET_MM, PR_SET_MM_MAP
	_, _, errno := unix.RawSyscall6(unix.SYS_PRCTL, setMM, setMap, uintptr(unsafe.Pointer(&m)), unsafe.Sizeof(m), 0, 0)
	if errno == 0 || errno == unix.EBUSY { // the right is there, but not while the old one is mapped
		return fmt.Sprintf("another /proc/self/exe: %v", errno), nil
	}
	return "", errno
}

// outlive does what a process can so that nobody ends it with its parent.
func outlive([]string) (string, error) {
	_, _ = unix.Setsid() // it may lead a group already
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0); err != nil {
		return "", err
	}
	signal.Ignore()
	fmt.Println("here")
	time.Sleep(time.Minute)
	return "a minute", nil
}

// inodes makes so many empty files.
func inodes(n int) (string, error) {
	for i := range n {
		dir := fmt.Sprintf("many%d", i/1000)
		if i%1000 == 0 {
			if err := os.Mkdir(dir, 0o755); err != nil {
				return "", err
			}
		}
		fd, err := unix.Open(fmt.Sprintf("%s/%d", dir, i%1000), unix.O_CREAT|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return "", fmt.Errorf("%w after %d", err, i)
		}
		unix.Close(fd)
	}
	return fmt.Sprintf("%d files", n), nil
}
