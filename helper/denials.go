package helper

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/nsexec"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/policy/seccomp"
)

const (
	deniedFile = "denied"
	// maxDenied bounds how many different refusals of a Worker are kept: it chooses
	// its programs' names.
	maxDenied      = 256
	maxDeniedBytes = 1 << 20
)

// audit answers the notifications of a Worker's filter with what the plain filter
// says, and counts them. It decides nothing: the call was refused when it came
// here. When this process ends, the kernel answers ENOSYS.
type audit struct {
	listener *os.File
	filter   []byte
	done     chan struct{}

	mu   sync.Mutex
	seen []nsexec.Denial
}

func startAudit(listener *os.File, filter []byte) *audit {
	a := &audit{listener: listener, filter: filter, done: make(chan struct{})}
	go a.run()
	return a
}

// notification is struct seccomp_notif.
type notification struct {
	id    uint64
	pid   uint32
	flags uint32
	data  [64]byte // struct seccomp_data
}

// answer is struct seccomp_notif_resp.
type answer struct {
	id    uint64
	val   int64
	error int32
	flags uint32
}

const (
	notifReceive = 0xc0502100 // SECCOMP_IOCTL_NOTIF_RECV
	notifSend    = 0xc0182101 // SECCOMP_IOCTL_NOTIF_SEND
)

// run ends when no process has the filter any more.
func (a *audit) run() {
	defer close(a.done)
	defer a.listener.Close()
	conn, err := a.listener.SyscallConn()
	if err != nil {
		return
	}
	ended := false
	for !ended {
		err := conn.Read(func(fd uintptr) bool {
			for {
				fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
				if n, err := unix.Poll(fds, 0); err == unix.EINTR {
					continue
				} else if err != nil || n == 0 {
					ended = err != nil
					return ended // wait for more
				}
				if fds[0].Revents&unix.POLLIN != 0 {
					a.one(fd)
					continue
				}
				ended = true // POLLHUP
				return true
			}
		})
		if err != nil {
			return
		}
	}
}

// one takes a notification and answers it. A process that was killed meanwhile
// wants none (ENOENT).
func (a *audit) one(fd uintptr) {
	var n notification
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, notifReceive, uintptr(unsafe.Pointer(&n))); errno != 0 {
		return
	}
	var c seccomp.Call
	_ = binary.Read(bytes.NewReader(n.data[:]), binary.NativeEndian, &c) // exactly as large
	errno := seccomp.Refusal(a.filter, c)
	a.count(c.Nr, errno, program(n.pid))
	resp := answer{id: n.id, error: -int32(errno)}
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, fd, notifSend, uintptr(unsafe.Pointer(&resp)))
}

// program is what the process calls itself. It may say anything.
func program(pid uint32) string {
	b, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(pid), 10) + "/comm")
	if err != nil {
		return ""
	}
	return policy.Printable(strings.TrimSuffix(string(b), "\n"))
}

func (a *audit) count(nr int32, errno uint16, program string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(a.seen, func(d nsexec.Denial) bool { return d.Call == nr && d.Errno == errno && d.Program == program })
	switch {
	case i >= 0:
		a.seen[i].Count++
	case len(a.seen) < maxDenied:
		a.seen = append(a.seen, nsexec.Denial{Call: nr, Errno: errno, Program: program, Count: 1})
	}
}

func (a *audit) denials() []nsexec.Denial {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.seen)
}

// endAudit writes down what a Worker was refused, for whoever asks later.
func (l *Local) endAudit(id policy.WorkerID, a *audit) []nsexec.Denial {
	<-a.done
	denied := a.denials()
	if len(denied) == 0 {
		return nil
	}
	b, err := json.Marshal(denied)
	if err == nil {
		var f *os.File
		if f, err = l.root.OpenFile(countFile(id, deniedFile), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600); err == nil {
			_, werr := f.Write(b)
			err = errors.Join(werr, f.Close())
		}
	}
	if err != nil && !errors.Is(err, syscall.ENOENT) {
		l.log.Warn("what a worker was refused is not recorded", "worker", id, "error", err)
	}
	return denied
}

// deniedTo reads what endAudit wrote; none is none.
func (l *Local) deniedTo(id policy.WorkerID) []nsexec.Denial {
	f, err := l.root.OpenFile(countFile(id, deniedFile), unix.O_RDONLY, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxDeniedBytes))
	var denied []nsexec.Denial
	if err != nil || json.Unmarshal(b, &denied) != nil {
		return nil
	}
	return denied
}
