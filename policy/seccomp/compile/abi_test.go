//go:build cgo

package compile

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy/seccomp"
)

// int $0x80 from a 64-bit process makes an i386 call: 20 is getpid there and
// writev on amd64. The x32 bit turns read into x32's read.
const foreign = `
#include <unistd.h>
#include <sys/syscall.h>
int main(int argc, char **argv) {
	if (argc > 1) {
		syscall(0x40000000L, -1, 0, 0);
		return 0;
	}
	int r;
	__asm__ volatile ("int $0x80" : "=a"(r) : "a"(20) : "memory", "r8", "r9", "r10", "r11");
	return r > 0 ? 0 : 3;
}`

func signalOf(err error) unix.Signal {
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled() {
		return exit.Sys().(syscall.WaitStatus).Signal()
	}
	return 0
}

func TestForeignABIKills(t *testing.T) {
	dir := t.TempDir()
	src, bin := filepath.Join(dir, "foreign.c"), filepath.Join(dir, "foreign")
	if err := os.WriteFile(src, []byte(foreign), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-o", bin, src).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, p := range seccomp.Profiles() {
		t.Run(string(p.Name)+" x32", func(t *testing.T) {
			if out, err := confined(t, p.Name, "exec", bin, "x32").CombinedOutput(); signalOf(err) != unix.SIGSYS {
				t.Errorf("%v: %s", err, out)
			}
		})
		t.Run(string(p.Name)+" i386", func(t *testing.T) {
			switch err := exec.Command(bin).Run(); {
			case signalOf(err) == unix.SIGSEGV: // what the gate's absence comes to
				testenv.MissingKernelFeature(t, "CONFIG_IA32_EMULATION", "int 0x80 without a filter: "+err.Error())
			case err != nil:
				t.Fatal(err)
			}
			if out, err := confined(t, p.Name, "exec", bin).CombinedOutput(); signalOf(err) != unix.SIGSYS {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}
