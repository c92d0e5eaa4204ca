package backend

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"yoi.dev/yoi-runtime/api"
	"yoi.dev/yoi-runtime/policy"
)

func wantsHTML(r *http.Request) bool { return strings.Contains(r.Header.Get("Accept"), "text/html") }

// after is the call's context for what is to be done although the client is gone.
func (c *call) after() context.Context { return context.WithoutCancel(c.ctx) }

// unhurried lifts the connection's read deadline: what follows may take longer than
// a request may take to arrive.
func (c *call) unhurried() {
	_ = http.NewResponseController(c.w).SetReadDeadline(time.Time{}) // a test's recorder has none
}

// stream is a live answer of server-sent events. Events are written from one
// goroutine at a time.
type stream struct {
	c    *call
	ctx  context.Context
	mu   sync.Mutex
	stop func()
}

// keepAlive is how often a silent stream says that it is alive, so that a proxy
// does not end it, and so that a client that is gone is noticed.
const keepAlive = 15 * time.Second

// openStream takes one of the places for live streams and begins the answer.
func (c *call) openStream() (*stream, error) {
	select {
	case c.s.streams <- struct{}{}:
	default:
		return nil, refuse(CodeStreamsExhausted, "there are %d live streams already", cap(c.s.streams))
	}
	ctx, cancel := context.WithCancel(c.ctx)
	unhook, outlived := context.AfterFunc(c.b.running, cancel), context.AfterFunc(c.s.over, cancel)
	s := &stream{c: c, ctx: ctx}
	c.unhurried()
	c.sent = true
	h := c.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	c.w.WriteHeader(http.StatusOK)
	done := make(chan struct{})
	beat := make(chan struct{})
	go func() {
		defer close(beat)
		t := time.NewTicker(keepAlive)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				if s.write([]byte(": alive\n\n")) != nil {
					cancel()
				}
			case <-done:
				return
			}
		}
	}()
	s.stop = func() {
		close(done)
		<-beat
		unhook()
		outlived()
		cancel()
		<-c.s.streams
	}
	if err := s.write([]byte(": open\n\n")); err != nil {
		s.stop() // a client that is gone takes no place
		return nil, err
	}
	return s, nil
}

func (s *stream) write(b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	rc := http.NewResponseController(s.c.w)
	_ = rc.SetWriteDeadline(time.Now().Add(writeTimeout)) // a test's recorder has none
	if _, err := s.c.w.Write(b); err != nil {
		return err
	}
	return rc.Flush()
}

// send sends one event. JSON has no bare line break, so its data is one line.
func (s *stream) send(id, kind string, v any) error {
	b, err := api.Marshal(v)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if id != "" {
		fmt.Fprintf(&out, "id: %s\n", id)
	}
	fmt.Fprintf(&out, "event: %s\ndata: %s\n\n", kind, b)
	return s.write(out.Bytes())
}

// end says how the stream ended: a script asks again only after a broken one.
func (s *stream) end(err error) error {
	defer s.stop()
	if s.ctx.Err() != nil {
		return nil
	}
	if err != nil {
		p := s.c.b.problemOf(err)
		p.Instance = s.c.instance
		_ = s.send("", "problem", p)
		return err
	}
	_ = s.send("", "end", struct{}{})
	return nil
}

// lastEventID is where a script that lost its connection goes on.
func (c *call) lastEventID() (int64, error) {
	last := c.r.Header.Get("Last-Event-ID")
	if last == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(last, 10, 64)
	if err != nil || n < 0 {
		return 0, refuse(policy.CodeBadRequest, "Last-Event-ID is not an event's number")
	}
	return n, nil
}

// streamEvents sends an allocation's timeline: a JSON list, or server-sent events.
func (c *call) streamEvents() error {
	v, err := c.allocation(c.id)
	if err != nil {
		return err
	}
	if !api.WantsEvents(c.r.Header) {
		out := list[Event]{Items: []Event{}}
		err := c.timeline(c.ctx, v.ID, 0, false, func(e Event) bool {
			out.Items = append(out.Items, e)
			return len(out.Items) < 10000
		})
		if err != nil {
			return err
		}
		return c.reply(http.StatusOK, out)
	}
	after, err := c.lastEventID()
	if err != nil {
		return err
	}
	s, err := c.openStream()
	if err != nil {
		return err
	}
	return s.end(c.timeline(s.ctx, v.ID, after, c.r.URL.Query().Get("follow") != "false", func(e Event) bool {
		return s.send(strconv.FormatInt(e.Seq, 10), "event", e) == nil
	}))
}

// streamCreation sends how far a creation is, at every change.
func (c *call) streamCreation() error {
	v, r, err := c.creation(c.id)
	if err != nil {
		return err
	}
	s, err := c.openStream()
	if err != nil {
		return err
	}
	for {
		var changed <-chan struct{}
		if r != nil {
			v, changed = c.b.creations.look(r)
		}
		if err := s.send("", "progress", v); err != nil || v.State != "running" || r == nil {
			return s.end(nil)
		}
		select {
		case <-changed:
		case <-s.ctx.Done():
			return s.end(nil)
		}
	}
}

// LogLines are lines of a log for a page. A line that is not ended yet is told
// again, whole, when it goes on.
type LogLines struct {
	// First is the number of the first of Lines, from 0 where the stream began.
	First int      `json:"first"`
	Lines [][]Span `json:"lines"`
}

// streamLogs sends a log as it grows. The colours are taken apart here, so that a
// page has only text and names of classes to insert.
func (c *call) streamLogs(id policy.WorkerID, req logRequest) error {
	s, err := c.openStream()
	if err != nil {
		return err
	}
	c.ctx = s.ctx
	w := &logWriter{s: s}
	_, _, err = c.logs(id, req, w)
	if ferr := w.flush(); err == nil {
		err = ferr
	}
	return s.end(err)
}

// logWriter gathers output for a moment, so that a Worker that writes byte by byte
// is not told event by event.
type logWriter struct {
	s     *stream
	mu    sync.Mutex
	t     Terminal
	sent  int // lines that were told and have ended
	timer *time.Timer
	err   error
}

const (
	gatherFor   = 50 * time.Millisecond
	maxLogLines = 2000 // in one event
)

func (w *logWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	w.t.Write(p)
	if w.t.Ended()-w.sent > maxLogLines {
		w.tell()
	} else if w.timer == nil {
		w.timer = time.AfterFunc(gatherFor, func() { _ = w.flush() })
	}
	return len(p), w.err
}

func (w *logWriter) flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	w.tell()
	return w.err
}

func (w *logWriter) tell() {
	if w.err != nil {
		return
	}
	lines := w.t.Take()
	if len(lines) == 0 {
		return
	}
	w.err = w.s.send("", "lines", LogLines{First: w.sent, Lines: lines})
	w.sent = min(w.t.Ended(), math.MaxInt32)
}
