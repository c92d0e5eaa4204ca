package api

import (
	"net"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/notify"
	"yoi.dev/yoi-runtime/policy"
)

// Activated returns the listening unix sockets that the service manager passed
// (LISTEN_FDS, sd_listen_fds(3)), none when it passed none. Anything else that
// was passed is an error: serving on it would skip the peer check.
func Activated() ([]net.Listener, error) {
	var out []net.Listener
	for _, f := range notify.Sockets() {
		l, err := net.FileListener(f) // duplicates the descriptor
		_ = f.Close()
		ul, ok := l.(*net.UnixListener)
		if err != nil || !ok || !streams(ul) {
			return nil, policy.Errorf(policy.CodeConfigInvalid, "api.listen", "an activated descriptor is not a listening unix stream socket").Because(err).
				WithHint("Use ListenStream= with a path in the socket unit.")
		}
		ul.SetUnlinkOnClose(false) // the service manager's
		out = append(out, ul)
	}
	return out, nil
}

func streams(l *net.UnixListener) bool {
	raw, err := l.SyscallConn()
	if err != nil {
		return false
	}
	kind := 0
	if err := raw.Control(func(fd uintptr) {
		kind, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TYPE)
	}); err != nil {
		return false
	}
	return err == nil && kind == unix.SOCK_STREAM
}
