package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// Client is a runtime.Service in another process.
type Client struct {
	socket string
	http   *http.Client
}

var _ runtime.Service = (*Client)(nil)

const (
	maxAnswer   = 64 << 20
	dialTimeout = 2 * time.Second
)

// DefaultSocket is where the daemon of a Runtime root listens unless told
// otherwise.
func DefaultSocket(runtimeRoot string) string { return filepath.Join(runtimeRoot, "runtimed.sock") }

// NewClient returns a client of the daemon at socket. Nothing is connected yet.
func NewClient(socket string) *Client {
	c := &Client{socket: socket}
	c.http = &http.Client{
		Transport: &http.Transport{
			DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return dialSocket(ctx, socket) },
			DisableCompression:  true,
			MaxIdleConnsPerHost: 16,
			IdleConnTimeout:     time.Minute, // shorter than the server's
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c
}

// Answers reports whether a daemon accepts connections at socket.
func Answers(ctx context.Context, socket string) bool {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, err := dialSocket(ctx, socket)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

// Close drops idle connections.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// dialSocket connects. A path too long for sun_path (unix(7)) is reached
// through its directory's descriptor.
func dialSocket(ctx context.Context, path string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	if len(path) < len(unix.RawSockaddrUnix{}.Path) {
		return d.DialContext(ctx, "unix", path)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return d.DialContext(ctx, "unix", socketPath(dir, filepath.Base(path)))
}

// request is one call of the client.
type request struct {
	method, path string
	query        url.Values
	accept       string
	key          string // Idempotency-Key
	in           any    // the body, or nil
	// body is sent as it is, as bodyType, in place of in.
	body     io.Reader
	bodyType string
}

// call sends req and decodes the answer into out, unless that is nil.
func (c *Client) call(ctx context.Context, req request, out any) error {
	resp, err := c.send(ctx, req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := readAnswer(ctx, resp)
	if err != nil || out == nil {
		return err
	}
	if err := json.Unmarshal(b, out); err != nil {
		return badAnswer(resp, err)
	}
	return nil
}

// send sends req and returns a successful answer; a problem is the error.
func (c *Client) send(ctx context.Context, req request) (*http.Response, error) {
	hr, err := req.build(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(hr)
	if err != nil {
		return nil, transportError(ctx, err)
	}
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	b, err := readAnswer(ctx, resp)
	if err != nil {
		return nil, err
	}
	if media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); media != problemType {
		return nil, badAnswer(resp, errors.New("not a problem document"))
	}
	d, err := parseProblem(b)
	if err != nil {
		return nil, badAnswer(resp, err)
	}
	return nil, d
}

func (req request) build(ctx context.Context) (*http.Request, error) {
	body, bodyType := req.body, req.bodyType
	if body != nil {
		body = io.NopCloser(body) // a reader that could be closed would be: it is the caller's
	}
	if req.in != nil {
		if err := checkText(req.in); err != nil {
			return nil, err
		}
		b, err := Marshal(req.in) // a nil list must not be sent as null
		if err != nil {
			return nil, policy.Errorf(policy.CodeBadRequest, "api.client", "the request cannot be encoded").Because(err)
		}
		body, bodyType = bytes.NewReader(b), jsonType
	}
	u := url.URL{Scheme: "http", Host: "yoi", Path: req.path, RawQuery: req.query.Encode()}
	hr, err := http.NewRequestWithContext(ctx, req.method, u.String(), body)
	if err != nil {
		return nil, policy.Errorf(policy.CodeBadRequest, "api.client", "the request cannot be made").Because(err)
	}
	if body != nil {
		hr.Header.Set("Content-Type", bodyType)
	}
	hr.Header.Set("Accept", jsonType)
	if req.accept != "" {
		hr.Header.Set("Accept", req.accept)
	}
	if req.key != "" {
		hr.Header.Set("Idempotency-Key", req.key)
	}
	return hr, nil
}

func readAnswer(ctx context.Context, resp *http.Response) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, transportError(ctx, err)
	}
	if len(b) > maxAnswer {
		return nil, badAnswer(resp, errors.New("larger than 64 MiB"))
	}
	return b, nil
}

func transportError(ctx context.Context, err error) error {
	var d *policy.Diagnostic
	switch {
	case errors.As(err, &d): // of a writer that the caller gave
		return d
	case ctx.Err() != nil:
		return diagnose(ctx.Err())
	}
	return policy.Errorf(policy.CodeUnavailable, "api.client", "the daemon cannot be reached, or went away").Because(err)
}

func badAnswer(resp *http.Response, err error) error {
	return policy.Errorf(policy.CodeInternal, "api.client", "the answer, of status %d, cannot be understood", resp.StatusCode).Because(err).
		WithHint("See that yoi and yoi-runtimed are of the same version.")
}
