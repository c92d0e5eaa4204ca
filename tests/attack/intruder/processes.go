package main

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func init() {
	attacks["processes"] = processes
	attacks["kill-everything"] = killEverything
	attacks["kill-init"] = killInit
	attacks["connect"] = connect
	attacks["tiocsti"] = tiocsti
	attacks["controlling-terminal"] = controllingTerminal
	attacks["shm"] = shm
	attacks["setns"] = setns
	attacks["nice"] = nice
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
