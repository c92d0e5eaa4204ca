package runtime

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// OutputLine is a line of a Worker's output, without its end, or a part of a longer
// one. It is the Worker's: any bytes but a newline.
type OutputLine struct {
	RuntimeID    policy.RuntimeID
	WorkspaceID  policy.WorkspaceID
	AllocationID policy.AllocationID
	WorkerID     policy.WorkerID
	Stream       string // stdout or stderr
	Text         string
}

// outputStreams are those of a Worker, as its log files are called.
var outputStreams = [...]string{"stdout", "stderr"}

const (
	// maxOutputLine is journald's own bound of a line; longer ones come in parts.
	maxOutputLine = 48 << 10
	// lineCost is what a line counts beside its bytes: an entry has fields.
	lineCost = 512
	// outputInterval is what worker_output_rate is of, as journald's limits are.
	outputInterval = 30 * time.Second
	// lastWords of a stream are copied when its Worker has ended, whatever it wrote
	// before: most often they say why.
	lastWords = 64 << 10
	// outputShare is how many streams may write at their full rate at once.
	outputShare = 8
	// outputRetry is how long a journal that refuses entries is left alone.
	outputRetry    = 5 * time.Second
	outputFarewell = 2 * time.Second
)

// outputs copies Workers' log files line by line to a sink that may be slow, away or
// full. It never holds a Worker up, because the Worker writes to its files and knows
// nothing of it. How far each stream has come stands in the Worker's directory and is
// written after each line, so a restart goes on where it was; of a daemon that is
// killed between the two, one line comes twice.
type outputs struct {
	r     *Runtime
	sink  func(context.Context, OutputLine) error
	watch *fileWatch
	all   budget // of all Workers together
	// farewell bounds how long the end of a Worker waits for its output to be copied:
	// a journal that stands still must hold up no Worker.
	farewell time.Duration

	mu   sync.Mutex
	live map[policy.WorkerID]*copier
}

func newOutputs(r *Runtime, sink func(context.Context, OutputLine) error) (*outputs, error) {
	w, err := newFileWatch()
	if err != nil {
		return nil, policy.Errorf(policy.CodeInternal, "runtime.output", "log files cannot be watched").Because(err)
	}
	o := &outputs{r: r, sink: sink, watch: w, farewell: outputFarewell, live: make(map[policy.WorkerID]*copier)}
	o.all.size = outputShare * r.config().outputRate()
	r.wg.Go(func() {
		<-r.background.Done()
		w.close()
	})
	r.wg.Go(w.run)
	return o, nil
}

// follow begins to copy a Worker's output, unless it is not to be copied.
func (o *outputs) follow(w registry.Worker) {
	if o == nil || len(w.Logs) == 0 {
		return
	}
	if o.r.config().outputRefused(w) != "" {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.live[w.ID] != nil {
		return
	}
	c := &copier{o: o, w: w, wake: make(chan struct{}, 1), end: make(chan struct{}), done: make(chan struct{})}
	if err := c.open(); err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			o.r.log.LogAttrs(context.Background(), slog.LevelWarn, "a worker's output is not copied", append(workerAttrs(w), slog.Any("error", err))...)
		}
		c.close()
		return
	}
	o.live[w.ID] = c
	o.r.wg.Go(c.run)
}

// refuse says of a new Worker why its output will not be copied, if it is so and not
// by the operator's own word.
func (o *outputs) refuse(w registry.Worker) {
	if o == nil {
		return
	}
	if reason := o.r.config().outputRefused(w); reason != "" && reason != outputNever {
		o.r.leftOut(w, "", reason, 0)
	}
}

// finish copies what is left of a Worker that has ended.
func (o *outputs) finish(id policy.WorkerID) {
	if o == nil {
		return
	}
	o.mu.Lock()
	c := o.live[id]
	delete(o.live, id)
	o.mu.Unlock()
	if c == nil {
		return
	}
	close(c.end)
	<-c.done
}

// leftOut says that output is in the log file only, and why.
func (r *Runtime) leftOut(w registry.Worker, stream, reason string, n int64) {
	attrs := append(workerAttrs(w), slog.String("event", string(policy.EventWorkerOutputLeftOut)), slog.String("reason", reason))
	if stream != "" {
		attrs = append(attrs, slog.String("stream", stream))
	}
	if n > 0 {
		attrs = append(attrs, slog.String("bytes", strconv.FormatInt(n, 10)))
	}
	info, _ := policy.DescribeEvent(policy.EventWorkerOutputLeftOut)
	r.log.LogAttrs(context.Background(), slog.LevelInfo, info.Title, attrs...)
}

// copier is the output of one Worker.
type copier struct {
	o       *outputs
	w       registry.Worker
	state   *os.File // of offsets
	streams [len(outputStreams)]stream
	wake    chan struct{}
	end     chan struct{} // the Worker has ended: no more is coming
	done    chan struct{}
}

// stream is one log file and how far it has come.
type stream struct {
	name  string
	file  *os.File
	watch int
	outputState
	rate   budget
	paused time.Time // until when nothing is copied
	why    string    // the reason of that
	told   bool      // that the bound of all is reached
}

// outputState is what is remembered of a stream: the offset in its file, and how much
// of it was copied.
type outputState struct{ At, Copied int64 }

// outputFile is beside the Worker's other records. It is of a daemon, and no Worker's.
func outputFile(id policy.WorkerID) string { return rootdir.Worker(id) + "/metadata/journaled" }

func (c *copier) open() (err error) {
	if c.state, err = c.o.r.root.OpenFile(outputFile(c.w.ID), unix.O_RDWR|unix.O_CREAT, 0o600); err != nil {
		return err
	}
	for i, name := range outputStreams {
		s := &c.streams[i]
		s.name, s.rate.size = name, c.o.r.config().outputRate()
		if s.file, err = c.o.r.root.OpenFile(rootdir.Worker(c.w.ID)+"/logs/"+name, unix.O_RDONLY, 0); err != nil {
			return err
		}
		if s.watch, err = c.o.watch.add(s.file, c.wake); err != nil {
			return err
		}
	}
	return c.load()
}

func (c *copier) load() error {
	var b [16 * len(outputStreams)]byte
	n, err := c.state.ReadAt(b[:], 0)
	if err != nil && err != io.EOF {
		return err
	}
	for i := range c.streams {
		s := &c.streams[i]
		if n == len(b) {
			s.At, s.Copied = int64(binary.LittleEndian.Uint64(b[16*i:])), int64(binary.LittleEndian.Uint64(b[16*i+8:]))
		}
		st, err := s.file.Stat()
		if err != nil {
			return err
		}
		if s.At < 0 || s.At > st.Size() || s.Copied < 0 { // not what we wrote, or the file was truncated
			s.At = st.Size()
		}
	}
	return nil
}

func (c *copier) save() error {
	var b [16 * len(outputStreams)]byte
	for i := range c.streams {
		s := c.streams[i].outputState
		binary.LittleEndian.PutUint64(b[16*i:], uint64(s.At))
		binary.LittleEndian.PutUint64(b[16*i+8:], uint64(s.Copied))
	}
	_, err := c.state.WriteAt(b[:], 0)
	return err
}

func (c *copier) close() {
	for i := range c.streams {
		if s := &c.streams[i]; s.file != nil {
			c.o.watch.remove(s.watch, c.wake)
			s.file.Close()
		}
	}
	if c.state != nil {
		c.state.Close()
	}
}

func (c *copier) run() {
	defer close(c.done)
	defer c.close()
	ctx, cancel := context.WithCancel(c.o.r.background)
	defer cancel()
	// The end must not wait for a sink that stands still.
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-c.end:
			t := time.AfterFunc(c.o.farewell, cancel)
			<-stop
			t.Stop()
		case <-stop:
		}
	}()
	for {
		select {
		case <-c.end:
			c.copyAll(ctx, false)
			c.copyAll(ctx, true)
			return
		default:
		}
		timer := new(time.Timer) // without a channel: never
		if again := c.copyAll(ctx, false); again > 0 {
			timer = time.NewTimer(again)
		}
		select {
		case <-c.wake:
		case <-timer.C:
		case <-c.end:
		case <-ctx.Done():
		}
		if timer.C != nil {
			timer.Stop()
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// copyAll copies what can be copied now, and says when to look again although nothing
// was written; 0 is never.
func (c *copier) copyAll(ctx context.Context, last bool) (again time.Duration) {
	for i := range c.streams {
		s := &c.streams[i]
		err := c.copy(ctx, s, last)
		if err != nil && ctx.Err() == nil {
			s.paused, s.why = time.Now().Add(outputRetry), "journal"
		}
		if last {
			if st, err := s.file.Stat(); err == nil && st.Size() > s.At {
				c.o.r.leftOut(c.w, s.name, "journal", st.Size()-s.At)
			}
		} else if wait := time.Until(s.paused); !s.paused.IsZero() && !s.told {
			if again == 0 || wait < again {
				again = max(wait, time.Millisecond)
			}
		}
	}
	return again
}

// copy copies a stream up to its end, or to one of its bounds.
func (c *copier) copy(ctx context.Context, s *stream, last bool) error {
	if last {
		s.paused = time.Time{}
		if err := c.skip(s, lastWords, s.behind()); err != nil {
			return err
		}
	} else if time.Now().Before(s.paused) || s.told {
		return nil
	} else if !s.paused.IsZero() {
		s.paused = time.Time{}
		if err := c.skip(s, s.rate.size/2, s.why); err != nil {
			return err
		}
	}
	buf := make([]byte, maxOutputLine+1)
	for {
		n, missing, cut, err := readLog(s.file, buf, s.At)
		if err != nil {
			return err
		}
		if missing > 0 {
			c.o.r.leftOut(c.w, s.name, "log_size", missing)
			s.At += missing
			if err := c.save(); err != nil {
				return err
			}
			continue
		}
		got := buf[:n]
		for len(got) > 0 {
			line, size := cutLine(got, last && n < len(buf) || cut, len(got) == len(buf))
			if size == 0 {
				break // the rest of a line that is being written, or is at the end of buf
			}
			if !last && !c.allowed(s, len(line)) {
				return nil
			}
			if err := c.o.sink(ctx, OutputLine{c.o.r.id, c.w.WorkspaceID, c.w.AllocationID, c.w.ID, s.name, string(line)}); err != nil {
				return err
			}
			s.At, s.Copied = s.At+int64(size), s.Copied+int64(len(line)+lineCost)
			if err := c.save(); err != nil {
				return err
			}
			got = got[size:]
		}
		if len(got) == n || n == 0 { // nothing whole was there
			return nil
		}
	}
}

// cutLine takes the first line of b, and says how many bytes that is with its end. A
// line without an end is one when nothing follows, or a part of one when it fills the
// buffer.
func cutLine(b []byte, last, full bool) (line []byte, size int) {
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		return b[:i], i + 1
	}
	switch {
	case full:
		return b[:maxOutputLine], maxOutputLine
	case last:
		return b, len(b)
	}
	return nil, 0
}

// allowed takes a line out of the budgets, or pauses the stream.
func (c *copier) allowed(s *stream, n int) bool {
	if most := c.o.r.config().outputMax(); s.Copied+int64(n) > most {
		s.told = true
		c.o.r.leftOut(c.w, s.name, "size", 0)
		return false
	}
	now := time.Now()
	cost := int64(n + lineCost)
	for _, b := range []*budget{&s.rate, &c.o.all} {
		if until, ok := b.take(now, cost); !ok {
			s.paused, s.why = until, "rate"
			return false
		}
	}
	return true
}

// skip leaves out what a stream is behind, but for the last most bytes of whole lines.
func (c *copier) skip(s *stream, most int64, reason string) error {
	st, err := s.file.Stat()
	if err != nil {
		return err
	}
	to := st.Size() - most
	if to <= s.At {
		return nil
	}
	buf := make([]byte, maxOutputLine)
	n, err := s.file.ReadAt(buf, to)
	if err != nil && err != io.EOF {
		return err
	}
	to += int64(bytes.IndexByte(buf[:n], '\n') + 1) // in the midst of a line too long for a buffer: there
	c.o.r.leftOut(c.w, s.name, reason, to-s.At)
	s.At = to
	return c.save()
}

// behind is why a stream that has ended is.
func (s *stream) behind() string {
	switch {
	case s.told:
		return "size"
	case s.why != "":
		return s.why
	}
	return "rate"
}

// budget is what may be copied in each interval.
type budget struct {
	size int64

	mu    sync.Mutex
	used  int64
	since time.Time
}

// take spends n, or says when there will be a new budget. A single line is always
// within an unused one.
func (b *budget) take(now time.Time, n int64) (until time.Time, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Sub(b.since) >= outputInterval {
		b.since, b.used = now, 0
	}
	if b.used > 0 && b.used+n > b.size {
		return b.since.Add(outputInterval), false
	}
	b.used += n
	return time.Time{}, true
}
