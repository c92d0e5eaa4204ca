package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/tests/internal/units"
)

// stageName is the test binary's name while it lays out the machine's root.
const stageName = "yoi-test-host"

// layered are the directories of this machine that the other sees through a layer
// of its own. The package database is what dpkg(1) needs to install on top.
var layered = []string{"/usr", "/etc", "/var/lib/dpkg"}

// masked are units that it does without.
var masked = append([]string{"systemd-logind.service", "systemd-sysctl.service"}, units.Masked...)

// format makes the directories of a new disk.
func format(disk string) error {
	var errs []error
	for i := range layered {
		for _, d := range []string{"upper", "work"} {
			errs = append(errs, os.MkdirAll(layerDir(disk, i, d), 0o755))
		}
	}
	for _, d := range []string{"lib", "log/journal", "cache/apt/archives/partial", "spool", "tmp"} {
		errs = append(errs, os.MkdirAll(filepath.Join(disk, "var", d), 0o755))
	}
	errs = append(errs, os.Chmod(filepath.Join(disk, "var/tmp"), os.ModeSticky|0o777), os.Symlink("/run", filepath.Join(disk, "var/run")))
	// None of this machine's own services: an opaque directory hides them.
	unitDir := filepath.Join(layerDir(disk, 1, "upper"), "systemd/system")
	errs = append(errs, os.MkdirAll(unitDir, 0o755), unix.Setxattr(unitDir, "trusted.overlay.opaque", []byte("y"), 0))
	for _, u := range masked {
		errs = append(errs, os.Symlink("/dev/null", filepath.Join(unitDir, u)))
	}
	// A container's ban on starting services is not the machine's: a whiteout.
	sbin := filepath.Join(layerDir(disk, 0, "upper"), "sbin")
	errs = append(errs, os.MkdirAll(sbin, 0o755), unix.Mknod(filepath.Join(sbin, "policy-rc.d"), unix.S_IFCHR, 0))
	errs = append(errs, os.WriteFile(filepath.Join(layerDir(disk, 1, "upper"), "hostname"), []byte("host\n"), 0o644),
		os.WriteFile(filepath.Join(layerDir(disk, 1, "upper"), "machine-id"), nil, 0o444),
		os.WriteFile(filepath.Join(layerDir(disk, 1, "upper"), "fstab"), nil, 0o644))
	return errors.Join(errs...)
}

func layerDir(disk string, i int, kind string) string {
	return filepath.Join(disk, fmt.Sprintf("layer%d", i), kind)
}

func encode(hs []hierarchy) string {
	b, err := json.Marshal(hs)
	if err != nil {
		panic(err) // of strings only
	}
	return string(b)
}

// Stage becomes the first process of a machine if this process was started for
// that, and returns otherwise. A TestMain calls it before anything else.
func Stage() {
	if os.Args[0] != stageName {
		return
	}
	runtime.LockOSThread() // a cgroup namespace is a thread's own until it execs
	err := stage(os.Args[1], os.Args[2])
	fmt.Fprintln(os.Stderr, "laying out the machine:", err)
	os.Exit(1)
}

func stage(disk, groups string) error {
	var hs []hierarchy
	if err := json.Unmarshal([]byte(groups), &hs); err != nil {
		return err
	}
	gate := os.NewFile(3, "gate")
	if n, err := gate.Read(make([]byte, 1)); n != 1 {
		return fmt.Errorf("the test is gone: %w", err)
	}
	gate.Close()
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return err
	}
	root := filepath.Join(disk, "root")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	if err := layout(disk, root, hs); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte("host")); err != nil {
		return err
	}
	if err := errors.Join(os.Chdir(root), unix.PivotRoot(".", ".")); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := errors.Join(unix.Unmount(".", unix.MNT_DETACH), os.Chdir("/")); err != nil {
		return err
	}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	for fd := range 3 {
		if err := unix.Dup3(int(null.Fd()), fd, 0); err != nil {
			return err
		}
	}
	env := []string{"container=yoi-test", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "LANG=C.UTF-8"}
	return unix.Exec(Manager, []string{Manager, "--log-target=journal", "--show-status=no"}, env)
}

// layout mounts the machine's file system on root.
func layout(disk, root string, hs []hierarchy) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	at := func(p string) string { return filepath.Join(root, p) }
	type mount struct {
		source, target, kind string
		flags                uintptr
		data                 string
	}
	do := func(ms ...mount) error {
		for _, m := range ms {
			if err := os.MkdirAll(at(m.target), 0o755); err != nil {
				return err
			}
			if err := unix.Mount(m.source, at(m.target), m.kind, m.flags, m.data); err != nil {
				return fmt.Errorf("mounting %s: %w", m.target, err)
			}
		}
		return nil
	}
	if err := do(mount{"tmpfs", "/", "tmpfs", 0, "mode=755"}, mount{filepath.Join(disk, "var"), "/var", "", unix.MS_BIND, ""}); err != nil {
		return err
	}
	for i, d := range layered {
		data := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", d, layerDir(disk, i, "upper"), layerDir(disk, i, "work"))
		if err := do(mount{"overlay", d, "overlay", 0, data}); err != nil {
			return err
		}
	}
	for _, d := range []string{"bin", "sbin", "lib", "lib64", "lib32", "libx32"} {
		if to, err := os.Readlink("/" + d); err == nil {
			if err := os.Symlink(to, at(d)); err != nil {
				return err
			}
		}
	}
	err := do(
		mount{"tmpfs", "/tmp", "tmpfs", 0, "mode=1777"}, mount{"tmpfs", "/root", "tmpfs", 0, "mode=700"}, mount{"tmpfs", "/home", "tmpfs", 0, "mode=755"},
		mount{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		// Read-only, so that udev leaves this machine's devices alone.
		mount{"sysfs", "/sys", "sysfs", unix.MS_RDONLY, ""},
		mount{"tmpfs", "/dev", "tmpfs", unix.MS_NOSUID, "mode=755"},
		mount{"devpts", "/dev/pts", "devpts", 0, "newinstance,ptmxmode=666,mode=620,gid=5"},
		mount{"tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
	)
	if err != nil {
		return err
	}
	if err := devices(at("/dev")); err != nil {
		return err
	}
	for _, h := range hs {
		data := h.Options
		if h.Type == "tmpfs" {
			data = "mode=755"
		}
		if h.Type == "cgroup2" {
			data = ""
		}
		// The directory may be one of sysfs, which is read-only and has it.
		if _, err := os.Stat(at(h.Point)); err != nil {
			if err := os.MkdirAll(at(h.Point), 0o755); err != nil {
				return err
			}
		}
		if err := unix.Mount(h.Type, at(h.Point), h.Type, 0, data); err != nil {
			return fmt.Errorf("mounting %s: %w", h.Point, err)
		}
	}
	return nil
}

// devices fills a /dev with what programs expect, none of which is hardware.
func devices(dir string) error {
	for name, minor := range map[string]uint32{"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9} {
		if err := node(filepath.Join(dir, name), 1, minor); err != nil {
			return err
		}
	}
	if err := errors.Join(node(filepath.Join(dir, "tty"), 5, 0), os.Symlink("pts/ptmx", filepath.Join(dir, "ptmx"))); err != nil {
		return err
	}
	return os.Symlink("/proc/self/fd", filepath.Join(dir, "fd"))
}

func node(path string, major, minor uint32) error {
	if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(major, minor))); err != nil {
		return err
	}
	return os.Chmod(path, 0o666)
}
