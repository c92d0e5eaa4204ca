package store

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"yoi.dev/yoi-runtime/policy"
)

// enough is what a store must move in each stall time: a byte now and then is
// no progress.
const enough = 16 << 10

var errStalled = errors.New("the store stalled")

// watch cancels ctx when the other side has made us wait for the stall time
// without moving enough. Time that we spend ourselves does not count.
type watch struct {
	mu     sync.Mutex
	cancel context.CancelCauseFunc
	stall  time.Duration
	timer  *time.Timer
	began  time.Time
	waited time.Duration
	moved  int
}

func newWatch(ctx context.Context, stall time.Duration) (context.Context, *watch) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watch{cancel: cancel, stall: stall}
	w.timer = time.AfterFunc(stall, func() { cancel(errStalled) })
	w.timer.Stop()
	return ctx, w
}

func (w *watch) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.began = time.Now()
	w.timer.Reset(max(w.stall-w.waited, time.Millisecond))
}

func (w *watch) end(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
	w.waited += time.Since(w.began)
	if w.moved += n; w.moved >= enough {
		w.moved, w.waited = 0, 0
	}
}

func (w *watch) close() {
	w.timer.Stop()
	w.cancel(context.Canceled)
}

// body is an answer that is watched. Its errors are diagnostics.
type body struct {
	io.ReadCloser
	ctx context.Context
	w   *watch
}

func (b *body) Read(p []byte) (int, error) {
	b.w.begin()
	n, err := b.ReadCloser.Read(p)
	b.w.end(n)
	if err != nil && err != io.EOF {
		err = transferError(b.ctx, err)
	}
	return n, err
}

func (b *body) Close() error {
	b.w.close()
	return b.ReadCloser.Close()
}

// upload is a request's body that is watched: what takes long is the time
// between two reads of it.
type upload struct {
	io.Reader
	w     *watch
	began bool
}

func (u *upload) Read(p []byte) (int, error) {
	if u.began {
		u.w.end(len(p))
	}
	u.began = true
	n, err := u.Reader.Read(p)
	u.w.begin()
	return n, err
}

func transferError(ctx context.Context, err error) error {
	var d *policy.Diagnostic
	switch cause := context.Cause(ctx); {
	case errors.As(err, &d):
		return err
	case errors.Is(cause, errStalled):
		return failed(policy.CodeSnapshotStoreSlow, "the snapshot store sent or took nothing for too long", err)
	case cause != nil:
		return failed(policy.CodeCanceled, "the operation was canceled", err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return failed(policy.CodeSnapshotTruncated, "the store ended its answer too early", err)
	}
	return failed(policy.CodeSnapshotStoreFailed, "the snapshot store cannot be reached", err)
}

// Watched makes every answer's body of rt a watched one, and its errors diagnostics.
func Watched(rt http.RoundTripper, stall time.Duration) http.RoundTripper {
	return watched{rt, stall}
}

type watched struct {
	rt    http.RoundTripper
	stall time.Duration
}

func (w watched) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, own := newWatch(req.Context(), w.stall)
	req = req.Clone(ctx)
	if req.Body != nil && req.Body != http.NoBody {
		req.Body = struct {
			io.Reader
			io.Closer
		}{&upload{Reader: req.Body, w: own}, req.Body}
	}
	own.begin()
	res, err := w.rt.RoundTrip(req)
	own.end(enough)
	if err != nil {
		own.close()
		if errors.Is(context.Cause(ctx), errStalled) {
			err = transferError(ctx, err)
		}
		return nil, err
	}
	res.Body = &body{res.Body, ctx, own}
	return res, nil
}

// ClientError types what an HTTP client returned instead of an answer.
func ClientError(err error) error { return clientError(context.Background(), err) }
