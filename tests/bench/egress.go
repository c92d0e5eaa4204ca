package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/egress"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// throughTheProxy moves bytes over loopback by way of yoi-egress and without it, and
// connects both ways to a server that says one byte.
func throughTheProxy(r *room) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	r.must(err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serveBulk(c)
		}
	}()
	server := l.Addr().String()
	proxy, stop := startEgress(r, server)
	defer stop()
	direct := func() net.Conn {
		c, err := net.Dial("tcp", server)
		r.must(err)
		return c
	}
	through := func() net.Conn {
		c, err := net.Dial("tcp", proxy)
		r.must(err)
		_, err = fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", server, server)
		r.must(err)
		resp, err := http.ReadResponse(bufio.NewReaderSize(io.LimitReader(c, 39), 39), &http.Request{Method: http.MethodConnect})
		r.must(err)
		if resp.StatusCode != http.StatusOK {
			r.must(fmt.Errorf("the proxy answers %s", resp.Status))
		}
		return c
	}
	const bulk = 256 << 20
	rate := func(dial func() net.Conn) float64 {
		c := dial()
		defer c.Close()
		_, err := c.Write([]byte{'b'})
		r.must(err)
		buf := make([]byte, 256<<10)
		return bulk / timed(func() {
			for got := 0; got < bulk; {
				n, err := c.Read(buf)
				r.must(err)
				got += n
			}
		}).Seconds()
	}
	var with, without []float64
	for i := range r.runs(9) + 1 {
		a, b := rate(through), rate(direct)
		if i > 0 {
			with, without = append(with, a), append(without, b)
		}
	}
	r.rates("bulk transfer through the allowlist proxy, loopback, bytes/s", "direct", 0.5, with, without)

	hello := func(dial func() net.Conn) func() time.Duration {
		return func() time.Duration {
			return timed(func() {
				c := dial()
				_, err := c.Write([]byte{'h'})
				r.must(err)
				_, err = io.ReadFull(c, make([]byte, 1))
				r.must(err)
				c.Close()
			})
		}
	}
	a, b := r.turns(r.runs(400), hello(through), hello(direct))
	r.times("connecting through the allowlist proxy, to the first byte", "direct", 3, a, b)
}

// serveBulk answers h with one byte and b with many.
func serveBulk(c net.Conn) {
	defer c.Close()
	var what [1]byte
	if _, err := io.ReadFull(c, what[:]); err != nil {
		return
	}
	if what[0] == 'h' {
		_, _ = c.Write(what[:])
		return
	}
	buf := make([]byte, 256<<10)
	for {
		if _, err := c.Write(buf); err != nil {
			return
		}
	}
}

// startEgress runs the program as the helper would, without its sandbox.
func startEgress(r *room, server string) (addr string, stop func()) {
	p := policy.SandboxPolicy{Network: policy.NetworkPolicy{Rules: []string{server}}}.Normalize()
	r.must(p.Validate())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	r.must(err)
	socket, err := l.(*net.TCPListener).File()
	r.must(err)
	l.Close()
	log, err := os.CreateTemp("", "egress")
	r.must(err)
	counters, err := os.CreateTemp("", "egress")
	r.must(err)
	r.must(counters.Truncate(egress.CountersSize))
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	r.must(err)
	theirs := os.NewFile(uintptr(pair[1]), "control")
	cmd := exec.Command(rig.Program(r, "yoi-egress"))
	cmd.Stdin = theirs
	r.must(egress.Send(pair[0], egress.Config{Network: p.Network, Sockets: []egress.Socket{{Kind: egress.SocketProxy, Addr: netip.MustParseAddrPort(l.Addr().String())}}},
		egress.Files{Log: log, Counters: counters, Sockets: []*os.File{socket}}))
	r.must(cmd.Start())
	r.must(egress.Await(pair[0]))
	for _, f := range []*os.File{theirs, log, counters, socket} {
		f.Close()
	}
	unix.Close(pair[0])
	return l.Addr().String(), func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		os.Remove(log.Name())
		os.Remove(counters.Name())
	}
}
