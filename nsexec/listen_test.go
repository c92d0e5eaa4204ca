package nsexec

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// networks are the two that a sandbox with sockets can have: its own, and one that was
// made in advance.
func networks(t *testing.T) map[string]*os.File {
	t.Helper()
	all := map[string]*os.File{"made by the child": nil}
	if os.Geteuid() == 0 {
		n, err := NewNetwork()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		all["made in advance"] = n
	}
	return all
}

func sockets(ports ...uint16) (out []Listen) {
	for _, p := range ports {
		out = append(out, Listen{Addr: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), p)})
	}
	return out
}

// Whoever is handed the sockets serves the sandbox, and it knows when that ends.
func TestListen(t *testing.T) {
	for name, network := range networks(t) {
		s := newSpec("python3", "-c", `import socket
for p in 80, 61080: print(socket.create_connection(("127.0.0.1", p), 5).makefile().read())`)
		s.Network, s.Listen = network, sockets(80, 61080)
		var init int
		s.Listening = func(fs []*os.File, pidfd *os.File) (err error) {
			for _, f := range fs {
				l, lerr := net.FileListener(f)
				if lerr != nil {
					return lerr
				}
				go func() {
					defer l.Close()
					c, err := l.Accept()
					if err != nil {
						return
					}
					_, _ = io.WriteString(c, "outside") // what came the Worker says
					c.Close()
				}()
			}
			init, err = unix.FcntlInt(pidfd.Fd(), unix.F_DUPFD_CLOEXEC, 3)
			return err
		}
		if out, o := run(t, s); out != "outside\noutside\n" {
			t.Errorf("%s: %q %+v", name, out, o)
		}
		fds := []unix.PollFd{{Fd: int32(init), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, 0); n != 1 {
			t.Errorf("%s: the sandbox's end is not told: %v", name, err)
		}
		unix.Close(init)
	}
}

// Without its sockets, or without who serves them, nothing of a sandbox runs.
func TestListenFails(t *testing.T) {
	for name, network := range networks(t) {
		ran := t.TempDir() + "/ran"
		w, err := os.Create(ran)
		if err != nil {
			t.Fatal(err)
		}
		served := false
		s := newSpec("/bin/sh", "-c", "echo ran")
		s.Network, s.Listen, s.Stdio[1] = network, sockets(8080, 8080), w
		s.Listening = func([]*os.File, *os.File) error { served = true; return nil }
		_, _, err = tryRun(t, s)
		wantCode(t, err, policy.CodeLaunchFailed)
		if text := err.Error(); !strings.Contains(text, "socket") || served {
			t.Errorf("%s: %s, handed out: %t", name, text, served)
		}
		s.Listen = sockets(8080)
		refuses := policy.Errorf(policy.CodeEgressUnavailable, "test", "nobody serves")
		s.Listening = func([]*os.File, *os.File) error { return refuses }
		if _, _, err = tryRun(t, s); !errors.Is(err, policy.CodeEgressUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		// What goes wrong in the sandbox is told before what went wrong outside of it.
		s.RelativeCwd, s.Stdio[2] = "none", nil // the pipe of the run before is closed
		s.Listening = func([]*os.File, *os.File) error { return nil }
		if _, _, err = tryRun(t, s); !errors.Is(err, policy.CodeCwdMissing) {
			t.Errorf("%s: %v", name, err)
		}
		w.Close()
		if b, err := os.ReadFile(ran); err != nil || len(b) > 0 {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}
