package rig

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Backend is yoi-backend as a process of the place's user, in front of Daemons.
type Backend struct {
	*Daemon
	URL    string
	Config string // the file
	Store  string
	uid    int
	home   string
}

// StartBackend starts it with a configuration in which @SOCKET@ is the Runtime's
// socket. Where it listens and keeps its store is seen to.
func StartBackend(t testing.TB, d *Daemons, config string) *Backend {
	t.Helper()
	dir := filepath.Join(d.Place.Dir, "backend")
	if err := os.Mkdir(dir, 0o700); err != nil && !os.IsExist(err) {
		t.Fatal(err)
	}
	b := &Backend{Config: filepath.Join(dir, "backend.toml"), Store: filepath.Join(dir, "backend.db"), uid: d.Place.UID, home: d.Place.Dir}
	config = fmt.Sprintf("store = %q\n", b.Store) + strings.ReplaceAll(config, "@SOCKET@", d.API)
	if !strings.Contains(config, "[listen]") {
		config += "\n[listen]\naddress = \"127.0.0.1:0\"\n"
	}
	if err := os.WriteFile(b.Config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{dir, b.Config} {
		if err := os.Chown(n, b.uid, b.uid); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if b.Daemon != nil { // also one that never began to serve
			b.Stop(t)
		}
	})
	b.Start(t)
	return b
}

func (b *Backend) cmd(t testing.TB, args ...string) *exec.Cmd {
	cmd := exec.Command(Program(t, "yoi-backend"), append([]string{"--config", b.Config}, args...)...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.home}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if b.uid != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(b.uid), Gid: uint32(b.uid)}
	}
	return cmd
}

// Start starts it, anew after an end.
func (b *Backend) Start(t testing.TB) {
	t.Helper()
	cmd := b.cmd(t, "serve", "-v")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	b.Daemon = &Daemon{cmd: cmd, log: &syncBuffer{}, exited: make(chan struct{})}
	cmd.Stderr = b.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	told := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(out).ReadString('\n') // none from a program that refuses
		told <- strings.TrimSpace(line)
		_ = cmd.Wait() // ProcessState has the result
		close(b.exited)
	}()
	select {
	case b.URL = <-told:
	case <-time.After(30 * time.Second):
	}
	if b.URL == "" {
		t.Fatalf("yoi-backend does not begin to serve\n%s", b.Log())
	}
}

// Run is another command of yoi-backend's with the same configuration.
func (b *Backend) Run(t testing.TB, stdin string, args ...string) string {
	t.Helper()
	cmd := b.cmd(t, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("yoi-backend %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// Token makes a token of a role in a workspace.
func (b *Backend) Token(t testing.TB, workspace, role string) string {
	t.Helper()
	return b.Run(t, "", "token", "add", "--workspace", workspace, "--role", role, "--label", role)
}
