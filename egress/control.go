package egress

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// maxConfig bounds the configuration.
const maxConfig = 8 << 20

// Files are the program's descriptors, in the order in which they travel behind the
// configuration.
type Files struct {
	Log      *os.File // O_APPEND
	Counters *os.File // CountersSize bytes
	// Values are the packed values of the configuration's secrets, nil without.
	Values  *os.File
	Sockets []*os.File
}

// Send gives a starting program its configuration and descriptors over a
// SOCK_SEQPACKET socket. They stay the caller's to close.
func Send(fd int, cfg Config, f Files) error {
	b, err := json.Marshal(cfg)
	if err != nil {
		return err
	}
	mfd, err := unix.MemfdCreate("yoi-egress", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	config := os.NewFile(uintptr(mfd), "config")
	defer config.Close()
	if _, err := config.Write(b); err != nil {
		return err
	}
	fds := []int{mfd, int(f.Log.Fd()), int(f.Counters.Fd())}
	if f.Values != nil {
		fds = append(fds, int(f.Values.Fd()))
	}
	for _, s := range f.Sockets {
		fds = append(fds, int(s.Fd()))
	}
	return os.NewSyscallError("sendmsg", unix.Sendmsg(fd, []byte{'c'}, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL))
}

// Receive is the program's side of Send.
func Receive(fd int) (Config, Files, error) {
	var cfg Config
	var f Files
	var data [1]byte
	control := make([]byte, unix.CmsgSpace(4*253)) // SCM_MAX_FD
	n, cn, flags, _, err := unix.Recvmsg(fd, data[:], control, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return cfg, f, os.NewSyscallError("recvmsg", err)
	}
	if n != 1 || flags&unix.MSG_CTRUNC != 0 {
		return cfg, f, errors.New("no configuration came")
	}
	messages, err := unix.ParseSocketControlMessage(control[:cn])
	if err != nil || len(messages) != 1 {
		return cfg, f, errors.New("no descriptors came")
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) < 3 {
		return cfg, f, errors.New("too few descriptors came")
	}
	files := make([]*os.File, len(fds))
	for i, fd := range fds {
		files[i] = os.NewFile(uintptr(fd), "")
	}
	defer files[0].Close()
	b, err := io.ReadAll(io.NewSectionReader(files[0], 0, maxConfig))
	if err != nil {
		return cfg, f, err
	}
	f = Files{Log: files[1], Counters: files[2], Sockets: files[3:]}
	if err := json.Unmarshal(b, &cfg); err != nil {
		return cfg, f, err
	}
	if len(cfg.Secrets) > 0 {
		if len(f.Sockets) == 0 {
			return cfg, f, errors.New("the secrets' values did not come")
		}
		f.Values, f.Sockets = f.Sockets[0], f.Sockets[1:]
	}
	return cfg, f, nil
}

// Answer is the program's: it serves, or why not.
func Answer(fd int, err error) error {
	text := "ok"
	if err != nil {
		text = err.Error()
	}
	return os.NewSyscallError("sendto", unix.Sendto(fd, []byte(text), unix.MSG_NOSIGNAL, nil))
}

// Await waits for the answer.
func Await(fd int) error {
	var b [1024]byte
	for {
		n, _, err := unix.Recvfrom(fd, b[:], 0)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return os.NewSyscallError("recvfrom", err)
		case n == 0:
			return errors.New("the program ended before it served")
		case string(b[:n]) == "ok":
			return nil
		default:
			return fmt.Errorf("the program: %s", b[:n])
		}
	}
}
