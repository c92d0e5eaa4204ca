package api

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// ExecWorker implements runtime.Service. A context that ends closes the connection,
// by which the daemon hangs the session up.
func (c *Client) ExecWorker(ctx context.Context, id policy.WorkerID, req runtime.ExecRequest, s runtime.SessionStreams) (runtime.Session, error) {
	return c.session(ctx, id, "/exec", req, s)
}

// AttachWorker implements runtime.Service.
func (c *Client) AttachWorker(ctx context.Context, id policy.WorkerID, req runtime.AttachRequest, s runtime.SessionStreams) (runtime.Session, error) {
	return c.session(ctx, id, "/attach", req, s)
}

func (c *Client) session(ctx context.Context, id policy.WorkerID, action string, req any, s runtime.SessionStreams) (v runtime.Session, err error) {
	path, err := item("worker", workers, id, action)
	if err != nil {
		return v, err
	}
	if err := checkText(req); err != nil {
		return v, err
	}
	doc, err := Marshal(req)
	if err != nil {
		return v, policy.Errorf(policy.CodeBadRequest, "api.client", "the request cannot be encoded").Because(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	body, to := io.Pipe()
	out := &frameWriter{w: to}
	go func() {
		if out.frame(frameStart, doc) == nil {
			go sendInput(ctx, out, s)
		}
	}()
	var credit *grants
	if s.Stdin != nil {
		credit = newGrants(inputWindow)
		defer credit.close()
	}
	defer to.Close()
	resp, err := c.send(ctx, request{method: "POST", path: path, body: body, bodyType: sessionType, accept: sessionType})
	if err != nil {
		return v, err
	}
	defer resp.Body.Close()
	if s.Started != nil {
		s.Started()
	}
	if credit != nil {
		go copyInput(out, s.Stdin, credit)
	} else if err := out.frame(frameEnd, nil); err != nil {
		return v, transportError(ctx, err)
	}
	return readSession(ctx, resp, s, credit)
}

// sendInput passes sizes and signals on.
func sendInput(ctx context.Context, out *frameWriter, s runtime.SessionStreams) {
	for {
		select {
		case size, ok := <-s.Sizes:
			if !ok {
				s.Sizes = nil
				continue
			}
			b, err := json.Marshal(size)
			if err != nil || out.frame(frameSize, b) != nil {
				return
			}
		case n, ok := <-s.Signals:
			if !ok {
				s.Signals = nil
				continue
			}
			if out.frame(frameSignal, []byte{byte(n)}) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// copyInput sends the input as far as it is granted.
func copyInput(out *frameWriter, in io.Reader, credit *grants) {
	buf := make([]byte, maxPiece)
	for {
		n, err := in.Read(buf)
		for b := buf[:n]; len(b) > 0; {
			most, ok := credit.take(len(b))
			if !ok || out.frame(frameInput, b[:most]) != nil {
				return
			}
			b = b[most:]
		}
		if err != nil {
			_ = out.frame(frameEnd, nil) // a lost connection ends the session anyway
			return
		}
	}
}

// readSession copies the output until the result comes.
func readSession(ctx context.Context, resp *http.Response, s runtime.SessionStreams, credit *grants) (v runtime.Session, err error) {
	r := bufio.NewReaderSize(resp.Body, maxPiece)
	var buf []byte
	for {
		kind, b, err := readFrame(r, buf, maxFrame)
		switch {
		case errors.Is(err, io.EOF):
			return v, badAnswer(resp, errors.New("it ended without a result"))
		case errors.Is(err, errFrame):
			return v, badAnswer(resp, err)
		case err != nil:
			return v, transportError(ctx, err)
		}
		buf = b
		switch kind {
		case frameStdout:
			err = writeOutput(s.Stdout, b)
		case frameStderr:
			err = writeOutput(s.Stderr, b)
		case frameGrant:
			if len(b) == 4 && credit != nil {
				credit.add(int(binary.BigEndian.Uint32(b)))
			}
		case frameResult:
			if err := json.Unmarshal(b, &v); err != nil {
				return v, badAnswer(resp, err)
			}
			return v, nil
		case frameProblem:
			return v, readProblem(resp, b)
		}
		if err != nil {
			return v, policy.Errorf(policy.CodeCanceled, "api.client", "the output cannot be written").Because(err)
		}
	}
}

func writeOutput(w io.Writer, b []byte) error {
	if w == nil {
		return nil
	}
	_, err := w.Write(b)
	return err
}

// grants counts how much input may be sent.
type grants struct {
	mu     sync.Mutex
	more   sync.Cond
	n      int
	closed bool
}

func newGrants(n int) *grants {
	g := &grants{n: n}
	g.more.L = &g.mu
	return g
}

// take waits for some of n.
func (g *grants) take(n int) (int, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.n == 0 && !g.closed {
		g.more.Wait()
	}
	n = min(n, g.n)
	g.n -= n
	return n, !g.closed
}

func (g *grants) add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n = min(g.n+n, inputWindow)
	g.more.Broadcast()
}

func (g *grants) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	g.more.Broadcast()
}

// WorkerProcesses implements runtime.Service.
func (c *Client) WorkerProcesses(ctx context.Context, id policy.WorkerID) (runtime.ProcessList, error) {
	path, err := item("worker", workers, id, "/processes")
	if err != nil {
		return runtime.ProcessList{}, err
	}
	return get[runtime.ProcessList](ctx, c, path, nil)
}

// PauseWorker implements runtime.Service.
func (c *Client) PauseWorker(ctx context.Context, id policy.WorkerID) (runtime.Worker, error) {
	return c.setPaused(ctx, id, "/pause")
}

// ResumeWorker implements runtime.Service.
func (c *Client) ResumeWorker(ctx context.Context, id policy.WorkerID) (runtime.Worker, error) {
	return c.setPaused(ctx, id, "/resume")
}

func (c *Client) setPaused(ctx context.Context, id policy.WorkerID, action string) (runtime.Worker, error) {
	path, err := item("worker", workers, id, action)
	if err != nil {
		return runtime.Worker{}, err
	}
	return post[runtime.Worker](ctx, c, path, "", nil)
}
