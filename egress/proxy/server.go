// Package proxy is the program yoi-egress: see package egress for why it exists.
//
// Whoever connects is a hostile Worker. What it sends is parsed by package net/http
// where it is HTTP, and by short parsers that are fuzzed where it is SOCKS or the
// beginning of TLS; nothing of it reaches a file but the log, escaped and bounded.
package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"yoi.dev/yoi-runtime/egress"
	"yoi.dev/yoi-runtime/policy"
)

// server serves the sockets of one Worker.
type server struct {
	gate     *gate
	rules    []string
	counters *egress.Counters
	log      *logWriter
	idle     time.Duration
	maxBytes uint64
	slots    chan struct{}
	nextID   atomic.Uint64
	open     atomic.Int64
	// transport is for plain HTTP requests.
	transport *http.Transport
	endpoints []endpoint

	mu    sync.Mutex
	conns map[net.Conn]struct{} // to be closed when the byte limit is reached
}

func newServer(cfg egress.Config, g *gate, c *egress.Counters, l *logWriter) *server {
	n := cfg.Network
	s := &server{
		gate: g, rules: n.Rules, counters: c, log: l, idle: n.IdleTimeout, maxBytes: n.MaxBytes,
		slots: make(chan struct{}, max(n.MaxConnections, 1)), conns: make(map[net.Conn]struct{}),
	}
	if s.idle == 0 {
		s.idle = policy.DefaultIdleTimeout
	}
	if n.MaxConnections == 0 {
		s.slots = make(chan struct{}, policy.DefaultConnections)
	}
	s.transport = s.newTransport()
	return s
}

// idleAfter is when memory that connections took is given back.
const idleAfter = 2 * time.Second

// accept serves a listener until it fails, which it does with the process only.
func (s *server) accept(l *net.TCPListener, serve func(*conn)) error {
	for {
		tc, err := l.AcceptTCP()
		if err != nil {
			var temporary net.Error
			if errors.As(err, &temporary) && !errors.Is(err, net.ErrClosed) {
				time.Sleep(10 * time.Millisecond) // no descriptor is left: some will be
				continue
			}
			return err
		}
		c := &conn{TCPConn: tc, s: s, id: s.nextID.Add(1)}
		select {
		case s.slots <- struct{}{}:
		default:
			s.refuse(c, "", "", 0, refusal(egress.ReasonConnections))
			tc.Close()
			continue
		}
		s.counters.Open(1)
		s.open.Add(1)
		s.track(tc)
		go func() {
			defer s.done(c)
			serve(c)
		}()
	}
}

func (s *server) done(c *conn) {
	c.Close()
	s.untrack(c.TCPConn)
	s.counters.Open(-1)
	<-s.slots
	if s.open.Add(-1) == 0 {
		time.AfterFunc(idleAfter, func() {
			if s.open.Load() == 0 {
				s.transport.CloseIdleConnections()
				for _, e := range s.endpoints {
					e.transport.CloseIdleConnections()
				}
				debug.FreeOSMemory()
			}
		})
	}
}

func (s *server) track(c net.Conn) {
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
}

func (s *server) untrack(c net.Conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
}

// left is how many bytes may still go through.
func (s *server) left() uint64 {
	if s.maxBytes == 0 {
		return 1 << 62
	}
	if used := s.counters.Total(); used < s.maxBytes {
		return s.maxBytes - used
	}
	return 0
}

// spent counts bytes, and ends every connection once the limit is reached.
func (s *server) spent(total uint64) {
	if s.maxBytes == 0 || total < s.maxBytes {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.Close()
	}
}

// conn is a connection from the Worker. Each read and write takes the idle timeout
// anew; what is spliced has its own (pump).
type conn struct {
	*net.TCPConn
	s  *server
	id uint64
	br *bufio.Reader
}

func (c *conn) Read(b []byte) (int, error) {
	_ = c.SetReadDeadline(time.Now().Add(c.s.idle))
	return c.TCPConn.Read(b)
}

func (c *conn) Write(b []byte) (int, error) {
	_ = c.SetWriteDeadline(time.Now().Add(c.s.idle))
	return c.TCPConn.Write(b)
}

// ReadFrom and WriteTo would go round Read and Write.
func (c *conn) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{writerOnly{c}}, r)
}

func (c *conn) WriteTo(w io.Writer) (int64, error) { return io.Copy(w, struct{ io.Reader }{c}) }

type writerOnly struct{ c *conn }

func (w writerOnly) Write(b []byte) (int, error) { return w.c.Write(b) }

// serveProxy serves the one port of HTTP and SOCKS 5: their first bytes differ.
func (s *server) serveProxy(c *conn) {
	c.br = bufio.NewReaderSize(c, maxHead)
	first, err := c.br.Peek(1)
	if err != nil {
		return
	}
	if first[0] == socksVersion {
		s.serveSOCKS(c)
		return
	}
	s.serveHTTP(c, egress.ViaHTTP, nil, nil)
}

func (s *server) serveSOCKS(c *conn) {
	_, _ = c.br.Discard(1)
	ok, err := socksMethods(c.br)
	if err != nil {
		return
	}
	if !ok {
		_, _ = c.Write([]byte{socksVersion, socksNoMethod})
		s.refuse(c, egress.ViaSOCKS, "", 0, refusal(egress.ReasonProtocol))
		return
	}
	if _, err := c.Write([]byte{socksVersion, 0}); err != nil {
		return
	}
	host, port, err := socksRequest(c.br)
	var answer socksError
	switch {
	case errors.As(err, &answer):
		s.refuse(c, egress.ViaSOCKS, host, port, refusal(egress.ReasonProtocol))
		_ = socksReply(c, answer.code)
		return
	case err != nil:
		return
	}
	s.tunnel(c, egress.ViaSOCKS, host, port, func(err error) error { return socksReply(c, socksCode(err)) })
}

// refuse logs and counts a decision against something.
func (s *server) refuse(c *conn, via, host string, port uint16, err error) {
	d := egress.Decision{ID: c.id, Via: via, Host: host, Port: port, Reason: reasonOf(err)}
	if d.Reason.Refusal() {
		s.counters.Refused()
	}
	if !s.log.write(d) {
		s.counters.Dropped()
	}
}

func (s *server) allow(c *conn, via string, t target, addr string) {
	s.counters.Allowed(t.rule)
	if !s.log.write(egress.Decision{ID: c.id, Via: via, Host: t.host(), Port: t.port, Allowed: true, Rule: s.rule(t), Address: addr}) {
		s.counters.Dropped()
	}
}

// rule is what the log calls a target's rule.
func (s *server) rule(t target) string {
	if t.rule < 0 {
		return ""
	}
	return s.rules[t.rule]
}

// background is for work that ends with the process.
var background = context.Background()
