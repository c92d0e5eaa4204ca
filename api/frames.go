package api

import (
	"encoding/binary"
	"errors"
	"io"
	"sync"

	"yoi.dev/yoi-runtime/policy"
)

// A session is one POST whose body and answer are both streams of frames, at the
// same time: a byte that says what it is, the length of the rest in four bytes,
// big-endian, and the rest. It is an ordinary request, with the checks, the problem
// documents and the trailers of every other, rather than a connection that was
// taken over (Upgrade) or descriptors that are handed out of a sandbox: it goes
// through whatever forwards a socket, and a client needs nothing but HTTP.
const (
	sessionType = "application/x-yoi-session"

	// From the client: first the request's document, then any of the others.
	frameStart  = 's' // JSON
	frameInput  = 'i' // standard input, as far as it is granted
	frameEnd    = 'e' // of the input
	frameSize   = 'w' // runtime.WindowSize, JSON
	frameSignal = 'k' // a signal's number, one byte

	// From the server: the last one is the result or the problem.
	frameStdout  = 'o'
	frameStderr  = 'r'
	frameGrant   = 'a' // four bytes: how much more input may be sent
	frameResult  = 'x' // runtime.Session, JSON
	frameProblem = 'p' // Problem, JSON: the session began, and failed
)

const (
	// maxFrame bounds one frame; data is sent in pieces of maxPiece.
	maxFrame = 2 << 20
	maxPiece = 32 << 10
	// inputWindow is how much input may be on its way: what the session does not read
	// must not keep a signal from it.
	inputWindow = 128 << 10
)

var errFrame = errors.New("a frame is larger than any of its kind")

// frameWriter writes frames from several goroutines, none after the last one.
type frameWriter struct {
	mu   sync.Mutex
	w    io.Writer
	done bool
}

func (f *frameWriter) frame(kind byte, b []byte) error { return f.write(kind, b, false) }

func (f *frameWriter) last(kind byte, b []byte) error { return f.write(kind, b, true) }

func (f *frameWriter) write(kind byte, b []byte, last bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done {
		return io.ErrClosedPipe
	}
	f.done = last
	out := make([]byte, 5, 5+len(b))
	out[0] = kind
	binary.BigEndian.PutUint32(out[1:], uint32(len(b)))
	_, err := f.w.Write(append(out, b...))
	return err
}

// as is a writer of one kind of frames.
func (f *frameWriter) as(kind byte) io.Writer { return framed{f, kind} }

type framed struct {
	f    *frameWriter
	kind byte
}

func (w framed) Write(b []byte) (int, error) {
	for n := 0; n < len(b); n += maxPiece {
		if err := w.f.frame(w.kind, b[n:min(len(b), n+maxPiece)]); err != nil {
			return n, err
		}
	}
	return len(b), nil
}

// readFrame reads one frame of at most limit bytes into buf, which it returns.
func readFrame(r io.Reader, buf []byte, limit int) (kind byte, b []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if uint64(n) > uint64(limit) {
		return 0, nil, errFrame
	}
	if cap(buf) < int(n) {
		buf = make([]byte, n)
	}
	b = buf[:n]
	if _, err := io.ReadFull(r, b); err != nil {
		return 0, nil, unexpected(err)
	}
	return head[0], b, nil
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// inbox is input that was granted and that the session has not read.
type inbox struct {
	mu    sync.Mutex
	more  sync.Cond
	buf   []byte
	err   error // after buf
	grant func(n int)
}

func newInbox(grant func(n int)) *inbox {
	i := &inbox{grant: grant}
	i.more.L = &i.mu
	return i
}

func (i *inbox) put(b []byte) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.buf)+len(b) > inputWindow {
		return policy.Errorf(policy.CodeBadRequest, "api.session", "more input was sent than was granted")
	}
	i.buf = append(i.buf, b...)
	i.more.Broadcast()
	return nil
}

// end makes err, io.EOF for one, what comes after the input.
func (i *inbox) end(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.err == nil {
		i.err = err
	}
	i.more.Broadcast()
}

func (i *inbox) Read(p []byte) (int, error) {
	i.mu.Lock()
	for len(i.buf) == 0 && i.err == nil {
		i.more.Wait()
	}
	n := copy(p, i.buf)
	i.buf = i.buf[n:]
	err := i.err
	i.mu.Unlock()
	if n > 0 {
		i.grant(n)
		return n, nil
	}
	return 0, err
}
