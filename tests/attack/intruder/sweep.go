package main

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func init() { attacks["sweep"] = sweep }

// sweep reads everything that it can open, beneath the directories behind the
// word, and looks for the word, given in hexadecimal, in contents, names, links,
// extended attributes and addresses of sockets. Of what is not its own business
// (another process, programs) it takes the names.
func sweep(args []string) (string, error) {
	word, err := hex.DecodeString(args[0])
	if err != nil {
		return "", err
	}
	s := &sweeper{word: word}
	for _, top := range args[1:] {
		s.walk(top)
	}
	s.syscalls()
	got, err := any(s.got, fmt.Sprintf("read %d files, %d links, connected to no socket of %d", s.files, s.links, s.sockets))
	if err != nil && s.files == 0 {
		return "", errors.New("nothing could be read: this proves nothing")
	}
	return got, err
}

type sweeper struct {
	word, buf             []byte
	got                   []string
	files, links, sockets int
}

func (s *sweeper) look(where string, what []byte) {
	if i := bytes.Index(what, s.word); i >= 0 {
		s.got = append(s.got, fmt.Sprintf("%s …%q…", where, what[max(0, i-20):min(len(what), i+len(s.word)+40)]))
	}
}

func (s *sweeper) walk(top string) {
	_ = filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error { // what cannot be read is left out
		if err != nil {
			return nil
		}
		s.look("name "+path, []byte(path))
		s.attributes(path)
		switch {
		case e.Type()&fs.ModeSymlink != 0:
			if to, err := os.Readlink(path); err == nil {
				s.links++
				s.look("link "+path, []byte(to))
			}
		case e.Type()&fs.ModeSocket != 0:
			s.sockets++
			if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
				c.Close()
				s.got = append(s.got, "connected to "+path)
			}
		case e.IsDir():
			return descend(path)
		case e.Type().IsRegular():
			s.content(path)
		}
		return nil
	})
}

// descend leaves out the other threads, which say the same, and the programs.
func descend(path string) error {
	if strings.HasPrefix(path, "/usr/") || strings.HasPrefix(path, "/proc/") && filepath.Base(path) == "task" {
		return fs.SkipDir
	}
	return nil
}

func (s *sweeper) attributes(path string) {
	names := make([]byte, 4096)
	n, err := unix.Llistxattr(path, names)
	if err != nil {
		return
	}
	for name := range bytes.SplitSeq(names[:n], []byte{0}) {
		value := make([]byte, 4096)
		if n, err := unix.Lgetxattr(path, string(name), value); err == nil {
			s.look("attribute "+string(name)+" of "+path, append(name, value[:n]...))
		}
	}
}

func (s *sweeper) content(path string) {
	switch filepath.Base(path) {
	case "mem", "pagemap": // as large as the address space
		return
	}
	// Not by os: its poller would wait for files that have nothing to say.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		s.look("error of "+path, []byte(err.Error()))
		return
	}
	defer unix.Close(fd)
	s.files++
	if s.buf == nil {
		s.buf = make([]byte, 4<<20)
	}
	all := 0
	for all < len(s.buf) {
		n, err := unix.Read(fd, s.buf[all:])
		if n <= 0 || err != nil {
			break
		}
		all += n
	}
	s.look(path, s.buf[:all])
}

// syscalls asks the kernel for paths where no file tells them.
func (s *sweeper) syscalls() {
	wd := make([]byte, 4096)
	if n, err := unix.Getcwd(wd); err == nil {
		s.look("getcwd", wd[:n])
	}
	for fd := range 256 {
		if to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil {
			s.look(fmt.Sprintf("descriptor %d", fd), []byte(to))
		}
		for _, name := range []func(int) (unix.Sockaddr, error){unix.Getsockname, unix.Getpeername} {
			if a, err := name(fd); err == nil {
				s.look(fmt.Sprintf("socket %d", fd), fmt.Appendf(nil, "%+v", a))
			}
		}
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		s.look("uname", append(u.Nodename[:], u.Domainname[:]...))
	}
	for _, kv := range os.Environ() {
		s.look("environment", []byte(kv))
	}
	for _, arg := range os.Args {
		s.look("arguments", []byte(arg))
	}
}
