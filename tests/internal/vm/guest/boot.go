package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/tests/internal/units"
)

// manager is what becomes the machine's first process.
const manager = "/lib/systemd/systemd"

// shares are the directories of the host that the machine has, read-only.
var shares = []string{"usr", "etc", "tree"}

// masked are units that it does without: those too that cost time, or write to the disk
// behind the tests' back, as each fsync(2) of theirs would make durable what the product
// has forgotten to.
var masked = append([]string{
	"serial-getty@.service", "systemd-repart.service", "systemd-udevd.service", "systemd-udevd-control.socket",
	"systemd-udevd-kernel.socket", "systemd-udev-trigger.service", "systemd-udev-settle.service",
	"systemd-firstboot.service", "systemd-sysusers.service", "systemd-update-utmp.service",
	"systemd-update-utmp-runlevel.service", "systemd-journal-flush.service", "systemd-machine-id-commit.service",
	"systemd-ask-password-console.path", "systemd-ask-password-wall.path", "systemd-initctl.socket",
	"cryptsetup.target", "veritysetup.target", "integritysetup.target",
}, units.Masked...)

const agentUnit = `[Unit]
Description=Commands of the test outside
[Service]
ExecStart=/run/yoi-test/guest
`

// boot runs in the initrd, lays out the machine and becomes its manager.
func boot() error {
	do := func(ms ...mount) error {
		for _, m := range ms {
			if err := m.do(); err != nil {
				return err
			}
		}
		return nil
	}
	if err := do(mount{"devtmpfs", "/dev", "devtmpfs", 0, ""}, mount{"proc", "/proc", "proc", 0, ""}, mount{"sysfs", "/sys", "sysfs", 0, ""}); err != nil {
		return err
	}
	if err := loadModules("/modules"); err != nil {
		return err
	}
	if err := await("/dev/vda"); err != nil {
		return err
	}
	// Nothing is committed for the time's sake, only when somebody asks for it.
	if err := do(mount{"/dev/vda", "/disk", "ext4", 0, "commit=3600"}); err != nil {
		return err
	}
	for _, tag := range shares {
		if err := do(mount{tag, "/host/" + tag, "9p", unix.MS_RDONLY, "trans=virtio,version=9p2000.L,msize=262144,cache=loose"}); err != nil {
			return err
		}
	}
	if err := prepareDisk("/disk"); err != nil {
		return err
	}
	const root = "/root"
	err := do(
		mount{"tmpfs", root, "tmpfs", 0, "mode=755"},
		mount{"overlay", root + "/usr", "overlay", unix.MS_RDONLY, "lowerdir=/host/tree/usr:/host/usr"},
		mount{"overlay", root + "/etc", "overlay", 0, "lowerdir=/host/tree/etc:/host/etc,upperdir=/disk/etc/upper,workdir=/disk/etc/work"},
		mount{"/disk/var", root + "/var", "", unix.MS_BIND, ""},
		mount{"/disk/home", root + "/home", "", unix.MS_BIND, ""},
		mount{"/disk/srv", root + "/srv", "", unix.MS_BIND, ""},
		mount{"tmpfs", root + "/tmp", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		mount{"tmpfs", root + "/root", "tmpfs", 0, "mode=700"},
		mount{"tmpfs", root + "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=755"},
	)
	if err != nil {
		return err
	}
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+d, root+"/"+d); err != nil {
			return err
		}
	}
	if err := prepareRun(root + "/run"); err != nil {
		return err
	}
	return enter(root)
}

type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

func (m mount) do() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
		return fmt.Errorf("mounting %s: %w", m.target, err)
	}
	return nil
}

// loadModules loads what the initrd has, by name: that is their order.
func loadModules(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		f, err := os.Open(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("loading %s: %w", e.Name(), err)
		}
	}
	return nil
}

// await waits for a device, which the kernel makes when it has found it.
func await(path string) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		_, err := os.Stat(path)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// prepareDisk makes what a new disk lacks; of one in use it changes nothing.
func prepareDisk(disk string) error {
	var errs []error
	for _, d := range []string{"etc/work", "etc/upper/systemd/system", "var/lib", "var/log", "var/cache", "var/spool", "var/tmp", "home", "srv"} {
		errs = append(errs, os.MkdirAll(filepath.Join(disk, d), 0o755))
	}
	etc := filepath.Join(disk, "etc/upper")
	// None of the host's own services: an opaque directory hides them.
	errs = append(errs, os.Chmod(filepath.Join(disk, "var/tmp"), os.ModeSticky|0o777),
		unix.Setxattr(filepath.Join(etc, "systemd/system"), "trusted.overlay.opaque", []byte("y"), 0))
	for name, content := range map[string]string{"hostname": "vm\n", "machine-id": "0123456789abcdef0123456789abcdef\n", "fstab": ""} {
		if _, err := os.Lstat(filepath.Join(etc, name)); err != nil {
			errs = append(errs, os.WriteFile(filepath.Join(etc, name), []byte(content), 0o644))
		}
	}
	if err := os.Symlink("/run", filepath.Join(disk, "var/run")); !errors.Is(err, os.ErrExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// prepareRun makes the units of this boot.
func prepareRun(run string) error {
	units := filepath.Join(run, "systemd/system")
	self, err := os.ReadFile("/init")
	errs := []error{err,
		os.MkdirAll(filepath.Join(run, "yoi-test"), 0o755), os.WriteFile(filepath.Join(run, "yoi-test/guest"), self, 0o755),
		os.MkdirAll(filepath.Join(units, "multi-user.target.wants"), 0o755),
		os.WriteFile(filepath.Join(units, "yoi-agent.service"), []byte(agentUnit), 0o644),
		os.Symlink("../yoi-agent.service", filepath.Join(units, "multi-user.target.wants/yoi-agent.service")),
	}
	for _, u := range masked {
		errs = append(errs, os.Symlink("/dev/null", filepath.Join(units, u)))
	}
	return errors.Join(errs...)
}

// enter makes root the root and starts the manager there (switch_root(8)).
func enter(root string) error {
	for _, d := range []string{"/dev", "/proc", "/sys"} {
		if err := errors.Join(os.MkdirAll(root+d, 0o755), unix.Mount(d, root+d, "", unix.MS_MOVE, "")); err != nil {
			return fmt.Errorf("moving %s: %w", d, err)
		}
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("moving the root: %w", err)
	}
	if err := errors.Join(unix.Chroot("."), os.Chdir("/")); err != nil {
		return err
	}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "PATH=") })
	return unix.Exec(manager, []string{manager}, append(env, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "LANG=C.UTF-8"))
}
