package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strings"
	"sync/atomic"
	"time"

	"yoi.dev/yoi-runtime/egress"
	"yoi.dev/yoi-runtime/policy"
)

// maxHead bounds a request's line and header.
const maxHead = 32 << 10

// targetKey carries the permitted target of a request to the transport's dialler.
type targetKey struct{}

func (s *server) newTransport() *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			t, ok := ctx.Value(targetKey{}).(target)
			if !ok {
				return nil, refusal(egress.ReasonRule)
			}
			c, err := s.gate.dial(ctx, t)
			if err != nil {
				return nil, err
			}
			s.track(c)
			return &counted{TCPConn: c, s: s, rule: t.rule}, nil
		},
		DisableCompression: true, MaxIdleConnsPerHost: 4, IdleConnTimeout: 30 * time.Second,
		ResponseHeaderTimeout: s.idle, MaxResponseHeaderBytes: 256 << 10,
		ReadBufferSize: 16 << 10, WriteBufferSize: 16 << 10,
	}
}

// counted is a connection of the transport's.
type counted struct {
	*net.TCPConn
	s    *server
	rule int
}

func (c *counted) Read(b []byte) (int, error) {
	left := c.s.left()
	if left == 0 {
		return 0, refusal(egress.ReasonBytes)
	}
	_ = c.SetReadDeadline(time.Now().Add(c.s.idle))
	n, err := c.TCPConn.Read(b[:min(uint64(len(b)), left)])
	c.s.spent(c.s.counters.Down(c.rule, int64(n)))
	return n, err
}

func (c *counted) Write(b []byte) (int, error) {
	if c.s.left() < uint64(len(b)) {
		return 0, refusal(egress.ReasonBytes)
	}
	_ = c.SetWriteDeadline(time.Now().Add(c.s.idle))
	n, err := c.TCPConn.Write(b)
	c.s.spent(c.s.counters.Up(c.rule, int64(n)))
	return n, err
}

func (c *counted) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{r})
}

func (c *counted) WriteTo(w io.Writer) (int64, error) { return io.Copy(w, struct{ io.Reader }{c}) }

func (c *counted) Close() error {
	c.s.untrack(c.TCPConn)
	return c.TCPConn.Close()
}

// serveHTTP answers requests until one is the last. inside is the tunnel's target if
// the stream was found in one: its requests name no other.
//
// at is the endpoint whose socket it came to, nil elsewhere.
func (s *server) serveHTTP(c *conn, via string, inside *target, at *endpoint) {
	for {
		head, err := peekHead(c.br)
		if err != nil {
			if errors.Is(err, bufio.ErrBufferFull) {
				s.deny(c, via, "", 0, refusal(egress.ReasonRequest))
			}
			return
		}
		h, err := inspect(head)
		if err != nil {
			s.deny(c, via, "", 0, err)
			return
		}
		req, err := http.ReadRequest(c.br)
		if err != nil {
			s.deny(c, via, "", 0, refusal(egress.ReasonRequest))
			return
		}
		if req.Method == http.MethodConnect && at == nil {
			s.connect(c, via, req, inside)
			return
		}
		e := at
		if e == nil && inside == nil {
			e = s.endpointOf(req)
		}
		if e != nil {
			if !s.withSecret(c, req, h, e) {
				return
			}
			continue
		}
		if !s.request(c, via, req, h, inside) {
			return
		}
	}
}

// connect serves the method CONNECT.
func (s *server) connect(c *conn, via string, req *http.Request, inside *target) {
	host, port, ok := splitAuthority(req.RequestURI, 0)
	if inside != nil || !ok {
		s.deny(c, egress.ViaConnect, host, port, refusal(egress.ReasonRequest))
		return
	}
	s.tunnel(c, egress.ViaConnect, host, port, func(err error) error {
		if err != nil {
			return answer(c, err, host, port)
		}
		_, err = io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n")
		return err
	})
}

// request passes one request on, and reports whether another may follow.
func (s *server) request(c *conn, via string, req *http.Request, h head, inside *target) bool {
	t, host, port, err := s.addressee(req, h, inside)
	if err == nil && s.left() == 0 {
		err = refusal(egress.ReasonBytes)
	}
	if err != nil {
		s.deny(c, via, host, port, err)
		return false
	}
	out := req.WithContext(context.WithValue(background, targetKey{}, t))
	out.URL.Scheme, out.URL.Host, out.Host = "http", t.String(), h.host
	return s.forward(c, via, req, out, t, s.transport, nil)
}

// forward passes req on as out, which has the same header and body, and reports
// whether another request may follow. change is called with the answer's header.
func (s *server) forward(c *conn, via string, req, out *http.Request, t target, transport *http.Transport, change func(http.Header)) bool {
	defer req.Body.Close()
	last := req.Close || !req.ProtoAtLeast(1, 1)
	upgrade := ""
	if hasToken(req.Header["Connection"], "upgrade") && !hidesHosts(req.Header.Get("Upgrade")) {
		upgrade = req.Header.Get("Upgrade")
	}
	out.RequestURI, out.Close = "", false
	removeHops(out.Header)
	if upgrade != "" {
		out.Header.Set("Connection", "Upgrade")
		out.Header.Set("Upgrade", upgrade)
	}
	var body *tracked
	if req.ContentLength == 0 {
		out.Body = nil
	} else {
		body = &tracked{ReadCloser: req.Body}
		out.Body = body
	}
	if strings.EqualFold(out.Header.Get("Expect"), "100-continue") {
		out.Header.Del("Expect")
		if _, err := io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
			return false
		}
	}
	resp, err := transport.RoundTrip(out)
	if err != nil {
		s.deny(c, via, t.host(), t.port, err)
		return false
	}
	defer resp.Body.Close()
	s.allow(c, via, t, "")
	if resp.StatusCode == http.StatusSwitchingProtocols {
		s.switched(c, resp)
		return false
	}
	removeHops(resp.Header)
	if change != nil {
		change(resp.Header)
	}
	resp.Close = last || resp.ContentLength < 0 && !req.ProtoAtLeast(1, 1)
	resp.Proto, resp.ProtoMajor, resp.ProtoMinor, resp.Request = "HTTP/1.1", 1, 1, req
	w := bufio.NewWriterSize(c, 16<<10)
	if err := resp.Write(w); err != nil || w.Flush() != nil || resp.Close {
		return false
	}
	// What is left of a body that the server did not want must not be taken for the
	// next request, and the transport may still be reading it.
	return body.whole()
}

// tracked is a request's body that knows whether all of it was read.
type tracked struct {
	io.ReadCloser
	eof atomic.Bool
}

func (b *tracked) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.eof.Store(true)
	}
	return n, err
}

func (b *tracked) whole() bool { return b == nil || b.eof.Load() }

// switched is a connection that has left HTTP (a web socket).
func (s *server) switched(c *conn, resp *http.Response) {
	up, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		return
	}
	if err := resp.Write(struct{ io.Writer }{c}); err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(up, c.br)
		up.Close()
	}()
	_, _ = io.Copy(c, up)
	c.TCPConn.Close()
}

// addressee finds whom a request is for: in a tunnel always the tunnel's target,
// else what its absolute form says. The header Host must say the same.
func (s *server) addressee(req *http.Request, h head, inside *target) (t target, host string, port uint16, err error) {
	authority := h.host
	if inside == nil {
		rest, ok := cutScheme(req.RequestURI)
		if !ok {
			return t, "", 0, refusal(egress.ReasonProtocol)
		}
		authority, _, _ = strings.Cut(rest, "/")
		authority, _, _ = strings.Cut(authority, "?")
	} else if !strings.HasPrefix(req.RequestURI, "/") && req.RequestURI != "*" {
		return t, "", 0, refusal(egress.ReasonRequest)
	}
	host, port, ok := splitAuthority(authority, 80)
	if !ok || req.URL.User != nil {
		return t, host, port, refusal(egress.ReasonRequest)
	}
	if h.host == "" {
		return t, host, port, refusal(egress.ReasonHost)
	}
	if hh, hp, ok := splitAuthority(h.host, 80); !ok || hp != port || !sameHost(hh, host) {
		return t, host, port, refusal(egress.ReasonHost)
	}
	if inside != nil && (port != inside.port || inside.name != "" && !sameHost(host, inside.name)) {
		return t, host, port, refusal(egress.ReasonHost)
	}
	t, err = s.gate.check(host, port)
	return t, host, port, err
}

// cutScheme is true for a request target in absolute form, of plain HTTP.
func cutScheme(uri string) (string, bool) {
	const scheme = "http://"
	if len(uri) > len(scheme) && strings.EqualFold(uri[:len(scheme)], scheme) {
		return uri[len(scheme):], true
	}
	return "", false
}

func sameHost(a, b string) bool {
	x, ok := policy.CanonicalName(a)
	y, ok2 := policy.CanonicalName(b)
	if ok && ok2 {
		return x == y
	}
	return a == b
}

// peekHead returns a request's line and header without taking it: package net/http
// reads it, but does not show what it has forgiven.
func peekHead(br *bufio.Reader) ([]byte, error) {
	for n := 1; ; n = br.Buffered() + 1 {
		if _, err := br.Peek(n); err != nil {
			return nil, err
		}
		b, err := br.Peek(br.Buffered())
		if err != nil {
			return nil, err
		}
		if i := bytes.Index(b, []byte("\n\r\n")); i >= 0 {
			return b[:i+3], nil
		}
		if i := bytes.Index(b, []byte("\n\n")); i >= 0 {
			return nil, bufio.ErrBufferFull // lines end in CR LF (RFC 9112, 2.2)
		}
	}
}

// head is what is held against the request that package net/http makes of it.
type head struct{ host string }

// inspect refuses what two parsers could read differently (RFC 9112, 11.2): a body
// with two lengths, folded lines, space before a colon, control characters, a second
// Host. package net/http forgives some of that, and would hide the Host.
func inspect(b []byte) (head, error) {
	var h head
	bad := refusal(egress.ReasonRequest)
	lengths, hosts := 0, 0
	lines := strings.Split(strings.TrimSuffix(string(b), "\r\n"), "\r\n")
	if len(lines) < 2 || len(lines) > 130 {
		return h, bad
	}
	for i, line := range lines {
		if strings.ContainsAny(line, "\r\n\x00") {
			return h, bad
		}
		if i == 0 {
			if strings.Count(line, " ") != 2 || strings.Contains(line, "\t") {
				return h, bad
			}
			continue
		}
		if line == "" && i == len(lines)-1 {
			break
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok || name == "" || strings.TrimFunc(name, func(r rune) bool { return r < 0x80 && tokenByte(byte(r)) }) != "" {
			return h, bad
		}
		for j := 0; j < len(name); j++ {
			if !tokenByte(name[j]) {
				return h, bad
			}
		}
		value = textproto.TrimString(value)
		switch textproto.CanonicalMIMEHeaderKey(name) {
		case "Host":
			hosts++
			h.host = value
		case "Content-Length":
			lengths++
		case "Transfer-Encoding":
			lengths++
			if !strings.EqualFold(value, "chunked") {
				return h, bad
			}
		}
	}
	if lengths > 1 || hosts > 1 {
		return h, bad
	}
	return h, nil
}

// hopHeaders concern one connection only (RFC 9110, 7.6.1).
var hopHeaders = []string{"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

func removeHops(h http.Header) {
	for _, v := range h["Connection"] {
		for name := range strings.SplitSeq(v, ",") {
			h.Del(textproto.TrimString(name))
		}
	}
	for _, name := range hopHeaders {
		h.Del(name)
	}
}

func hasToken(values []string, token string) bool {
	for _, v := range values {
		for t := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(textproto.TrimString(t), token) {
				return true
			}
		}
	}
	return false
}

// hidesHosts reports whether one of the protocols that a client would change to has
// names of hosts in it, which nobody would hold against the rules any more. A server
// answers a request without it as it is.
func hidesHosts(upgrade string) bool {
	for p := range strings.SplitSeq(upgrade, ",") {
		name, _, _ := strings.Cut(textproto.TrimString(p), "/")
		switch strings.ToLower(name) {
		case "h2c", "h2", "http", "tls":
			return true
		}
	}
	return false
}

// deny logs a refusal and answers with it.
func (s *server) deny(c *conn, via, host string, port uint16, err error) {
	s.refuse(c, via, host, port, err)
	_ = answer(c, err, host, port)
}

// sentences are what the Worker is told.
var sentences = map[egress.Reason]string{
	egress.ReasonRule:     "no rule of the network policy names it",
	egress.ReasonName:     "that is no host name, and no address in its usual form",
	egress.ReasonAddress:  "the name leads to no public address",
	egress.ReasonHost:     "the Host header names another host",
	egress.ReasonRequest:  "the request is malformed or ambiguous",
	egress.ReasonProtocol: "only http:// in absolute form, CONNECT and SOCKS 5 are served",
	egress.ReasonBytes:    "the network policy's byte limit is reached",
	egress.ReasonResolve:  "the name cannot be resolved",
	egress.ReasonDial:     "the server cannot be reached",
}

func answer(w io.Writer, err error, host string, port uint16) error {
	reason := reasonOf(err)
	status := http.StatusForbidden
	switch reason {
	case egress.ReasonRequest, egress.ReasonHost:
		status = http.StatusBadRequest
	case egress.ReasonProtocol:
		status = http.StatusNotImplemented
	case egress.ReasonResolve, egress.ReasonDial:
		status = http.StatusBadGateway
	}
	what := ""
	if host != "" {
		what = fmt.Sprintf("%s:%d: ", policy.Printable(host), port)
	}
	text := "yoi: " + what + sentences[reason] + " (" + string(reason) + ")\n"
	_, werr := fmt.Fprintf(w, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nProxy-Status: yoi-egress; error=%s\r\nConnection: close\r\n\r\n%s",
		status, http.StatusText(status), len(text), reason, text)
	return werr
}
