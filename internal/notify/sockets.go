package notify

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// firstSocket is the number of the first descriptor that is passed (SD_LISTEN_FDS_START).
const firstSocket = 3

// Sockets are the descriptors that the service manager passed, in the order of its units
// (sd_listen_fds(3)), once: no program that is started later believes that they are its
// own. It is not go-systemd's, which brings all of TLS along.
func Sockets() []*os.File {
	pid, n := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS")
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		_ = os.Unsetenv(name) // it has no = and no NUL
	}
	if pid != strconv.Itoa(os.Getpid()) {
		return nil // of a process that executed us, or none
	}
	count, err := strconv.Atoi(n)
	if err != nil {
		return nil
	}
	var out []*os.File
	for fd := firstSocket; fd < firstSocket+count; fd++ {
		unix.CloseOnExec(fd)
		out = append(out, os.NewFile(uintptr(fd), "socket "+strconv.Itoa(fd)))
	}
	return out
}
