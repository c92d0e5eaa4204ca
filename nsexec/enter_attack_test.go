package nsexec

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/policy"
)

func init() {
	roles["hunter"] = hunt
	roles["stopper"] = func() { fmt.Print("up"); eachNewcomer(func(pid int) { _ = unix.Kill(pid, unix.SIGSTOP) }) }
	roles["killer"] = func() {
		fmt.Print("up")
		for {
			_ = unix.Kill(-1, unix.SIGKILL) // all but itself and PID 1
		}
	}
}

// eachNewcomer calls f for the numbers that the next processes will have, as fast as
// it can.
func eachNewcomer(f func(pid int)) {
	next := os.Getpid() + 1
	for {
		for pid := next; pid < next+3; pid++ {
			if unix.Kill(pid, 0) == nil || unix.Kill(pid, 0) == unix.EPERM {
				next = max(next, pid)
				// Threads of this program's own have such numbers too.
				if unix.Tgkill(os.Getpid(), pid, 0) != nil {
					f(pid)
				}
			}
		}
		if unix.Kill(next, 0) == unix.ESRCH && unix.Kill(next+1, 0) == nil {
			next++
		}
	}
}

// hunt is a Worker that goes for whatever process comes into its sandbox
// (CVE-2016-9962) and says when it has got hold of one that has not executed its
// command yet. Afterwards a session is a process like its own.
func hunt() {
	fmt.Print("up")
	eachNewcomer(func(pid int) {
		at := "/proc/" + strconv.Itoa(pid)
		// The name changes in the moment in which exec commits the new credentials and
		// memory, before anybody can attach again (begin_new_exec in fs/exec.c).
		entering := func() bool {
			name, err := os.ReadFile(at + "/comm")
			return err == nil && string(name) != "true\n"
		}
		if _, _, errno := syscall.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, 0, 0, 0); errno == 0 {
			if entering() {
				fmt.Println("FOUND: traced before its exec")
			}
			var ws unix.WaitStatus
			// Let it go whole: a zombie is its parent's only when no tracer has it.
			_ = unix.Kill(pid, unix.SIGKILL)
			for first := true; first || !ws.Exited() && !ws.Signaled(); first = false {
				if _, err := unix.Wait4(pid, &ws, unix.WALL, nil); err != nil && err != unix.EINTR {
					break
				}
			}
			return
		}
		if entering() {
			fmt.Println("FOUND: seen in /proc before its exec")
		}
		for _, f := range []string{"/mem", "/environ", "/maps", "/fd/0", "/root/", "/cwd/", "/exe"} {
			fd, err := unix.Open(at+f, unix.O_RDONLY, 0)
			if err != nil {
				continue
			}
			if entering() {
				fmt.Println("FOUND: opened", f)
			}
			unix.Close(fd)
		}
		var b [16]byte
		local := unix.Iovec{Base: &b[0], Len: 16}
		for _, addr := range []uintptr{initBase, uintptr(unsafe.Pointer(&b))} {
			remote := unix.RemoteIovec{Base: addr, Len: 16}
			if _, err := unix.ProcessVMReadv(pid, []unix.Iovec{local}, []unix.RemoteIovec{remote}, 0); err == nil && entering() {
				fmt.Println("FOUND: its memory")
			}
		}
	})
}

// hostile is a sandbox in which a role of this program is the Worker.
func hostile(t *testing.T, name string) (*Spec, *os.File) {
	t.Helper()
	dir, err := os.MkdirTemp("", "hostile")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program := filepath.Join(dir, "hostile")
	b, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(program, b, 0o755)
	}
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := newSpec("/hostile")
	s.Env = append(s.Env, "NSEXEC_TEST_ROLE="+name)
	s.Plan = systemPlan(mounts.Bind{Target: "/hostile", Source: mounts.Source{Path: program}, IsFile: true})
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s.Stdio[1], s.Stdio[2] = w, w
	p, err := Launch(testContext(t), s)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Kill()
		<-p.Done()
		p.Close()
		r.Close()
	})
	if _, err := io.ReadFull(r, make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
	s.Stdio = [3]*os.File{}
	hostiles[s] = p
	return s, r
}

var hostiles = map[*Spec]*Process{}

// TestEnteringIsOutOfReach is the race for the process that joins: without a filter and
// without Landlock, so that only what the entering itself does stands in the way.
func TestEnteringIsOutOfReach(t *testing.T) {
	s, said := hostile(t, "hunter")
	p := hostiles[s]
	n := 300
	if testing.Short() {
		n = 50
	}
	entered := 0
	for range n {
		e, err := Enter(testContext(t), p.Pidfd, session(s, "/bin/true"))
		if err != nil {
			t.Fatal(err)
		}
		if o, err := e.Wait(testContext(t)); err == nil && !o.Lost {
			entered++
		}
		e.Close()
	}
	_ = p.Kill()
	b, err := io.ReadAll(said)
	if err != nil || len(b) > 0 || entered != n {
		t.Errorf("%d entered, %v; the Worker says\n%s", entered, err, b)
	}
}

// TestEnteringStoppedOrKilled: a Worker may stop or kill what has its uid, so a session may
// not come to be; but it is told, and nothing is left.
func TestEnteringStoppedOrKilled(t *testing.T) {
	for _, name := range []string{"stopper", "killer"} {
		t.Run(name, func(t *testing.T) {
			s, _ := hostile(t, name)
			p := hostiles[s]
			before := ownChildren(t)
			for range 20 {
				e, err := Enter(testContext(t), p.Pidfd, session(s, "/bin/true"))
				if err != nil {
					wantCode(t, err, policy.CodeLaunchFailed)
					break // it took its whole time
				}
				_ = e.Signal(unix.SIGKILL) // it may be stopped after its exec
				e.Close()
			}
			if after := ownChildren(t); after != before {
				t.Errorf("%d processes of ours before, %d after", before, after)
			}
		})
	}
}

// ownChildren counts this process' own.
func ownChildren(t *testing.T) (n int) {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range tasks {
		b, err := os.ReadFile(f)
		if err == nil {
			n += len(strings.Fields(string(b)))
		}
	}
	return n
}

// TestSessionIsHeld: what runs in a session has no more than the Worker.
func TestSessionIsHeld(t *testing.T) {
	spec := benchSpec()
	spec.Argv = waiting().Argv
	p := sandbox(t, spec)
	out, o, err := within(t, p, session(spec, "/bin/sh", "-c", `grep -E '^(CapPrm|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status | tr '\t\n' ' '
for n in /proc/1/ns/mnt /proc/1/ns/user; do nsenter --mount=$n true 2>/dev/null && echo left; done
ls /proc/1/fd 2>/dev/null; cat /proc/1/environ 2>/dev/null; unshare -U true 2>/dev/null && echo nested; su -c id 2>/dev/null; echo end`))
	want := "NoNewPrivs: 1 Seccomp: 2 "
	if err != nil || o.ExitCode != 0 || !strings.Contains(out, "CapPrm: 0000000000000000") || !strings.Contains(out, want+"end\n") {
		t.Errorf("%v, %+v: %q", err, o, out)
	}
}
