package store

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/snapshot"
)

// httpStore speaks GET, PUT and DELETE below one URL.
type httpStore struct {
	base   url.URL
	opts   Options
	client *http.Client
}

func newHTTPStore(l snapshot.Location, o Options) *httpStore {
	s := &httpStore{base: url.URL{Scheme: l.Scheme, Host: l.Host, Path: strings.TrimSuffix(l.Path, "/")}, opts: o}
	s.client = &http.Client{Transport: Transport(o.Stall), CheckRedirect: s.mayFollow}
	return s
}

// Transport bounds each step towards an answer. It speaks HTTP/1.1: an archive is one
// stream, and a store is not to be trusted with more code than that takes.
func Transport(stall time.Duration) *http.Transport {
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: min(stall, 10*time.Second)}).DialContext,
		TLSHandshakeTimeout:    min(stall, 10*time.Second),
		ResponseHeaderTimeout:  stall,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true,
	}
}

// mayFollow stays at the server that the operator named: another one may be
// anybody's, and inside the operator's own network.
func (s *httpStore) mayFollow(req *http.Request, via []*http.Request) error {
	if req.URL.Scheme != s.base.Scheme || req.URL.Host != s.base.Host || len(via) > 5 || via[0].Method != http.MethodGet {
		return http.ErrUseLastResponse
	}
	return nil
}

func (s *httpStore) request(ctx context.Context, method, digest string, body io.Reader) (*http.Request, error) {
	u := s.base
	u.Path += "/" + snapshot.ObjectName(digest)
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, failed(policy.CodeSnapshotStoreInvalid, "the snapshot store's address is malformed", err)
	}
	req.Header.Set("User-Agent", "yoi-runtime")
	switch c := s.opts.Credentials; {
	case c.Token != "":
		req.Header.Set("Authorization", "Bearer "+c.Token)
	case c.User != "" || c.Password != "":
		req.SetBasicAuth(c.User, c.Password)
	}
	return req, nil
}

func (s *httpStore) Get(ctx context.Context, digest string) (io.ReadCloser, error) {
	ctx, w := newWatch(ctx, s.opts.Stall)
	res, err := s.do(ctx, w, http.MethodGet, digest, nil, 0)
	if err != nil {
		w.close()
		return nil, err
	}
	return &body{res.Body, ctx, w}, nil
}

func (s *httpStore) Put(ctx context.Context, digest string, archive *os.File, size int64) error {
	ctx, w := newWatch(ctx, s.opts.Stall)
	defer w.close()
	res, err := s.do(ctx, w, http.MethodPut, digest, &upload{Reader: io.NewSectionReader(archive, 0, size), w: w}, size)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

func (s *httpStore) Remove(ctx context.Context, digest string) error {
	ctx, w := newWatch(ctx, s.opts.Stall)
	defer w.close()
	res, err := s.do(ctx, w, http.MethodDelete, digest, nil, 0)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

func (s *httpStore) List(context.Context) ([]Item, error) {
	return nil, policy.Errorf(policy.CodeUnsupported, opStore, "an HTTP store cannot be listed").
		WithHint("Keep the digests that yoi snapshot export prints, or use a directory or an S3 bucket.")
}

// do sends one request and returns the answer if it is a success.
func (s *httpStore) do(ctx context.Context, w *watch, method, digest string, content io.Reader, size int64) (*http.Response, error) {
	req, err := s.request(ctx, method, digest, content)
	if err != nil {
		return nil, err
	}
	if content != nil {
		req.ContentLength = size
		req.Header.Set("Content-Type", "application/zstd")
		if size == 0 {
			req.Body = http.NoBody
		}
	}
	w.begin()
	res, err := s.client.Do(req)
	w.end(enough)
	if err != nil {
		return nil, clientError(ctx, err)
	}
	if err := StatusError(res.StatusCode, digest); err != nil {
		res.Body.Close()
		return nil, err
	}
	return res, nil
}

// clientError drops the URL that net/http puts in front.
func clientError(ctx context.Context, err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	var ne net.Error
	if context.Cause(ctx) == nil && errors.As(err, &ne) && ne.Timeout() {
		return failed(policy.CodeSnapshotStoreSlow, "the snapshot store does not answer", err)
	}
	return transferError(ctx, err)
}

// StatusError is what an HTTP status means for a snapshot; nil for a success.
func StatusError(status int, digest string) error {
	var d *policy.Diagnostic
	switch {
	case status >= 200 && status < 300 && status != http.StatusPartialContent:
		return nil
	case status == http.StatusNotFound, status == http.StatusGone:
		return unknown(digest, nil)
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusProxyAuthRequired:
		d = failed(policy.CodeSnapshotStoreRefused, "the snapshot store refused the request", nil)
	case status >= 300 && status < 400:
		d = failed(policy.CodeSnapshotStoreRedirected, "the snapshot store redirects to another place", nil)
	case status == http.StatusRequestEntityTooLarge, status == http.StatusInsufficientStorage:
		d = failed(policy.CodeSnapshotStoreFailed, "the snapshot store has no room for the snapshot", nil)
	default:
		d = failed(policy.CodeSnapshotStoreFailed, "the snapshot store failed", nil)
	}
	return d.With("status", strconv.Itoa(status))
}
