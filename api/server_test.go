package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/internal/servicetest"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// serve runs a server on a socket for the length of the test.
func serve(t *testing.T, opt Options) (socket string, srv *Server) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	l, err := Listen(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	srv = NewServer(opt)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = srv.Shutdown(ctx)
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return socket, srv
}

func dial(t *testing.T, socket string) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

// raw sends text and reads one answer.
func raw(t *testing.T, c net.Conn, text string) (int, Problem) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var p Problem
	if resp.StatusCode >= 400 {
		if ct := resp.Header.Get("Content-Type"); ct != problemType {
			t.Fatalf("status %d, %s: %s", resp.StatusCode, ct, b)
		}
		if err := json.Unmarshal(b, &p); err != nil {
			t.Fatal(err)
		}
	}
	return resp.StatusCode, p
}

func TestRefusedRequests(t *testing.T) {
	const js = "application/json"
	big := `{"source":"` + strings.Repeat("a", 3<<20) + `"}`
	for name, c := range map[string]struct {
		method, target, contentType, body string
		header                            http.Header
		status                            int
		code                              policy.Code
	}{
		"no such resource":         {target: "/v1/nothing", status: 404, code: policy.CodeNotFound},
		"the root":                 {target: "/", status: 404, code: policy.CodeNotFound},
		"a version to come":        {target: "/v2/info", status: 404, code: policy.CodeNotFound},
		"an unclean path":          {target: "/v1//info", status: 404, code: policy.CodeNotFound},
		"a path with dots":         {target: "/v1/workers/../info", status: 404, code: policy.CodeNotFound},
		"a trailing slash":         {target: "/v1/info/", status: 404, code: policy.CodeNotFound},
		"an id with a slash":       {target: "/v1/workers/a%2Fb", status: 400, code: policy.CodeIDInvalid},
		"an id of dots":            {target: "/v1/workers/..", status: 400, code: policy.CodeIDInvalid},
		"an id that is an option":  {target: "/v1/repositories/--all", status: 400, code: policy.CodeIDInvalid},
		"an id with NUL":           {target: "/v1/repositories/a%00b", status: 400, code: policy.CodeIDInvalid},
		"a wrong method":           {method: "PUT", target: "/v1/repositories", status: 405, code: policy.CodeMethodNotAllowed},
		"HEAD":                     {method: "HEAD", target: "/v1/info", status: 405, code: policy.CodeMethodNotAllowed},
		"an unknown parameter":     {target: "/v1/workers?workspace=x", status: 400, code: policy.CodeBadRequest},
		"a parameter on a plain":   {target: "/v1/info?x=1", status: 400, code: policy.CodeBadRequest},
		"a parameter twice":        {target: "/v1/workers?limit=1&limit=2", status: 400, code: policy.CodeBadRequest},
		"a bad number":             {target: "/v1/workers?limit=many", status: 400, code: policy.CodeBadRequest},
		"a page too long":          {target: "/v1/workers?limit=1001", status: 400, code: policy.CodeBadRequest},
		"a bad flag":               {target: "/v1/events?follow=yes", status: 400, code: policy.CodeBadRequest},
		"a bad stream":             {target: "/v1/workers/wk-1/logs?stream=../x", status: 400, code: policy.CodeBadRequest},
		"a bad owner":              {target: "/v1/events?owner=/etc", status: 400, code: policy.CodeIDInvalid},
		"a bad event id":           {target: "/v1/events", header: http.Header{"Accept": {eventsType}, "Last-Event-Id": {"x"}}, status: 400, code: policy.CodeBadRequest},
		"a body on GET":            {target: "/v1/info", contentType: js, body: `{}`, status: 400, code: policy.CodeBadRequest},
		"a body on fetch":          {method: "POST", target: "/v1/repositories/a/fetch", contentType: js, body: `{}`, status: 400, code: policy.CodeBadRequest},
		"no body":                  {method: "POST", target: "/v1/repositories", contentType: js, status: 400, code: policy.CodeBadRequest},
		"no content type":          {method: "POST", target: "/v1/repositories", body: `{"source":"a"}`, status: 400, code: policy.CodeBadRequest},
		"a form":                   {method: "POST", target: "/v1/repositories", contentType: "text/plain", body: `{"source":"a"}`, status: 400, code: policy.CodeBadRequest},
		"another charset":          {method: "POST", target: "/v1/repositories", contentType: js + "; charset=utf-16", body: `{"source":"a"}`, status: 400, code: policy.CodeBadRequest},
		"a content encoding":       {method: "POST", target: "/v1/repositories", contentType: js, body: `{"source":"a"}`, header: http.Header{"Content-Encoding": {"gzip"}}, status: 400, code: policy.CodeBadRequest},
		"a large body":             {method: "POST", target: "/v1/repositories", contentType: js, body: big, status: 413, code: policy.CodeRequestTooLarge},
		"an unknown field":         {method: "POST", target: "/v1/gc", contentType: js, body: `{"all":true}`, status: 400, code: policy.CodeBadRequest},
		"two keys":                 {method: "POST", target: "/v1/gc", header: http.Header{"Idempotency-Key": {"a", "b"}}, status: 400, code: policy.CodeBadRequest},
		"an empty key":             {method: "POST", target: "/v1/gc", header: http.Header{"Idempotency-Key": {""}}, status: 400, code: policy.CodeBadRequest},
		"a long key":               {method: "POST", target: "/v1/gc", header: http.Header{"Idempotency-Key": {strings.Repeat("k", 129)}}, status: 400, code: policy.CodeBadRequest},
		"a key on a signal":        {method: "POST", target: "/v1/workers/wk-1/signal", contentType: js, body: `{"signal":"TERM"}`, header: http.Header{"Idempotency-Key": {"a"}}, status: 400, code: policy.CodeBadRequest},
		"two keys that differ":     {method: "POST", target: "/v1/workers", contentType: js, body: `{"allocation_id":"ws-1","command":["a"],"idempotency_key":"a"}`, header: http.Header{"Idempotency-Key": {"b"}}, status: 400, code: policy.CodeBadRequest},
		"server options":           {method: "OPTIONS", target: "/v1/info", status: 405, code: policy.CodeMethodNotAllowed},
		"a case of its own":        {target: "/V1/info", status: 404, code: policy.CodeNotFound},
		"an encoded plain segment": {target: "/v1/%69nfo", status: 404, code: policy.CodeNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			svc := new(servicetest.Service)
			req := httptest.NewRequest(cmpOr(c.method, "GET"), c.target, strings.NewReader(c.body))
			for k, v := range c.header {
				req.Header[k] = v
			}
			if c.contentType != "" {
				req.Header.Set("Content-Type", c.contentType)
			}
			w := httptest.NewRecorder()
			NewServer(Options{Service: svc}).ServeHTTP(w, req)
			var p Problem
			if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
				t.Fatalf("%d %s: %v", w.Code, w.Body, err)
			}
			if w.Code != c.status || p.Code != c.code || p.Status != c.status || w.Header().Get("Content-Type") != problemType {
				t.Errorf("status %d, problem %+v", w.Code, p)
			}
			if c.code == policy.CodeMethodNotAllowed && w.Header().Get("Allow") == "" {
				t.Error("no Allow header")
			}
			if calls := svc.Calls(); len(calls) > 0 {
				t.Errorf("the service was called: %v", calls)
			}
		})
	}
}

func cmpOr(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

func TestChunkedBodyIsLimited(t *testing.T) {
	socket, _ := serve(t, Options{Service: new(servicetest.Service), MaxBody: 100})
	c := dial(t, socket)
	status, p := raw(t, c, "POST /v1/repositories HTTP/1.1\r\nHost: y\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"+
		"65\r\n"+strings.Repeat(" ", 0x65)+"\r\n2\r\n{}\r\n0\r\n\r\n")
	if status != 413 || p.Code != policy.CodeRequestTooLarge {
		t.Errorf("%d %+v", status, p)
	}
}

func TestSlowBodyIsRefused(t *testing.T) {
	socket, _ := serve(t, Options{Service: new(servicetest.Service), BodyTimeout: 50 * time.Millisecond})
	c := dial(t, socket)
	status, p := raw(t, c, "POST /v1/repositories HTTP/1.1\r\nHost: y\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{")
	if status != 400 || p.Code != policy.CodeBadRequest {
		t.Errorf("%d %+v", status, p)
	}
}

func TestSlowHeaderIsCutOff(t *testing.T) {
	socket, _ := serve(t, Options{Service: new(servicetest.Service), HeaderTimeout: 50 * time.Millisecond})
	c := dial(t, socket)
	if _, err := io.WriteString(c, "GET /v1/info HTTP/1.1\r\nHost: y\r\n"); err != nil {
		t.Fatal(err)
	}
	// Go answers nothing or 408 and closes; what counts is that it ends.
	if _, err := io.ReadAll(c); err != nil {
		t.Error(err)
	}
}

// A deadline of one request must not end the next one on the connection, nor
// a long operation: both did, with http.Server's own timeouts.
func TestDeadlinesEndWithTheirRequest(t *testing.T) {
	svc := &servicetest.Service{}
	socket, _ := serve(t, Options{Service: svc, BodyTimeout: 60 * time.Millisecond, WriteTimeout: 60 * time.Millisecond})
	c := dial(t, socket)
	const signal = "POST /v1/workers/wk-1/signal HTTP/1.1\r\nHost: y\r\nContent-Type: application/json\r\nContent-Length: 17\r\n\r\n{\"signal\":\"TERM\"}"
	for i := range 3 {
		if status, p := raw(t, c, signal); status != 204 {
			t.Fatalf("request %d: %d %+v", i, status, p)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func TestLongOperationOutlivesTheTimeouts(t *testing.T) {
	svc := &slowService{took: 200 * time.Millisecond}
	socket, _ := serve(t, Options{Service: svc, BodyTimeout: 30 * time.Millisecond, WriteTimeout: 30 * time.Millisecond, HeaderTimeout: 30 * time.Millisecond})
	if _, err := NewClient(socket).GC(t.Context(), runtime.GCRequest{}); err != nil {
		t.Error(err)
	}
}

// slowService collects garbage for a while, and waits for ever, unless it is
// canceled.
type slowService struct {
	servicetest.Service
	took    time.Duration
	waiting chan struct{}
}

func (s *slowService) WaitWorker(ctx context.Context, _ policy.WorkerID) (runtime.Worker, error) {
	close(s.waiting)
	<-ctx.Done()
	return runtime.Worker{}, ctx.Err()
}

func (s *slowService) GC(ctx context.Context, req runtime.GCRequest) (runtime.GCReport, error) {
	select {
	case <-ctx.Done():
		return runtime.GCReport{}, ctx.Err()
	case <-time.After(s.took):
		return s.Service.GC(ctx, req)
	}
}

func TestConnectionLimit(t *testing.T) {
	socket, _ := serve(t, Options{Service: new(servicetest.Service), MaxConnections: 2})
	const get = "GET /v1/info HTTP/1.1\r\nHost: y\r\n\r\n"
	a, b := dial(t, socket), dial(t, socket)
	for _, c := range []net.Conn{a, b} {
		if status, _ := raw(t, c, get); status != 200 {
			t.Fatalf("status %d", status)
		}
	}
	if status, p := raw(t, dial(t, socket), get); status != 503 || p.Code != policy.CodeUnavailable {
		t.Errorf("the third got %d %+v", status, p)
	}
	_ = a.Close()
	for range 100 {
		if status, _ := raw(t, dial(t, socket), get); status == 200 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("a closed connection's place is not given on")
}

func TestClientGoingAwayCancels(t *testing.T) {
	svc := &servicetest.Service{Hang: true, Released: make(chan string, 1)}
	socket, _ := serve(t, Options{Service: svc})
	for name, call := range map[string]func(context.Context, *Client) error{
		"WaitWorker": func(ctx context.Context, c *Client) error { _, err := c.WaitWorker(ctx, "wk-1"); return err },
		"CreateWorkspace": func(ctx context.Context, c *Client) error {
			_, err := c.CreateWorkspace(ctx, runtime.CreateWorkspaceRequest{})
			return err
		},
		"Events": func(ctx context.Context, c *Client) error {
			return c.Events(ctx, runtime.EventsRequest{Follow: true}, func(runtime.Event) bool { return true })
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := call(ctx, NewClient(socket)); !errors.Is(err, policy.CodeCanceled) {
			t.Errorf("%s: the client's error is %v", name, err)
		}
		cancel()
		select {
		case got := <-svc.Released:
			if got != name {
				t.Errorf("%s was released, not %s", got, name)
			}
		case <-time.After(5 * time.Second):
			t.Errorf("%s goes on without its client", name)
		}
	}
}

func TestShutdownEndsWaitsAndLetsWorkFinish(t *testing.T) {
	svc := &slowService{took: 300 * time.Millisecond, waiting: make(chan struct{})}
	socket, srv := serve(t, Options{Service: svc})
	waited, worked := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := NewClient(socket).WaitWorker(context.Background(), "wk-1")
		waited <- err
	}()
	go func() {
		_, err := NewClient(socket).GC(context.Background(), runtime.GCRequest{})
		worked <- err
	}()
	<-svc.waiting
	time.Sleep(100 * time.Millisecond) // for the GC to have begun
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if err := <-waited; !errors.Is(err, policy.CodeUnavailable) {
		t.Errorf("the wait ended with %v", err)
	}
	if err := <-worked; err != nil {
		t.Errorf("the work ended with %v", err)
	}
}

func TestShutdownCancelsWhatDoesNotFinish(t *testing.T) {
	svc := &servicetest.Service{Hang: true, Released: make(chan string, 1)}
	socket, srv := serve(t, Options{Service: svc})
	go func() { _, _ = NewClient(socket).GC(context.Background(), runtime.GCRequest{}) }()
	for len(svc.Calls()) == 0 {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_ = srv.Shutdown(ctx)
	select {
	case <-svc.Released:
	case <-time.After(5 * time.Second):
		t.Error("the operation goes on")
	}
}

func TestPanicTellsNothing(t *testing.T) {
	var log bytes.Buffer
	svc := &servicetest.Service{Panic: errors.New("open /srv/secret: no")}
	w := httptest.NewRecorder()
	NewServer(Options{Service: svc, Log: slog.New(slog.NewTextHandler(&log, nil))}).
		ServeHTTP(w, httptest.NewRequest("GET", "/v1/info", nil))
	if w.Code != 500 || strings.Contains(w.Body.String(), "secret") || strings.Contains(w.Body.String(), ".go") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if !strings.Contains(log.String(), "/srv/secret") || !strings.Contains(log.String(), "servicetest") {
		t.Errorf("the log lacks the panic or its place: %s", &log)
	}
}

// The answer names the request in the log, which has the cause.
func TestProblemNamesTheLogLine(t *testing.T) {
	var log bytes.Buffer
	svc := &servicetest.Service{Err: policy.Errorf(policy.CodeDiskFull, "cow.copy", "no space").Because(errors.New("write /srv/x: ENOSPC"))}
	w := httptest.NewRecorder()
	NewServer(Options{Service: svc, Log: slog.New(slog.NewTextHandler(&log, nil))}).
		ServeHTTP(w, httptest.NewRequest("GET", "/v1/info", nil))
	var p Problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatal(err)
	}
	if p.Instance == "" || !strings.Contains(log.String(), p.Instance) || !strings.Contains(log.String(), "/srv/x") {
		t.Errorf("instance %q, log %s", p.Instance, &log)
	}
	if strings.Contains(w.Body.String(), "/srv") {
		t.Errorf("a host path leaves: %s", w.Body)
	}
}

// A recorder cannot stand for a connection here: the answer must reach a
// client that is still sending.
func TestLargeBodyIsAnsweredWhileItIsSent(t *testing.T) {
	socket, _ := serve(t, Options{Service: new(servicetest.Service)})
	c := NewClient(socket)
	_, err := c.AddRepository(t.Context(), runtime.AddRepositoryRequest{Source: strings.Repeat("a", 3<<20)})
	if !errors.Is(err, policy.CodeRequestTooLarge) {
		t.Errorf("got %v", err)
	}
}
