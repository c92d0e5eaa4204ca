package nsexec

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/policy"
)

func TestTerminal(t *testing.T) {
	s := newSpec("/bin/sh", "-c", "tty; stty size; ls -l /proc/self/fd/0 | sed 's/.*-> //'; test -t 2 && (echo ctl >/dev/tty); read x; echo got $x; exit 4")
	s.Terminal = true
	s.Winsize.Rows, s.Winsize.Cols = 33, 99
	p, err := Launch(testContext(t), s)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := p.Terminal.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if _, err := io.Copy(&out, p.Terminal); err != nil && !errors.Is(err, unix.EIO) { // EIO: the last slave was closed
		t.Fatal(err)
	}
	got := strings.ReplaceAll(out.String(), "\r\n", "\n")
	got = strings.Replace(got, "hello\n", "", 1)
	if want := "/dev/pts/0\n33 99\n/dev/pts/0\nctl\ngot hello\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if o, err := p.Wait(testContext(t)); err != nil || o.ExitCode != 4 {
		t.Errorf("%+v %v", o, err)
	}
}

func TestTerminalHangup(t *testing.T) {
	s := newSpec("/bin/cat")
	s.Terminal = true
	p, err := Launch(testContext(t), s)
	if err != nil {
		t.Fatal(err)
	}
	p.Close() // as a terminal's window: SIGHUP to the session
	if o, err := p.Wait(testContext(t)); err != nil || o.Signal != 1 {
		t.Errorf("%+v %v", o, err)
	}
}

// The Worker has pipes, and nothing of the files behind them.
func TestLogsShowNoHostPath(t *testing.T) {
	dir := sandboxDir(t)
	s := newSpec("/bin/sh", "-c", "readlink /proc/$$/fd/1 | cut -d: -f1; readlink /proc/$$/fd/2 | cut -d: -f1 >&2; echo again >/dev/stdout; grep -c nsexec /proc/self/mountinfo; cat /proc/self/fdinfo/1 >/dev/null")
	s.Logs = Logs{Dir: mounts.Source{Path: dir}, Stdout: "stdout.log", Stderr: "stderr.log"}
	run(t, s)
	out, err1 := os.ReadFile(dir + "/stdout.log")
	errs, err2 := os.ReadFile(dir + "/stderr.log")
	if string(out) != "pipe\nagain\n0\n" || string(errs) != "pipe\n" || err1 != nil || err2 != nil {
		t.Errorf("%q %q %v %v", out, errs, err1, err2)
	}
	// A Worker's link at the name leads nowhere.
	if err := errors.Join(os.Remove(dir+"/stdout.log"), os.Symlink("/etc/passwd", dir+"/stdout.log")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := tryRun(t, s); err == nil {
		t.Error("a symbolic link was followed")
	}
}

func TestLimits(t *testing.T) {
	s := newSpec("/bin/sh", "-c", "ulimit -n; umask; nice; cat /proc/self/oom_score_adj; ulimit -f")
	s.Rlimits = []Rlimit{{unix.RLIMIT_NOFILE, 77, 78}, {unix.RLIMIT_FSIZE, 1024, 1024}}
	s.Nice, s.OOMScoreAdj, s.Umask = 7, 345, 0o027
	before, _ := os.ReadFile("/proc/self/oom_score_adj")
	out, _ := run(t, s)
	if want := fmt.Sprintf("77\n0027\n%d\n345\n2\n", max(7, niceValue())); out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	if after, _ := os.ReadFile("/proc/self/oom_score_adj"); string(after) != string(before) {
		t.Errorf("the launcher's own OOM score changed to %s", after)
	}
	s.Rlimits = []Rlimit{{unix.RLIMIT_NOFILE, 20, 10}}
	_, _, err := tryRun(t, s)
	wantCode(t, err, policy.CodeLimitsInvalid)
}

func TestHoldKeepsTheLock(t *testing.T) {
	name := t.TempDir() + "/lock"
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	r, w, _ := os.Pipe()
	s := newSpec("/bin/cat")
	s.Stdio[0], s.Hold = r, []*os.File{f}
	p, err := Launch(testContext(t), s)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	r.Close()
	again, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := unix.Flock(int(again.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != unix.EWOULDBLOCK {
		t.Errorf("while it runs: %v", err)
	}
	w.Close()
	if _, err := p.Wait(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(again.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Errorf("when it has ended: %v", err)
	}
}

func TestParked(t *testing.T) {
	var seen int
	s := newSpec("true")
	s.Parked = func(pid int, pidfd *os.File) error {
		seen = pid
		host, err := os.Readlink("/proc/self/ns/mnt")
		if err != nil {
			return err
		}
		// Whoever holds it holds the sandbox's mounts, not the host's.
		if own, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/mnt"); err != nil || own == host {
			t.Errorf("parked in the mount namespace %s, the host's is %s: %v", own, host, err)
		}
		time.Sleep(20 * time.Millisecond)
		return unix.PidfdSendSignal(int(pidfd.Fd()), 0, nil, 0)
	}
	if _, o := run(t, s); o.ExitCode != 0 || seen == 0 {
		t.Errorf("%+v, pid %d", o, seen)
	}
	refusal := policy.Errorf(policy.CodeUnavailable, "test", "no scope")
	s = newSpec("true")
	s.Parked = func(int, *os.File) error { return refusal }
	_, _, err := tryRun(t, s)
	wantCode(t, err, policy.CodeUnavailable)
}

// TestCounters: what the control group has counted is in the outcome, read behind the
// Worker's end; a file that is not there, or no group, is nothing counted.
func TestCounters(t *testing.T) {
	for _, test := range []struct {
		name, memory, pids string
		group              string
		oom, tasks         bool
	}{
		{"nothing", "low 0\nhigh 3\nmax 7\noom 1\noom_kill 0\noom_group_kill 0\n", "max 0\n", "slice/scope", false, false},
		{"memory", "low 0\nhigh 0\nmax 7\noom 1\noom_kill 18446744073709551615\n", "max 0\n", "slice/scope", true, false},
		{"tasks", "oom_kill 0\n", "max 2\n", "slice/scope", false, true},
		{"one file", "", "max 2\n", "slice/scope", false, true},
		{"no group", "oom_kill 1\n", "max 2\n", "", false, false},
		{"a group that is gone", "oom_kill 1\n", "max 2\n", "slice/other", false, false},
		{"too long a name", "oom_kill 1\n", "max 2\n", strings.Repeat("x/", maxCounterName), false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			scope := filepath.Join(dir, "slice/scope")
			files := map[string]string{"memory.events": test.memory, "pids.events": test.pids}
			write := func() (err error) {
				for name, text := range files {
					if text != "" {
						err = errors.Join(err, os.WriteFile(filepath.Join(scope, name), []byte(text), 0o644))
					}
				}
				return err
			}
			if err := errors.Join(os.MkdirAll(scope, 0o755), write()); err != nil {
				t.Fatal(err)
			}
			mount, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer mount.Close()
			s := newSpec("/bin/sh", "-c", "ls /proc/self/fd; exit 3")
			s.Counters = &Counters{Mount: mount}
			s.Hold = []*os.File{mount} // stands behind them
			s.Parked = func(int, *os.File) error {
				s.Counters.Group = test.group
				return nil
			}
			out, o := run(t, s)
			if o.OOM != test.oom || o.TasksDenied != test.tasks || o.ExitCode != 3 || o.Lost {
				t.Errorf("%+v", o)
			}
			if out != "0\n1\n2\n3\n" { // 3 is the directory itself
				t.Errorf("the Worker has the descriptors %q", out)
			}
		})
	}
}

func TestStdioPermutation(t *testing.T) {
	// Descriptors 0 to 2 of the launcher in another order, and one for two.
	r, w, _ := os.Pipe()
	defer r.Close()
	s := newSpec("/bin/sh", "-c", "echo out; echo err >&2; readlink /proc/$$/fd/0")
	s.Stdio = [3]*os.File{nil, w, w}
	p, err := Launch(testContext(t), s)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	out, _ := io.ReadAll(r)
	if _, err := p.Wait(testContext(t)); err != nil || string(out) != "out\nerr\n/dev/null\n" {
		t.Errorf("%q %v", out, err)
	}
}

func TestOverlayHidesTheHostPath(t *testing.T) {
	dir := sandboxDir(t)
	for _, d := range []string{"lower", "upper", "work", "ro", "bottom"} {
		if err := os.Mkdir(dir+"/"+d, 0o755); err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() == 0 {
			if err := os.Chown(dir+"/"+d, 0x70010000+1000, 0x70010000+1000); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(os.WriteFile(dir+"/lower/a", []byte("low\n"), 0o644), os.WriteFile(dir+"/ro/r", []byte("ro\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(dir+"/lower/a", 0x70010000+1000, 0x70010000+1000); err != nil {
			t.Fatal(err)
		}
	}
	src := mounts.Source{Path: dir}
	s := newSpec("/bin/sh", "-c", "cat /ws/app/a /ws/ro/r; echo new >/ws/app/a; echo made >/ws/app/b; rm -f /ws/ro/r; cat /ws/app/a; grep -c nsexec /proc/self/mountinfo; ls /ws/ro")
	s.Plan = systemPlan(
		mounts.Overlay{Target: "/ws/app", Lower: []mounts.Source{{Path: dir, Beneath: "lower"}}, Data: src, Upper: "upper", Work: "work", Attr: mounts.Attr{NoSuid: true, NoDev: true}},
		mounts.Overlay{Target: "/ws/ro", Lower: []mounts.Source{{Path: dir + "/ro"}}},
	)
	out, _ := run(t, s)
	if !strings.HasPrefix(out, "low\nro\n") || !strings.HasSuffix(out, "new\n0\nr\n") {
		t.Fatalf("got %q", out)
	}
	low, _ := os.ReadFile(dir + "/lower/a")
	up, err := os.ReadFile(dir + "/upper/b")
	if string(low) != "low\n" || string(up) != "made\n" {
		t.Errorf("lower %q, upper %q %v", low, up, err)
	}
	// Without a lower layer the upper directory is the workspace itself, down to its
	// inode numbers, and all of it is of one device.
	s = newSpec("/bin/sh", "-c", "cat b; mkdir d; mv d e; ln b c; stat -c %i b e; stat -c %d . b e | sort -u | wc -l; grep -c nsexec /proc/self/mountinfo")
	s.Plan = systemPlan(mounts.Overlay{Target: "/ws/app", Data: src, Upper: "upper", Work: "work", Bottom: "bottom"})
	s.CwdRoot = "/ws/app"
	out, _ = run(t, s)
	var file, below unix.Stat_t
	if err := errors.Join(unix.Stat(dir+"/upper/c", &file), unix.Stat(dir+"/upper/e", &below)); err != nil || file.Nlink != 2 {
		t.Fatalf("%v %+v %s", err, file, out)
	}
	if want := []string{"made", num10(file.Ino), num10(below.Ino), "1", "0"}; !slices.Equal(strings.Fields(out), want) {
		t.Errorf("got %q, want %q", out, want)
	}
}

func TestMaskAndReadOnlyPath(t *testing.T) {
	s := newSpec("/bin/sh", "-c", "cat /proc/kallsyms /proc/timer_list; ls -A /proc/acpi; grep -c ' /proc/sys ro,' /proc/self/mountinfo; cat /proc/meminfo | head -1 | cut -c1-8")
	s.Plan = systemPlan(mounts.Mask{Target: "/proc/kallsyms"}, mounts.Mask{Target: "/proc/timer_list"}, mounts.Mask{Target: "/proc/acpi", IsDir: true},
		mounts.Mask{Target: "/proc/no-such-entry"}, mounts.Mask{Target: "/proc/no-such-dir", IsDir: true},
		mounts.ReadOnlyPath{Target: "/proc/sys"}, mounts.ReadOnlyPath{Target: "/proc/no-such"})
	if out, _ := run(t, s); out != "1\nMemTotal\n" {
		t.Errorf("got %q", out)
	}
}

func TestOptionalBind(t *testing.T) {
	dir := sandboxDir(t)
	s := newSpec("/bin/sh", "-c", "cd /; echo o*")
	s.Plan = systemPlan(
		mounts.Bind{Target: "/o1", Source: mounts.Source{Path: dir + "/none"}, Optional: true, Attr: mounts.Attr{ReadOnly: true}},
		mounts.Bind{Target: "/o2", Source: mounts.Source{Path: dir, Beneath: "none"}, Optional: true, IsFile: true},
		mounts.Bind{Target: "/o3", Source: mounts.Source{Path: dir}, Optional: true})
	if out, _ := run(t, s); out != "o3\n" {
		t.Errorf("got %q", out)
	}
	s.Plan = systemPlan(mounts.Bind{Target: "/o1", Source: mounts.Source{Path: dir + "/none"}})
	_, _, err := tryRun(t, s)
	wantCode(t, err, policy.CodeMountFailed)
}

// Go's own pipes are non-blocking, which no program expects of its stdout.
func TestStdioIsBlocking(t *testing.T) {
	out, _ := run(t, newSpec("/bin/sh", "-c", "grep flags /proc/$$/fdinfo/1"))
	if out != "flags:\t0100001\n" && out != "flags:\t01\n" {
		t.Errorf("got %q", out)
	}
}
