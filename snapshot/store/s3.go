package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/snapshot"
)

// S3Request is what yoi-s3 reads from its standard input, where no other process
// sees it. For put the archive is descriptor 3.
type S3Request struct {
	Op          string            `json:"op"` // get, put, list, remove
	Location    snapshot.Location `json:"location"`
	Credentials Credentials       `json:"credentials"`
	Stall       time.Duration     `json:"stall"`
	Digest      string            `json:"digest,omitempty"`
	Size        int64             `json:"size,omitempty"`
}

// S3Failure is what it writes to its standard error when it fails.
type S3Failure struct {
	Diagnostic *policy.Diagnostic `json:"diagnostic"`
	Cause      string             `json:"cause,omitempty"` // for the operator's log
}

// s3Program is an S3 store behind yoi-s3.
type s3Program struct {
	location snapshot.Location
	opts     Options
}

func (s s3Program) program() string {
	if s.opts.S3Program != "" {
		return s.opts.S3Program
	}
	if p := os.Getenv("YOI_S3"); p != "" {
		return p
	}
	self, err := os.Executable()
	if err != nil {
		return "yoi-s3"
	}
	return filepath.Join(filepath.Dir(self), "yoi-s3")
}

// command prepares yoi-s3. It inherits the proxy and CA variables only.
func (s s3Program) command(ctx context.Context, req S3Request, archive *os.File) (*exec.Cmd, *bytes.Buffer, error) {
	req.Location, req.Credentials, req.Stall = s.location, s.opts.Credentials, s.opts.Stall
	in, err := json.Marshal(req)
	if err != nil {
		return nil, nil, policy.AsDiagnostic(err)
	}
	x := exec.CommandContext(ctx, s.program())
	x.Args = []string{"yoi-s3"}
	x.Dir = "/"
	x.Env = []string{}
	for _, k := range []string{"https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"} {
		if v, ok := os.LookupEnv(k); ok {
			x.Env = append(x.Env, k+"="+v)
		}
	}
	x.Stdin = bytes.NewReader(in)
	var stderr bytes.Buffer
	x.Stderr = &stderr
	if archive != nil {
		x.ExtraFiles = []*os.File{archive}
	}
	x.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	x.WaitDelay = 5 * time.Second
	return x, &stderr, nil
}

// run does one request and returns what yoi-s3 printed.
func (s s3Program) run(ctx context.Context, req S3Request, archive *os.File) ([]byte, error) {
	x, stderr, err := s.command(ctx, req, archive)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	x.Stdout = &out
	// PR_SET_PDEATHSIG fires when the parent *thread* dies, prctl(2).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := x.Run(); err != nil {
		return nil, s3Error(ctx, err, stderr.Bytes())
	}
	return out.Bytes(), nil
}

func s3Error(ctx context.Context, err error, stderr []byte) error {
	var f S3Failure
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return failed(policy.CodeCanceled, "the operation was canceled", ctx.Err())
	case json.Unmarshal(stderr, &f) == nil && f.Diagnostic != nil:
		return f.Diagnostic.Because(errors.New(f.Cause))
	case errors.As(err, &exit):
		return failed(policy.CodeSnapshotStoreFailed, "yoi-s3 ended without an answer", errors.Join(err, errors.New(string(stderr))))
	}
	return failed(policy.CodeUnavailable, "yoi-s3, which speaks to S3 stores, cannot be started", err).
		WithHint("Install yoi-s3 beside the other programs.")
}

func (s s3Program) Put(ctx context.Context, digest string, archive *os.File, size int64) error {
	_, err := s.run(ctx, S3Request{Op: "put", Digest: digest, Size: size}, archive)
	return err
}

func (s s3Program) Remove(ctx context.Context, digest string) error {
	_, err := s.run(ctx, S3Request{Op: "remove", Digest: digest}, nil)
	return err
}

func (s s3Program) List(ctx context.Context) ([]Item, error) {
	out, err := s.run(ctx, S3Request{Op: "list"}, nil)
	if err != nil {
		return nil, err
	}
	var items []Item
	if err := json.Unmarshal(out, &items); err != nil {
		return nil, failed(policy.CodeSnapshotStoreFailed, "yoi-s3 gave a malformed list", err)
	}
	sortItems(items)
	return items, nil
}

// Get streams the archive. That it has come whole is known only when yoi-s3 has
// ended well, so its failure is the reader's error in place of the end.
func (s s3Program) Get(ctx context.Context, digest string) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	x, stderr, err := s.command(ctx, S3Request{Op: "get", Digest: digest}, nil)
	if err != nil {
		cancel()
		return nil, err
	}
	r, w := io.Pipe()
	x.Stdout = w
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // see run
		defer runtime.UnlockOSThread()
		if err := x.Run(); err != nil {
			w.CloseWithError(s3Error(ctx, err, stderr.Bytes()))
			return
		}
		w.Close()
	}()
	return &s3Stream{r, cancel, ended}, nil
}

type s3Stream struct {
	*io.PipeReader
	cancel context.CancelFunc
	ended  chan struct{}
}

func (s *s3Stream) Close() error {
	s.PipeReader.Close()
	s.cancel()
	<-s.ended
	return nil
}
