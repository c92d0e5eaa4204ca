package backend

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/policy"
)

// serve listens as configured and serves until the test's end.
func (b *bench) serve(t *testing.T) net.Listener {
	t.Helper()
	l, err := b.Listen()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- b.Serve(l) }()
	t.Cleanup(func() {
		if err := b.http.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l
}

// keyPair writes a certificate for 127.0.0.1 and its key.
func keyPair(t *testing.T) (cert, key string, roots *x509.CertPool) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	priv, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, kind string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	roots = x509.NewCertPool()
	own, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots.AddCert(own)
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", priv), roots
}

// TestServesTLS: with cookies that travel by nothing else, and nothing older than 1.2.
func TestServesTLS(t *testing.T) {
	cert, key, roots := keyPair(t)
	b := newBench(t, func(c *Config) { c.Listen = ListenConfig{Address: "127.0.0.1:0", TLSCert: cert, TLSKey: key} })
	b.person(t, "ada", "viewer")
	at := b.serve(t).Addr().String()
	client := func(c *tls.Config) *http.Client {
		c.RootCAs = roots
		tr := &http.Transport{TLSClientConfig: c}
		t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	resp, err := client(&tls.Config{}).PostForm("https://"+at+"/login", url.Values{"name": {"ada"}, "password": {"long enough"}})
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	cookies := resp.Cookies()
	if resp.StatusCode != 303 || len(cookies) != 1 || !strings.HasPrefix(cookies[0].Name, "__Host-") || !cookies[0].Secure || !cookies[0].HttpOnly {
		t.Errorf("%d with %v", resp.StatusCode, cookies)
	}
	if resp.Header.Get("Strict-Transport-Security") == "" {
		t.Error("no Strict-Transport-Security")
	}
	if resp, err := client(&tls.Config{MaxVersion: tls.VersionTLS11}).Get("https://" + at + "/login"); err == nil {
		resp.Body.Close()
		t.Errorf("TLS 1.1 is spoken: %s", resp.Status)
	}
	plain, err := http.Get("http://" + at + "/login")
	if err != nil {
		t.Fatal(err)
	}
	plain.Body.Close()
	if plain.StatusCode != 400 {
		t.Errorf("without TLS: %s", plain.Status)
	}
}

// TestServesASocket: for its group, replaced when it is dead, and not when it is not.
func TestServesASocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "b.sock")
	dead, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	dead.Close()
	b := newBench(t, func(c *Config) { c.Listen = ListenConfig{Socket: path} })
	b.serve(t)
	fi, err := os.Stat(path)
	if err != nil || fi.Mode().Perm() != 0o660 {
		t.Errorf("%v, %v", fi, err)
	}
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Get("http://whatever.the.proxy.says/login")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 200 || !strings.Contains(string(body), "Log in") {
		t.Errorf("%s, %v", resp.Status, err)
	}
	other := newBench(t, func(c *Config) { c.Listen = ListenConfig{Socket: path} })
	if l, err := other.Listen(); err == nil {
		l.Close()
		t.Error("a socket that is served is taken away")
	} else if policy.AsDiagnostic(err).Code != policy.CodeConfigInvalid {
		t.Errorf("%v", err)
	}
}
