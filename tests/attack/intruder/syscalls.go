package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

func init() {
	attacks["syscall"] = rawSyscall
	attacks["socket"] = socket
	attacks["clone3"] = clone3
	attacks["ptrace-init"] = ptraceInit
	attacks["uid"] = uid
	attacks["capabilities"] = capabilities
	attacks["keyring"] = keyring
	attacks["unshare"] = unshare
	attacks["clone"] = clone
	attacks["future"] = future
	attacks["i386"] = i386
	attacks["x32"] = x32
	attacks["user-notif"] = userNotif
	attacks["privileges"] = privileges
	attacks["read-init"] = readInit
}

var scratch [4096]byte

// calls are system calls with arguments that a kernel which gets as far as
// reading them either accepts or refuses for their own sake.
var calls = map[string]struct {
	nr   uintptr
	args [6]uintptr
}{
	"mount":             {unix.SYS_MOUNT, [6]uintptr{text("none"), text("/tmp"), text("tmpfs"), 0, 0}},
	"umount2":           {unix.SYS_UMOUNT2, [6]uintptr{text("/proc"), unix.MNT_DETACH}},
	"pivot_root":        {unix.SYS_PIVOT_ROOT, [6]uintptr{text("/tmp"), text("/tmp")}},
	"chroot":            {unix.SYS_CHROOT, [6]uintptr{text("/tmp")}},
	"fsopen":            {unix.SYS_FSOPEN, [6]uintptr{text("tmpfs"), 0}},
	"open_tree":         {unix.SYS_OPEN_TREE, [6]uintptr{atFDCWD, text("/tmp"), unix.OPEN_TREE_CLONE}},
	"move_mount":        {unix.SYS_MOVE_MOUNT, [6]uintptr{atFDCWD, text("/tmp"), atFDCWD, text("/var"), 0}},
	"mount_setattr":     {unix.SYS_MOUNT_SETATTR, [6]uintptr{atFDCWD, text("/usr"), 0, buffer(), 32}},
	"unshare-user":      {unix.SYS_UNSHARE, [6]uintptr{unix.CLONE_NEWUSER}},
	"unshare-mount":     {unix.SYS_UNSHARE, [6]uintptr{unix.CLONE_NEWNS}},
	"unshare-net":       {unix.SYS_UNSHARE, [6]uintptr{unix.CLONE_NEWNET}},
	"bpf":               {unix.SYS_BPF, [6]uintptr{0, buffer(), 72}},
	"perf_event_open":   {unix.SYS_PERF_EVENT_OPEN, [6]uintptr{buffer(), 0, minusOne, minusOne, 0}},
	"io_uring_setup":    {unix.SYS_IO_URING_SETUP, [6]uintptr{4, buffer()}},
	"userfaultfd":       {unix.SYS_USERFAULTFD, [6]uintptr{0}},
	"add_key":           {unix.SYS_ADD_KEY, [6]uintptr{text("user"), text("intruder"), text("secret"), 6, keySessionKeyring}},
	"request_key":       {unix.SYS_REQUEST_KEY, [6]uintptr{text("user"), text("intruder"), 0, 0}},
	"keyctl":            {unix.SYS_KEYCTL, [6]uintptr{unix.KEYCTL_GET_KEYRING_ID, keySessionKeyring, 1}},
	"init_module":       {unix.SYS_INIT_MODULE, [6]uintptr{buffer(), 16, text("")}},
	"finit_module":      {unix.SYS_FINIT_MODULE, [6]uintptr{0, text(""), 0}},
	"delete_module":     {unix.SYS_DELETE_MODULE, [6]uintptr{text("no_such_module"), 0}},
	"kexec_load":        {unix.SYS_KEXEC_LOAD, [6]uintptr{0, 999, 0, 0}},
	"reboot":            {unix.SYS_REBOOT, [6]uintptr{1, 2, 3, 0}}, // wrong magic numbers
	"swapon":            {unix.SYS_SWAPON, [6]uintptr{text("/no/such/file"), 0}},
	"acct":              {unix.SYS_ACCT, [6]uintptr{text("/no/such/file")}},
	"quotactl":          {unix.SYS_QUOTACTL, [6]uintptr{0x80000700, text("/no/such/device"), 0, 0}},
	"iopl":              {unix.SYS_IOPL, [6]uintptr{3}},
	"ioperm":            {unix.SYS_IOPERM, [6]uintptr{0x378, 1, 1}},
	"modify_ldt":        {unix.SYS_MODIFY_LDT, [6]uintptr{0, buffer(), 16}},
	"settimeofday":      {unix.SYS_SETTIMEOFDAY, [6]uintptr{buffer(), 0}}, // with an invalid microsecond
	"clock_adjtime":     {unix.SYS_CLOCK_ADJTIME, [6]uintptr{99, buffer()}},
	"syslog":            {unix.SYS_SYSLOG, [6]uintptr{10}},
	"open_by_handle_at": {unix.SYS_OPEN_BY_HANDLE_AT, [6]uintptr{atFDCWD, buffer(), 0}},
	"fanotify_init":     {unix.SYS_FANOTIFY_INIT, [6]uintptr{0, 0}},
	"sethostname":       {unix.SYS_SETHOSTNAME, [6]uintptr{text("intruder"), 8}},
	"setdomainname":     {unix.SYS_SETDOMAINNAME, [6]uintptr{text("intruder"), 8}},
	"vhangup":           {unix.SYS_VHANGUP, [6]uintptr{}},
	"personality":       {unix.SYS_PERSONALITY, [6]uintptr{0x0400000}}, // READ_IMPLIES_EXEC
	"ptrace-traceme":    {unix.SYS_PTRACE, [6]uintptr{0}},
	"process_vm_readv":  {unix.SYS_PROCESS_VM_READV, [6]uintptr{ownPID, buffer(), 1, buffer(), 1, 0}},
	"kcmp":              {unix.SYS_KCMP, [6]uintptr{ownPID, ownPID, 0, 0, 0}},
	"lookup_dcookie":    {unix.SYS_LOOKUP_DCOOKIE, [6]uintptr{0, buffer(), 64}},
	"nfsservctl":        {unix.SYS_NFSSERVCTL, [6]uintptr{0, 0, 0}},
	"setns":             {unix.SYS_SETNS, [6]uintptr{minusOne, 0}},
	"move_pages":        {unix.SYS_MOVE_PAGES, [6]uintptr{ownPID, 0, 0, 0, 0, 0}},
}

const (
	minusOne          = ^uintptr(0)
	atFDCWD           = ^uintptr(99) // -100
	keySessionKeyring = ^uintptr(2)  // -3
	ownPID            = ^uintptr(999)
)

var texts [][]byte // kept alive: the table holds addresses

func text(s string) uintptr {
	b := append([]byte(s), 0)
	texts = append(texts, b)
	return uintptr(unsafe.Pointer(&b[0]))
}

func buffer() uintptr { return uintptr(unsafe.Pointer(&scratch[0])) }

// rawSyscall succeeds if the call gets past the permission checks: any answer
// but EPERM and ENOSYS is the kernel's own code at work.
func rawSyscall(args []string) (string, error) {
	runtime.LockOSThread()
	c, ok := calls[args[0]]
	if !ok {
		return "", fmt.Errorf("no call %q", args[0])
	}
	if args[0] == "settimeofday" {
		*(*int64)(unsafe.Pointer(&scratch[8])) = 2_000_000
	}
	for i, a := range c.args {
		if a == ownPID {
			c.args[i] = uintptr(os.Getpid())
		}
	}
	r, _, errno := unix.RawSyscall6(c.nr, c.args[0], c.args[1], c.args[2], c.args[3], c.args[4], c.args[5])
	if errno == unix.EPERM || errno == unix.ENOSYS {
		return "", errno
	}
	return fmt.Sprintf("returned %d, %v", int(r), errno), nil
}

// socket makes a socket: domain, type, protocol.
func socket(args []string) (string, error) {
	var n [3]int
	for i := range n {
		n[i], _ = strconv.Atoi(args[i])
	}
	fd, err := unix.Socket(n[0], n[1], n[2])
	if err != nil && err != unix.EPERM && err != unix.ENOSYS && err != unix.EACCES {
		if err == unix.EAFNOSUPPORT || err == unix.EPROTONOSUPPORT || err == unix.ESOCKTNOSUPPORT {
			return "", err // refused by the filter in this way, or not built into the kernel
		}
		return err.Error(), nil
	}
	if err != nil {
		return "", err
	}
	unix.Close(fd)
	return "a socket", nil
}

// clone3 asks for a user namespace in the way that filters cannot look into.
func clone3([]string) (string, error) {
	args := [11]uint64{0: unix.CLONE_NEWUSER, 4: uint64(unix.SIGCHLD)}
	r, _, errno := unix.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args), 0)
	if errno != 0 {
		return "", errno
	}
	if r == 0 {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	_, _ = unix.Wait4(int(r), nil, 0, nil)
	return "a user namespace", nil
}

// namespaceFlags are clone(2)'s and unshare(2)'s.
var namespaceFlags = map[string]uintptr{
	"user": unix.CLONE_NEWUSER, "mnt": unix.CLONE_NEWNS, "net": unix.CLONE_NEWNET, "pid": unix.CLONE_NEWPID,
	"ipc": unix.CLONE_NEWIPC, "uts": unix.CLONE_NEWUTS, "cgroup": unix.CLONE_NEWCGROUP, "time": unix.CLONE_NEWTIME,
}

// unshare makes a namespace, and the user namespace that gives the right to. A
// second argument is bits above those that the kernel knows.
func unshare(args []string) (string, error) {
	runtime.LockOSThread()
	flags := namespaceFlags[args[0]]
	for _, f := range []uintptr{flags, flags | unix.CLONE_NEWUSER, flags | 1<<32} {
		// A multithreaded program may not make a user namespace, and unknown bits are
		// wrong too: EINVAL is an answer of the kernel's own code all the same.
		if _, _, errno := unix.RawSyscall(unix.SYS_UNSHARE, f, 0, 0); errno == 0 || errno == unix.EINVAL {
			return fmt.Sprintf("unshare %#x: %v", f, errno), nil
		}
	}
	return "", unix.EPERM
}

// clone makes a child in a namespace of its own.
func clone(args []string) (string, error) {
	runtime.LockOSThread()
	flags := namespaceFlags[args[0]]
	for _, f := range []uintptr{flags, flags | unix.CLONE_NEWUSER, flags | unix.CLONE_NEWUSER | 1<<32} {
		r, _, errno := unix.RawSyscall6(unix.SYS_CLONE, f|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno != 0 {
			continue
		}
		if r == 0 {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
		_, _ = unix.Wait4(int(r), nil, 0, nil)
		return fmt.Sprintf("a child with %#x", f), nil
	}
	return "", unix.EPERM
}

// future makes calls whose numbers were given out after the profiles were
// written, or not yet.
func future([]string) (string, error) {
	runtime.LockOSThread()
	for nr := uintptr(462); nr < 1100; nr++ {
		_, _, errno := unix.RawSyscall6(nr, minusOne, minusOne, minusOne, minusOne, minusOne, minusOne)
		if errno != unix.ENOSYS && errno != unix.EPERM {
			return fmt.Sprintf("call %d: %v", nr, errno), nil
		}
	}
	return "", unix.ENOSYS
}

// inChild runs body in a process of its own, for what may be the end of it.
func inChild(name string, body func()) (string, error) {
	if os.Getenv("INTRUDER_CHILD") == name {
		body()
		os.Exit(0)
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	c := exec.Command(self, name)
	c.Env = append(os.Environ(), "INTRUDER_CHILD="+name)
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w %s", err, out)
	}
	return "the call was made", nil
}

// i386 calls by int 0x80, whose numbers mean other calls.
func i386([]string) (string, error) {
	return inChild("i386", func() { int80(20) }) // getpid there, writev here
}

// int80 is in int80_amd64.s.
func int80(nr uintptr) uintptr

// x32 sets the bit that makes a number mean a call of that ABI.
func x32([]string) (string, error) {
	return inChild("x32", func() { unix.RawSyscall(0x40000000+unix.SYS_GETPID, 0, 0, 0) })
}

// userNotif puts a filter of its own on top, whose supervisor tells the kernel to
// go on with a call that the sandbox's filter refuses.
func userNotif([]string) (string, error) {
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return "", err
	}
	prog := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_KEYCTL, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x7fc00000}, // SECCOMP_RET_USER_NOTIF
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&fprog)))
	if errno != 0 {
		return "", errno
	}
	ready := make(chan struct{})
	go func() { // on a thread without the filter
		close(ready)
		var req [80]byte // struct seccomp_notif
		const receive, send = 0xc0502100, 0xc0182101
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, receive, uintptr(unsafe.Pointer(&req))); errno != 0 {
			return
		}
		var resp [24]byte // struct seccomp_notif_resp
		copy(resp[:8], req[:8])
		resp[20] = 1 // SECCOMP_USER_NOTIF_FLAG_CONTINUE
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, fd, send, uintptr(unsafe.Pointer(&resp)))
	}()
	<-ready
	_, _, errno = unix.Syscall6(unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, keySessionKeyring, 1, 0, 0, 0)
	if errno == unix.EPERM || errno == unix.ENOSYS {
		return "", errno
	}
	return fmt.Sprintf("keyctl: %v", errno), nil
}

// readInit reads PID 1's memory without stopping it.
func readInit([]string) (string, error) {
	local := unix.Iovec{Base: &scratch[0], Len: 8}
	remote := unix.RemoteIovec{Base: 0x400000, Len: 8} // where its one page is
	n, err := unix.ProcessVMReadv(1, []unix.Iovec{local}, []unix.RemoteIovec{remote}, 0)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d bytes of PID 1: %q", n, scratch[:n]), nil
}

// privileges are what a program could gain by an exec.
func privileges(args []string) (string, error) {
	switch args[0] {
	case "no-new-privs":
		if v, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err != nil || v != 1 {
			return "no_new_privs is off", nil
		}
	case "bounding-set":
		for c := uintptr(0); c <= 40; c++ {
			if v, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0); err == nil && v == 1 {
				return fmt.Sprintf("capability %d in the bounding set", c), nil
			}
		}
	}
	return "", unix.EPERM
}

func ptraceInit([]string) (string, error) {
	runtime.LockOSThread()
	const seize = 0x4206
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, seize, 1, 0, 0, 0, 0)
	if errno != 0 {
		return "", errno
	}
	return "PID 1 is traced", nil
}

// uid becomes root by every call there is.
func uid([]string) (string, error) {
	runtime.LockOSThread()
	for _, c := range [][4]uintptr{
		{unix.SYS_SETUID, 0}, {unix.SYS_SETRESUID, 0, 0, 0}, {unix.SYS_SETREUID, 0, 0}, {unix.SYS_SETGID, 0}, {unix.SYS_SETGROUPS, 1, buffer()},
	} {
		if _, _, errno := unix.RawSyscall(c[0], c[1], c[2], c[3]); errno == 0 {
			return fmt.Sprintf("system call %d", c[0]), nil
		}
	}
	return "", unix.EPERM
}

func capabilities([]string) (string, error) {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return "", err
	}
	if all := data[0].Effective | data[0].Permitted | data[0].Inheritable | data[1].Effective | data[1].Permitted | data[1].Inheritable; all != 0 {
		return fmt.Sprintf("capabilities %#x", data), nil
	}
	for c := 0; c <= 63; c++ {
		if v, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0); err == nil && v == 1 {
			return fmt.Sprintf("capability %d in the bounding set", c), nil
		}
		if v, err := unix.PrctlRetInt(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_IS_SET, uintptr(c), 0, 0); err == nil && v == 1 {
			return fmt.Sprintf("ambient capability %d", c), nil
		}
	}
	return "", unix.EPERM
}

// keyring reads a key that the parent put into the session keyring, which no
// namespace hides.
func keyring(args []string) (string, error) {
	id, err := unix.KeyctlSearch(unix.KEY_SPEC_SESSION_KEYRING, "user", args[0], 0)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("key %d", id), nil
}
