package rig

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/api"
)

// Daemons are yoi-runtimed and yoi-helper as two processes on one Runtime root:
// the first as the place's user, the second as root or as another.
type Daemons struct {
	Place     Place
	Root      string
	API       string // the daemon's socket
	HelperSoc string
	// HelperUID is 0 for the privileged set-up.
	HelperUID int
	Tags      []string
	// Env is added to both; RuntimedEnv and HelperEnv to one.
	RuntimedEnv, HelperEnv []string

	Runtimed, Helper *Daemon
	Client           *api.Client
}

// NewDaemons prepares the two without starting them. The Runtime root is made
// by its owner, as an operator's first command would.
func NewDaemons(t testing.TB, p Place, helperUID int, tags ...string) *Daemons {
	t.Helper()
	root := filepath.Join(p.Dir, "rt")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	sockets := filepath.Join(p.Dir, "run")
	if err := os.Mkdir(sockets, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{root, sockets} {
		if err := os.Chown(dir, p.UID, p.UID); err != nil {
			t.Fatal(err)
		}
	}
	y := Yoi{Program: Program(t, "yoi", tags...), Root: root, UID: p.UID, Dir: "/", Home: p.Dir}
	y.OK(t, "repo", "list")
	d := &Daemons{Place: p, Root: root, API: filepath.Join(sockets, "api"), HelperSoc: filepath.Join(sockets, "helper"), HelperUID: helperUID, Tags: tags}
	d.Client = api.NewClient(d.API)
	t.Cleanup(func() {
		d.Client.Close()
		d.Stop(t)
	})
	return d
}

// StartDaemons is NewDaemons and Start.
func StartDaemons(t testing.TB, p Place, helperUID int) *Daemons {
	t.Helper()
	d := NewDaemons(t, p, helperUID)
	d.Start(t)
	return d
}

// Start starts both, and returns when both answer.
func (d *Daemons) Start(t testing.TB) {
	t.Helper()
	d.StartHelper(t)
	d.StartRuntimed(t)
}

// StartHelper starts yoi-helper.
func (d *Daemons) StartHelper(t testing.TB) {
	t.Helper()
	d.Helper = d.start(t, d.HelperCmd(t))
	d.Helper.await(t, d.HelperSoc, "unixpacket")
}

// HelperCmd is yoi-helper, not started.
func (d *Daemons) HelperCmd(t testing.TB) *exec.Cmd {
	t.Helper()
	cmd := asService(Program(t, "yoi-helper", d.Tags...), "--runtime-root", d.Root, "--socket", d.HelperSoc)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + d.Place.Dir}, d.HelperEnv...)
	cmd.SysProcAttr = as(d.HelperUID)
	return cmd
}

// StartRuntimed starts yoi-runtimed.
func (d *Daemons) StartRuntimed(t testing.TB) {
	t.Helper()
	d.Runtimed = d.start(t, d.RuntimedCmd(t))
	d.Runtimed.await(t, d.API, "unix")
}

// RuntimedCmd is yoi-runtimed, not started.
func (d *Daemons) RuntimedCmd(t testing.TB) *exec.Cmd {
	t.Helper()
	cmd := asService(Program(t, "yoi-runtimed", d.Tags...), "--runtime-root", d.Root, "--socket", d.API, "--helper-socket", d.HelperSoc)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + d.Place.Dir}, d.RuntimedEnv...)
	cmd.SysProcAttr = as(d.Place.UID)
	return cmd
}

// asService is a command under the umask of a hardened unit, systemd.exec(5).
func asService(program string, args ...string) *exec.Cmd {
	return exec.Command("/bin/sh", append([]string{"-c", `umask 077; exec "$0" "$@"`, program}, args...)...)
}

func as(uid int) *syscall.SysProcAttr {
	// A process group of its own, so that a crash takes only what belongs to it.
	a := &syscall.SysProcAttr{Setpgid: true}
	if uid != 0 {
		a.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	}
	return a
}

// Stop ends both in order, if they run, and wants them to exit with 0.
func (d *Daemons) Stop(t testing.TB) {
	t.Helper()
	for _, p := range []*Daemon{d.Runtimed, d.Helper} {
		if p != nil {
			p.Stop(t)
		}
	}
}

// Yoi is the command line as uid has it, on this daemon's socket.
func (d *Daemons) Yoi(t testing.TB, uid int) Yoi {
	t.Helper()
	return Yoi{Program: Program(t, "yoi"), Socket: d.API, UID: uid, Dir: "/", Home: d.Place.Dir}
}

// Daemon is one running process.
type Daemon struct {
	cmd    *exec.Cmd
	log    *syncBuffer
	exited chan struct{}
}

func (d *Daemons) start(t testing.TB, cmd *exec.Cmd) *Daemon {
	t.Helper()
	p := &Daemon{cmd: cmd, log: &syncBuffer{}, exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait() // ProcessState has the result
		close(p.exited)
	}()
	return p
}

func (p *Daemon) await(t testing.TB, socket, network string) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		if answers(socket, network) {
			return
		}
		select {
		case <-p.exited:
			t.Fatalf("%s ended at its start: %v\n%s", p.cmd.Path, p.cmd.ProcessState, p.Log())
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not answer\n%s", p.cmd.Path, p.Log())
		}
	}
}

// Stop sends TERM and wants an exit with 0.
func (p *Daemon) Stop(t testing.TB) {
	t.Helper()
	if !p.Running() {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may just have ended
	select {
	case <-p.exited:
	case <-time.After(20 * time.Second):
		_ = p.cmd.Process.Signal(syscall.SIGABRT) // Go prints its stacks
		<-p.exited
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("%s ended with %d\n%s", p.cmd.Path, code, p.Log())
	}
}

// Kill sends KILL and waits.
func (p *Daemon) Kill(t testing.TB) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil && p.Running() {
		t.Fatal(err)
	}
	<-p.exited
}

// Running reports whether the process has not ended.
func (p *Daemon) Running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Exited is closed when the process has ended.
func (p *Daemon) Exited() <-chan struct{} { return p.exited }

// Log is what the process printed.
func (p *Daemon) Log() string { return p.log.String() }

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func answers(socket, network string) bool {
	if network == "unix" {
		return api.Answers(context.Background(), socket)
	}
	c, err := net.Dial(network, socket)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// Pid is the process'; it is meaningful while Running.
func (p *Daemon) Pid() int { return p.cmd.Process.Pid }
