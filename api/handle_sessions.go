package api

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"time"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

func (c *call) execWorker() error {
	var req runtime.ExecRequest
	return c.session(&req, func(ctx context.Context, s runtime.SessionStreams) (runtime.Session, error) {
		return c.svc.ExecWorker(ctx, policy.WorkerID(c.id), req, s)
	})
}

func (c *call) attachWorker() error {
	var req runtime.AttachRequest
	return c.session(&req, func(ctx context.Context, s runtime.SessionStreams) (runtime.Session, error) {
		return c.svc.AttachWorker(ctx, policy.WorkerID(c.id), req, s)
	})
}

// session connects a client's frames with a session of the service's.
func (c *call) session(req any, run func(context.Context, runtime.SessionStreams) (runtime.Session, error)) error {
	if err := c.wantPlain(sessionType); err != nil {
		return err
	}
	control := http.NewResponseController(c.w)
	_ = control.EnableFullDuplex() // a test's recorder needs none
	// What is left of the body is not worth reading.
	c.w.Header().Set("Connection", "close")
	_ = control.SetReadDeadline(time.Now().Add(c.srv.opt.BodyTimeout))
	kind, doc, err := readFrame(c.r.Body, nil, int(min(c.srv.opt.MaxBody, maxFrame)))
	switch {
	case errors.Is(err, errFrame):
		return policy.Errorf(policy.CodeRequestTooLarge, "api.decode", "the request's document is too large")
	case err != nil || kind != frameStart:
		return badRequest("the body does not begin with the request's document").Because(err)
	}
	if err := decodeStrict(doc, req); err != nil {
		return err
	}
	_ = control.SetReadDeadline(time.Time{})
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	if p, ok := PeerFrom(ctx); ok {
		ctx = runtime.WithCaller(ctx, p.UID)
	}
	c.patient = true
	out := c.stream(sessionType, true)
	frames := &frameWriter{w: out}
	in := &sessionInput{
		body: c.r.Body, gone: cancel, ended: make(chan struct{}), sizes: make(chan runtime.WindowSize, 1), signals: make(chan int, 8),
		inbox: newInbox(func(n int) {
			_ = frames.frame(frameGrant, binary.BigEndian.AppendUint32(nil, uint32(n))) // the reader sees a lost client
		}),
	}
	go in.read()
	// The client ends its body when it has the last frame. A connection that is closed
	// before, while it writes, loses what it has not read: net/http gives a connection
	// up at the first write that fails.
	leave := func(kind byte, b []byte) error {
		err := frames.last(kind, b)
		in.stop(control, time.Now().Add(farewell))
		return err
	}
	out.problem = func(b []byte) { _ = leave(frameProblem, b) } // a client that has gone is not told
	s, err := run(ctx, runtime.SessionStreams{
		Stdin: in.inbox, Stdout: frames.as(frameStdout), Stderr: frames.as(frameStderr),
		Sizes: in.sizes, Signals: in.signals, Started: out.open,
	})
	if err != nil {
		if !out.begun() {
			in.stop(control, time.Unix(1, 0))
		}
		return err
	}
	b, err := Marshal(s)
	if err != nil {
		return err
	}
	if err := leave(frameResult, b); err != nil {
		return err
	}
	out.end()
	return nil
}

// farewell is how long a client may take to see that its session has ended.
const farewell = 10 * time.Second

// sessionInput is what comes from the client after the document.
type sessionInput struct {
	body    io.Reader
	inbox   *inbox
	gone    func()
	ended   chan struct{}
	sizes   chan runtime.WindowSize
	signals chan int
}

// read hands the client's frames on until the body ends. If it ends otherwise than
// as it should, the client is gone.
func (s *sessionInput) read() {
	defer close(s.ended)
	var buf []byte
	for {
		kind, b, err := readFrame(s.body, buf, maxPiece)
		if err == nil {
			err = s.take(kind, b)
		}
		if err != nil {
			s.inbox.end(io.ErrUnexpectedEOF)
			if err != io.EOF {
				s.gone()
			}
			return
		}
		buf = b
	}
}

// stop returns when the body has ended, or at deadline: it must not be read any
// more when its request has been answered.
func (s *sessionInput) stop(control *http.ResponseController, deadline time.Time) {
	s.inbox.end(io.ErrClosedPipe)
	_ = control.SetReadDeadline(deadline) // a test's recorder has none
	<-s.ended
}

func (s *sessionInput) take(kind byte, b []byte) error {
	switch kind {
	case frameInput:
		return s.inbox.put(b)
	case frameEnd:
		s.inbox.end(io.EOF)
		return nil
	case frameSize:
		var size runtime.WindowSize
		if err := decodeStrict(b, &size); err != nil {
			return err
		}
		select {
		case <-s.sizes: // only the last one counts
		default:
		}
		s.sizes <- size
		return nil
	case frameSignal:
		if len(b) != 1 || b[0] < 1 || b[0] > 64 {
			return errFrame
		}
		select {
		case s.signals <- int(b[0]):
		default: // a flood of them
		}
		return nil
	}
	return errFrame
}
