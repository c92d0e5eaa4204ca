package cow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// overlayProbeArg is the argv[0] under which a program that links this package
// is the probe's child and nothing else. User namespaces need a process of
// their own (unshare(2): CLONE_NEWUSER is EINVAL for a threaded caller), and a
// Go program is always threaded; the child is our own image, so nothing has to
// be installed or found.
const overlayProbeArg = "yoi-overlay-probe"

func init() {
	if len(os.Args) == 1 && os.Args[0] == overlayProbeArg {
		os.Exit(overlayProbeChild())
	}
}

// Probe mounts an overlay the way a Worker's sandbox will: inside a fresh user
// and mount namespace with userxattr (Linux 5.11), and changes something in it.
func (overlay) Probe(ctx context.Context, d ProbeDir) Support {
	if err := makeOverlayDirs(d.Dir); err != nil {
		return Support{Reason: fmt.Sprintf("the probe's directories could not be made (%v)", err)}
	}
	step, err := runOverlayProbe(ctx, d.Dir)
	switch {
	case err == nil:
		return Support{OK: true, Reason: "an overlay mount takes constant time; a file is copied when it is first written"}
	case step == "":
		return Support{
			Reason: fmt.Sprintf("no user namespace can be made (%v)", unwrapErrno(err)),
			Fix:    "Allow them: sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns.",
		}
	}
	return Support{
		Reason: fmt.Sprintf("this %s does not serve as an overlay's layers in a user namespace (%s: %v)", d.FileSystem, step, err),
		Fix:    "Use Linux 5.11 or newer with overlayfs, and put the Runtime root on ext4, xfs, btrfs or tmpfs.",
	}
}

func makeOverlayDirs(dir *os.File) error {
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		d, err := makeDir(dir, name)
		if err != nil {
			return err
		}
		defer d.Close()
		if name != "lower" {
			continue
		}
		for _, file := range []string{"changed", "deleted"} {
			f, err := makeFile(fd(d), file, []byte("lower"))
			if err != nil {
				return err
			}
			err = giveTo(fd(d), f)
			closeFd(f)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// runOverlayProbe returns the step that failed and why; no step when the child
// could not be started at all.
func runOverlayProbe(ctx context.Context, dir *os.File) (step string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = []string{overlayProbeArg}
	cmd.Env = []string{}
	cmd.Stdout = &out
	cmd.ExtraFiles = []*os.File{dir} // descriptor 3
	uid, gid := unix.Geteuid(), unix.Getegid()
	if uid == 0 {
		// A Worker reaches the directory as its owner, by an idmapped mount.
		var st unix.Stat_t
		if err := unix.Fstat(fd(dir), &st); err != nil {
			return "", err
		}
		uid, gid = int(st.Uid), int(st.Gid)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}},
		Credential:  &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: true},
	}
	err = cmd.Run()
	if err == nil {
		return "", nil
	}
	if name, why, ok := strings.Cut(strings.TrimSpace(out.String()), ": "); ok {
		return name, errors.New(why)
	}
	return "", err
}

// unwrapErrno drops the program's path from os/exec's message.
func unwrapErrno(err error) error {
	var e syscall.Errno
	if errors.As(err, &e) {
		return e
	}
	return err
}

// enterProbeDir goes to descriptor 3's directory by its name: the descriptor is
// of a mount in the parent's namespace, where the child may mount nothing.
func enterProbeDir() error {
	name, err := os.Readlink("/proc/self/fd/3")
	if err != nil {
		return err
	}
	if err := unix.Chdir(name); err != nil {
		return err
	}
	var want, got unix.Stat_t
	if err := errors.Join(unix.Fstat(3, &want), unix.Stat(".", &got)); err != nil {
		return err
	}
	if want.Dev != got.Dev || want.Ino != got.Ino {
		return errors.New("the directory's name leads elsewhere")
	}
	return nil
}

// overlayProbeChild runs in the new namespaces with the probe's directory as
// descriptor 3. It takes one more mount namespace, so that even a wrong caller
// could not make it mount anything where others see it.
func overlayProbeChild() int {
	runtime.LockOSThread()
	steps := []struct {
		name string
		do   func() error
	}{
		{"unshare", func() error { return unix.Unshare(unix.CLONE_NEWNS) }},
		{"private", func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") }},
		{"directory", enterProbeDir},
		{"mount", func() error {
			// volatile (5.10): else this process's end would sync the whole file system
			// that the layers are on, and a first run has just filled it.
			return unix.Mount("overlay", "merged", "overlay", unix.MS_NODEV|unix.MS_NOSUID, "lowerdir=lower,upperdir=upper,workdir=work,userxattr,volatile")
		}},
		{"copy up", func() error { return os.WriteFile("merged/changed", []byte("upper"), 0o600) }},
		{"whiteout", func() error { return unix.Unlink("merged/deleted") }},
		{"lower layer", func() error {
			if b, err := os.ReadFile("lower/changed"); err != nil || string(b) != "lower" {
				return errors.New("a write reached it")
			}
			return nil
		}},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			fmt.Printf("%s: %v\n", s.name, unwrapErrno(err))
			return 1
		}
	}
	return 0
}
