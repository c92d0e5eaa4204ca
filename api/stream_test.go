package api

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/internal/servicetest"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// logService writes what the test sends it, as a followed log does.
type logService struct {
	servicetest.Service
	lines chan string
	ended chan error
}

func (s *logService) WorkerLogs(ctx context.Context, _ policy.WorkerID, _ runtime.LogsRequest, w io.Writer) (n int64, err error) {
	for {
		select {
		case <-ctx.Done():
			s.ended <- ctx.Err()
			return n, ctx.Err()
		case line, ok := <-s.lines:
			if !ok {
				return n, nil
			}
			m, err := io.WriteString(w, line)
			n += int64(m)
			if err != nil {
				s.ended <- err
				return n, err
			}
		}
	}
}

func TestFollowedLogArrivesAsItIsWritten(t *testing.T) {
	svc := &logService{lines: make(chan string), ended: make(chan error, 1)}
	socket, _ := serve(t, Options{Service: svc})
	pr, pw := io.Pipe()
	got := make(chan int64, 1)
	go func() {
		n, err := NewClient(socket).WorkerLogs(context.Background(), "wk-1", runtime.LogsRequest{Follow: true}, pw)
		_ = pw.CloseWithError(err)
		got <- n
	}()
	r := bufio.NewReader(pr)
	for _, want := range []string{"one\n", "two\n", "three\n"} {
		svc.lines <- want
		if line, err := r.ReadString('\n'); line != want || err != nil {
			t.Fatalf("got %q, %v", line, err)
		}
	}
	close(svc.lines)
	if _, err := r.ReadByte(); err != io.ErrClosedPipe && err != io.EOF {
		t.Errorf("the end is %v", err)
	}
	if n := <-got; n != 14 {
		t.Errorf("the next offset is %d", n)
	}
}

func TestFollowedLogEndsWithItsReader(t *testing.T) {
	svc := &logService{lines: make(chan string), ended: make(chan error, 1)}
	socket, _ := serve(t, Options{Service: svc})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = NewClient(socket).WorkerLogs(ctx, "wk-1", runtime.LogsRequest{Follow: true}, io.Discard)
	}()
	svc.lines <- "one\n"
	cancel()
	select {
	case <-svc.ended:
	case <-time.After(5 * time.Second):
		t.Error("the log is followed for nobody")
	}
}

// A reader that stands still is let go: it would hold its place for ever.
func TestReaderThatStandsStillIsLetGo(t *testing.T) {
	svc := &logService{lines: make(chan string), ended: make(chan error, 1)}
	socket, _ := serve(t, Options{Service: svc, WriteTimeout: 50 * time.Millisecond})
	c := dial(t, socket)
	if _, err := io.WriteString(c, "GET /v1/workers/wk-1/logs?follow=true HTTP/1.1\r\nHost: y\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	chunk := strings.Repeat("x", 1<<20)
	for range 100 {
		select {
		case svc.lines <- chunk:
		case <-svc.ended:
			return
		case <-time.After(5 * time.Second):
			t.Fatal("the write hangs")
		}
	}
	t.Error("100 MiB went to a reader that reads nothing")
}

// A silent stream's header is sent all the same, so that a client knows that
// it is being served.
func TestSilentStreamIsOpened(t *testing.T) {
	svc := &logService{lines: make(chan string), ended: make(chan error, 1)}
	socket, _ := serve(t, Options{Service: svc})
	c := dial(t, socket)
	if _, err := io.WriteString(c, "GET /v1/workers/wk-1/logs?follow=true HTTP/1.1\r\nHost: y\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.StatusCode != 200 {
		t.Errorf("%v %v", resp, err)
	}
}

func TestFailureInMidstream(t *testing.T) {
	lost := policy.Errorf(policy.CodeWorkerUnknown, "runtime.logs", "it is gone").With("id", "wk-1").Because(errors.New("/srv/x"))
	svc := &servicetest.Service{Logs: bytes.Repeat([]byte("a line\n"), 20_000), LogsErr: lost, EventsErr: lost}
	socket, _ := serve(t, Options{Service: svc})
	c := NewClient(socket)
	var out bytes.Buffer
	n, err := c.WorkerLogs(t.Context(), "wk-1", runtime.LogsRequest{}, &out)
	if !errors.Is(err, policy.CodeWorkerUnknown) || n != int64(len(svc.Logs)) || !bytes.Equal(out.Bytes(), svc.Logs) {
		t.Errorf("logs: %v, offset %d, %d bytes", err, n, out.Len())
	}
	if d := policy.AsDiagnostic(err); d.Fields["id"] != "wk-1" || d.Cause != nil {
		t.Errorf("the diagnostic is %+v", d)
	}
	events := 0
	err = c.Events(t.Context(), runtime.EventsRequest{Follow: true}, func(runtime.Event) bool { events++; return true })
	if !errors.Is(err, policy.CodeWorkerUnknown) || events != 2 {
		t.Errorf("events: %v after %d", err, events)
	}
}

func TestServerSentEvents(t *testing.T) {
	socket, _ := serve(t, Options{Service: new(servicetest.Service)})
	c := dial(t, socket)
	if _, err := io.WriteString(c, "GET /v1/events HTTP/1.1\r\nHost: y\r\nAccept: text/event-stream\r\nLast-Event-ID: 1\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.Header.Get("Content-Type") != eventsType {
		t.Fatal(err, resp.Header)
	}
	want := "id: 2\nevent: worker.started\ndata: " + `{"seq":2,"time":"2026-03-04T05:06:08Z","kind":"worker.started","owner":"wk-0123456789abcdef"}` + "\n\n"
	if string(b) != want {
		t.Errorf("got %q", b)
	}
}

func TestStreamStopsWhenTheReaderHasEnough(t *testing.T) {
	socket, _ := serve(t, Options{Service: new(servicetest.Service)})
	n := 0
	if err := NewClient(socket).Events(t.Context(), runtime.EventsRequest{}, func(runtime.Event) bool { n++; return false }); err != nil || n != 1 {
		t.Errorf("%v after %d", err, n)
	}
}

// leftService ends a session whose output goes on.
type leftService struct {
	servicetest.Service
	stdout io.Writer
}

func (s *leftService) AttachWorker(_ context.Context, _ policy.WorkerID, _ runtime.AttachRequest, st runtime.SessionStreams) (runtime.Session, error) {
	s.stdout = st.Stdout
	_, err := io.WriteString(st.Stdout, "seen")
	return runtime.Session{}, err
}

func TestNothingIsWrittenAfterTheEnd(t *testing.T) {
	svc := &leftService{}
	socket, _ := serve(t, Options{Service: svc})
	var out bytes.Buffer
	if _, err := NewClient(socket).AttachWorker(t.Context(), "wk-1", runtime.AttachRequest{}, runtime.SessionStreams{Stdout: &out}); err != nil || out.String() != "seen" {
		t.Fatalf("%q, %v", out.String(), err)
	}
	var err error
	for end := time.Now().Add(5 * time.Second); err == nil && time.Now().Before(end); time.Sleep(time.Millisecond) {
		_, err = io.WriteString(svc.stdout, "x") // until the handler has returned
	}
	if !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("after the end: %v", err)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestOutputThatCannotBeWritten(t *testing.T) {
	socket, _ := serve(t, Options{Service: &servicetest.Service{Logs: []byte("x")}})
	_, err := NewClient(socket).WorkerLogs(t.Context(), "wk-1", runtime.LogsRequest{}, brokenWriter{})
	if !errors.Is(err, policy.CodeCanceled) {
		t.Errorf("got %v", err)
	}
}
