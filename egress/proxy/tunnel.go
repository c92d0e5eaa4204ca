package proxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"bufio"

	"yoi.dev/yoi-runtime/egress"
)

// sniffTimeout is how long a stream may take to show what it is, once it has begun.
const sniffTimeout = 30 * time.Second

// tunnel connects the Worker to a host. established answers the Worker, with the
// error if there is none to be had.
func (s *server) tunnel(c *conn, via, host string, port uint16, established func(error) error) {
	t, err := s.gate.check(host, port)
	if err == nil && s.left() == 0 {
		err = refusal(egress.ReasonBytes)
	}
	if err != nil {
		s.refuse(c, via, host, port, err)
		_ = established(err)
		return
	}
	up, err := s.gate.dial(background, t)
	if err != nil {
		s.refuse(c, via, host, port, err)
		_ = established(err)
		return
	}
	defer up.Close()
	if err := established(nil); err != nil {
		return
	}
	s.allow(c, via, t, up.RemoteAddr().String())
	s.relay(c, via, up, t)
}

// flow is one tunnel: what went over it, and when the last of it did.
type flow struct {
	s         *server
	rule      int
	up, down  atomic.Int64
	last      atomic.Int64 // unix nanoseconds
	serverHas atomic.Bool  // spoken
	handed    atomic.Bool  // to serveHTTP, which has connections of its own
}

func (f *flow) touch() { f.last.Store(time.Now().UnixNano()) }

func (f *flow) quiet(d time.Duration) bool { return time.Since(time.Unix(0, f.last.Load())) >= d }

func (f *flow) wentUp(n int64) {
	f.up.Add(n)
	f.touch()
	f.s.spent(f.s.counters.Up(f.rule, n))
}

func (f *flow) wentDown(n int64) {
	f.down.Add(n)
	f.serverHas.Store(true)
	f.touch()
	f.s.spent(f.s.counters.Down(f.rule, n))
}

// relay passes bytes both ways until both are done. The server may speak first; what
// the Worker says first is looked at before the server sees it.
func (s *server) relay(c *conn, via string, up *net.TCPConn, t target) {
	f := &flow{s: s, rule: t.rule}
	f.touch()
	began := time.Now()
	s.track(up)
	defer s.untrack(up)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f.pump(c.TCPConn, up, f.wentDown); err != nil && !f.handed.Load() {
			c.abort(up)
		}
	})
	err := f.opening(c, up, t)
	if err == errIsHTTP {
		err = nil
		f.handed.Store(true)
		up.Close()
		wg.Wait()
		if f.serverHas.Load() {
			err = refusal(egress.ReasonRequest)
		} else {
			_ = c.SetDeadline(time.Time{})
			s.serveHTTP(c, via, &t, nil)
			return
		}
	}
	if err != nil {
		s.refuse(c, via, t.host(), t.port, err)
		c.abort(up)
	} else if err = f.pump(up, c.TCPConn, f.wentUp); err != nil {
		c.abort(up)
	}
	wg.Wait()
	s.log.write(egress.Decision{ID: c.id, Via: via, Host: t.host(), Port: t.port, Allowed: true, Rule: s.rule(t), Closed: true,
		BytesOut: f.up.Load(), BytesIn: f.down.Load(), Duration: time.Since(began)})
}

// abort ends a tunnel whose other half will not.
func (c *conn) abort(up *net.TCPConn) {
	up.Close()
	c.TCPConn.Close()
}

var errIsHTTP = errors.New("the stream is HTTP")

// opening takes what the Worker says first, holds it against the name, and passes it
// on. A stream to an address has nothing to be compared with.
func (f *flow) opening(c *conn, up *net.TCPConn, t target) error {
	buf := c.buffered()
	if t.name != "" {
		p, hello, rest, err := c.sniffStream(buf)
		buf = rest
		switch {
		case errors.Is(err, io.EOF) && len(buf) == 0:
			// It said nothing: pump will find the same.
		case err != nil:
			return err
		case p == isTLS:
			if err := hello.compare(t.name); err != nil {
				return err
			}
		case p == isHTTP:
			c.br = bufio.NewReaderSize(io.MultiReader(bytes.NewReader(buf), c), maxHead)
			return errIsHTTP
		}
	}
	if len(buf) == 0 {
		return nil
	}
	if _, err := up.Write(buf); err != nil {
		return failure{egress.ReasonDial, err}
	}
	f.wentUp(int64(len(buf)))
	return nil
}

// buffered takes what was read from the Worker and not looked at.
func (c *conn) buffered() []byte {
	if c.br == nil {
		return nil
	}
	b, _ := c.br.Peek(c.br.Buffered())
	b = bytes.Clone(b)
	c.br = nil
	return b
}

// sniffStream reads until sniff can judge.
func (c *conn) sniffStream(buf []byte) (protocol, clientHello, []byte, error) {
	deadline := time.Time{}
	for {
		p, hello, err := sniff(buf)
		if err != errMore {
			return p, hello, buf, err
		}
		if len(buf) > 0 && deadline.IsZero() {
			deadline = time.Now().Add(sniffTimeout)
		}
		if cap(buf)-len(buf) < 2048 {
			buf = append(make([]byte, 0, 2*cap(buf)+4096), buf...)
		}
		limit := time.Now().Add(c.s.idle)
		if !deadline.IsZero() && deadline.Before(limit) {
			limit = deadline
		}
		_ = c.SetReadDeadline(limit)
		n, err := c.TCPConn.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if n == 0 && err != nil {
			if err == io.EOF && len(buf) > 0 { // the beginning of something, and no more
				return opaque, clientHello{}, buf, refusal(egress.ReasonRequest)
			}
			if errors.Is(err, os.ErrDeadlineExceeded) && len(buf) > 0 {
				return opaque, clientHello{}, buf, refusal(egress.ReasonRequest)
			}
			return opaque, clientHello{}, buf, err
		}
	}
}

const (
	// chunk is what splice(2) moves between two looks at the limits.
	chunk = 1 << 20
	// tick is how long a count may be behind.
	tick = 5 * time.Second
)

// pump passes bytes one way until the end of them, and passes that on. The kernel
// moves them (splice(2), by package net).
func (f *flow) pump(dst, src *net.TCPConn, count func(int64)) error {
	for {
		started := time.Now()
		step := min(tick, f.s.idle)
		_ = src.SetReadDeadline(started.Add(step))
		// Later than any read's, so that the two can be told apart: a write that fails
		// has lost bytes.
		_ = dst.SetWriteDeadline(started.Add(f.s.idle + step))
		allowed := f.s.left()
		if allowed == 0 {
			return refusal(egress.ReasonBytes)
		}
		want := int64(min(chunk, allowed))
		n, err := io.Copy(dst, &io.LimitedReader{R: src, N: want})
		if n > 0 {
			count(n)
		}
		switch {
		case err == nil && n < want:
			_ = dst.CloseWrite() // it may be closed already
			return nil
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded) && time.Since(started) < f.s.idle+step && !f.quiet(f.s.idle):
		default:
			return err
		}
	}
}
