package api

import (
	"io"
	"net/http"
	"sync"
	"time"
)

const (
	// ProblemTrailer carries the problem document of a failure after the first
	// byte of a stream.
	ProblemTrailer = "Yoi-Problem"
	// OffsetTrailer carries the offset at which a log's next read starts.
	OffsetTrailer = "Yoi-Next-Offset"

	// openAfter is when a silent stream's header is sent: late enough for an
	// early failure to get its own status, soon enough for a waiting client.
	openAfter = 200 * time.Millisecond
)

// stream is an answer that is written bit by bit. Its header goes out with the
// first bytes, so a failure before them is an ordinary problem document.
type stream struct {
	c           *call
	contentType string
	flush       bool // after every write
	// problem, if any, writes the problem document of a failure after the first byte,
	// instead of the trailer.
	problem func([]byte)

	mu     sync.Mutex
	opened bool
	closed bool
	timer  *time.Timer
}

// stream begins a streamed answer. With follow, every write is flushed.
func (c *call) stream(contentType string, follow bool) *stream {
	s := &stream{c: c, contentType: contentType, flush: follow}
	c.out = s
	if follow {
		s.timer = time.AfterFunc(openAfter, s.open)
	}
	return s
}

// open sends the header.
func (s *stream) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.openLocked()
	if !s.closed {
		_ = http.NewResponseController(s.c.w).Flush() // an error shows at the next write
	}
}

// begun reports whether the header has gone out.
func (s *stream) begun() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened
}

func (s *stream) openLocked() {
	if s.opened || s.closed {
		return
	}
	s.opened = true
	s.c.deadline()
	h := s.c.w.Header()
	h.Set("Content-Type", s.contentType)
	h.Set("Trailer", ProblemTrailer+", "+OffsetTrailer)
	s.c.w.WriteHeader(http.StatusOK)
}

// Write refuses what comes after the end, as from a session that goes on when its
// viewer leaves: net/http lends the buffer below to another answer then.
func (s *stream) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, io.ErrClosedPipe
	}
	s.openLocked()
	s.c.deadline()
	n, err := s.c.w.Write(b)
	if err == nil && s.flush {
		err = http.NewResponseController(s.c.w).Flush()
	}
	return n, err
}

// end closes a stream that went well; it may have been empty.
func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.openLocked()
	s.closeLocked()
}

// finish closes a stream that failed with p. It reports false when nothing was
// sent yet, and the problem can be answered in full.
func (s *stream) finish(p Problem) bool {
	b, err := Marshal(p)
	if err != nil { // strings and a number always encode
		panic(err)
	}
	if s.problem != nil && s.begun() {
		s.problem(b)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeLocked()
	if s.opened && s.problem == nil {
		s.c.w.Header().Set(ProblemTrailer, string(b))
	}
	return s.opened
}

func (s *stream) closeLocked() {
	s.closed = true
	s.c.deadline() // for the last chunk, which net/http writes after the handler
	if s.timer != nil {
		s.timer.Stop()
	}
}
