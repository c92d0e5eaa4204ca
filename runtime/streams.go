package runtime

import (
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"yoi.dev/yoi-runtime/policy"
)

// streams connects the caller's standard streams with the command's.
//
// A pipe without a name is handed over as it is. A terminal is not: the command
// gets one of its own, so that it can neither push input into the caller's
// (TIOCSTI, CVE-2017-5226) nor open it again. Everything else is copied through a
// pipe: of a file or a named pipe /proc/self/fd/1 would show the path on the host,
// and a socket stays in the network that it was made in, takes descriptors out of
// the sandbox and brings others in. A directory leads to all that lies below it, and
// above (CVE-2024-21626), and is refused.
type streams struct {
	caller   [3]*os.File
	worker   [3]*os.File // nil: the terminal
	terminal bool
	rows     uint16
	columns  uint16

	opened []*os.File // the command's ends of our pipes
	master *os.File
	raw    *term.State

	pumps []func()       // started with the command
	out   sync.WaitGroup // pumps of output, which end with the command
}

func newStreams(stdin, stdout, stderr *os.File) (*streams, error) {
	s := &streams{caller: [3]*os.File{stdin, stdout, stderr}}
	for i, f := range s.caller {
		if err := s.connect(i, f); err != nil {
			s.close()
			if policy.AsDiagnostic(err) != nil {
				return nil, err
			}
			return nil, policy.Errorf(policy.CodeLaunchFailed, "runtime.streams", "the standard streams cannot be connected").Because(err)
		}
	}
	return s, nil
}

func (s *streams) connect(i int, f *os.File) error {
	if f == nil {
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		s.opened = append(s.opened, null)
		s.worker[i] = null
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		if errors.Is(err, unix.EBADF) {
			return s.connect(i, nil) // the caller closed it, as daemons do
		}
		return err
	}
	kind := st.Mode & unix.S_IFMT
	switch {
	case kind == unix.S_IFCHR && term.IsTerminal(int(f.Fd())):
		s.terminal = true
		if s.rows == 0 {
			s.rows, s.columns = size(f)
		}
		return nil
	case kind == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3):
		return s.connect(i, nil)
	case kind == unix.S_IFDIR:
		return policy.Errorf(policy.CodeBadRequest, "runtime.streams", "the standard %s is a directory", [...]string{"input", "output", "error"}[i]).
			WithHint("Give a file, a pipe or /dev/null.")
	case kind == unix.S_IFIFO && nameless(f):
		s.worker[i] = f
		return nil
	}
	return s.pump(i, f)
}

// nameless says whether a pipe is pipe(2)'s.
func nameless(f *os.File) bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &fs) == nil && fs.Type == unix.PIPEFS_MAGIC
}

// pump copies a stream through a pipe.
func (s *streams) pump(i int, f *os.File) error {
	pr, pw, err := os.Pipe()
	if err != nil {
		return err
	}
	if i == 0 {
		s.worker[i] = pr
		s.opened = append(s.opened, pr)
		s.pumps = append(s.pumps, func() {
			defer pw.Close()
			_, _ = io.Copy(pw, f) // EPIPE: the command has stopped reading
		})
		return nil
	}
	s.worker[i] = pw
	s.opened = append(s.opened, pw)
	s.out.Add(1)
	s.pumps = append(s.pumps, func() {
		defer s.out.Done()
		defer pr.Close()
		// Go ends a program that writes to a socket or pipe without a reader, if by
		// descriptor 1 or 2. The command is the one to be told.
		to, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return
		}
		own := os.NewFile(uintptr(to), f.Name())
		defer own.Close()
		_, _ = io.Copy(own, pr) // a full disk is seen by the command as EPIPE
	})
	return nil
}

func size(f *os.File) (rows, columns uint16) {
	ws, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0
	}
	return ws.Row, ws.Col
}

// start begins to copy. master is the other end of the command's terminal.
func (s *streams) start(master *os.File) {
	for _, f := range s.opened {
		f.Close() // the command has its own; its end must be the last
	}
	s.opened = nil
	if master != nil {
		s.startTerminal(master)
	}
	for _, p := range s.pumps {
		go p()
	}
}

func (s *streams) startTerminal(master *os.File) {
	s.master = master
	var out *os.File
	for _, i := range []int{1, 2} {
		if f := s.caller[i]; out == nil && s.worker[i] == nil && f != nil {
			out = f
		}
	}
	if in := s.caller[0]; s.worker[0] == nil && in != nil {
		if st, err := term.MakeRaw(int(in.Fd())); err == nil {
			s.raw = st
		}
		// This copy is never waited for: it blocks in the caller's terminal until
		// the process ends or a key is pressed.
		go func() { _, _ = io.Copy(master, in) }()
	}
	if out == nil {
		out = s.caller[0] // only the input is a terminal: echo goes where it came from
	}
	s.out.Add(1)
	go func() {
		defer s.out.Done()
		_, _ = io.Copy(out, master) // EIO: the last slave was closed, pty(7)
	}()
}

// resize gives the command's terminal the caller's size; the kernel sends the
// command WINCH.
func (s *streams) resize() {
	if s.master == nil {
		return
	}
	for i, f := range s.caller {
		if f == nil || s.worker[i] != nil {
			continue
		}
		if rows, columns := size(f); rows != 0 {
			_ = unix.IoctlSetWinsize(int(s.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
			return
		}
	}
}

// drain waits until all that the command wrote has been copied.
func (s *streams) drain() { s.out.Wait() }

func (s *streams) close() {
	if s.raw != nil {
		_ = term.Restore(int(s.caller[0].Fd()), s.raw)
	}
	for _, f := range s.opened {
		f.Close()
	}
	if s.master != nil {
		s.master.Close()
	}
}
