package nsexec

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/policy"
)

// sandboxDir is a directory that a sandbox of newSpec may use as its own.
func sandboxDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nsexec")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(dir, 0x70010000+1000, 0x70010000+1000); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// inherit takes close-on-exec off f.
func inherit(t testing.TB, f *os.File) {
	t.Helper()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETFD, 0); err != nil {
		t.Fatal(err)
	}
}

func TestExitCodesAndSignals(t *testing.T) {
	for code := range 256 {
		if code > 3 && code%41 != 0 && code != 255 {
			continue
		}
		if _, o := run(t, newSpec("/bin/sh", "-c", fmt.Sprint("exit ", code))); o.ExitCode != code || o.Signal != 0 || o.Lost {
			t.Errorf("exit %d: %+v", code, o)
		}
	}
	for _, sig := range []int{1, 2, 9, 11, 15} {
		if _, o := run(t, newSpec("/bin/sh", "-c", fmt.Sprintf("kill -%d $$", sig))); o.ExitCode != 128+sig || o.Signal != sig || o.Lost {
			t.Errorf("signal %d: %+v", sig, o)
		}
	}
}

func TestOutcomeTimesAndUsage(t *testing.T) {
	before := time.Now()
	_, o := run(t, newSpec("/bin/sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"))
	if o.UserTime <= 0 || o.MaxRSS < 100<<10 || o.StartedAt.Before(before.Add(-time.Second)) || !o.EndedAt.After(o.StartedAt) || o.EndedAt.After(time.Now()) {
		t.Errorf("%+v", o)
	}
}

func TestOutcomeFile(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "outcome")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := newSpec("/bin/sh", "-c", "exit 7")
	s.Outcome = f
	run(t, s)
	o, ok, err := ReadOutcome(f)
	if err != nil || !ok || o.ExitCode != 7 {
		t.Fatalf("%+v %v %v", o, ok, err)
	}
	if _, _, err := ReadOutcome(strings.NewReader(strings.Repeat("x", 500))); err == nil {
		t.Error("a foreign record was accepted")
	}
	if _, ok, err := ReadOutcome(strings.NewReader("")); ok || err != nil {
		t.Errorf("an empty file: %v %v", ok, err)
	}
}

func TestExecErrors(t *testing.T) {
	dir := sandboxDir(t)
	write := func(name, content string, mode os.FileMode) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("plain", "#!/bin/sh\n", 0o644)
	write("badinterp", "#!/no/such/interpreter\n", 0o755)
	write("noformat", "\x00\x01\x02\x03", 0o755)
	for argv0, code := range map[string]policy.Code{
		"no-such-program": policy.CodeCommandNotFound, "/no/such/program": policy.CodeCommandNotFound, "./no": policy.CodeCommandNotFound,
		"/etc/passwd": policy.CodeCommandNotExecutable, "/tmp": policy.CodeCommandNotExecutable, "/etc/passwd/x": policy.CodeCommandNotFound,
		"/ws/plain": policy.CodeCommandNotExecutable, "/ws/badinterp": policy.CodeCommandNotExecutable, "/ws/noformat": policy.CodeCommandNotExecutable,
		"badinterp": policy.CodeCommandNotExecutable, "plain": policy.CodeCommandNotExecutable,
	} {
		s := newSpec(argv0)
		s.Env = append(s.Env, "PATH=/nowhere:/ws:/usr/bin")
		s.Plan = systemPlan(mounts.Bind{Target: "/ws", Source: mounts.Source{Path: dir}})
		if _, _, err := tryRun(t, s); !errors.Is(err, code) {
			t.Errorf("%s: %v, want %s", argv0, err, code)
		}
	}
}

func TestRelativeCwd(t *testing.T) {
	dir := sandboxDir(t)
	for _, e := range []error{
		os.MkdirAll(dir+"/a/b", 0o755), os.WriteFile(dir+"/file", nil, 0o644), os.Symlink("/etc", dir+"/abs"), os.Symlink("../..", dir+"/a/up"),
		os.Symlink("b", dir+"/a/inside"), os.Symlink("loop", dir+"/loop"), os.Symlink("/proc/self/cwd", dir+"/magic"), os.Symlink("gone", dir+"/dangling"),
	} {
		if e != nil {
			t.Fatal(e)
		}
	}
	try := func(rel string) (string, error) {
		s := newSpec("/bin/pwd", "-P")
		s.Plan = systemPlan(mounts.Bind{Target: "/ws/app", Source: mounts.Source{Path: dir}})
		s.CwdRoot, s.RelativeCwd = "/ws/app", rel
		out, _, err := tryRun(t, s)
		return strings.TrimSpace(out), err
	}
	for rel, want := range map[string]string{"": "/ws/app", ".": "/ws/app", "a": "/ws/app/a", "a/b": "/ws/app/a/b", "a/inside": "/ws/app/a/b", "a//b/": "/ws/app/a/b"} {
		if got, err := try(rel); err != nil || got != want {
			t.Errorf("%q: %q %v, want %q", rel, got, err, want)
		}
	}
	for rel, code := range map[string]policy.Code{
		"/etc": policy.CodeCwdAbsolute, "..": policy.CodeCwdEscape, "a/../..": policy.CodeCwdEscape,
		"abs": policy.CodeCwdSymlinkEscape, "a/up": policy.CodeCwdSymlinkEscape, "loop": policy.CodeCwdSymlinkEscape, "magic": policy.CodeCwdSymlinkEscape,
		"missing": policy.CodeCwdMissing, "dangling": policy.CodeCwdMissing, "file": policy.CodeCwdNotDirectory, "file/x": policy.CodeCwdNotDirectory,
	} {
		if got, err := try(rel); !errors.Is(err, code) {
			t.Errorf("%q: %q %v, want %s", rel, got, err, code)
		}
	}
}

// A directory of the workspace turns into a link out of it and back, all the time.
func TestRelativeCwdRace(t *testing.T) {
	dir := sandboxDir(t)
	if err := errors.Join(os.MkdirAll(dir+"/real/sub", 0o755), os.Symlink("/", dir+"/evil")); err != nil {
		t.Fatal(err)
	}
	defer testenv.Exchanging(dir+"/real", dir+"/evil")()
	inside := 0
	for range 60 {
		s := newSpec("/bin/pwd", "-P")
		s.Plan = systemPlan(mounts.Bind{Target: "/ws", Source: mounts.Source{Path: dir}})
		s.CwdRoot, s.RelativeCwd = "/ws", "real"
		out, _, err := tryRun(t, s)
		switch {
		case err == nil && strings.HasPrefix(out, "/ws/"):
			inside++
		case err == nil:
			t.Fatalf("started in %q", out)
		default:
			wantCode(t, err, policy.CodeCwdSymlinkEscape)
		}
	}
	t.Logf("%d of 60 inside", inside)
}

func TestWallClock(t *testing.T) {
	s := newSpec("/bin/sh", "-c", "trap '' TERM INT; (trap '' TERM; sleep 60) & sleep 60")
	s.WallClock = 200 * time.Millisecond
	start := time.Now()
	_, o := run(t, s)
	if d := time.Since(start); !o.TimedOut || o.Signal != 9 || o.Lost || d < 200*time.Millisecond || d > 5*time.Second {
		t.Errorf("after %s: %+v", d, o)
	}
	s = newSpec("true")
	s.WallClock = time.Hour
	if _, o := run(t, s); o.TimedOut || o.ExitCode != 0 {
		t.Errorf("%+v", o)
	}
}

func TestSignalsAreForwarded(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGCHLD, syscall.SIGKILL, 40} {
		r, w, _ := os.Pipe()
		// Not a shell: dash -c catches SIGINT, and may hold it back behind a child.
		s := newSpec("/usr/bin/perl", "-e", "$|=1; print qq(ready\n); sleep 30")
		s.Stdio[1] = w
		p, err := Launch(testContext(t), s)
		w.Close()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(r, make([]byte, 6)); err != nil {
			t.Fatal(err)
		}
		if err := p.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if sig == syscall.SIGCHLD { // ignored: send one that is not
			if err := p.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			sig = syscall.SIGTERM
		}
		o, err := p.Wait(testContext(t))
		if err != nil || o.Signal != int(sig) || o.Lost {
			t.Errorf("%v: %+v %v", sig, o, err)
		}
		r.Close()
		wantCode(t, p.Signal(sig), policy.CodeWorkerNotRunning)
	}
}

func TestStopAndContinue(t *testing.T) {
	r, w, _ := os.Pipe()
	defer r.Close()
	s := newSpec("/bin/sh", "-c", "echo ready; while :; do echo x; done >/dev/null")
	s.Stdio[1] = w
	p, err := Launch(testContext(t), s)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT, syscall.SIGTERM} {
		if err := p.Signal(sig); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if o, err := p.Wait(testContext(t)); err != nil || o.Signal != 15 {
		t.Errorf("%+v %v", o, err)
	}
	wantCode(t, p.Signal(0), policy.CodeSignalInvalid)
}

func TestZombiesAreReaped(t *testing.T) {
	if got := sh(t, `for i in 1 2 3 4 5 6 7 8; do (sh -c 'exit 0' &) ; done; sleep 0.3; grep -l '^State:.Z' /proc/[0-9]*/status; true`); got != "" {
		t.Errorf("zombies: %s", got)
	}
}

func TestDaemonsEndWithTheWorker(t *testing.T) {
	mark := fmt.Sprintf("8%d", time.Now().UnixNano()%1e9)
	sh(t, `(setsid sh -c "(setsid sleep `+mark+` &)" >/dev/null 2>&1 &); sleep 0.2`)
	if pids := processesWith(mark); len(pids) > 0 {
		t.Errorf("left: %v", pids)
	}
}

// processesWith finds processes with mark in their arguments.
func processesWith(mark string) (pids []string) {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, n := range names {
		if b, err := os.ReadFile(n); err == nil && strings.Contains(string(b), mark) && !strings.Contains(n, fmt.Sprintf("/%d/", os.Getpid())) {
			pids = append(pids, n)
		}
	}
	return pids
}

// A terminal's signals reach the whole foreground group; so must those of a
// launcher in the terminal's place.
func TestSignalsReachTheGroup(t *testing.T) {
	r, w, _ := os.Pipe()
	defer r.Close()
	s := newSpec("/usr/bin/perl", "-e", `$|=1; my $p = fork; if (!$p) { $SIG{INT} = sub { print "child\n"; exit 0 }; print "ready\n"; sleep 30; exit 1 } $SIG{INT} = 'IGNORE'; waitpid $p, 0; print "parent\n"`)
	s.Stdio[1] = w
	p, err := Launch(testContext(t), s)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if out, err := io.ReadAll(r); err != nil || string(out) != "child\nparent\n" {
		t.Errorf("got %q %v", out, err)
	}
	if o, err := p.Wait(testContext(t)); err != nil || o.ExitCode != 0 {
		t.Errorf("%+v %v", o, err)
	}
}
