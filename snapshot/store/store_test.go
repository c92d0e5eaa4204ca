package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/snapshot"
)

var digest = "sha256:" + strings.Repeat("ab", 32)

const secret = "s3cr3t-value"

func location(t *testing.T, s string) snapshot.Location {
	t.Helper()
	l, err := snapshot.ParseLocation(s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func at(t *testing.T, s string, o Options) Store {
	t.Helper()
	if o.Stall == 0 {
		o.Stall = 5 * time.Second
	}
	st, err := Open(location(t, s), o)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func file(t *testing.T, content string) *os.File {
	t.Helper()
	p := filepath.Join(t.TempDir(), "archive")
	if err := os.WriteFile(p, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func wantCode(t *testing.T, err error, code policy.Code) {
	t.Helper()
	if !errors.Is(err, code) {
		t.Fatalf("got %v, want %s", err, code)
	}
	for e := err; e != nil; e = errors.Unwrap(e) {
		if strings.Contains(fmt.Sprintf("%v %+v %#v", e, e, e), secret) {
			t.Fatalf("a secret in %v", e)
		}
	}
}

// get reads an archive to its end.
func get(ctx context.Context, s Store) (string, error) {
	r, err := s.Get(ctx, digest)
	if err != nil {
		return "", err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	return string(b), err
}

// TestStores puts, gets, lists and removes in a directory and over HTTP.
func TestStores(t *testing.T) {
	kept := map[string][]byte{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodPut:
			if r.ContentLength < 0 {
				t.Error("an upload without its length")
			}
			kept[r.URL.Path], _ = io.ReadAll(r.Body)
			w.WriteHeader(http.StatusCreated)
		case http.MethodGet, http.MethodDelete:
			b, ok := kept[r.URL.Path]
			if !ok {
				http.NotFound(w, r)
				return
			}
			if r.Method == http.MethodDelete {
				delete(kept, r.URL.Path)
			}
			_, _ = w.Write(b)
		}
	}))
	defer srv.Close()
	for name, l := range map[string]string{"directory": t.TempDir(), "http": srv.URL + "/a/b"} {
		t.Run(name, func(t *testing.T) {
			s := at(t, l, Options{})
			_, err := get(t.Context(), s)
			wantCode(t, err, policy.CodeRemoteSnapshotUnknown)
			wantCode(t, s.Remove(t.Context(), digest), policy.CodeRemoteSnapshotUnknown)
			for _, content := range []string{"damaged", strings.Repeat("archive", 100_000)} { // the second replaces the first
				f := file(t, content)
				if err := s.Put(t.Context(), digest, f, int64(len(content))); err != nil {
					t.Fatal(err)
				}
				if got, err := get(t.Context(), s); err != nil || got != content {
					t.Fatalf("%d bytes, %v", len(got), err)
				}
			}
			items, err := s.List(t.Context())
			if name == "http" {
				wantCode(t, err, policy.CodeUnsupported)
			} else if err != nil || len(items) != 1 || items[0].Digest != digest || items[0].Bytes != 700_000 {
				t.Errorf("%v, %v", items, err)
			}
			if err := s.Remove(t.Context(), digest); err != nil {
				t.Fatal(err)
			}
			_, err = get(t.Context(), s)
			wantCode(t, err, policy.CodeRemoteSnapshotUnknown)
		})
	}
	if n := len(kept); n != 0 {
		t.Errorf("%d left", n)
	}
}

func TestDirectoryTricks(t *testing.T) {
	dir := t.TempDir()
	s := at(t, dir, Options{})
	name := filepath.Join(dir, snapshot.ObjectName(digest))
	for what, plant := range map[string]func() error{
		"symlink":   func() error { return os.Symlink("/etc/passwd", name) },
		"fifo":      func() error { return unix.Mkfifo(name, 0o600) },
		"directory": func() error { return os.Mkdir(name, 0o700) },
	} {
		if err := plant(); err != nil {
			t.Fatal(err)
		}
		if _, err := get(t.Context(), s); err == nil {
			t.Errorf("%s: it was read", what)
		}
		if items, err := s.List(t.Context()); err != nil || len(items) != 0 {
			t.Errorf("%s: listed: %v, %v", what, items, err)
		}
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	_, err := get(t.Context(), at(t, filepath.Join(dir, "none"), Options{}))
	wantCode(t, err, policy.CodeSnapshotStoreFailed)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	wantCode(t, s.Put(canceled, digest, file(t, "x"), 1), policy.CodeCanceled)
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("left behind: %v", entries)
	}
}

// TestHostileServer is what a store may do instead of answering.
func TestHostileServer(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("followed to another server, with %q", r.Header.Get("Authorization"))
	}))
	defer elsewhere.Close()
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		want    policy.Code
	}{
		"401":         {status(401), policy.CodeSnapshotStoreRefused},
		"403":         {status(403), policy.CodeSnapshotStoreRefused},
		"404":         {status(404), policy.CodeRemoteSnapshotUnknown},
		"410":         {status(410), policy.CodeRemoteSnapshotUnknown},
		"429":         {status(429), policy.CodeSnapshotStoreFailed},
		"500":         {status(500), policy.CodeSnapshotStoreFailed},
		"503":         {status(503), policy.CodeSnapshotStoreFailed},
		"206 unasked": {status(206), policy.CodeSnapshotStoreFailed},
		"redirect":    {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) }, policy.CodeSnapshotStoreRedirected},
		"redirect 307": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		}, policy.CodeSnapshotStoreRedirected},
		"file URL": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		}, policy.CodeSnapshotStoreRedirected},
		"loop": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) }, policy.CodeSnapshotStoreRedirected},
		"truncated": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte("short"))
		}, policy.CodeSnapshotTruncated},
		"broken chunks": {func(w http.ResponseWriter, _ *http.Request) {
			c, b, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			fmt.Fprint(b, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
			b.Flush()
			c.Close()
		}, policy.CodeSnapshotTruncated},
		"no HTTP": {func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = c.Write([]byte("SSH-2.0-hello\r\n"))
			c.Close()
		}, policy.CodeSnapshotStoreFailed},
		"silent": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, policy.CodeSnapshotStoreSlow},
		"stalls": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write(make([]byte, 100_000))
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, policy.CodeSnapshotStoreSlow},
		"trickles": {func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write([]byte("x")); err != nil {
					return
				}
				_ = http.NewResponseController(w).Flush()
				time.Sleep(10 * time.Millisecond)
			}
		}, policy.CodeSnapshotStoreSlow},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := httptest.NewServer(c.handler)
			t.Cleanup(srv.Close)
			s := at(t, srv.URL, Options{Stall: 400 * time.Millisecond, Credentials: Credentials{Token: secret}})
			_, err := get(t.Context(), s)
			wantCode(t, err, c.want)
		})
	}
}

func TestUploadToHostileServer(t *testing.T) {
	content := strings.Repeat("x", 8<<20)
	var servers []*httptest.Server
	release := make(chan struct{}) // a server that has not read the body does not see its client go
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		want    policy.Code
	}{
		"refuses": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(403) }, policy.CodeSnapshotStoreRefused},
		"redirects": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, policy.CodeSnapshotStoreRedirected},
		"is full":     {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(507) }, policy.CodeSnapshotStoreFailed},
		"never reads": {func(http.ResponseWriter, *http.Request) { <-release }, policy.CodeSnapshotStoreSlow},
		"reads and says nothing": {func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-release
		}, policy.CodeSnapshotStoreSlow},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(c.handler)
			servers = append(servers, srv)
			s := at(t, srv.URL, Options{Stall: 400 * time.Millisecond})
			wantCode(t, s.Put(t.Context(), digest, file(t, content), int64(len(content))), c.want)
		})
	}
	close(release)
	for _, srv := range servers {
		srv.Close()
	}
}

func TestNobodyListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	_, err = get(t.Context(), at(t, "http://"+addr, Options{Credentials: Credentials{User: "u", Password: secret}}))
	wantCode(t, err, policy.CodeSnapshotStoreFailed)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = get(ctx, at(t, "http://"+addr, Options{}))
	wantCode(t, err, policy.CodeCanceled)
	_, err = get(t.Context(), at(t, "s3://bucket?endpoint=http://"+addr, Options{S3Program: "/nonexistent/yoi-s3"}))
	wantCode(t, err, policy.CodeUnavailable)
}

func TestCredentials(t *testing.T) {
	const text = `
[[store]]
url = "https://store.example/team"
token = "` + secret + `"
[[store]]
url = "https://store.example/team/app"
user = "u"
password = "` + secret + `"
[[store]]
url = "s3://bucket?endpoint=http://127.0.0.1:9000"
access_key = "A"
secret_key = "` + secret + `"
`
	t.Setenv("AWS_ACCESS_KEY_ID", "from the environment")
	for l, want := range map[string]Credentials{
		"https://store.example/team/other":             {Token: secret},
		"https://store.example/team/app":               {User: "u", Password: secret},
		"https://store.example/team/app/deeper":        {User: "u", Password: secret},
		"https://store.example/teams":                  {},
		"https://store.example:8443/team":              {},
		"http://store.example/team":                    {},
		"https://evil.example/team/app":                {},
		"/team/app":                                    {},
		"s3://bucket/x?endpoint=http://127.0.0.1:9000": {AccessKey: "A", SecretKey: secret},
		"s3://bucket/x?endpoint=http://127.0.0.1:9001": {AccessKey: "from the environment"},
		"s3://bucket2/x":                               {AccessKey: "from the environment"},
	} {
		got, err := FindCredentials([]byte(text), location(t, l))
		if err != nil || got != want {
			t.Errorf("%s: %v", l, err)
		}
	}
	if s := fmt.Sprintf("%v %+v %#v %s", Credentials{Token: secret}, Credentials{Token: secret}, Credentials{Token: secret}, Credentials{Token: secret}); strings.Contains(s, secret) {
		t.Errorf("printed: %s", s)
	}
	for _, bad := range []string{"[[store]]\nurl = 1\ntoken = \"" + secret, "[[store]]\nurl = \"ftp://x\"\ntoken = \"" + secret + "\"", "[[store]]\ntokn = \"" + secret + "\""} {
		_, err := FindCredentials([]byte(bad), location(t, "/x"))
		wantCode(t, err, policy.CodeConfigInvalid)
	}
	for l, ok := range map[string]bool{
		"http://127.0.0.1:80/x": true, "http://localhost/x": true, "http://[::1]:1/x": true, "https://a.example/x": true,
		"http://a.example/x": false, "http://10.0.0.1/x": false, "http://localhost.example/x": false,
		"s3://b?endpoint=http://10.0.0.1": false, "s3://b?endpoint=https://10.0.0.1": true, "s3://b": true,
	} {
		if _, err := Open(location(t, l), Options{Credentials: Credentials{Token: secret}}); (err == nil) != ok {
			t.Errorf("%s: %v", l, err)
		}
	}
}

// Basic and bearer credentials reach the server, in headers alone.
func TestCredentialsAreSent(t *testing.T) {
	var seen []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Header.Get("Authorization"))
		if strings.Contains(r.URL.String(), secret) {
			t.Error("in the URL")
		}
		w.WriteHeader(404)
	}))
	defer srv.Close()
	for _, c := range []Credentials{{Token: secret}, {User: "u", Password: secret}, {}} {
		_, err := get(t.Context(), at(t, srv.URL, Options{Credentials: c}))
		wantCode(t, err, policy.CodeRemoteSnapshotUnknown)
	}
	if len(seen) != 3 || seen[0] != "Bearer "+secret || !strings.HasPrefix(seen[1], "Basic ") || seen[2] != "" {
		t.Errorf("%q", seen)
	}
}

// TestNoDirectory: whoever names one that is not there is told to make it.
func TestNoDirectory(t *testing.T) {
	st := at(t, filepath.Join(t.TempDir(), "no-such"), Options{})
	_, listed := st.List(t.Context())
	_, got := st.Get(t.Context(), digest)
	f := file(t, "archive")
	for what, err := range map[string]error{"list": listed, "get": got, "put": st.Put(t.Context(), digest, f, 7)} {
		if d := policy.AsDiagnostic(err); d == nil || d.Code != policy.CodeSnapshotStoreFailed || !strings.HasPrefix(d.Hint, "Make the directory") {
			t.Errorf("%s: %+v", what, d)
		}
	}
}
