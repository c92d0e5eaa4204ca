package nsexec

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
)

// roles are what a re-executed copy of the test binary does instead of testing.
var roles = map[string]func(){}

func TestMain(m *testing.M) {
	if f := roles[os.Getenv("NSEXEC_TEST_ROLE")]; f != nil {
		f()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// role prepares a re-execution of the test binary.
func role(name string, args ...string) *exec.Cmd {
	c := exec.Command("/proc/self/exe", args...)
	c.Env = append(os.Environ(), "NSEXEC_TEST_ROLE="+name)
	c.Stderr = os.Stderr
	return c
}

// rootOnly are the tests that testenv.Privileged guards.
var rootOnly = []string{
	"TestRootless", "TestNetworkMadeInAdvance", "TestSharedHostMountsBecomePrivate", "TestIdmappedWorkspaceInAClosedRoot", "TestOverlayOfIdmappedLayers", "TestIdmappedLogs",
	"TestLauncherStaysItself",
}

// TestRootless runs every other test as an ordinary user.
func TestRootless(t *testing.T) {
	testenv.Privileged(t)
	args := []string{"-test.run=^Test", "-test.skip=^(" + strings.Join(rootOnly, "|") + ")$"}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	if testing.Verbose() {
		args = append(args, "-test.v")
	}
	c := exec.Command("/proc/self/exe", args...)
	dir, err := os.MkdirTemp("", "rootless")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chown(dir, 65533, 65533); err != nil {
		t.Fatal(err)
	}
	c.Env = append(os.Environ(), "TMPDIR="+dir, "HOME="+dir)
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65533, Gid: 65533}}
	out, err := c.CombinedOutput()
	if testing.Verbose() || err != nil {
		t.Logf("%s", out)
	}
	if err != nil {
		t.Fatalf("as uid 65533: %v", err)
	}
}
