//go:build cgo

package compile

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/policy/seccomp"
)

const (
	envChild   = "YOI_SECCOMP_CHILD"   // "probe NAME" or "exec"
	envProfile = "YOI_SECCOMP_PROFILE" // "" for no filter at all
)

// child confines its thread as the sandbox's child does, then probes one call
// or becomes a program.
func child(mode string) int {
	runtime.LockOSThread()
	if name := os.Getenv(envProfile); name != "" {
		if err := load(policy.SeccompProfile(name)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 125
		}
	}
	if call, ok := strings.CutPrefix(mode, "probe "); ok {
		_, _, e := unix.RawSyscall6(probes[call].nr, probes[call].args[0], probes[call].args[1], probes[call].args[2], probes[call].args[3], 0, 0)
		fmt.Printf("errno=%d\n", int(e))
		return 0
	}
	env := os.Environ()
	for i, kv := range env {
		if strings.HasPrefix(kv, envChild+"=") {
			env[i] = envChild + "="
		}
	}
	err := unix.Exec(os.Args[1], os.Args[1:], env)
	fmt.Fprintln(os.Stderr, os.Args[1], err)
	return 127
}

// load is what nsexec's child does, in Go.
func load(name policy.SeccompProfile) error {
	b, err := seccomp.Filter(policy.SandboxPolicy{Seccomp: name})
	if err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	prog := unix.SockFprog{Len: uint16(len(b) / 8), Filter: (*unix.SockFilter)(unsafe.Pointer(&b[0]))}
	_, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(b)
	if e != 0 {
		return fmt.Errorf("seccomp(2): %w", e)
	}
	return nil
}

// confined is a command under profile's filter; "" is none.
func confined(t testing.TB, profile policy.SeccompProfile, mode string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), envChild+"="+mode, envProfile+"="+string(profile))
	cmd.Dir = t.TempDir()
	return cmd
}

// probed makes one call under profile and returns its errno, or the signal
// that it died of.
func probed(t testing.TB, profile policy.SeccompProfile, call string) (unix.Errno, unix.Signal) {
	t.Helper()
	out, err := confined(t, profile, "probe "+call).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if ws := exit.Sys().(syscall.WaitStatus); ws.Signaled() {
			return 0, ws.Signal()
		}
	}
	var n int
	if _, scan := fmt.Sscanf(string(out), "errno=%d", &n); err != nil || scan != nil {
		t.Fatalf("%s under %q: %v\n%s", call, profile, err, out)
	}
	return unix.Errno(n), 0
}
