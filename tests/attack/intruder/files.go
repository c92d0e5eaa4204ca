package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

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

// descriptors looks for open files beyond the three.
func descriptors([]string) (string, error) {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return "", err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return "", err
	}
	var got []string
	for _, n := range names {
		to, _ := os.Readlink("/proc/self/fd/" + n)
		if n == "0" || n == "1" || n == "2" || to == fmt.Sprintf("/proc/%d/fd", os.Getpid()) {
			continue
		}
		// Those that the Go runtime opened for itself.
		if strings.HasPrefix(to, "anon_inode:[eventpoll]") || strings.HasPrefix(to, "anon_inode:[eventfd]") || strings.Contains(to, "cgroup") {
			continue
		}
		got = append(got, n+" → "+to)
	}
	return any(got, "only 0, 1 and 2")
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
	return strings.Join(got, "; "), nil
}
