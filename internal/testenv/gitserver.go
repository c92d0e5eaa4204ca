package testenv

import (
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// GitServer serves repositories over https on the loopback interface, by git's
// own http-backend. The zero values of its switches serve well.
type GitServer struct {
	// URL is the server's root: a repository is at URL + "/" + its base name.
	URL string
	// CA is the file that git needs as GIT_SSL_CAINFO.
	CA string
	// Requests counts what was asked since the start.
	Requests atomic.Int64
	// Down answers nothing: each connection is cut.
	Down atomic.Bool
	// CutAfter, if not 0, ends each upload-pack answer after so many bytes:
	// cleanly, as a proxy with a limit does, or with the connection if Vanish.
	CutAfter atomic.Int64
	Vanish   atomic.Bool
	// Stall, if not 0, sends so many bytes of each upload-pack answer and then
	// nothing more, until the client goes away.
	Stall atomic.Int64
}

// NewGitServer serves the repositories in dir until the test ends.
func NewGitServer(t testing.TB, dir string) *GitServer {
	t.Helper()
	s := &GitServer{}
	quiet := log.New(io.Discard, "", 0) // answers that a test cuts are no news
	backend := &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(Git(t, "", "--exec-path")), "git-http-backend"),
		Env: []string{
			"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
			"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
		},
		Stderr: io.Discard,
		Logger: quiet,
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.Requests.Add(1)
		if s.Down.Load() {
			panic(http.ErrAbortHandler)
		}
		if strings.HasSuffix(r.URL.Path, "/git-upload-pack") {
			w = &cutWriter{ResponseWriter: w, s: s, done: r.Context().Done()}
		}
		backend.ServeHTTP(w, r)
	}))
	srv.Config.ErrorLog = quiet
	srv.StartTLS()
	t.Cleanup(srv.Close)
	s.URL = srv.URL
	s.CA = filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	if err := os.WriteFile(s.CA, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return s
}

// cutWriter is an answer that the server's switches end early.
type cutWriter struct {
	http.ResponseWriter
	s    *GitServer
	done <-chan struct{}
	n    int64
}

var errCut = errors.New("cut")

func (w *cutWriter) Write(p []byte) (int, error) {
	for _, limit := range []struct {
		at  int64
		end func()
	}{
		{w.s.CutAfter.Load(), func() {
			if w.s.Vanish.Load() {
				panic(http.ErrAbortHandler)
			}
		}},
		{w.s.Stall.Load(), func() { w.flush(); <-w.done }},
	} {
		if limit.at > 0 && w.n+int64(len(p)) > limit.at {
			n, err := w.ResponseWriter.Write(p[:max(0, limit.at-w.n)])
			w.n += int64(n)
			if err == nil {
				limit.end()
				err = errCut
			}
			return n, err
		}
	}
	n, err := w.ResponseWriter.Write(p)
	w.n += int64(n)
	return n, err
}

func (w *cutWriter) flush() {
	if f, ok := w.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}
