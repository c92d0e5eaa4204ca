package nsexec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

func init() {
	// launch ARG: a launcher whose Worker sleeps; it says when the Worker runs.
	launcher := func(die bool) func() {
		return func() {
			s := newSpec("/usr/bin/sleep", os.Args[1])
			s.DieWithParent = die
			for {
				p, err := Launch(context.Background(), s)
				if err != nil {
					fmt.Println(err)
					os.Exit(1)
				}
				fmt.Println("started")
				if !die {
					return
				}
				time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
				_ = p.Kill()
			}
		}
	}
	roles["dying-launcher"] = launcher(true)
	roles["leaving-launcher"] = launcher(false)
	roles["filtered-launcher"] = filteredLauncher
}

// waitGone waits until no process has mark in its arguments.
func waitGone(t *testing.T, mark string) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		left := processesWith(mark)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			for _, p := range left {
				st, _ := os.ReadFile(strings.TrimSuffix(p, "cmdline") + "status")
				t.Logf("%s:\n%s", p, st)
			}
			t.Fatalf("left behind: %v", left)
		}
	}
}

// The launcher is killed at a random moment of a loop of launches.
func TestDieWithParent(t *testing.T) {
	n := 60
	if testing.Short() {
		n = 15
	}
	for i := range n {
		mark := fmt.Sprintf("7%d%d", i, time.Now().UnixNano()%1e9)
		c := role("dying-launcher", mark)
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		line := make([]byte, 8)
		if _, err := io.ReadFull(out, line); err != nil || string(line) != "started\n" {
			t.Fatalf("%q %v", line, err)
		}
		time.Sleep(time.Duration(rand.IntN(8000)) * time.Microsecond)
		_ = c.Process.Kill()
		_ = c.Wait()
		waitGone(t, mark)
	}
}

func TestSurvivesItsParent(t *testing.T) {
	mark := fmt.Sprintf("6%d", time.Now().UnixNano()%1e9)
	c := role("leaving-launcher", mark)
	if out, err := c.Output(); err != nil || string(out) != "started\n" {
		t.Fatalf("%q %v", out, err)
	}
	time.Sleep(50 * time.Millisecond)
	pids := processesWith(mark)
	if len(pids) != 1 {
		t.Fatalf("processes: %v", pids)
	}
	var pid int
	fmt.Sscanf(pids[0], "/proc/%d/", &pid)
	if err := unix.Kill(pid, unix.SIGKILL); err != nil { // started by this test, an unreaped child of init's
		t.Fatal(err)
	}
	waitGone(t, mark)
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	es, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(es)
}

func children(t *testing.T) string {
	t.Helper()
	names, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	for _, n := range names {
		b, _ := os.ReadFile("/proc/self/task/" + n.Name() + "/children")
		all = append(all, b...)
	}
	return string(all)
}

func TestStormLeavesNothing(t *testing.T) {
	warm := newSpec("true") // what is kept for ever is made now
	warm.DieWithParent = true
	run(t, warm)
	runtime.GC()
	fds, routines := openDescriptors(t), runtime.NumGoroutine()
	n := 200
	if testing.Short() {
		n = 60
	}
	var wg sync.WaitGroup
	work := make(chan int)
	for range 16 {
		wg.Go(func() {
			for i := range work {
				s := newSpec("/bin/sh", "-c", fmt.Sprint("exit ", i%200))
				want := i % 200
				switch i % 5 {
				case 1:
					s.DieWithParent = true
				case 2: // a launch that fails late
					s.Argv = []string{"/no/such"}
				case 3: // one that fails early
					s.Hostname = strings.Repeat("x", 65)
				}
				p, err := Launch(context.Background(), s)
				if i%5 == 2 || i%5 == 3 {
					if err == nil {
						t.Error("a broken launch worked")
					}
					continue
				}
				if err != nil {
					t.Error(err)
					continue
				}
				if o, err := p.Wait(context.Background()); err != nil || o.ExitCode != want {
					t.Errorf("%d: %+v %v", want, o, err)
				}
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	wg.Wait()
	for range 100 { // the last goroutines are about to end
		if openDescriptors(t) <= fds && runtime.NumGoroutine() <= routines {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if got := openDescriptors(t); got > fds {
		t.Errorf("descriptors: %d, then %d", fds, got)
	}
	if got := runtime.NumGoroutine(); got > routines {
		t.Errorf("goroutines: %d, then %d", routines, got)
	}
	if got := children(t); got != "" {
		t.Errorf("children: %s", got)
	}
}

// TestCancel: a launch that is canceled, at whatever moment, leaves nothing, and one
// that nobody was told was canceled is left alone.
func TestCancel(t *testing.T) {
	launch := func(after time.Duration) (took time.Duration) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		began := time.Now()
		time.AfterFunc(after, cancel)
		p, err := Launch(ctx, newSpec("/bin/sleep", "60"))
		took = time.Since(began)
		if err != nil {
			wantCode(t, err, policy.CodeCanceled)
			return took
		}
		if hasEnded(p.Pidfd, 10*time.Millisecond) {
			t.Errorf("canceled after %v, it is launched, and killed", after)
		}
		if err := p.Kill(); err != nil && !errors.Is(err, policy.CodeWorkerNotRunning) {
			t.Error(err)
		}
		if o, err := p.Wait(context.Background()); err != nil || !o.Lost || o.ExitCode != 137 {
			t.Errorf("%+v %v", o, err)
		}
		return took
	}
	for i := range 40 {
		launch(time.Duration(i*50) * time.Microsecond)
	}
	for i := range 200 { // about when it returns
		launch(launch(time.Hour) + time.Duration(i-150)*2*time.Microsecond)
	}
	if got := children(t); got != "" {
		t.Errorf("children: %s", got)
	}
}

// filteredLauncher launches under a filter that hides calls, as an old kernel
// or a container's filter would, and prints the diagnostic.
func filteredLauncher() {
	var nr, errno uint32
	fmt.Sscan(os.Args[1], &nr, &errno)
	makeThreads(16)
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		fmt.Println(err)
	}
	if err := loadFilter(denyCall(errno, nr)); err != nil {
		fmt.Println(err)
	}
	s := newSpec("true")
	s.CwdRoot, s.RelativeCwd, s.DieWithParent = "/", "usr/bin", true
	if nr >= unix.SYS_LANDLOCK_CREATE_RULESET && nr <= unix.SYS_LANDLOCK_RESTRICT_SELF {
		s.Landlock = &Landlock{Writable: []string{"/tmp"}}
	}
	p, err := Launch(context.Background(), s)
	if err != nil {
		d := policy.AsDiagnostic(err)
		fmt.Println(d.Code, d.Fields["feature"])
		return
	}
	o, err := p.Wait(context.Background())
	fmt.Println("exit", o.ExitCode, err)
}

// makeThreads has the runtime make its threads now: under a filter that refuses
// clone3 the C library could make no more, and that would end the process.
func makeThreads(n int) {
	var wg sync.WaitGroup
	arrived, leave := make(chan bool), make(chan bool)
	for range n {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			arrived <- true
			<-leave
		})
	}
	for range n {
		<-arrived
	}
	close(leave)
	wg.Wait()
}

func TestMissingKernelFeatures(t *testing.T) {
	for name, nr := range map[string]uint32{
		"clone3": unix.SYS_CLONE3, "mount_setattr": unix.SYS_MOUNT_SETATTR, "openat2": unix.SYS_OPENAT2, "pidfd_open": unix.SYS_PIDFD_OPEN, "close_range": unix.SYS_CLOSE_RANGE,
		"fsopen": unix.SYS_FSOPEN, "open_tree": unix.SYS_OPEN_TREE, "move_mount": unix.SYS_MOVE_MOUNT, "pivot_root": unix.SYS_PIVOT_ROOT,
		"landlock": unix.SYS_LANDLOCK_CREATE_RULESET, "landlock_add_rule": unix.SYS_LANDLOCK_ADD_RULE, "landlock_restrict_self": unix.SYS_LANDLOCK_RESTRICT_SELF,
		"unshare": unix.SYS_UNSHARE, "execveat": unix.SYS_EXECVEAT, "signalfd4": unix.SYS_SIGNALFD4,
	} {
		var out bytes.Buffer
		c := role("filtered-launcher", fmt.Sprint(nr, " ", uint32(unix.ENOSYS)))
		c.Stdout = &out
		if err := c.Run(); err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(out.String()); got != "kernel_feature_missing "+name {
			t.Errorf("without %s: %q", name, got)
		}
	}
	for _, c := range []struct {
		nr, errno uint32
		want      string
	}{
		{unix.SYS_CLONE3, uint32(unix.EPERM), "namespaces_unavailable"}, {unix.SYS_UNSHARE, uint32(unix.EPERM), "namespaces_unavailable"},
		{unix.SYS_CLONE3, uint32(unix.ENOSPC), "namespaces_unavailable"}, {unix.SYS_KEYCTL, uint32(unix.ENOSYS), "exit 0 <nil>"},
		{unix.SYS_KEYCTL, uint32(unix.EDQUOT), "launch_failed"}, {unix.SYS_MOVE_MOUNT, uint32(unix.EPERM), "mount_failed"},
	} {
		out, err := role("filtered-launcher", fmt.Sprint(c.nr, " ", c.errno)).Output()
		if got := strings.TrimSpace(string(out)); err != nil || got != c.want {
			t.Errorf("call %d with errno %d: %q %v, want %q", c.nr, c.errno, got, err, c.want)
		}
	}
}

// A Worker may end before Launch returns; the pidfd that the launcher is then
// about to duplicate must still be one.
func TestPidfdOutlivesTheSandbox(t *testing.T) {
	p, err := Launch(context.Background(), newSpec("/usr/bin/true"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(p.Pidfd.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal("the pidfd is gone: ", err)
	}
	unix.Close(fd)
	if err := p.Signal(unix.SIGTERM); !errors.Is(err, policy.CodeWorkerNotRunning) {
		t.Errorf("a signal to it: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
