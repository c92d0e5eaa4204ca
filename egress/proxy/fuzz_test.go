package proxy

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"yoi.dev/yoi-runtime/policy"
)

// hello is what a client sends first.
func hello(t testing.TB, c *tls.Config) []byte {
	t.Helper()
	a, b := net.Pipe()
	go func() {
		_ = tls.Client(a, c).Handshake()
		a.Close()
	}()
	buf := make([]byte, 64<<10)
	n, err := io.ReadAtLeast(b, buf, recordHeader)
	b.Close()
	if err != nil {
		t.Fatal(err)
	}
	return buf[:n]
}

func TestParseHello(t *testing.T) {
	b := hello(t, &tls.Config{ServerName: "a.example"})
	for n := range b {
		if _, err := parseHello(b[:n]); err != errMore {
			t.Fatalf("%d of %d bytes: %v", n, len(b), err)
		}
	}
	if h, err := parseHello(append(b, "what follows"...)); err != nil || h.name != "a.example" || h.ech {
		t.Errorf("%+v, %v", h, err)
	}
	if h, err := parseHello(hello(t, &tls.Config{InsecureSkipVerify: true})); err != nil || h.name != "" {
		t.Errorf("without a name: %+v, %v", h, err)
	}
	if h, err := parseHello(craft(nil, ext{extensionECH, "x"}, ext{extensionSNI, sni("a.example")})); err != nil || !h.ech || h.name != "a.example" {
		t.Errorf("ECH: %+v, %v", h, err)
	}
	for name, b := range map[string][]byte{
		"two names in one extension": craft(nil, ext{extensionSNI, sni("a.example", "b.example")}),
		"two extensions":             craft(nil, ext{extensionSNI, sni("a.example")}, ext{extensionSNI, sni("b.example")}),
		"an empty name":              craft(nil, ext{extensionSNI, sni("")}),
		"another type of name":       craft(nil, ext{extensionSNI, "\x00\x0c\x01\x00\x09a.example"}),
		"an empty extension":         craft(nil, ext{extensionSNI, ""}),
		"bytes behind the list":      craft(nil, ext{extensionSNI, sni("a.example") + "x"}),
		"bytes behind all":           craft([]byte("x"), ext{extensionSNI, sni("a.example")}),
		"another message":            append([]byte{22, 3, 1, 0, 4}, 2, 0, 0, 0),
		"an empty record":            {22, 3, 1, 0, 0},
		"an alert in between":        {22, 3, 1, 0, 1, 1, 21, 3, 1, 0, 2, 1, 0},
		"a huge message":             append([]byte{22, 3, 1, 0, 4}, 1, 0xff, 0xff, 0xff),
		"a huge record":              {22, 3, 1, 0xff, 0xff, 1},
		"another version of records": {22, 2, 0, 0, 4, 1, 0, 0, 0},
	} {
		if h, err := parseHello(b); err != errBadTLS {
			t.Errorf("%s: %+v, %v", name, h, err)
		}
	}
}

type ext struct {
	kind uint16
	body string
}

func u16(n int) string { return string([]byte{byte(n >> 8), byte(n)}) }

func sni(names ...string) string {
	var list string
	for _, n := range names {
		list += "\x00" + u16(len(n)) + n
	}
	return u16(len(list)) + list
}

// craft is a ClientHello with these extensions, and more behind them.
func craft(more []byte, exts ...ext) []byte {
	var e string
	for _, x := range exts {
		e += u16(int(x.kind)) + u16(len(x.body)) + x.body
	}
	body := "\x03\x03" + strings.Repeat("r", 32) + "\x00" + u16(2) + "\x13\x01" + "\x01\x00" + u16(len(e)) + e + string(more)
	msg := "\x01\x00" + u16(len(body)) + body
	return []byte("\x16\x03\x01" + u16(len(msg)) + msg)
}

func FuzzParseHello(f *testing.F) {
	f.Add(hello(f, &tls.Config{ServerName: "a.example"}))
	f.Add(craft(nil, ext{extensionSNI, sni("a.example")}, ext{extensionECH, "x"}))
	f.Add([]byte{22, 3, 1, 0, 1, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHello(b)
		if err == nil && len(h.name) > len(b) {
			t.Fatal("a name from nowhere")
		}
		if err != nil {
			return
		}
		// Bytes that follow change nothing, and cutting the stream only delays.
		if again, err := parseHello(append(bytes.Clone(b), 'x')); err != nil || again != h {
			t.Fatalf("%+v with more behind: %+v, %v", h, again, err)
		}
	})
}

func FuzzSniff(f *testing.F) {
	for _, s := range []string{"GET / HTTP/1.1\r\n", "\r\n\r\nget / http/1.0\n", "SSH-2.0-x\r\n", "\x16\x03\x01", "*1\r\n$4\r\nPING\r\n", "\x80\x2e\x01", "\x00\x00\x00\x08\x04\xd2\x16\x2f"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, _, err := sniff(b)
		if err != nil || p == isTLS {
			return
		}
		// A verdict does not change when more comes.
		if again, _, err := sniff(append(bytes.Clone(b), "HTTP/1.1\r\n"...)); err != nil || again != p {
			t.Fatalf("%v, then %v, %v", p, again, err)
		}
		// What package net/http would read as a request is never let pass unseen.
		if _, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(append(bytes.Clone(b), "\r\n\r\n"...)))); err == nil && p == opaque {
			t.Fatalf("%q is taken for no HTTP", b)
		}
	})
}

func FuzzSOCKS(f *testing.F) {
	f.Add([]byte("\x01\x00\x05\x01\x00\x03\x09a.example\x01\xbb"))
	f.Add([]byte("\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		if ok, err := socksMethods(r); !ok || err != nil {
			return
		}
		host, _, err := socksRequest(r)
		if err == nil && len(host) > 255 {
			t.Fatal("a host from nowhere")
		}
	})
}

func FuzzInspect(f *testing.F) {
	f.Add([]byte("GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n"))
	f.Add([]byte("POST http://a.example/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = inspect(b) })
}

func FuzzAuthority(f *testing.F) {
	for _, s := range []string{"a.example:443", "[::1]:1", "a@b:1", "127.1:80", "a:0"} {
		f.Add(s)
	}
	rules, _ := policy.NetworkPolicy{Rules: []string{"a.example:443", "*.b.example:443", "[2001:db8::1]:443", "192.0.2.1:443"}}.ParsedRules()
	g := &gate{rules: rules}
	f.Fuzz(func(t *testing.T, s string) {
		host, port, ok := splitAuthority(s, 443)
		if !ok {
			return
		}
		tg, err := g.check(host, port)
		if err != nil {
			return
		}
		if tg.port != 443 || tg.name != "a.example" && !strings.HasSuffix(tg.name, ".b.example") && tg.name != "" {
			t.Fatalf("%q leads to %v", s, tg)
		}
	})
}

func TestAnswerQuery(t *testing.T) {
	rules, err := policy.NetworkPolicy{Rules: []string{"*.a.example:443", "b.example:443"}}.ParsedRules()
	if err != nil {
		t.Fatal(err)
	}
	ask := func(name string, kind dnsmessage.Type) dnsmessage.Message {
		q := dnsmessage.Message{Header: dnsmessage.Header{ID: 7}, Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}}}
		b, err := q.Pack()
		if err != nil {
			t.Fatal(err)
		}
		var m dnsmessage.Message
		if err := m.Unpack(answerQuery(b, rules)); err != nil {
			t.Fatal(err)
		}
		return m
	}
	if m := ask("x.a.example.", dnsmessage.TypeA); m.ID != 7 || len(m.Answers) != 1 {
		t.Errorf("%+v", m)
	}
	if m := ask("x.a.example.", dnsmessage.TypeAAAA); m.RCode != dnsmessage.RCodeSuccess || len(m.Answers) != 0 {
		t.Errorf("%+v", m)
	}
	for _, name := range []string{"a.example.", "secret-data.evil.example.", "."} {
		if m := ask(name, dnsmessage.TypeA); m.RCode != dnsmessage.RCodeNameError || len(m.Answers) != 0 {
			t.Errorf("%s: %+v", name, m)
		}
	}
}

func FuzzAnswerQuery(f *testing.F) {
	f.Add([]byte("\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x07example\x00\x00\x01\x00\x01"))
	rules, _ := policy.NetworkPolicy{Rules: []string{"*.a.example:443"}}.ParsedRules()
	f.Fuzz(func(t *testing.T, b []byte) {
		if out := answerQuery(b, rules); len(out) > 1024 {
			t.Fatalf("%d bytes of answer", len(out))
		}
	})
}
