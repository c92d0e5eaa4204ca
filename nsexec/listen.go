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
// which nobody but it has a capability, and send them to the launcher. Either way
// it waits until they are in good hands.
func (b *script) listen() {
	s := b.spec
	if len(s.Listen) == 0 {
		return
	}
	if s.Network == nil {
		b.step("opening the sandbox's sockets", policy.CodeLaunchFailed, "")
		control := b.Space(unix.CmsgSpace(4 * len(s.Listen)))
		for i, l := range s.Listen {
			kind := unix.SOCK_STREAM
			if l.UDP {
				kind = unix.SOCK_DGRAM
			}
			p := l.Addr.Port()
			addr := unix.RawSockaddrInet4{Family: unix.AF_INET, Port: p<<8 | p>>8, Addr: l.Addr.Addr().As4()} // network byte order on amd64
			b.Add(unix.SYS_SOCKET, num(unix.AF_INET), num(kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK), num(0)).
				Save(slotFD).Store(control, unix.SizeofCmsghdr+4*i)
			b.Add(unix.SYS_BIND, slotFD.Arg(), replay.Struct(b.Program, addr), num(unix.SizeofSockaddrInet4))
			if !l.UDP {
				b.Add(unix.SYS_LISTEN, slotFD.Arg(), num(backlog))
			}
		}
		replay.Put(b.Program, control, unix.Cmsghdr{Len: uint64(unix.CmsgLen(4 * len(s.Listen))), Level: unix.SOL_SOCKET, Type: unix.SCM_RIGHTS})
		iov := replay.Struct(b.Program, [2]uint64{replay.Address(b.Str("s")), 1})
		msg := replay.Struct(b.Program, [7]uint64{0, 0, replay.Address(iov), 1, replay.Address(control), uint64(unix.CmsgSpace(4 * len(s.Listen))), 0})
		b.Add(unix.SYS_SENDMSG, num(b.syncFD), msg, num(unix.MSG_NOSIGNAL)).Expect(1)
	}
	b.step("waiting for who serves the sandbox's sockets", policy.CodeLaunchFailed, "")
	b.waitForLauncher()
}

// receiveSockets takes what the child opened. Nothing comes if the child failed
// before, which verdict tells.
func (l *launching) receiveSockets() error {
	if l.spec.Network != nil {
		return nil
	}
	n := len(l.spec.Listen)
	var data [1]byte
	control := make([]byte, unix.CmsgSpace(4*n))
	got, cn, _, _, err := recvmsg(l.sync, data[:], control)
	if err != nil {
		return failed("recvmsg", err)
	}
	if got == 0 {
		return nil
	}
	messages, err := unix.ParseSocketControlMessage(control[:cn])
	if err != nil || len(messages) != 1 {
		return failed("recvmsg", unix.EBADMSG)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return failed("recvmsg", unix.EBADMSG)
	}
	for _, fd := range fds {
		l.sockets = append(l.sockets, os.NewFile(uintptr(fd), "socket"))
	}
	if len(fds) != n {
		return failed("recvmsg", unix.EBADMSG)
	}
	return nil
}
