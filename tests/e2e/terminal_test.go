package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// screen is a terminal that a person sits at.
type screen struct {
	master *os.File
	cmd    *exec.Cmd
	mu     sync.Mutex
	seen   bytes.Buffer
	end    chan struct{}
}

func onScreen(t *testing.T, cmd *exec.Cmd, rows, columns uint16) *screen {
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
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := slave.Chown(int(cmdUID(cmd)), int(cmdUID(cmd))); err != nil {
		t.Fatal(err)
	}
	s := &screen{master: os.NewFile(uintptr(fd), "terminal"), cmd: cmd, end: make(chan struct{})}
	s.resize(t, rows, columns)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	go s.read()
	t.Cleanup(func() { s.master.Close() })
	return s
}

func cmdUID(cmd *exec.Cmd) uint32 {
	if c := cmd.SysProcAttr.Credential; c != nil {
		return c.Uid
	}
	return 0
}

func (s *screen) read() {
	defer close(s.end)
	buf := make([]byte, 4096)
	for {
		n, err := s.master.Read(buf)
		s.mu.Lock()
		s.seen.Write(buf[:n])
		s.mu.Unlock()
		if err != nil {
			return // EIO: the last slave was closed, pty(7)
		}
	}
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.ReplaceAll(s.seen.String(), "\r\n", "\n")
}

func (s *screen) expect(t *testing.T, text string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !strings.Contains(s.text(), text); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			_ = s.cmd.Process.Kill()
			t.Fatalf("the screen shows\n%s\nwithout %q", s.text(), text)
		}
	}
}

func (s *screen) resize(t *testing.T, rows, columns uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(s.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}); err != nil {
		t.Fatal(err)
	}
}

func (s *screen) typed(t *testing.T, keys string) {
	t.Helper()
	if _, err := s.master.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

func (s *screen) code(t *testing.T) int {
	t.Helper()
	done := make(chan struct{})
	go func() { _ = s.cmd.Wait(); close(done) }() // the state has the code
	select {
	case <-done:
	case <-time.After(time.Minute):
		_ = s.cmd.Process.Kill()
		<-done
		t.Errorf("the command did not end; the screen shows\n%s", s.text())
	}
	return s.cmd.ProcessState.ExitCode()
}

// TestTerminal: a shell in the sandbox is a shell at a terminal of the right
// size, with job control's keys.
func TestTerminal(t *testing.T) {
	each(t, func(t *testing.T, y rig.Yoi, repo testenv.Repo) {
		y.Env = append(y.Env, "TERM=vt100")
		s := onScreen(t, y.Cmd("run", "--repo", repo.Dir, "--", "sh", "-c", `
			test -t 0 && test -t 1 && test -t 2 && echo "terminal $TERM" && stty size
			trap 'echo resized; stty size' WINCH; trap 'echo interrupted; exit 33' INT
			echo ready; while :; do read -r line && echo "got $line"; done`), 31, 97)
		s.expect(t, "terminal vt100\n31 97\nready")
		s.typed(t, "hello\r")
		s.expect(t, "got hello")
		s.resize(t, 40, 120)
		if err := s.cmd.Process.Signal(syscall.SIGWINCH); err != nil {
			t.Fatal(err)
		}
		s.typed(t, "\r") // dash runs a trap when its read returns, which a signal may end
		s.expect(t, "40 120")
		s.typed(t, "\x03")
		s.typed(t, "\r")
		if code := s.code(t); code != 33 {
			t.Errorf("exit %d\n%s", code, s.text())
		}
	})
}

// TestTerminalIsRestored: the caller's terminal is in the mode that it was in.
func TestTerminalIsRestored(t *testing.T) {
	each(t, func(t *testing.T, y rig.Yoi, repo testenv.Repo) {
		for _, command := range []string{"true", "exit 3", "kill -KILL $$", "no-such-command"} {
			run := y.Cmd("run", "--repo", repo.Dir, "--", "sh", "-c", command)
			shell := exec.Command("sh", append([]string{"-c", `before=$(stty -g); "$@"; echo "code $?"; test "$before" = "$(stty -g)" && echo restored`, "sh"}, run.Args...)...)
			shell.Path, _ = exec.LookPath("sh")
			shell.Args[len(shell.Args)-len(run.Args)] = run.Path
			shell.Dir, shell.Env, shell.SysProcAttr = run.Dir, run.Env, run.SysProcAttr
			s := onScreen(t, shell, 24, 80)
			s.expect(t, "restored")
			s.code(t)
		}
	})
}

// TestSignalsReachTheCommand, and yoi ends as the command does.
func TestSignalsReachTheCommand(t *testing.T) {
	each(t, func(t *testing.T, y rig.Yoi, repo testenv.Repo) {
		for s, code := range map[syscall.Signal]int{syscall.SIGTERM: 11, syscall.SIGINT: 12, syscall.SIGHUP: 13, syscall.SIGUSR1: 14, syscall.SIGQUIT: 15} {
			cmd := y.Cmd("run", "--repo", repo.Dir, "--", "sh", "-c", "trap 'exit 11' TERM; trap 'exit 12' INT; trap 'exit 13' HUP; trap 'exit 14' USR1; trap 'exit 15' QUIT; echo ready; while :; do sleep 0.02; done")
			rig.Begin(t, cmd)
			if err := cmd.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // the code is looked at
			if got := cmd.ProcessState.ExitCode(); got != code {
				t.Errorf("%v: exit %d, want %d", s, got, code)
			}
		}
	})
}

// TestKilledYoi: however yoi dies, its sandbox dies with it, and the next use
// takes the rest away.
func TestKilledYoi(t *testing.T) {
	each(t, func(t *testing.T, y rig.Yoi, repo testenv.Repo) {
		cmd := y.Cmd("run", "--repo", repo.Dir, "--", "sh", "-c", "trap '' TERM HUP INT PIPE; echo ready; while :; do sleep 0.02; done")
		rig.Begin(t, cmd)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed
		y.OK(t, "run", "--repo", repo.Dir, "--", "true")
	})
}

// TestManyAtOnce: runs that share a Runtime root and begin with a cold cache.
func TestManyAtOnce(t *testing.T) {
	each(t, func(t *testing.T, y rig.Yoi, repo testenv.Repo) {
		results := make(chan rig.Result, 12)
		for i := range cap(results) {
			cmd := y.Cmd("run", "--repo", repo.Dir, "--", "sh", "-c", fmt.Sprintf("git status --porcelain; echo %d >mine; cat mine", i))
			go func() { results <- rig.Finish(t, cmd) }()
		}
		seen := map[string]bool{}
		for range cap(results) {
			r := <-results
			if r.Code != 0 || seen[r.Stdout] {
				t.Errorf("exit %d, %q, %s", r.Code, r.Stdout, r.Stderr)
			}
			seen[r.Stdout] = true
		}
	})
}
