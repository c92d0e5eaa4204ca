package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// withpty runs a command on a terminal of its own, types at it and prints what
// it shows:
//
//	withpty [-size ROWSxCOLUMNS] [-fds 012] [-on TEXT=ACTION]... COMMAND [ARG...]
//
// Each -on waits for TEXT in the output and then types ACTION (Go escapes, so
// \x03 is Ctrl-C) or, if that is size:ROWSxCOLUMNS, resizes. Descriptors that
// -fds leaves out are withpty's own. The exit code is the command's.
func withpty() {
	code, err := runOnTerminal(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "withpty:", err)
		code = 99
	}
	os.Exit(code)
}

type steps []string

func (s *steps) String() string     { return strings.Join(*s, " ") }
func (s *steps) Set(v string) error { *s = append(*s, v); return nil }

func runOnTerminal(args []string) (int, error) {
	fl := flag.NewFlagSet("withpty", flag.ContinueOnError)
	size := fl.String("size", "24x80", "")
	fds := fl.String("fds", "012", "")
	var on steps
	fl.Var(&on, "on", "")
	if err := fl.Parse(args); err != nil {
		return 0, err
	}
	master, slave, err := openPTY()
	if err != nil {
		return 0, err
	}
	if err := resize(master, *size); err != nil {
		return 0, err
	}
	cmd := exec.Command(fl.Arg(0), fl.Args()[1:]...)
	std := []*os.File{os.Stdin, os.Stdout, os.Stderr}
	ctty := -1
	for _, c := range *fds {
		std[c-'0'] = slave
		ctty = int(c - '0')
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = std[0], std[1], std[2]
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: ctty}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	slave.Close()
	hang := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	defer hang.Stop()
	if err := converse(master, on); err != nil {
		return 0, err
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, err
	}
	return cmd.ProcessState.ExitCode(), nil
}

// converse copies the output until the terminal is closed, and does each step
// when its text has come. What was matched is not matched again.
func converse(master *os.File, on []string) error {
	var seen []byte
	buf := make([]byte, 4096)
	for {
		n, err := master.Read(buf)
		os.Stdout.Write(buf[:n])
		seen = append(seen, buf[:n]...)
		for len(on) > 0 {
			text, action, _ := strings.Cut(on[0], "=")
			i := bytes.Index(seen, []byte(text))
			if i < 0 {
				break
			}
			seen, on = seen[i+len(text):], on[1:]
			if err := act(master, action); err != nil {
				return err
			}
		}
		if err != nil { // EIO: the last slave was closed, pty(7)
			if len(on) > 0 {
				return fmt.Errorf("the command ended before it had shown %q", on[0])
			}
			return nil
		}
	}
}

func act(master *os.File, action string) error {
	if s, ok := strings.CutPrefix(action, "size:"); ok {
		return resize(master, s)
	}
	text, err := strconv.Unquote(`"` + action + `"`)
	if err != nil {
		return err
	}
	_, err = master.WriteString(text)
	return err
}

func resize(f *os.File, s string) error {
	var ws unix.Winsize
	if _, err := fmt.Sscanf(s, "%dx%d", &ws.Row, &ws.Col); err != nil {
		return err
	}
	return unix.IoctlSetWinsize(int(f.Fd()), unix.TIOCSWINSZ, &ws)
}

func openPTY() (master, slave *os.File, err error) {
	if master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return nil, nil, err
	}
	if err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, err
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		return nil, nil, err
	}
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	return master, slave, err
}
