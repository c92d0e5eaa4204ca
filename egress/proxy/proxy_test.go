package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/egress"
	"yoi.dev/yoi-runtime/policy"
)

// names is a resolver; a name with several answers gives one after the other, as a
// rebinding name server does.
type names struct {
	mu      sync.Mutex
	answers map[string][][]string
	asked   []string
}

func (n *names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	host = strings.TrimSuffix(host, ".")
	n.asked = append(n.asked, host)
	list := n.answers[host]
	if len(list) == 0 {
		return nil, errors.New("no such name")
	}
	if len(list) > 1 {
		n.answers[host] = list[1:]
	}
	var out []netip.Addr
	for _, a := range list[0] {
		out = append(out, netip.MustParseAddr(a))
	}
	return out, nil
}

// world is a proxy and servers behind it, all on the host's loopback: rules that name
// it stand for public addresses.
type world struct {
	t     *testing.T
	s     *server
	addr  string
	log   *os.File
	names *names
	mu    sync.Mutex
	seen  []string // what the HTTP server was asked
	http  uint16
}

func newWorld(t *testing.T, p policy.NetworkPolicy, answers map[string][][]string) *world {
	t.Helper()
	w := &world{t: t, names: &names{answers: answers}}
	up := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.mu.Lock()
		w.seen = append(w.seen, fmt.Sprintf("%s %s%s %s", r.Method, r.Host, r.URL, b))
		w.mu.Unlock()
		if to := r.URL.Query().Get("to"); to != "" {
			http.Redirect(rw, r, to, http.StatusFound)
			return
		}
		fmt.Fprint(rw, "from the server")
	}))
	t.Cleanup(up.Close)
	u, _ := url.Parse(up.URL)
	w.http = netip.MustParseAddrPort(u.Host).Port()
	for i, r := range p.Rules {
		p.Rules[i] = strings.ReplaceAll(r, "PORT", fmt.Sprint(w.http))
	}
	p = (policy.SandboxPolicy{Network: p}).Normalize().Network
	if err := (policy.SandboxPolicy{Network: p}).Validate(); err != nil {
		t.Fatal(err)
	}
	rules, _ := p.ParsedRules()
	dir := t.TempDir()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	w.log = log
	cf, err := os.Create(filepath.Join(dir, "counters"))
	if err != nil {
		t.Fatal(err)
	}
	if err := cf.Truncate(egress.CountersSize); err != nil {
		t.Fatal(err)
	}
	counters, err := egress.MapCounters(int(cf.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	w.s = newServer(egress.Config{Network: p}, &gate{rules: rules, resolver: w.names, own: ownAddress}, counters, newLog(log))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); log.Close(); cf.Close() })
	w.addr = l.Addr().String()
	go func() { _ = w.s.accept(l.(*net.TCPListener), w.s.serveProxy) }()
	return w
}

func (w *world) dial() net.Conn {
	w.t.Helper()
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

// raw sends bytes and returns everything that comes back until the proxy closes.
func (w *world) raw(text string) string {
	w.t.Helper()
	c := w.dial()
	if _, err := io.WriteString(c, strings.ReplaceAll(text, "PORT", fmt.Sprint(w.http))); err != nil {
		w.t.Fatal(err)
	}
	_ = c.(*net.TCPConn).CloseWrite()
	b, _ := io.ReadAll(c)
	return string(b)
}

func (w *world) requests() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.seen)
}

func (w *world) reasons() []egress.Reason {
	w.t.Helper()
	f, err := os.Open(w.log.Name())
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	ds, err := egress.ReadLog(f, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	var out []egress.Reason
	for _, d := range ds {
		if d.Reason != "" {
			out = append(out, d.Reason)
		}
	}
	return out
}

// tunnel opens one by CONNECT.
func (w *world) tunnel(to string) (net.Conn, *http.Response) {
	w.t.Helper()
	c := w.dial()
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", to, to)
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, &http.Request{Method: "CONNECT"})
	if err != nil {
		w.t.Fatalf("CONNECT %s: %v", to, err)
	}
	return c, resp
}

var loopback = [][]string{{"127.0.0.1"}}

func TestPlainHTTP(t *testing.T) {
	w := newWorld(t, policy.NetworkPolicy{Rules: []string{"a.example:PORT@127.0.0.1"}}, map[string][][]string{"a.example": loopback})
	u, _ := url.Parse("http://" + w.addr)
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(u)}}
	defer client.CloseIdleConnections()
	for i := range 3 {
		resp, err := client.Post(fmt.Sprintf("http://a.example:%d/p%d?q", w.http, i), "text/plain", strings.NewReader(strings.Repeat("x", 100)))
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 || string(b) != "from the server" {
			t.Fatalf("%d %s", resp.StatusCode, b)
		}
	}
	if got := w.requests(); len(got) != 3 || got[1] != fmt.Sprintf("POST a.example:%d/p1?q %s", w.http, strings.Repeat("x", 100)) {
		t.Errorf("%q", got)
	}
	if n := w.s.open.Load(); n != 1 {
		t.Errorf("%d connections for three requests", n)
	}
	resp, err := client.Get("http://b.example/")
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 403 || !strings.Contains(string(b), "b.example:80: no rule") {
		t.Errorf("%d %s", resp.StatusCode, b)
	}
}

// Each is refused, with its reason, and the server behind is never asked for what
// the rules do not name.
func TestAttackHTTP(t *testing.T) {
	for name, c := range map[string]struct {
		send   string
		reason egress.Reason
	}{
		"another host":                    {"GET http://evil.example:PORT/ HTTP/1.1\r\nHost: evil.example:PORT\r\n\r\n", egress.ReasonRule},
		"another port":                    {"GET http://a.example:1/ HTTP/1.1\r\nHost: a.example:1\r\n\r\n", egress.ReasonRule},
		"Host unlike the absolute form":   {"GET http://a.example:PORT/ HTTP/1.1\r\nHost: evil.example\r\n\r\n", egress.ReasonHost},
		"no Host":                         {"GET http://a.example:PORT/ HTTP/1.1\r\n\r\n", egress.ReasonHost},
		"two Hosts":                       {"GET http://a.example:PORT/ HTTP/1.1\r\nHost: a.example:PORT\r\nHost: evil.example\r\n\r\n", egress.ReasonRequest},
		"userinfo":                        {"GET http://a.example:PORT@evil.example/ HTTP/1.1\r\nHost: a.example:PORT\r\n\r\n", egress.ReasonRequest},
		"userinfo that is the name":       {"GET http://evil@a.example:PORT/ HTTP/1.1\r\nHost: a.example:PORT\r\n\r\n", egress.ReasonRequest},
		"backslash":                       {"GET http://evil.example\\@a.example:PORT/ HTTP/1.1\r\nHost: a.example:PORT\r\n\r\n", egress.ReasonRequest},
		"fragment":                        {"GET http://evil.example#@a.example:PORT/ HTTP/1.1\r\nHost: a.example:PORT\r\n\r\n", egress.ReasonRequest},
		"https absolute form":             {"GET https://a.example:PORT/ HTTP/1.1\r\nHost: a.example:PORT\r\n\r\n", egress.ReasonProtocol},
		"ftp":                             {"GET ftp://a.example:PORT/ HTTP/1.1\r\nHost: a.example:PORT\r\n\r\n", egress.ReasonProtocol},
		"origin form":                     {"GET / HTTP/1.1\r\nHost: a.example:PORT\r\n\r\n", egress.ReasonProtocol},
		"length and chunks":               {"POST http://a.example:PORT/ HTTP/1.1\r\nHost: a.example:PORT\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: evil\r\n\r\n", egress.ReasonRequest},
		"chunks and length":               {"POST http://a.example:PORT/ HTTP/1.1\r\nHost: a.example:PORT\r\nTransfer-Encoding: chunked\r\nContent-Length: 50\r\n\r\n0\r\n\r\n", egress.ReasonRequest},
		"two lengths":                     {"POST http://a.example:PORT/ HTTP/1.1\r\nHost: a.example:PORT\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", egress.ReasonRequest},
		"two equal lengths":               {"POST http://a.example:PORT/ HTTP/1.1\r\nHost: a.example:PORT\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", egress.ReasonRequest},
		"signed length":                   {"POST http://a.example:PORT/ HTTP/1.1\r\nHost: a.example:PORT\r\nContent-Length: +5\r\n\r\nhello", egress.ReasonRequest},
		"odd encoding":                    {"POST http://a.example:PORT/ HTTP/1.1\r\nHost: a.example:PORT\r\nTransfer-Encoding: xchunked\r\n\r\n", egress.ReasonRequest},
		"encoding list":                   {"POST http://a.example:PORT/ HTTP/1.1\r\nHost: a.example:PORT\r\nTransfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n", egress.ReasonRequest},
		"space before the colon":          {"POST http://a.example:PORT/ HTTP/1.1\r\nHost: a.example:PORT\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", egress.ReasonRequest},
		"vertical tab before the colon":   {"POST http://a.example:PORT/ HTTP/1.1\r\nHost: a.example:PORT\r\nTransfer-Encoding\v: chunked\r\n\r\n0\r\n\r\n", egress.ReasonRequest},
		"folded":                          {"POST http://a.example:PORT/ HTTP/1.1\r\nHost: a.example:PORT\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", egress.ReasonRequest},
		"bare LF":                         {"GET http://a.example:PORT/ HTTP/1.1\nHost: a.example:PORT\n\n", egress.ReasonRequest},
		"LF in a value":                   {"GET http://a.example:PORT/ HTTP/1.1\r\nHost: a.example:PORT\r\nX: a\nTransfer-Encoding: chunked\r\n\r\n", egress.ReasonRequest},
		"CR in a value":                   {"GET http://a.example:PORT/ HTTP/1.1\r\nHost: a.example:PORT\r\nX: a\rb\r\n\r\n", egress.ReasonRequest},
		"NUL":                             {"GET http://a.example:PORT/ HTTP/1.1\r\nHost: a.example:PORT\r\nX: a\x00b\r\n\r\n", egress.ReasonRequest},
		"spaces in the line":              {"GET  http://a.example:PORT/ HTTP/1.1\r\nHost: a.example:PORT\r\n\r\n", egress.ReasonRequest},
		"tab in the line":                 {"GET\thttp://a.example:PORT/ HTTP/1.1\r\nHost: a.example:PORT\r\n\r\n", egress.ReasonRequest},
		"HTTP/0.9":                        {"GET http://a.example:PORT/\r\n\r\n", egress.ReasonRequest},
		"HTTP/2 by prior knowledge":       {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ""},
		"a header without end":            {"GET http://a.example:PORT/ HTTP/1.1\r\nX: " + strings.Repeat("x", 64<<10), egress.ReasonRequest},
		"address in decimal":              {"GET http://2130706433:PORT/ HTTP/1.1\r\nHost: 2130706433:PORT\r\n\r\n", egress.ReasonName},
		"CONNECT by decimal":              {"CONNECT 2130706433:PORT HTTP/1.1\r\nHost: x\r\n\r\n", egress.ReasonName},
		"CONNECT by octal":                {"CONNECT 017700000001:PORT HTTP/1.1\r\nHost: x\r\n\r\n", egress.ReasonName},
		"CONNECT by octal parts":          {"CONNECT 0177.0.0.1:PORT HTTP/1.1\r\nHost: x\r\n\r\n", egress.ReasonName},
		"CONNECT by hex":                  {"CONNECT 0x7f000001:PORT HTTP/1.1\r\nHost: x\r\n\r\n", egress.ReasonName},
		"CONNECT by short form":           {"CONNECT 127.1:PORT HTTP/1.1\r\nHost: x\r\n\r\n", egress.ReasonName},
		"CONNECT by zero":                 {"CONNECT 0:PORT HTTP/1.1\r\nHost: x\r\n\r\n", egress.ReasonName},
		"CONNECT by mapped address":       {"CONNECT [::ffff:127.0.0.1]:PORT HTTP/1.1\r\nHost: x\r\n\r\n", egress.ReasonName},
		"CONNECT by mapped hex":           {"CONNECT [::ffff:7f00:1]:PORT HTTP/1.1\r\nHost: x\r\n\r\n", egress.ReasonName},
		"CONNECT with zone":               {"CONNECT [fe80::1%eth0]:PORT HTTP/1.1\r\nHost: x\r\n\r\n", egress.ReasonRequest},
		"CONNECT by plain address":        {"CONNECT 127.0.0.1:PORT HTTP/1.1\r\nHost: x\r\n\r\n", egress.ReasonRule},
		"CONNECT by IPv6":                 {"CONNECT [::1]:PORT HTTP/1.1\r\nHost: x\r\n\r\n", egress.ReasonRule},
		"CONNECT to the metadata service": {"CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: x\r\n\r\n", egress.ReasonRule},
		"CONNECT with userinfo":           {"CONNECT a.example:PORT@evil.example:PORT HTTP/1.1\r\nHost: x\r\n\r\n", egress.ReasonRequest},
		"CONNECT without port":            {"CONNECT a.example HTTP/1.1\r\nHost: x\r\n\r\n", egress.ReasonRequest},
		"CONNECT with a path":             {"CONNECT a.example:PORT/x HTTP/1.1\r\nHost: x\r\n\r\n", egress.ReasonRequest},
		"CONNECT to a longer name":        {"CONNECT a.example.evil.test:PORT HTTP/1.1\r\nHost: x\r\n\r\n", egress.ReasonRule},
		"CONNECT to a full-width name":    {"CONNECT ａ.example:PORT HTTP/1.1\r\nHost: x\r\n\r\n", egress.ReasonName},
		"CONNECT with an ideographic dot": {"CONNECT a。example:PORT HTTP/1.1\r\nHost: x\r\n\r\n", egress.ReasonName},
		"private address behind a name":   {"CONNECT private.example:PORT HTTP/1.1\r\nHost: x\r\n\r\n", egress.ReasonAddress},
		"loopback behind a name":          {"CONNECT loop.example:PORT HTTP/1.1\r\nHost: x\r\n\r\n", egress.ReasonAddress},
		"mapped loopback behind a name":   {"CONNECT mapped.example:PORT HTTP/1.1\r\nHost: x\r\n\r\n", egress.ReasonAddress},
		"NAT64 loopback behind a name":    {"CONNECT nat64.example:PORT HTTP/1.1\r\nHost: x\r\n\r\n", egress.ReasonAddress},
		"SOCKS by address":                {"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50", egress.ReasonRule},
		"SOCKS by mapped address":         {"\x05\x01\x00\x05\x01\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\x7f\x00\x00\x01\x00\x50", egress.ReasonName},
		"SOCKS by decimal name":           {"\x05\x01\x00\x05\x01\x00\x03\x0a2130706433\x00\x50", egress.ReasonName},
		"SOCKS name with NUL":             {"\x05\x01\x00\x05\x01\x00\x03\x0ba.example\x00x\x00\x50", egress.ReasonName},
		"SOCKS BIND":                      {"\x05\x01\x00\x05\x02\x00\x03\x09a.example\x00\x50", egress.ReasonProtocol},
		"SOCKS UDP":                       {"\x05\x01\x00\x05\x03\x00\x03\x09a.example\x00\x50", egress.ReasonProtocol},
		"SOCKS with a password only":      {"\x05\x01\x02", egress.ReasonProtocol},
		"SOCKS 4":                         {"\x04\x01\x00\x50\x7f\x00\x00\x01\x00", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, policy.NetworkPolicy{Rules: []string{"a.example:PORT@127.0.0.1", "private.example:PORT", "loop.example:PORT", "mapped.example:PORT", "nat64.example:PORT"}},
				map[string][][]string{"a.example": loopback, "evil.example": loopback, "private.example": {{"10.0.0.1", "192.168.1.1", "fd00::1"}}, "loop.example": {{"127.0.0.1", "::1"}},
					"mapped.example": {{"::ffff:127.0.0.1"}}, "nat64.example": {{"64:ff9b::7f00:1"}}})
			answer := w.raw(c.send)
			if strings.Contains(answer, "from the server") || strings.HasPrefix(answer, "HTTP/1.1 200") {
				t.Errorf("answered: %q", answer)
			}
			if got := w.requests(); len(got) > 0 {
				t.Errorf("the server was asked %q", got)
			}
			if c.reason != "" {
				if got := w.reasons(); len(got) != 1 || got[0] != c.reason {
					t.Errorf("logged %q, not %q; answered %q", got, c.reason, answer)
				}
			}
		})
	}
}

// What is in the body of a request that was passed on is never taken for another.
// A web socket is passed on; what would name hosts of its own inside is not offered to
// the server, which answers as if nobody had asked.
func TestAttackUpgrade(t *testing.T) {
	var mu sync.Mutex
	var offered []string
	up := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		offered = append(offered, r.Header.Get("Upgrade"))
		mu.Unlock()
		if r.Header.Get("Upgrade") == "" {
			fmt.Fprint(rw, "plain")
			return
		}
		c, _, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\nswitched", r.Header.Get("Upgrade"))
	}))
	defer up.Close()
	host := "a.example:" + up.URL[strings.LastIndexByte(up.URL, ':')+1:]
	for protocol, switches := range map[string]bool{
		"websocket": true, "tcp": true, "h2c": false, "H2C": false, "websocket, h2c": false, "TLS/1.2": false, "HTTP/2.0": false,
	} {
		w := newWorld(t, policy.NetworkPolicy{Rules: []string{host + "@127.0.0.1"}}, map[string][][]string{"a.example": loopback})
		mu.Lock()
		offered = nil
		mu.Unlock()
		got := w.raw(fmt.Sprintf("GET http://%s/ HTTP/1.1\r\nHost: %[1]s\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: %s\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n", host, protocol))
		want, answer := "", "HTTP/1.1 200 OK"
		if switches {
			want, answer = protocol, "HTTP/1.1 101 Switching Protocols"
		}
		mu.Lock()
		if len(offered) != 1 || offered[0] != want || !strings.HasPrefix(got, answer) {
			t.Errorf("%s: the server was offered %q, the Worker got %q", protocol, offered, got)
		}
		mu.Unlock()
	}
}

func TestAttackSmuggledBody(t *testing.T) {
	w := newWorld(t, policy.NetworkPolicy{Rules: []string{"a.example:PORT@127.0.0.1"}}, map[string][][]string{"a.example": loopback})
	inner := "GET http://a.example:PORT/inner HTTP/1.1\r\nHost: a.example:PORT\r\n\r\n"
	inner = strings.ReplaceAll(inner, "PORT", fmt.Sprint(w.http))
	w.raw(fmt.Sprintf("POST http://a.example:PORT/outer HTTP/1.1\r\nHost: a.example:PORT\r\nContent-Length: %d\r\n\r\n%s", len(inner), inner))
	if got := w.requests(); len(got) != 1 || !strings.HasPrefix(got[0], "POST ") || !strings.HasSuffix(got[0], inner) {
		t.Errorf("%q", got)
	}
}

// A redirect is the Worker's to follow, and its target is judged like any other.
func TestAttackRedirect(t *testing.T) {
	w := newWorld(t, policy.NetworkPolicy{Rules: []string{"a.example:PORT@127.0.0.1"}}, map[string][][]string{"a.example": loopback})
	u, _ := url.Parse("http://" + w.addr)
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(u)}}
	defer client.CloseIdleConnections()
	for _, to := range []string{"http://169.254.169.254/latest/", "http://127.0.0.1:22/", "http://[::1]/", "http://b.example/"} {
		resp, err := client.Get(fmt.Sprintf("http://a.example:%d/?to=%s", w.http, url.QueryEscape(to)))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 403 {
			t.Errorf("%s: %d", to, resp.StatusCode)
		}
	}
}

// The address that was judged is the one that is dialled: the second answer of a
// name server that rebinds is never asked for in one connection, and judged in the
// next.
func TestAttackRebinding(t *testing.T) {
	w := newWorld(t, policy.NetworkPolicy{Rules: []string{"rebind.example:PORT", "mixed.example:PORT@127.0.0.1"}}, map[string][][]string{
		"rebind.example": {{"203.0.113.1"}, {"127.0.0.1"}},
		"mixed.example":  {{"10.0.0.1", "127.0.0.1", "169.254.169.254"}},
	})
	for range 2 {
		if _, resp := w.tunnel(fmt.Sprintf("rebind.example:%d", w.http)); resp.StatusCode != 403 {
			t.Errorf("status %d", resp.StatusCode)
		}
	}
	if _, resp := w.tunnel(fmt.Sprintf("mixed.example:%d", w.http)); resp.StatusCode != 200 {
		t.Errorf("the one permitted address of three: %d", resp.StatusCode)
	}
	if got := w.names.asked; len(got) != 3 {
		t.Errorf("asked %q", got)
	}
}

// tlsServer answers any name.
func tlsServer(t *testing.T) uint16 {
	up := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "over TLS for "+r.TLS.ServerName) }))
	t.Cleanup(up.Close)
	u, _ := url.Parse(up.URL)
	return netip.MustParseAddrPort(u.Host).Port()
}

func TestAttackServerName(t *testing.T) {
	port := tlsServer(t)
	w := newWorld(t, policy.NetworkPolicy{Rules: []string{fmt.Sprintf("a.example:%d@127.0.0.1", port), fmt.Sprintf("127.0.0.1:%d", port)}}, map[string][][]string{"a.example": loopback})
	handshake := func(to, sni string, change func(net.Conn) net.Conn) error {
		c, resp := w.tunnel(to)
		if resp.StatusCode != 200 {
			return fmt.Errorf("status %d", resp.StatusCode)
		}
		if change != nil {
			c = change(c)
		}
		tc := tls.Client(c, &tls.Config{ServerName: sni, InsecureSkipVerify: true})
		return tc.Handshake()
	}
	name, addr := fmt.Sprintf("a.example:%d", port), fmt.Sprintf("127.0.0.1:%d", port)
	for _, ok := range []string{"a.example", "A.Example"} {
		if err := handshake(name, ok, nil); err != nil {
			t.Errorf("SNI %q: %v", ok, err)
		}
	}
	if err := handshake(name, "a.example", func(c net.Conn) net.Conn { return &dribble{Conn: c} }); err != nil {
		t.Errorf("in single bytes: %v", err)
	}
	if err := handshake(name, "a.example", func(c net.Conn) net.Conn { return &refragment{Conn: c} }); err != nil {
		t.Errorf("in many records: %v", err)
	}
	if err := handshake(addr, "evil.example", nil); err != nil {
		t.Errorf("a rule for an address has no name to compare: %v", err)
	}
	for _, bad := range []string{"evil.example", "", "b.a.example", "a.example.evil.test", "xa.example"} {
		if err := handshake(name, bad, nil); err == nil {
			t.Errorf("SNI %q passed", bad)
		}
	}
	if err := handshake(name, "evil.example", func(c net.Conn) net.Conn { return &dribble{Conn: c} }); err == nil {
		t.Error("another name in single bytes passed")
	}
	if err := handshake(name, "evil.example", func(c net.Conn) net.Conn { return &refragment{Conn: c} }); err == nil {
		t.Error("another name in many records passed")
	}
	want := []egress.Reason{egress.ReasonSNI, egress.ReasonNoSNI, egress.ReasonSNI, egress.ReasonSNI, egress.ReasonSNI, egress.ReasonSNI, egress.ReasonSNI}
	if got := w.reasons(); !slices.Equal(got, want) {
		t.Errorf("logged %q", got)
	}
}

// dribble writes single bytes, refragment one TLS record for each byte of a record.
type dribble struct{ net.Conn }

func (d *dribble) Write(b []byte) (int, error) {
	for i := range b {
		if _, err := d.Conn.Write(b[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(b), nil
}

type refragment struct {
	net.Conn
	done bool
}

func (r *refragment) Write(b []byte) (int, error) {
	if r.done || len(b) < 5 || b[0] != recordHandshake {
		return r.Conn.Write(b)
	}
	r.done = true
	var out []byte
	for _, c := range b[5:] {
		out = append(out, recordHandshake, 3, 1, 0, 1, c)
	}
	_, err := r.Conn.Write(out)
	return len(b), err
}

// HTTP in a tunnel is held to the tunnel's name, in whatever dress it comes.
func TestAttackHTTPInTunnel(t *testing.T) {
	for name, c := range map[string]struct {
		send string
		ok   bool
	}{
		"the tunnel's host": {"GET /x HTTP/1.1\r\nHost: a.example:PORT\r\nConnection: close\r\n\r\n", true},
		"in two pieces":     {"GE|T /x HTTP/1.1\r\nHost: a.example:PORT\r\nConnection: close\r\n\r\n", true},
		"another host":      {"GET /x HTTP/1.1\r\nHost: evil.example\r\n\r\n", false},
		"after a line end":  {"\r\n\r\nGET /x HTTP/1.1\r\nHost: evil.example\r\n\r\n", false},
		"after a blank":     {" GET /x HTTP/1.1\r\nHost: evil.example\r\n\r\n", false},
		"second request":    {"GET /x HTTP/1.1\r\nHost: a.example:PORT\r\n\r\nGET /y HTTP/1.1\r\nHost: evil.example\r\n\r\n", true},
		"absolute form":     {"GET http://evil.example/ HTTP/1.1\r\nHost: a.example:PORT\r\n\r\n", false},
		"lower case":        {"get /x http/1.1\r\nHost: evil.example\r\n\r\n", false},
		"another CONNECT":   {"CONNECT evil.example:PORT HTTP/1.1\r\nHost: a.example:PORT\r\n\r\n", false},
		"HTTP/2":            {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, policy.NetworkPolicy{Rules: []string{"a.example:PORT@127.0.0.1"}}, map[string][][]string{"a.example": loopback})
			conn, resp := w.tunnel(fmt.Sprintf("a.example:%d", w.http))
			if resp.StatusCode != 200 {
				t.Fatalf("status %d", resp.StatusCode)
			}
			for part := range strings.SplitSeq(strings.ReplaceAll(c.send, "PORT", fmt.Sprint(w.http)), "|") {
				_, _ = io.WriteString(conn, part)
			}
			_ = conn.(*net.TCPConn).CloseWrite()
			b, _ := io.ReadAll(conn)
			got := w.requests()
			for _, r := range got {
				if strings.Contains(r, "evil") || strings.Contains(r, "/y") {
					t.Errorf("the server was asked %q", r)
				}
			}
			if c.ok != (len(got) == 1) {
				t.Errorf("the server was asked %q; answered %q", got, b)
			}
		})
	}
}

// A protocol in which the server speaks first goes through as it is, both ways and to
// its end.
func TestServerSpeaksFirst(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, "220 hello\r\n")
		b, _ := io.ReadAll(c)
		_, _ = c.Write(b)
	}()
	port := l.Addr().(*net.TCPAddr).Port
	w := newWorld(t, policy.NetworkPolicy{Rules: []string{fmt.Sprintf("a.example:%d@127.0.0.1", port)}}, map[string][][]string{"a.example": loopback})
	c := w.dial()
	if _, err := c.Write(append([]byte("\x05\x01\x00\x05\x01\x00\x03\x09a.example"), byte(port>>8), byte(port))); err != nil {
		t.Fatal(err)
	}
	head := make([]byte, 12)
	if _, err := io.ReadFull(c, head); err != nil || head[3] != socksOK {
		t.Fatalf("%x, %v", head, err)
	}
	br := bufio.NewReader(c)
	if line, err := br.ReadString('\n'); err != nil || line != "220 hello\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	said := "EHLO worker\r\n" + strings.Repeat("data ", 100000)
	go func() {
		_, _ = io.WriteString(c, said)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	b, err := io.ReadAll(br)
	if err != nil || string(b) != said {
		t.Errorf("%d bytes back, %v", len(b), err)
	}
}

func TestByteLimit(t *testing.T) {
	w := newWorld(t, policy.NetworkPolicy{Rules: []string{"a.example:PORT@127.0.0.1"}, MaxBytes: 10000}, map[string][][]string{"a.example": loopback})
	w.raw("POST http://a.example:PORT/x HTTP/1.1\r\nHost: a.example:PORT\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 100000))
	if n := w.s.counters.Total(); n > 10000 {
		t.Errorf("%d bytes went through", n)
	}
	c, resp := w.tunnel(fmt.Sprintf("a.example:%d", w.http))
	if resp.StatusCode == 200 {
		// The limit's rest: a tunnel may open, and ends with it.
		_, _ = c.Write(append([]byte{0}, make([]byte, 50000)...))
		_, _ = io.ReadAll(c)
	}
	if n := w.s.counters.Total(); n > 10000 {
		t.Errorf("%d bytes went through", n)
	}
}

func TestConnectionLimit(t *testing.T) {
	w := newWorld(t, policy.NetworkPolicy{Rules: []string{"a.example:PORT@127.0.0.1"}, MaxConnections: 2}, map[string][][]string{"a.example": loopback})
	for range 2 {
		if _, resp := w.tunnel(fmt.Sprintf("a.example:%d", w.http)); resp.StatusCode != 200 {
			t.Fatal(resp.Status)
		}
	}
	c := w.dial()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a third connection was served")
	}
	if got := w.reasons(); !slices.Equal(got, []egress.Reason{egress.ReasonConnections}) {
		t.Errorf("%q", got)
	}
}

func TestIdleTimeout(t *testing.T) {
	w := newWorld(t, policy.NetworkPolicy{Rules: []string{"a.example:PORT@127.0.0.1"}, IdleTimeout: time.Second}, map[string][][]string{"a.example": loopback})
	c, resp := w.tunnel(fmt.Sprintf("a.example:%d", w.http))
	if resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the proxy keeps an idle tunnel: %v", err)
	}
}

// The log is bounded, and what it leaves out is counted.
func TestLogIsBounded(t *testing.T) {
	w := newWorld(t, policy.NetworkPolicy{Rules: []string{"a.example:443"}}, nil)
	w.s.log.left = 1000
	for range 20 {
		w.tunnel("b.example:443")
	}
	st, err := w.log.Stat()
	if err != nil || st.Size() > 1000 {
		t.Errorf("%v, %v", st.Size(), err)
	}
	cf, err := os.Open(filepath.Join(filepath.Dir(w.log.Name()), "counters"))
	if err != nil {
		t.Fatal(err)
	}
	defer cf.Close()
	u, err := egress.ReadUsage(cf, w.s.rules)
	if err != nil || u.Refused != 20 || u.Unlogged == 0 || u.Unlogged > 20 {
		t.Errorf("%+v, %v", u, err)
	}
}
