package attack

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// stand is an intruder's repository and a way to run it inside and outside.
type stand struct {
	y    rig.Yoi
	repo testenv.Repo
}

func newStand(t *testing.T, uid int) stand {
	t.Helper()
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", uid)
	return stand{p.Yoi(t), p.Give(t, trojan(t))}
}

// refused runs an attack outside, where it must succeed, and inside, where it
// must not.
func (s stand) refused(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(intruderPath(t), args...).CombinedOutput(); err != nil {
		t.Errorf("%q does not even succeed without a sandbox: %v\n%s", args, err, out)
	}
	r := s.y.Run(t, append([]string{"run", "--repo", s.repo.Dir, "--", "./intruder"}, args...)...)
	if r.Code != 1 || !strings.HasPrefix(r.Stdout, "refused: ") {
		t.Errorf("%q: exit %d\n%s%s", args, r.Code, r.Stdout, r.Stderr)
	}
}

// TestAttackSockets: listeners of the host by every kind of address.
func TestAttackSockets(t *testing.T) {
	s := newStand(t, 0)
	abstract := "@" + testenv.RunID() + "-listener"
	path := filepath.Join(t.TempDir(), "s")
	for _, l := range []struct{ network, address string }{{"unix", abstract}, {"unix", path}, {"tcp", "127.0.0.1:0"}, {"tcp6", "[::1]:0"}} {
		n, err := net.Listen(l.network, l.address)
		if err != nil {
			if l.network == "tcp6" {
				continue // a host without IPv6
			}
			t.Fatal(err)
		}
		defer n.Close()
		s.refused(t, "connect", l.network, n.Addr().String())
	}
}

// TestAttackSharedMemory: a segment that everybody on the host may read.
func TestAttackSharedMemory(t *testing.T) {
	s := newStand(t, 0)
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 4096, unix.IPC_CREAT|0o666)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.SysvShmCtl(id, unix.IPC_RMID, nil)
	s.refused(t, "shm", fmt.Sprint(id))
}

// TestAttackKeyring: the caller's session keyring is inherited across
// everything but a new one, keyrings(7).
func TestAttackKeyring(t *testing.T) {
	s := newStand(t, 0)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, err := unix.KeyctlJoinSessionKeyring(testenv.RunID())
	if errors.Is(err, unix.ENOSYS) {
		testenv.MissingKernelFeature(t, "keyrings", err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.AddKey("user", testenv.RunID(), []byte("secret"), unix.KEY_SPEC_SESSION_KEYRING); err != nil {
		t.Fatal(err)
	}
	s.refused(t, "keyring", testenv.RunID())
}

// TestAttackTerminal: the caller has a terminal. The Worker cannot type into
// it (CVE-2017-5226), nor have its keys and signals, whether it is given a terminal or not.
func TestAttackTerminal(t *testing.T) {
	s := newStand(t, 0)
	var pts unix.Stat_t
	if err := unix.Stat("/dev/pts", &pts); err != nil {
		t.Fatal(err)
	}
	for _, a := range [][]string{{"tiocsti"}, {"controlling-terminal", fmt.Sprint(pts.Dev)}, {"foreground", fmt.Sprint(pts.Dev)}} {
		if code, out := onTerminal(t, exec.Command(intruderPath(t), a...), false); code != 0 {
			t.Errorf("%q does not even succeed on the caller's own terminal: %s", a, out)
		}
		for _, piped := range []bool{false, true} {
			cmd := s.y.Cmd(append([]string{"run", "--repo", s.repo.Dir, "--", "./intruder"}, a...)...)
			if code, out := onTerminal(t, cmd, piped); code != 1 {
				t.Errorf("%q with piped=%v: exit %d\n%s", a, piped, code, out)
			}
		}
	}
}

// onTerminal runs cmd in a session of its own on a new terminal. With piped
// its standard streams are pipes all the same.
func onTerminal(t *testing.T, cmd *exec.Cmd, piped bool) (int, string) {
	t.Helper()
	master, slave := openTerminal(t)
	defer master.Close()
	cred := cmd.SysProcAttr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 3}
	if cred != nil {
		cmd.SysProcAttr.Credential = cred.Credential
	}
	cmd.ExtraFiles = []*os.File{slave}
	out := make(chan string, 1)
	if piped {
		pr, pw, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdout, cmd.Stderr = pw, pw
		go func() { out <- readAll(pr) }()
		defer pr.Close()
		err = cmd.Start()
		pw.Close()
		slave.Close()
		if err != nil {
			t.Fatal(err)
		}
	} else {
		cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
		go func() { out <- readAll(master) }()
		err := cmd.Start()
		slave.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	_ = cmd.Wait() // the state has the code
	return cmd.ProcessState.ExitCode(), <-out
}

func readAll(f *os.File) string {
	var b strings.Builder
	buf := make([]byte, 4096)
	for {
		n, err := f.Read(buf)
		b.Write(buf[:n])
		if err != nil {
			return b.String() // EIO: the last slave was closed, pty(7)
		}
	}
}

func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	s, err := unix.Open(fmt.Sprintf("/dev/pts/%d", n), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "master"), os.NewFile(uintptr(s), "slave")
}

// TestAttackOutputFile: a caller that redirects into a file does not thereby
// tell the Worker where the file is, nor let it open the file anew.
func TestAttackOutputFile(t *testing.T) {
	s := newStand(t, 0)
	out := filepath.Join(t.TempDir(), "secret-place")
	f, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := s.y.Cmd("run", "--repo", s.repo.Dir, "--", "sh", "-c", "readlink /proc/self/fd/1; readlink /proc/self/fd/0; ./intruder grep "+encoded([]string{filepath.Dir(out)})[0])
	cmd.Stdin, cmd.Stdout = f, f
	_ = cmd.Run() // the answer is in the file
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if text := string(b); strings.Contains(text, "secret-place") || !strings.Contains(text, "refused: no such word") {
		t.Errorf("the Worker says\n%s", text)
	}
}

// TestAttackStandardStreams: callers whose standard streams lead to more than bytes. A
// directory is refused, of the others the Worker has a pipe.
func TestAttackStandardStreams(t *testing.T) {
	s := newStand(t, 0)
	dir, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	outside := exec.Command(intruderPath(t), "directory-descriptors")
	outside.Stdin = dir
	if out, err := outside.CombinedOutput(); err != nil {
		t.Errorf("a directory does not lead out even without a sandbox: %v\n%s", err, out)
	}
	for name, give := range map[string]func(*exec.Cmd){
		"input": func(c *exec.Cmd) { c.Stdin = dir }, "output": func(c *exec.Cmd) { c.Stdout = dir },
	} {
		cmd := s.y.Cmd("run", "--repo", s.repo.Dir, "--", "./intruder", "directory-descriptors")
		var said strings.Builder
		cmd.Stderr = &said
		give(cmd)
		_ = cmd.Run() // its state has the code
		if code := cmd.ProcessState.ExitCode(); code != 125 || !strings.Contains(said.String(), "code: bad_request") {
			t.Errorf("a directory as the standard %s: exit %d\n%s", name, code, said.String())
		}
	}

	place := filepath.Join(t.TempDir(), "secret-place")
	if err := unix.Mkfifo(place, 0o600); err != nil {
		t.Fatal(err)
	}
	fifo, err := os.OpenFile(place, os.O_RDWR, 0) // so that nobody waits for the other end
	if err != nil {
		t.Fatal(err)
	}
	defer fifo.Close()
	for _, attack := range []struct {
		stdin func() *os.File
		args  []string
	}{
		{func() *os.File { return letter(t, dir) }, []string{"rights"}},
		{func() *os.File { return fifo }, append([]string{"grep"}, encoded([]string{"secret-place"})...)},
	} {
		run := func(cmd *exec.Cmd) (int, string) {
			cmd.Stdin = attack.stdin()
			out, _ := cmd.CombinedOutput() // its state has the code
			return cmd.ProcessState.ExitCode(), string(out)
		}
		if code, out := run(exec.Command(intruderPath(t), attack.args...)); code != 0 {
			t.Errorf("%q does not even succeed without a sandbox: %s", attack.args, out)
		}
		if code, out := run(s.y.Cmd(append([]string{"run", "--repo", s.repo.Dir, "--", "./intruder"}, attack.args...)...)); code != 1 || !strings.HasPrefix(out, "refused: ") {
			t.Errorf("%q: exit %d\n%s", attack.args, code, out)
		}
	}
	rig.Clean(t, s.y.Root)
}
