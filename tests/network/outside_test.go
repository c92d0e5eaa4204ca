package network

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/cgi"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// The addresses: the host's own, and those outside. 11.0.0.0/24 is nobody's here.
const (
	hostAddr     = "11.0.0.1"
	serverAddr   = "11.0.0.2"
	nameServer   = "11.0.0.53"
	privateAddr  = "10.0.0.5"
	metadataAddr = "169.254.169.254"
)

// outside is the world beyond the host.
type outside struct {
	ca   []byte // PEM
	root string // of the git repositories

	mu   sync.Mutex
	seen []string // requests, "scheme host path"
	took []string // Authorization headers that came to /take
	asks []string // DNS names
	next map[string]int
}

// answers of the name server; with several, one after the other.
var answers = map[string][]string{
	"git.example": {serverAddr}, "npm.example": {serverAddr}, "go.example": {serverAddr}, "pip.example": {serverAddr}, "web.example": {serverAddr},
	"other.example": {serverAddr}, "a.wild.example": {serverAddr}, "b.wild.example": {serverAddr},
	"private.test": {privateAddr}, "metadata.test": {metadataAddr}, "loopback.test": {"127.0.0.1"}, "self.test": {hostAddr}, "mapped.test": {"::ffff:127.0.0.1"},
	"rebind.test": {"203.0.113.9", "127.0.0.1"},
}

var theOutside = sync.OnceValues(makeOutside)

// needOutside sets the two namespaces up, once.
func needOutside(t *testing.T) *outside {
	t.Helper()
	testenv.Root(t)
	o, err := theOutside()
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func (o *outside) requests() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string(nil), o.seen...)
}

func (o *outside) names() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(o.asks, " ")
}

// taken empties what came to /take.
func (o *outside) taken() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := o.took
	o.took = nil
	return out
}

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func makeOutside() (*outside, error) {
	links, err := net.Interfaces()
	if err != nil || len(links) != 1 {
		return nil, fmt.Errorf("this is no network namespace of the test's own: %v, %v", links, err)
	}
	o := &outside{next: map[string]int{}}
	ready := make(chan error)
	// One thread lives outside, and opens every socket there.
	do := make(chan func())
	go func() {
		runtime.LockOSThread()
		ready <- unix.Unshare(unix.CLONE_NEWNET)
		for f := range do {
			f()
		}
	}()
	if err := <-ready; err != nil {
		return nil, err
	}
	there := func(f func() error) error {
		result := make(chan error)
		do <- func() { result <- f() }
		return <-result
	}
	var ns *os.File
	if err := there(func() (err error) { ns, err = os.Open("/proc/thread-self/ns/net"); return err }); err != nil {
		return nil, err
	}
	for _, a := range [][]string{
		{"link", "set", "lo", "up"},
		{"link", "add", "v0", "type", "veth", "peer", "name", "v1"},
		{"link", "set", "v1", "netns", fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.Fd())},
		{"addr", "add", hostAddr + "/24", "dev", "v0"}, {"link", "set", "v0", "up"},
		// Were a packet sent there, it would arrive.
		{"route", "add", "10.0.0.0/8", "via", serverAddr}, {"route", "add", metadataAddr, "via", serverAddr}, {"route", "add", "203.0.113.0/24", "via", serverAddr},
	} {
		if err := ip(a...); err != nil {
			return nil, err
		}
	}
	err = there(func() error {
		cmds := [][]string{{"link", "set", "lo", "up"}, {"link", "set", "v1", "up"}}
		for _, a := range []string{serverAddr + "/24", nameServer + "/24", privateAddr + "/32", metadataAddr + "/32", "203.0.113.9/32"} {
			cmds = append(cmds, []string{"addr", "add", a, "dev", "v1"})
		}
		for _, a := range cmds { // started from this thread, so run there
			if err := ip(a...); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	resolv := filepath.Join(os.TempDir(), "resolv.conf")
	if err := os.WriteFile(resolv, []byte("nameserver "+nameServer+"\n"), 0o644); err != nil {
		return nil, err
	}
	if err := unix.Mount(resolv, "/etc/resolv.conf", "", unix.MS_BIND, ""); err != nil {
		return nil, err
	}
	if err := o.publish(); err != nil {
		return nil, err
	}
	config, err := o.authority()
	if err != nil {
		return nil, err
	}
	return o, there(func() error {
		for _, a := range []string{serverAddr, privateAddr, metadataAddr, "203.0.113.9"} {
			for _, port := range []string{"80", "443"} {
				l, err := net.Listen("tcp", net.JoinHostPort(a, port))
				if err != nil {
					return err
				}
				if port == "443" {
					l = tls.NewListener(l, config)
				}
				s := &http.Server{Handler: o, ErrorLog: log.New(io.Discard, "", 0)}
				go func() { _ = s.Serve(l) }()
			}
		}
		pc, err := net.ListenPacket("udp", nameServer+":53")
		if err != nil {
			return err
		}
		go o.answer(pc)
		return nil
	})
}

// authority makes the outside's certificate authority and what it signed.
func (o *outside) authority() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "outside"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	ca, _ := x509.ParseCertificate(der)
	o.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "server"}, NotBefore: tmpl.NotBefore, NotAfter: tmpl.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for name := range answers {
		leaf.DNSNames = append(leaf.DNSNames, name)
	}
	der, err = x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, NextProtos: []string{"http/1.1"}}, nil
}

func (o *outside) answer(pc net.PacketConn) {
	buf := make([]byte, 4096)
	for {
		n, from, err := pc.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		q := m.Questions[0]
		name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
		o.mu.Lock()
		o.asks = append(o.asks, name)
		list := answers[name]
		var a netip.Addr
		if len(list) > 0 {
			i := min(o.next[name], len(list)-1)
			a = netip.MustParseAddr(list[i])
			if q.Type == dnsmessage.TypeA {
				o.next[name]++
			}
		}
		o.mu.Unlock()
		m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
		switch {
		case !a.IsValid():
			m.RCode = dnsmessage.RCodeNameError
		case a.Is4() && q.Type == dnsmessage.TypeA:
			m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}, Body: &dnsmessage.AResource{A: a.As4()}}}
		case a.Is6() && q.Type == dnsmessage.TypeAAAA:
			m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}}}
		}
		b, err := m.Pack()
		if err == nil {
			_, _ = pc.WriteTo(b, from)
		}
	}
}

// publish makes what the servers have: a git repository, a package of npm, a Go
// module, a Python package's page.
func (o *outside) publish() error {
	o.root = filepath.Join(os.TempDir(), "outside")
	repo := filepath.Join(o.root, "git", "app.git")
	if err := os.MkdirAll(filepath.Dir(repo), 0o755); err != nil {
		return err
	}
	script := `set -e; git init -q --bare "$1"; git init -q "$1.work"; cd "$1.work"; echo hello >README; git add .
git -c user.name=a -c user.email=a@b commit -qm first; git push -q "$1" HEAD:refs/heads/main; git -C "$1" symbolic-ref HEAD refs/heads/main`
	cmd := exec.Command("sh", "-c", script, "sh", repo)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + o.root}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func (o *outside) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	o.mu.Lock()
	o.seen = append(o.seen, scheme+" "+r.Host+" "+r.URL.Path)
	o.mu.Unlock()
	host, _, _ := strings.Cut(r.Host, ":")
	switch {
	case host == "git.example":
		h := &cgi.Handler{Path: "/usr/lib/git-core/git-http-backend", Env: []string{"GIT_PROJECT_ROOT=" + o.root + "/git", "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}}
		h.ServeHTTP(w, r)
	case host == "npm.example" && r.URL.Path == "/left":
		sum := sha512.Sum512(npmTarball())
		fmt.Fprintf(w, `{"name":"left","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"left","version":"1.0.0","dist":{"tarball":"https://npm.example/left/-/left-1.0.0.tgz","integrity":"sha512-%s"}}}}`,
			base64.StdEncoding.EncodeToString(sum[:]))
	case host == "npm.example" && r.URL.Path == "/left/-/left-1.0.0.tgz":
		_, _ = w.Write(npmTarball())
	case host == "go.example":
		o.module(w, r)
	case host == "pip.example" && r.URL.Path == "/simple/thing/":
		fmt.Fprint(w, `<a href="/files/thing-1.0-py3-none-any.whl">thing-1.0-py3-none-any.whl</a>`)
	case host == "pip.example" && r.URL.Path == "/files/thing-1.0-py3-none-any.whl":
		_, _ = w.Write(zipped(map[string]string{"thing.py": "x = 1\n", "thing-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n",
			"thing-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n", "thing-1.0.dist-info/RECORD": ""}))
	case r.URL.Path == "/redirect":
		http.Redirect(w, r, r.URL.Query().Get("to"), http.StatusFound)
	case r.URL.Path == "/take":
		o.mu.Lock()
		o.took = append(o.took, scheme+" "+host+" "+r.Header.Get("Authorization"))
		o.mu.Unlock()
		fmt.Fprintln(w, "taken")
	case r.URL.Path == "/header":
		fmt.Fprintf(w, "authorization=%s\n", r.Header.Get("Authorization"))
	case r.URL.Path == "/big":
		_, _ = io.Copy(w, io.LimitReader(zeros{}, 8<<20))
	case host == "web.example" || strings.HasSuffix(host, ".wild.example") || host == "other.example" || host == hostAddr:
		fmt.Fprintf(w, "%s for %s\n", scheme, host)
	default:
		fmt.Fprintf(w, "reached %s by %s\n", host, scheme)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func npmTarball() []byte {
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	tw := tar.NewWriter(zw)
	for name, text := range map[string]string{"package/package.json": `{"name":"left","version":"1.0.0"}`} {
		_ = tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))})
		_, _ = io.WriteString(tw, text)
	}
	_ = tw.Close()
	_ = zw.Close()
	return buf.Bytes()
}

func zipped(files map[string]string) []byte {
	var buf bytes.Buffer
	zw := zip.NewWriter(&buf)
	for name, text := range files {
		f, _ := zw.Create(name)
		_, _ = io.WriteString(f, text)
	}
	_ = zw.Close()
	return buf.Bytes()
}

// module is a GOPROXY with one module.
func (o *outside) module(w http.ResponseWriter, r *http.Request) {
	const mod = "module outside.example/m\n"
	switch r.URL.Path {
	case "/outside.example/m/@v/list":
		fmt.Fprintln(w, "v1.0.0")
	case "/outside.example/m/@v/v1.0.0.info":
		fmt.Fprint(w, `{"Version":"v1.0.0","Time":"2024-01-01T00:00:00Z"}`)
	case "/outside.example/m/@v/v1.0.0.mod":
		fmt.Fprint(w, mod)
	case "/outside.example/m/@v/v1.0.0.zip":
		_, _ = w.Write(zipped(map[string]string{"outside.example/m@v1.0.0/go.mod": mod, "outside.example/m@v1.0.0/m.go": "package m\n\nconst X = 1\n"}))
	default:
		http.NotFound(w, r)
	}
}

// rules are what the tools need.
var rules = []string{"git.example:443", "npm.example:443", "go.example:443", "pip.example:443", "web.example:443", "web.example:80", "*.wild.example:443", "*.wild.example:80",
	"private.test:443", "metadata.test:80", "loopback.test:80", "self.test:80", "mapped.test:80", "rebind.test:80"}

// worker is a user with a repository that has the outside's authority in it.
type worker struct {
	yoi   rig.Yoi
	place rig.Place
	repo  string
}

func newWorker(t *testing.T, uid int) worker {
	t.Helper()
	o := needOutside(t)
	p := rig.NewPlace(t, "disk", uid)
	repo := filepath.Join(p.Dir, "app")
	if err := os.Mkdir(repo, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(repo, "ca.pem"), o.ca, 0o644); err != nil {
		t.Fatal(err)
	}
	rig.Command(t, "sh", "-c", `cd "$1"; git init -q; git add .; git -c user.name=a -c user.email=a@b commit -qm x; chown -R "$2" .`, "sh", repo, rig.Owner(uid))
	y := p.Yoi(t)
	y.Env = append(y.Env, "YOI_EGRESS="+rig.Program(t, "yoi-egress"))
	return worker{y, p, repo}
}

// args are those of a run of a shell script under the rules.
func (w worker) args(script string, more ...string) []string {
	a := []string{"run", "--repo", w.repo}
	for _, r := range rules {
		a = append(a, "--allow", r)
	}
	return append(append(a, more...), "--", "sh", "-c", script)
}
