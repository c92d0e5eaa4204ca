package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/servicetest"
	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

// asChild is set for the test binary run as another process; see TestMain.
const asChild = "YOI_API_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(asChild) {
	case "":
		os.Exit(m.Run())
	case "info":
		_, err := NewClient(os.Args[1]).Info(context.Background())
		if err != nil {
			fmt.Print(policy.AsDiagnostic(err).Code)
		}
	case "activated":
		activatedChild()
	}
}

func TestAllowedPeers(t *testing.T) {
	own := uint32(os.Geteuid())
	for _, c := range []struct {
		peer       Peer
		uids, gids []uint32
		want       bool
	}{
		{Peer{UID: 0}, nil, nil, true},
		{Peer{UID: own}, nil, nil, true},
		{Peer{UID: own + 1}, nil, nil, false},
		{Peer{UID: own + 1}, []uint32{5, own + 1}, nil, true},
		{Peer{UID: 65534}, []uint32{5}, nil, false},
		{Peer{UID: 1<<32 - 1}, nil, nil, false},
		{Peer{UID: 65534, GID: 7}, nil, []uint32{7}, true},
		{Peer{UID: 65534, GID: 8, Groups: []uint32{6, 7}}, nil, []uint32{7}, true},
		{Peer{UID: 65534, GID: 8, Groups: []uint32{6}}, []uint32{6, 8}, []uint32{7}, false},
	} {
		if got := allowed(c.peer, c.uids, c.gids); got != c.want {
			t.Errorf("%+v with %v and %v: %v", c.peer, c.uids, c.gids, got)
		}
	}
}

// TestPeerOfAnotherUser connects as uid 65534, and is told why not.
func TestPeerOfAnotherUser(t *testing.T) {
	testenv.Privileged(t)
	self := copyOfSelf(t)
	many := make([]uint32, 300) // more than one buffer of the kernel's answer
	for i := range many {
		many[i] = uint32(2000 + i)
	}
	for _, c := range []struct {
		list   []uint32
		gids   []uint32
		groups []uint32
		want   string
	}{
		{want: "peer_refused"},
		{list: []uint32{65534}},
		{gids: []uint32{65534}},
		{gids: []uint32{2299}, groups: many},
		{gids: []uint32{2300}, groups: many, want: "peer_refused"},
	} {
		svc := new(servicetest.Service)
		socket, _ := serve(t, Options{Service: svc, AllowUIDs: c.list, AllowGIDs: c.gids})
		openUp(t, socket)
		cmd := exec.Command(self, socket)
		cmd.Env = []string{asChild + "=info"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534, Groups: c.groups}}
		cmd.Dir = "/"
		out, err := cmd.CombinedOutput()
		if err != nil || string(out) != c.want {
			t.Errorf("with %v: %q, %v", c.list, out, err)
		}
		if called := len(svc.Calls()) > 0; called != (c.want == "") {
			t.Errorf("with %v: called %v", c.list, called)
		}
	}
}

// openUp lets others reach the socket, as a badly installed one would.
func openUp(t *testing.T, socket string) {
	t.Helper()
	for dir := filepath.Dir(socket); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(socket, 0o666); err != nil {
		t.Fatal(err)
	}
}

// copyOfSelf is this test's binary where any user may execute it.
func copyOfSelf(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	to := filepath.Join(dir, "self")
	if err := os.WriteFile(to, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return to
}

func TestSocketMode(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Lstat(path)
	if err != nil || st.Mode() != os.ModeSocket|0o660 {
		t.Errorf("%v %v", st.Mode(), err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket stays: %v", err)
	}
}

// The socket is never wider than 0660, not even between bind and chmod.
func TestSocketIsBornNarrow(t *testing.T) {
	old := unix.Umask(0)
	defer unix.Umask(old)
	path := filepath.Join(t.TempDir(), "s")
	lc := net.ListenConfig{Control: modeBeforeBind}
	l, err := lc.Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if st, err := os.Lstat(path); err != nil || st.Mode().Perm() != 0o660 {
		t.Errorf("%v %v", st.Mode(), err)
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	_ = dead.Close()
	l, err := Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}

func TestLivingSocketStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := Listen(t.Context(), path); !errors.Is(err, policy.CodeConflict) {
		t.Errorf("got %v", err)
	}
	if !Answers(t.Context(), path) {
		t.Error("the first does not answer any more")
	}
}

// One of many starts at once gets the socket, and it is the one that answers.
func TestManyListenAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	_ = dead.Close()
	var wg sync.WaitGroup
	won := make(chan *Listener, 16)
	for range 16 {
		wg.Go(func() {
			l, err := Listen(t.Context(), path)
			if err == nil {
				won <- l
			} else if !errors.Is(err, policy.CodeConflict) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	close(won)
	var listeners []*Listener
	for l := range won {
		listeners = append(listeners, l)
		t.Cleanup(func() { l.Close() })
	}
	n := len(listeners)
	if n != 1 || !Answers(t.Context(), path) {
		t.Errorf("%d listen", n)
	}
}

func TestSocketPlaceIsRefused(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	shared := filepath.Join(dir, "shared")
	if err := os.Mkdir(shared, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(shared, 0o777); err != nil { // beyond the umask
		t.Fatal(err)
	}
	for path, code := range map[string]policy.Code{
		file:                                policy.CodeConflict,
		link:                                policy.CodeConflict,
		filepath.Join(shared, "s"):          policy.CodeConfigInvalid,
		filepath.Join(dir, "none", "s"):     policy.CodeUnavailable,
		filepath.Join(file, "s"):            policy.CodeUnavailable,
		filepath.Join(dir, longName(), "s"): policy.CodeUnavailable,
	} {
		l, err := Listen(t.Context(), path)
		if err == nil {
			_ = l.Close()
		}
		if !errors.Is(err, code) {
			t.Errorf("%s: %v", path, err)
		}
		if d := policy.AsDiagnostic(err); d != nil && strings.Contains(d.Message+d.Hint, dir) {
			t.Errorf("the message names a path: %v", d)
		}
	}
	if b, err := os.ReadFile(file); string(b) != "precious" {
		t.Errorf("the file is %q, %v", b, err)
	}
}

func longName() string { return strings.Repeat("n", 300) }

func TestCloseLeavesAnothersSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("it was removed: %v", err)
	}
}

// activatedChild serves what LISTEN_FDS passes until its parent is done.
func activatedChild() {
	_ = os.Setenv("LISTEN_PID", fmt.Sprint(os.Getpid())) // systemd sets it after fork
	ls, err := Activated()
	if err != nil || len(ls) != 1 {
		fmt.Print(len(ls), " ", err)
		return
	}
	_ = NewServer(Options{Service: new(servicetest.Service)}).Serve(ls[0])
}

func TestActivation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	cmd := activatedBy(f)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := NewClient(path).Info(ctx); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Error("the service manager's socket is gone")
	}
}

func activatedBy(f *os.File) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asChild+"=activated", "LISTEN_FDS=1")
	cmd.ExtraFiles = []*os.File{f}
	return cmd
}

// What is not a listening unix stream socket has no peer to check.
func TestActivationRefuses(t *testing.T) {
	tcp, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	tcpFile, err := tcp.File()
	if err != nil {
		t.Fatal(err)
	}
	packet, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "p"), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer packet.Close()
	packetFile, err := packet.File()
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]*os.File{"TCP": tcpFile, "packets": packetFile, "a device": null} {
		out, err := activatedBy(f).CombinedOutput()
		if err != nil || !strings.Contains(string(out), string(policy.CodeConfigInvalid)) {
			t.Errorf("%s: %s, %v", name, out, err)
		}
	}
}
