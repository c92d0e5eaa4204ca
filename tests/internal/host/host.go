package host

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// Manager is the service manager that a Host starts.
const Manager = "/lib/systemd/systemd"

// Host is one machine. Its disk outlives Kill, as a machine's does.
type Host struct {
	t    testing.TB
	disk string
	init int // its first process, 0 when it is off
	kill func() error
	dead chan struct{}
	runs int
}

// New makes a disk and boots from it. The machine is killed when the test ends.
func New(t testing.TB) *Host {
	t.Helper()
	testenv.Root(t)
	if _, err := os.Stat(Manager); err != nil {
		t.Fatalf("no systemd here (make setup installs it): %v", err)
	}
	h := &Host{t: t, disk: testenv.FSWith(t, "ext4", 2048, testenv.FSOptions{OnDisk: true})}
	if err := format(h.disk); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Kill) // before the disk is unmounted
	h.Boot()
	return h
}

// Boot starts the machine, which must be off, and waits until its queue of jobs is
// empty.
func (h *Host) Boot() {
	h.t.Helper()
	if h.init != 0 {
		h.t.Fatal("the machine is running")
	}
	hs, err := hierarchies()
	if err != nil {
		h.t.Fatal(err)
	}
	groups, err := makeGroups(hs)
	if err != nil {
		h.t.Fatal(err)
	}
	started := make(chan error)
	h.dead = make(chan struct{})
	go h.process(hs, groups, started)
	if err := <-started; err != nil {
		h.t.Fatal(err)
	}
	h.settle()
}

// process owns the thread whose end would end the machine (PR_SET_PDEATHSIG).
func (h *Host) process(hs []hierarchy, groups []string, started chan<- error) {
	runtime.LockOSThread()
	defer close(h.dead)
	defer func() {
		if err := removeGroups(groups); err != nil {
			h.t.Errorf("the machine's control groups stay: %v", err)
		}
	}()
	gate, open, err := os.Pipe()
	if err != nil {
		started <- err
		return
	}
	defer open.Close()
	var console bytes.Buffer
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{stageName, h.disk, encode(hs)}
	cmd.Env = []string{}
	cmd.ExtraFiles = []*os.File{gate}
	cmd.Stdout, cmd.Stderr = &console, &console
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWNET,
		Pdeathsig:  unix.SIGKILL, Setsid: true,
	}
	err = cmd.Start()
	gate.Close()
	if err != nil {
		started <- err
		return
	}
	for _, g := range groups {
		err = errors.Join(err, os.WriteFile(filepath.Join(g, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o644))
	}
	if err == nil {
		_, err = open.WriteString("g")
	}
	h.init, h.kill = cmd.Process.Pid, cmd.Process.Kill
	if err != nil {
		_ = cmd.Process.Kill()
	}
	started <- err
	_ = cmd.Wait()
	if s := console.String(); s != "" {
		h.t.Logf("the machine's console: %s", s)
	}
}

func (h *Host) settle() {
	h.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		select {
		case <-h.dead:
			h.t.Fatal("the machine did not start")
		default:
		}
		comm, _ := os.ReadFile(h.Path("/proc/1/comm"))
		if _, err := os.Stat(h.Path("/run/systemd/private")); err == nil && string(comm) == "systemd\n" {
			break
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("systemd does not answer; process 1 is %q", comm)
		}
		time.Sleep(10 * time.Millisecond)
	}
	out, err := h.enter("systemctl", "is-system-running", "--wait").CombinedOutput()
	if state := strings.TrimSpace(string(out)); state != "running" {
		failed, _ := h.enter("systemctl", "--no-pager", "--failed").CombinedOutput()
		h.t.Fatalf("systemd is %q: %v\n%s", state, err, failed)
	}
}

// Kill takes the machine's power away.
func (h *Host) Kill() {
	if h.init == 0 {
		return
	}
	_ = h.kill() // unless it is dead already: then its number may be another's
	<-h.dead
	h.init = 0
}

// Path is the name of one of the machine's files for this process.
func (h *Host) Path(p string) string {
	return filepath.Join("/proc", strconv.Itoa(h.init), "root", p)
}

// Write makes a file of the machine.
func (h *Host) Write(p, content string, mode os.FileMode) {
	h.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(h.Path(p)), 0o755), os.WriteFile(h.Path(p), []byte(content), mode)); err != nil {
		h.t.Fatal(err)
	}
}

// Copy copies what is in a directory of this machine into one of the other's.
func (h *Host) Copy(from, to string) {
	h.t.Helper()
	if out, err := exec.Command("cp", "-a", "--no-preserve=ownership", from+"/.", h.Path(to)).CombinedOutput(); err != nil {
		h.t.Fatalf("%v\n%s", err, out)
	}
}

// enter is a command in the machine's namespaces, but in none of its units.
func (h *Host) enter(args ...string) *exec.Cmd {
	pre := []string{"-t", strconv.Itoa(h.init), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "--",
		"/usr/bin/env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "LANG=C.UTF-8", "HOME=/root"}
	return exec.Command("nsenter", append(pre, args...)...)
}

// Result is what a command of the machine did.
type Result = rig.Output

// Run runs a command as root in a service of its own and waits for it.
func (h *Host) Run(args ...string) Result {
	h.t.Helper()
	return h.RunAs("root", args...)
}

// RunAs is Run as a user of the machine.
func (h *Host) RunAs(user string, args ...string) Result {
	h.t.Helper()
	h.runs++
	// A signal is an end like any other to systemd-run, so the shell makes a code of
	// it; and the manager expands what begins with "$" and "%".
	pre := []string{"systemd-run", "--quiet", "--pipe", "--wait", "--collect", "--service-type=exec",
		fmt.Sprintf("--unit=command-%d", h.runs), "--uid=" + user, "--working-directory=/", "--", "sh", "-c", `"$$@"; exit $$?`, "sh"}
	for _, a := range args {
		pre = append(pre, strings.ReplaceAll(a, "$", "$$"))
	}
	cmd := h.enter(pre...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		h.t.Fatal(err)
	}
	return Result{T: h.t, What: strings.Join(args, " "), Code: cmd.ProcessState.ExitCode(), Stdout: stdout.String(), Stderr: stderr.String()}
}

// Direct runs a command that must succeed as root, in no unit of the machine's: where
// there is no bus, which Run's systemd-run(1) waits by.
func (h *Host) Direct(args ...string) string {
	h.t.Helper()
	var stderr bytes.Buffer
	cmd := h.enter(args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		h.t.Fatalf("%q: %v\n%s", args, err, stderr.String())
	}
	return string(out)
}

// OK is Run of what must succeed, and its output.
func (h *Host) OK(args ...string) string {
	h.t.Helper()
	return h.Run(args...).Want(0).Stdout
}

// Eventually waits for a condition of the machine that has no event to wait for.
func (h *Host) Eventually(what string, cond func() bool) {
	h.t.Helper()
	rig.Await(h.t, what, time.Minute, 20*time.Millisecond, cond)
}
