package nsexec

import (
	"os"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/replay"
	"yoi.dev/yoi-runtime/policy"
)

// maxListen is SCM_MAX_FD: all sockets travel in one message (unix(7)).
const maxListen = 253

// backlog is how many connections wait for whoever takes the sockets.
const backlog = 128

// openSockets opens Spec.Listen on the calling thread, which is in the network
// that was made for the sandbox.
func (l *launching) openSockets() error {
	for _, s := range l.spec.Listen {
		f, err := openSocket(s)
		if err != nil {
			l.closeSockets()
			return policy.Errorf(policy.CodeLaunchFailed, opLaunch, "the socket %s of the sandbox cannot be opened", s.Addr).Because(err)
		}
		l.sockets = append(l.sockets, f)
	}
	return nil
}

func openSocket(s Listen) (*os.File, error) {
	kind := unix.SOCK_STREAM
	if s.UDP {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	err = unix.Bind(fd, &unix.SockaddrInet4{Port: int(s.Addr.Port()), Addr: s.Addr.Addr().As4()})
	if err == nil && !s.UDP {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return os.NewFile(uintptr(fd), "socket"), nil
}

func (l *launching) closeSockets() {
	for _, f := range l.sockets {
		f.Close()
	}
	l.sockets = nil
}

// listen has the child open the sockets in a network that it made itself, over
// which nobody but it has a capability, and send them to the launcher.
func (b *script) listen() {
	s := b.spec
	if len(s.Listen) == 0 || s.Network != nil {
		return
	}
	b.step("opening the sandbox's sockets", policy.CodeLaunchFailed, "")
	message, control := b.message("s", len(s.Listen))
	for i, l := range s.Listen {
		kind := unix.SOCK_STREAM
		if l.UDP {
			kind = unix.SOCK_DGRAM
		}
		p := l.Addr.Port()
		addr := unix.RawSockaddrInet4{Family: unix.AF_INET, Port: p<<8 | p>>8, Addr: l.Addr.Addr().As4()} // network byte order on amd64
		b.Add(unix.SYS_SOCKET, num(unix.AF_INET), num(kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK), num(0)).
			Save(slotFD).Store(control, rightsAt+4*i)
		b.Add(unix.SYS_BIND, slotFD.Arg(), replay.Struct(b.Program, addr), num(unix.SizeofSockaddrInet4))
		if !l.UDP {
			b.Add(unix.SYS_LISTEN, slotFD.Arg(), num(backlog))
		}
	}
	b.Add(unix.SYS_SENDMSG, num(b.syncFD), message, num(unix.MSG_NOSIGNAL)).Expect(1)
}

// listened waits until the sockets are in good hands.
func (b *script) listened() {
	if len(b.spec.Listen) > 0 {
		b.step("waiting for who serves the sandbox's sockets", policy.CodeLaunchFailed, "")
		b.waitForLauncher()
	}
}

// receiveSockets takes what the child opened. Nothing comes if the child failed
// before, which verdict tells.
func (l *launching) receiveSockets() error {
	if l.spec.Network != nil {
		return nil
	}
	fds, err := receiveFDs(l.sync, len(l.spec.Listen))
	for _, fd := range fds {
		l.sockets = append(l.sockets, os.NewFile(uintptr(fd), "socket"))
	}
	return err
}
