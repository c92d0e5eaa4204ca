package nsexec

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/policy"
)

// sandbox is a running one, of a command that says "up" when it is ready.
func sandbox(t testing.TB, s *Spec) *Process {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s.Stdio[1] = w
	p, err := Launch(testContext(t), s)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Kill()
		<-p.Done()
		p.Close()
	})
	if _, err := io.ReadFull(r, make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
	return p
}

func waiting() *Spec { return newSpec("/bin/sh", "-c", "cd /tmp; printf up; exec sleep 1000") }

// session is what a sandbox's Spec comes to for another command in it.
func session(s *Spec, argv ...string) *Spec {
	return &Spec{Argv: argv, Env: s.Env, Filter: s.Filter, Landlock: s.Landlock, UIDMap: s.UIDMap, GIDMap: s.GIDMap,
		Rlimits: s.Rlimits, OOMScoreAdj: s.OOMScoreAdj, Umask: s.Umask,
		Plan: mounts.Plan{Ops: []mounts.Op{mounts.Proc{Target: "/proc"}, mounts.Dev{Target: "/dev"}}}}
}

// within runs a command in a sandbox and returns what it wrote.
func within(t testing.TB, p *Process, s *Spec) (string, Outcome, error) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for i := 1; i < 3 && !s.Terminal; i++ {
		s.Stdio[i] = w
	}
	e, err := Enter(testContext(t), p.Pidfd, s)
	w.Close()
	if err != nil {
		return "", Outcome{}, err
	}
	var b bytes.Buffer
	if s.Terminal {
		_, _ = io.Copy(&b, e.Terminal) // EIO at its end
		e.Terminal.Close()
	} else if _, err := io.Copy(&b, r); err != nil {
		t.Fatal(err)
	}
	o, err := e.Wait(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	e.Close()
	return b.String(), o, nil
}

func TestEnterIsWhereTheWorkerIs(t *testing.T) {
	spec := waiting()
	p := sandbox(t, spec)
	const look = `for n in user mnt pid net ipc uts cgroup; do readlink /proc/$1/ns/$n; done; id -u; id -g; hostname; umask
grep -E '^(Cap|NoNewPrivs|Groups|Seccomp:)' /proc/$1/status; cat /proc/$1/oom_score_adj /proc/$1/cgroup; ls -l /proc/$1/root | sed 's/.*root -> //'`
	mine, o, err := within(t, p, session(spec, "/bin/sh", "-c", look, "sh", "self"))
	if err != nil || o.ExitCode != 0 {
		t.Fatalf("%v, %+v: %s", err, o, mine)
	}
	theirs, _, err := within(t, p, session(spec, "/bin/sh", "-c", look, "sh", "2"))
	if err != nil || mine != theirs || !strings.Contains(mine, "CapBnd:\t0000000000000000") {
		t.Errorf("%v; the session is\n%s\nthe Worker\n%s", err, mine, theirs)
	}
	out, o, err := within(t, p, session(spec, "/bin/sh", "-c", "ls /proc/self/fd; echo $$ >/tmp/pid; exit 7"))
	if err != nil || o.ExitCode != 7 || out != "0\n1\n2\n3\n" { // 3 is ls's own
		t.Errorf("%v, %+v, descriptors %q", err, o, out)
	}
}

func TestEnterOnATerminal(t *testing.T) {
	spec := waiting()
	p := sandbox(t, spec)
	s := session(spec, "/bin/sh", "-c", "tty; stty size; exit 3")
	s.Terminal, s.Winsize.Rows, s.Winsize.Cols = true, 12, 34
	out, o, err := within(t, p, s)
	if err != nil || o.ExitCode != 3 || out != "/dev/pts/0\r\n12 34\r\n" {
		t.Errorf("%v, %+v: %q", err, o, out)
	}
}

func TestEnterRefuses(t *testing.T) {
	spec := waiting()
	p := sandbox(t, spec)
	_, _, err := within(t, p, session(spec, "no-such-program"))
	wantCode(t, err, policy.CodeCommandNotFound)
	s := session(spec, "true")
	s.CwdRoot, s.RelativeCwd = "/tmp", "nowhere"
	_, _, err = within(t, p, s)
	wantCode(t, err, policy.CodeCwdMissing)
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	// It may still come in before PID 1 has noticed its end, and goes with it.
	_, o, err := within(t, p, session(spec, "sleep", "1000"))
	if err != nil || o.Signal != int(unix.SIGKILL) {
		wantCode(t, err, policy.CodeWorkerNotRunning)
	}
	<-p.Done()
	_, _, err = within(t, p, session(spec, "true"))
	wantCode(t, err, policy.CodeWorkerNotRunning)
}

// TestEnterEndsWithTheSandbox: the kernel kills the session with PID 1.
func TestEnterEndsWithTheSandbox(t *testing.T) {
	spec := waiting()
	p := sandbox(t, spec)
	e, err := Enter(testContext(t), p.Pidfd, session(spec, "/bin/sleep", "1000"))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	o, err := e.Wait(testContext(t))
	if err != nil || o.Signal != int(unix.SIGKILL) {
		t.Errorf("%+v, %v", o, err)
	}
	wantCode(t, e.Signal(unix.SIGTERM), policy.CodeWorkerNotRunning)
	e.Close()
}

// BenchmarkEnter compares a session, from request to reaped, with a whole run of
// nsenter into the same namespaces, which applies neither filter nor Landlock nor ids.
func BenchmarkEnter(b *testing.B) {
	spec := benchSpec()
	spec.Argv = waiting().Argv
	p := sandbox(b, spec)
	b.Run("yoi", func(b *testing.B) {
		for b.Loop() {
			e, err := Enter(context.Background(), p.Pidfd, session(spec, "/bin/true"))
			if err != nil {
				b.Fatal(err)
			}
			e.Close()
		}
	})
	b.Run("nsenter", func(b *testing.B) {
		for b.Loop() {
			if err := exec.Command("nsenter", "-t", strconv.Itoa(p.Pid), "-a", "/bin/true").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
