package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/internal/servicetest"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// slowImport takes its time behind the archive's end, as unpacking does.
type slowImport struct {
	*servicetest.Service
	took time.Duration
	size chan int64
}

func (s slowImport) ImportImage(ctx context.Context, req runtime.ImportImageRequest, archive io.Reader) (runtime.Image, error) {
	n, err := io.Copy(io.Discard, archive)
	s.size <- n
	if err != nil {
		return runtime.Image{}, err
	}
	select {
	case <-time.After(s.took):
		return servicetest.Images()[0], nil
	case <-ctx.Done():
		return runtime.Image{}, ctx.Err()
	}
}

// trickle gives a byte at a time.
type trickle struct {
	n    int
	wait time.Duration
}

func (s *trickle) Read(b []byte) (int, error) {
	if s.n == 0 {
		return 0, io.EOF
	}
	time.Sleep(s.wait)
	s.n--
	b[0] = 'x'
	return 1, nil
}

// An archive is larger than any document may be, may come slowly, and the work
// begins when it has arrived: no time limit of documents ends either.
func TestImportTakesItsTime(t *testing.T) {
	svc := slowImport{&servicetest.Service{}, 1200 * time.Millisecond, make(chan int64, 2)}
	socket, _ := serve(t, Options{Service: svc, BodyTimeout: 600 * time.Millisecond, MaxBody: 1000})
	c := NewClient(socket)
	if _, err := c.ImportImage(t.Context(), runtime.ImportImageRequest{Name: "a"}, bytes.NewReader(make([]byte, 1<<20))); err != nil {
		t.Errorf("a large archive: %v", err)
	}
	if n := <-svc.size; n != 1<<20 {
		t.Errorf("%d bytes arrived", n)
	}
	if _, err := c.ImportImage(t.Context(), runtime.ImportImageRequest{Name: "a"}, &trickle{8, 150 * time.Millisecond}); err != nil {
		t.Errorf("a slow archive: %v", err)
	}
	if n := <-svc.size; n != 8 {
		t.Errorf("%d bytes arrived", n)
	}
}

// A client that stalls, and one that goes away, end an import.
func TestImportEndsWithItsClient(t *testing.T) {
	svc := slowImport{&servicetest.Service{}, time.Minute, make(chan int64, 2)}
	socket, _ := serve(t, Options{Service: svc, BodyTimeout: 100 * time.Millisecond})
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST /v1/images?name=a HTTP/1.1\r\nHost: yoi\r\nContent-Type: application/x-tar\r\nContent-Length: 1000\r\n\r\nsome")
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.Contains(string(answer), " 400 ") || !strings.Contains(string(answer), "in time") {
		t.Errorf("%v %s", err, answer)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := NewClient(socket).ImportImage(ctx, runtime.ImportImageRequest{Name: "a"}, strings.NewReader("x")); !errors.Is(err, policy.CodeCanceled) {
		t.Errorf("canceled: %v", err)
	}
}

func TestImportRefusals(t *testing.T) {
	socket, _ := serve(t, Options{Service: &servicetest.Service{}})
	for name, head := range map[string]string{
		"no content type":    "",
		"a document":         "Content-Type: application/json\r\n",
		"a content encoding": "Content-Type: application/x-tar\r\nContent-Encoding: gzip\r\n",
		"a key":              "Content-Type: application/x-tar\r\nIdempotency-Key: k\r\n",
	} {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST /v1/images?name=a HTTP/1.1\r\nHost: yoi\r\nConnection: close\r\n%sContent-Length: 1\r\n\r\nx", head)
		if answer, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") {
			t.Errorf("%s: %v %s", name, err, answer)
		}
		conn.Close()
	}
	c := NewClient(socket)
	for _, req := range []runtime.ImportImageRequest{{Name: "../x"}, {Name: "A"}} {
		if _, err := c.ImportImage(t.Context(), req, strings.NewReader("x")); !errors.Is(err, policy.CodeIDInvalid) {
			t.Errorf("%+v: %v", req, err)
		}
	}
}
