package nsexec

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
)

func init() {
	roles["swapping-launcher"] = func() {
		os.Stdin.Close() // so that a descriptor of ours lands on 0
		s := newSpec("/bin/sh", "-c", "echo to-one; echo to-two >&2")
		s.Stdio = [3]*os.File{nil, os.Stderr, os.Stdout}
		launchInRole(s)
	}
	roles["shared-launcher"] = func() {
		s := newSpec("/bin/cat", "/proc/self/mountinfo")
		s.Stdio = [3]*os.File{nil, os.Stdout, os.Stdout}
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			fmt.Println(err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
			fmt.Println(err)
		}
		launchInRole(s)
	}
}

func launchInRole(s *Spec) {
	p, err := Launch(context.Background(), s)
	if err != nil {
		fmt.Println(err)
		return
	}
	if o, err := p.Wait(context.Background()); err != nil || o.ExitCode != 0 {
		fmt.Println(o, err)
	}
}

func TestStandardDescriptorsSwapped(t *testing.T) {
	var out, errs strings.Builder
	c := role("swapping-launcher")
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil || out.String() != "to-two\n" || errs.String() != "to-one\n" {
		t.Errorf("stdout %q, stderr %q, %v", out.String(), errs.String(), err)
	}
}

// systemd makes every mount of the host shared.
func TestSharedHostMountsBecomePrivate(t *testing.T) {
	testenv.Privileged(t)
	c := role("shared-launcher")
	c.Args = append(c.Args, "x")
	out, err := c.Output()
	if err != nil || !strings.Contains(string(out), " / / ro") {
		t.Fatalf("%v %s", err, out)
	}
	if strings.Contains(string(out), "shared:") || strings.Contains(string(out), "master:") {
		t.Errorf("propagation is left:\n%s", out)
	}
}
