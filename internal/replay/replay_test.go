package replay

import (
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// runProgram runs the program to its end and reaps it.
func runProgram(t *testing.T, p *Program) (*Failure, int) {
	t.Helper()
	c, err := p.Start(0, -1)
	if err != nil {
		t.Fatal(err)
	}
	c.Wait()
	var ws syscall.WaitStatus
	for {
		_, err = syscall.Wait4(c.Pid, &ws, 0, nil)
		if err != syscall.EINTR {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(c.Pidfd)
	return c.Failure(), ws.ExitStatus()
}

func exit(p *Program, code int) { p.Add(unix.SYS_EXIT_GROUP, N(code)) }

func TestSlotsResultsAndStrings(t *testing.T) {
	p := New()
	defer p.Release()
	const fd Slot = 1
	name := t.TempDir() + "/f"
	open := p.Next()
	p.Add(unix.SYS_OPENAT, N(unix.AT_FDCWD), p.Str(name), N(unix.O_CREAT|unix.O_WRONLY), N(0o600)).Save(fd)
	p.Add(unix.SYS_WRITE, fd.Arg(), p.Str("hello"), N(5)).Expect(5)
	exit(p, 9)
	f, code := runProgram(t, p)
	if f != nil || code != 9 || p.Result(open) < 3 {
		t.Fatalf("%+v, exit %d, descriptor %d", f, code, p.Result(open))
	}
	if b, err := os.ReadFile(name); err != nil || string(b) != "hello" {
		t.Errorf("%q %v", b, err)
	}
}

func TestFailureNamesTheOperation(t *testing.T) {
	p := New()
	defer p.Release()
	p.Tag(1)
	p.Add(unix.SYS_GETPID)
	p.Tag(7)
	p.Add(unix.SYS_CLOSE, N(99999))
	p.Tag(8)
	exit(p, 0)
	f, code := runProgram(t, p)
	if f == nil || f.Index != 1 || f.Tag != 7 || f.NR != unix.SYS_CLOSE || f.Errno != unix.EBADF || code != 127 {
		t.Errorf("%+v, exit %d", f, code)
	}
}

func TestExpectation(t *testing.T) {
	p := New()
	defer p.Release()
	p.Add(unix.SYS_GETPID).Expect(0)
	exit(p, 0)
	if f, code := runProgram(t, p); f == nil || f.Errno != 0 || code != 127 {
		t.Errorf("%+v, exit %d", f, code)
	}
}

func TestTolerateAndSkip(t *testing.T) {
	p := New()
	defer p.Release()
	for i := range 4 { // each place of the list counts
		list := []uint16{1, 1, 1, 1}
		list[i] = uint16(unix.EBADF)
		p.Add(unix.SYS_CLOSE, N(99999)).Tolerate(list...).Skip(2)
		exit(p, 10)
		exit(p, 11)
	}
	p.Add(unix.SYS_CLOSE, N(99999)).Tolerant()
	exit(p, 12)
	if f, code := runProgram(t, p); f != nil || code != 12 {
		t.Errorf("%+v, exit %d", f, code)
	}
}

func TestRetryIsBounded(t *testing.T) {
	p := New()
	defer p.Release()
	// A futex whose value differs answers EAGAIN for ever.
	p.Add(unix.SYS_FUTEX, p.Space(4), N(0), N(1), N(0)).Retry()
	exit(p, 0)
	if f, _ := runProgram(t, p); f == nil || f.Errno != unix.EAGAIN {
		t.Errorf("%+v", f)
	}
}

func TestForkMarkAndStore(t *testing.T) {
	for name, childExit := range map[string]bool{"child works": true, "child fails": false} {
		p := New()
		cell := p.Space(16)
		fork := p.Fork(unix.SYS_CLONE, N(unix.CLONE_VM|unix.CLONE_VFORK|int(unix.SIGCHLD)), N(0), N(0), N(0), N(0))
		p.Mark()
		p.Add(unix.SYS_WAIT4, N(-1), N(0), N(0), N(0))
		exit(p, 5)
		p.Child(fork)
		p.Add(unix.SYS_GETPPID).Store(cell, 8)
		if !childExit {
			p.Add(unix.SYS_CLOSE, N(99999))
		}
		exit(p, 6)
		c, err := p.Start(0, -1)
		if err != nil {
			t.Fatal(err)
		}
		c.Wait()
		var ws syscall.WaitStatus
		if _, err := syscall.Wait4(c.Pid, &ws, 0, nil); err != nil {
			t.Fatal(err)
		}
		unix.Close(c.Pidfd)
		want := 5
		if !childExit {
			want = 127
		}
		if stored := *(*uint32)(p.pointer(At(cell, 8))); int(stored) != c.Pid || !c.Marked() || ws.ExitStatus() != want || (c.Failure() == nil) != childExit {
			t.Errorf("%s: stored %d, pid %d, marked %v, exit %d, %+v", name, stored, c.Pid, c.Marked(), ws.ExitStatus(), c.Failure())
		}
		p.Release()
	}
}

func TestReleasedMemoryIsWiped(t *testing.T) {
	p := New()
	secret := p.Str("secret-value")
	big := p.Bytes(make([]byte, chunkSize+1)) // a chunk of its own
	if p.pointer(secret) == nil || p.pointer(big) == nil {
		t.Fatal("addresses are not found again")
	}
	p.Release()
	if len(p.mem.chunks) != 1 {
		t.Fatalf("%d chunks are kept", len(p.mem.chunks))
	}
	for i, b := range p.mem.chunks[0] {
		if b != 0 {
			t.Fatalf("byte %d is left", i)
		}
	}
}

func TestSignalMaskIsRestored(t *testing.T) {
	var before, after unix.Sigset_t
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, nil, &before); err != nil {
		t.Fatal(err)
	}
	p := New()
	defer p.Release()
	exit(p, 0)
	runProgram(t, p)
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, nil, &after); err != nil || before != after {
		t.Errorf("%v, then %v %v", before, after, err)
	}
}
