package journal

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	sd "github.com/coreos/go-systemd/v22/journal"
	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// Socket is where journald listens. The service manager holds the socket: it is there,
// and takes what fits into its queue, while journald itself is being restarted.
const Socket = "/run/systemd/journal/socket"

const (
	maxQueue = 4 << 20 // bytes of entries that wait
	// patience is how long one write to a journal that takes nothing lasts, before the
	// writer looks whether it is to end.
	patience = time.Second
	// farewell is how long Close waits for the queue.
	farewell = 2 * time.Second
)

// Writer sends entries in order, by one goroutine. Put never blocks.
type Writer struct {
	socket string
	// beside takes a line for each entry that the journal refuses.
	beside io.Writer

	mu     sync.Mutex
	turn   *sync.Cond
	queue  []queued
	bytes  int
	lost   int // since the last entry that said so
	total  int
	closed bool
	done   chan struct{}

	conn *net.UnixConn // the sender's own
}

type queued struct {
	data []byte
	line string     // for beside; "" for an entry that somebody waits for
	sent chan error // nil if nobody waits
}

// NewWriter writes to the journal at socket, and what it refuses to beside.
func NewWriter(socket string, beside io.Writer) *Writer {
	w := &Writer{socket: socket, beside: beside, done: make(chan struct{})}
	w.turn = sync.NewCond(&w.mu)
	go w.run()
	return w
}

// Put hands an entry over. Where the queue is full the entry is lost, and counted.
func (w *Writer) Put(e Entry) {
	q := queued{data: e.encode(), line: text(e.Message)}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.bytes+len(q.data) > maxQueue {
		w.lost++
		w.total++
		return
	}
	w.add(q)
}

// Send returns when the journal has the entry, or has refused it. It is for who can
// wait, and does not fill the queue: at most one entry for each caller is in it.
func (w *Writer) Send(ctx context.Context, e Entry) error {
	q := queued{data: e.encode(), sent: make(chan error, 1)}
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return os.ErrClosed
	}
	w.add(q)
	w.mu.Unlock()
	select {
	case err := <-q.sent:
		return err
	case <-ctx.Done():
		return ctx.Err() // whether the journal gets it is not known
	}
}

func (w *Writer) add(q queued) {
	w.queue = append(w.queue, q)
	w.bytes += len(q.data)
	w.turn.Signal()
}

// Lost counts the entries that the queue had no room for.
func (w *Writer) Lost() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.total
}

// Close sends what is queued, as far as the journal takes it in a moment.
func (w *Writer) Close() error {
	w.mu.Lock()
	w.closed = true
	w.turn.Signal()
	w.mu.Unlock()
	select {
	case <-w.done:
		return nil
	case <-time.After(farewell):
		return policy.Errorf(policy.CodeUnavailable, "journal.close", "the journal did not take the last entries")
	}
}

func (w *Writer) run() {
	defer close(w.done)
	defer func() {
		if w.conn != nil {
			w.conn.Close()
		}
	}()
	for {
		w.mu.Lock()
		for len(w.queue) == 0 && w.lost == 0 && !w.closed {
			w.turn.Wait()
		}
		if len(w.queue) == 0 && w.lost == 0 {
			w.mu.Unlock()
			return
		}
		var q queued
		if len(w.queue) > 0 {
			q, w.queue = w.queue[0], w.queue[1:]
			w.bytes -= len(q.data)
		} else { // everything that was kept has gone: now, in its place, what was not
			e := Entry{Message: strconv.Itoa(w.lost) + " entries were lost: the journal took nothing for too long", Priority: sd.PriWarning, Event: policy.EventEntriesLost}
			q, w.lost = queued{data: e.encode(), line: e.Message}, 0
		}
		w.mu.Unlock()
		w.deliver(q)
	}
}

// deliver sends one entry. While the journal's queue is full it waits, unless the
// writer is to end.
func (w *Writer) deliver(q queued) {
	err := w.write(q.data)
	for errors.Is(err, os.ErrDeadlineExceeded) && !w.ending() {
		err = w.write(q.data)
	}
	if q.sent != nil {
		q.sent <- err
	} else if err != nil {
		_, _ = io.WriteString(w.beside, q.line+"\n") // there is no third place
	}
}

func (w *Writer) ending() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed
}

// write sends a datagram. A socket that was made anew since (the manager restarts its
// unit) is connected to once more.
func (w *Writer) write(data []byte) (err error) {
	for range 2 {
		if w.conn == nil {
			if w.conn, err = net.DialUnix("unixgram", nil, &net.UnixAddr{Name: w.socket, Net: "unixgram"}); err != nil {
				w.conn = nil
				return err
			}
		}
		if err = w.conn.SetWriteDeadline(time.Now().Add(patience)); err == nil {
			_, err = w.conn.Write(data)
		}
		if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ENOTCONN) && !errors.Is(err, unix.ECONNRESET) {
			return err
		}
		w.conn.Close()
		w.conn = nil
	}
	return err
}
