package journal

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/policy"
)

// parse reads a datagram as journald does, by the protocol's document.
func parse(t testing.TB, b []byte) map[string][]string {
	t.Helper()
	got := map[string][]string{}
	for len(b) > 0 {
		line, rest, ok := bytes.Cut(b, []byte("\n"))
		if !ok {
			t.Fatalf("a field without an end: %q", b)
		}
		name, value, ok := bytes.Cut(line, []byte("="))
		b = rest
		if !ok {
			n := binary.LittleEndian.Uint64(rest)
			value, b = rest[8:8+n], rest[8+n:]
			if b[0] != '\n' {
				t.Fatalf("behind %q is %q", name, b)
			}
			b = b[1:]
		}
		got[string(name)] = append(got[string(name)], string(value))
	}
	return got
}

// journald stands in for it: a socket, read when the test says so.
type journald struct {
	t    *testing.T
	path string
	conn *net.UnixConn
}

func newJournald(t *testing.T) *journald {
	j := &journald{t: t, path: filepath.Join(t.TempDir(), "socket")}
	j.listen()
	t.Cleanup(func() { j.conn.Close() })
	return j
}

func (j *journald) listen() {
	j.t.Helper()
	var err error
	if j.conn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: j.path, Net: "unixgram"}); err != nil {
		j.t.Fatal(err)
	}
}

func (j *journald) next() map[string][]string {
	j.t.Helper()
	b := make([]byte, 1<<20)
	if err := j.conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		j.t.Fatal(err)
	}
	n, err := j.conn.Read(b)
	if err != nil {
		j.t.Fatal(err)
	}
	return parse(j.t, b[:n])
}

// fill sends as another program until the socket takes no more.
func (j *journald) fill() (n int) {
	j.t.Helper()
	other, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: j.path, Net: "unixgram"})
	if err != nil {
		j.t.Fatal(err)
	}
	defer other.Close()
	for ; ; n++ {
		if err := other.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			j.t.Fatal(err)
		}
		if _, err := other.Write([]byte("MESSAGE=theirs\n")); err != nil {
			return n
		}
	}
}

// safeBuffer is written by a Writer and read by the test.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func (j *journald) logger(level slog.Level) (*slog.Logger, *Writer, *safeBuffer) {
	beside := new(safeBuffer)
	w := NewWriter(j.path, beside)
	j.t.Cleanup(func() { w.Close() })
	return slog.New(NewHandler(w, "yoi-test", level)), w, beside
}

var known = []string{
	"MESSAGE", "PRIORITY", "SYSLOG_IDENTIFIER", "MESSAGE_ID", "YOI_EVENT", "YOI_DIAGNOSTIC", "YOI_OPERATION", "YOI_HINT",
	"YOI_RUNTIME_ID", "YOI_WORKSPACE_ID", "YOI_ALLOCATION_ID", "YOI_WORKER_ID", "YOI_STREAM",
}

// TestAttackFields: nothing that a stranger can put into a name, a value, an id, a
// message, a group or an error makes another field, a second line or half an id.
func TestAttackFields(t *testing.T) {
	j := newJournald(t)
	log, _, _ := j.logger(slog.LevelInfo)
	hostile := []string{
		"x\nPRIORITY=0", "x\nYOI_WORKER_ID=wk-other\n", "YOI_WORKER_ID=wk-other", "=", "\n", "a\x00b", "\x00", "\xff\xfe\n", "\x1b[2J", "",
		"MESSAGE\n\x05\x00\x00\x00\x00\x00\x00\x00hello\n", strings.Repeat("y", 1<<20), strings.Repeat("é\n", 1<<18), "../../etc", "_PID", " \" = \\",
	}
	for _, h := range hostile {
		for name, act := range map[string]func(){
			"message":    func() { log.Info(h) },
			"key":        func() { log.Info("said", h, "v") },
			"value":      func() { log.Info("said", "k", h) },
			"group":      func() { log.WithGroup(h).With(h, h).Info("said", h, h) },
			"worker":     func() { log.Info("said", KeyWorker, h) },
			"allocation": func() { log.Info("said", KeyAllocation, h, KeyWorkspace, h, KeyRuntime, h) },
			"event":      func() { log.Info("said", KeyEvent, h) },
			"diagnostic": func() { log.Info("said", KeyDiagnostic, h, KeyHint, h, KeyOperation, h) },
			"error": func() {
				log.Info("said", "error", fmt.Errorf("%s: %w", h, (&policy.Diagnostic{Code: policy.Code(h), Op: h, Hint: h, Message: h}).Because(errors.New(h))))
			},
			"grouped worker": func() { log.Info("said", slog.Group("fields", slog.String(KeyWorker, "wk-other"), slog.String(h, h))) },
		} {
			act()
			got := j.next()
			short := h[:min(len(h), 20)]
			for field, values := range got {
				if !slices.Contains(known, field) || len(values) != 1 {
					t.Errorf("%s %q: the field %q %q", name, short, field, values)
				}
				if v := values[0]; policy.Printable(v) != v || len(v) > maxMessage {
					t.Errorf("%s %q: %s is %.100q of %d bytes", name, short, field, v, len(v))
				}
				if strings.HasSuffix(field, "_ID") && field != "MESSAGE_ID" && !policy.ValidID(values[0]) {
					t.Errorf("%s %q: %s is %q", name, short, field, values[0])
				}
			}
			if got["PRIORITY"][0] != "6" || got["YOI_WORKER_ID"] != nil || got["YOI_EVENT"] != nil {
				t.Errorf("%s %q: %v", name, short, got)
			}
		}
	}
}

func TestFields(t *testing.T) {
	j := newJournald(t)
	log, _, _ := j.logger(slog.LevelInfo)
	log = log.With(KeyRuntime, "rt-1", "more", 7)
	started, _ := policy.DescribeEvent(policy.EventWorkerStarted)
	refusal, _ := policy.DescribeEvent(policy.EventDiagnostic)
	d := policy.Errorf(policy.CodeDiskFull, "cow.copy", "the disk is full").Because(errors.New("/var/lib/yoi: no space"))
	for _, c := range []struct {
		act  func()
		want map[string]string
	}{
		{func() {
			log.Info("a worker", KeyEvent, policy.EventWorkerStarted, KeyWorker, policy.WorkerID("wk-1"), KeyAllocation, "ws-1", KeyWorkspace, "default")
		},
			map[string]string{"MESSAGE": "a worker more=7", "PRIORITY": "6", "MESSAGE_ID": started.MessageID, "YOI_EVENT": "worker.started",
				"YOI_WORKER_ID": "wk-1", "YOI_ALLOCATION_ID": "ws-1", "YOI_WORKSPACE_ID": "default"}},
		{func() { log.Warn("not done", "error", fmt.Errorf("here: %w", d)) },
			map[string]string{"MESSAGE": `not done more=7 error="here: disk_full: the disk is full: /var/lib/yoi: no space"`, "PRIORITY": "4",
				"MESSAGE_ID": refusal.MessageID, "YOI_DIAGNOSTIC": "disk_full", "YOI_OPERATION": "cow.copy", "YOI_HINT": d.Hint}},
		{func() { log.WithGroup("g").Error("bad", KeyWorker, "wk-1", "q", `say "hi"`) },
			map[string]string{"MESSAGE": `bad more=7 g.worker=wk-1 g.q="say \"hi\""`, "PRIORITY": "3"}},
		{func() { log.Info("odd", KeyWorker, "NOT AN ID", "n", nil) },
			map[string]string{"MESSAGE": `odd more=7 worker="NOT AN ID" n=<nil>`, "PRIORITY": "6"}},
	} {
		log.Debug("not asked for")
		c.act()
		c.want["SYSLOG_IDENTIFIER"], c.want["YOI_RUNTIME_ID"] = "yoi-test", "rt-1"
		got := j.next()
		for k, v := range got {
			if len(v) != 1 || c.want[k] != v[0] {
				t.Errorf("%s is %q, not %q", k, v, c.want[k])
			}
			delete(c.want, k)
		}
		if len(c.want) > 0 {
			t.Errorf("missing are %v", c.want)
		}
	}
}

// TestJournalStandsStill: a journal that takes nothing holds up nobody who logs; what
// fits waits in order, and what does not is counted.
func TestJournalStandsStill(t *testing.T) {
	j := newJournald(t)
	log, w, beside := j.logger(slog.LevelInfo)
	const n = 30000
	for i := range n {
		log.Info("line", "i", i, "pad", strings.Repeat("p", 500))
	}
	next, lost := 0, 0
	for next+lost < n {
		m := j.next()["MESSAGE"][0]
		if _, err := fmt.Sscanf(m, "%d entries were lost", &lost); err == nil {
			break
		}
		var i int
		if _, err := fmt.Sscanf(m, "line i=%d", &i); err != nil || i != next {
			t.Fatalf("entry %d is %.40q", next, m)
		}
		next++
	}
	if lost == 0 || next+lost != n {
		t.Errorf("%d entries came, %d were counted as lost, of %d", next, lost, n)
	}
	log.Info("after")
	if m := j.next()["MESSAGE"][0]; m != "after" {
		t.Errorf("behind it came %q", m)
	}
	if err := w.Close(); err != nil || beside.String() != "" {
		t.Errorf("%v, %q", err, beside.String())
	}
	log.Info("too late") // counted, no panic
}

// TestJournalFilledByOthers: the writer goes on when other senders' datagrams leave
// the journal's queue, though none of its own is in it.
func TestJournalFilledByOthers(t *testing.T) {
	j := newJournald(t)
	filled := j.fill()
	log, _, _ := j.logger(slog.LevelInfo)
	log.Info("ours")
	for range filled {
		if m := j.next()["MESSAGE"][0]; m != "theirs" {
			t.Fatalf("%q", m)
		}
	}
	if m := j.next()["MESSAGE"][0]; m != "ours" {
		t.Errorf("%q", m)
	}
}

// TestJournalGoneAndBack: without its socket entries are lines beside; with a new one
// at the same place they are entries again. Who waits is told.
func TestJournalGoneAndBack(t *testing.T) {
	j := newJournald(t)
	log, w, beside := j.logger(slog.LevelInfo)
	gone := func() {
		t.Helper()
		j.conn.Close()
		if err := os.Remove(j.path); err != nil {
			t.Fatal(err)
		}
	}
	log.Info("one")
	j.next()
	gone()
	j.listen() // before anybody has noticed
	log.Info("another")
	if m := j.next()["MESSAGE"][0]; m != "another" {
		t.Errorf("%q", m)
	}
	gone()
	log.Info("two\nlines")
	if err := w.Send(t.Context(), Entry{Message: "three"}); err == nil {
		t.Error("nobody listened, and Send was content")
	}
	if s := beside.String(); s != `two\nlines`+"\n" {
		t.Errorf("beside: %q", s)
	}
	j.listen()
	sent := make(chan error, 1)
	go func() { sent <- w.Send(t.Context(), Entry{Message: "four", Worker: "wk-1", Stream: "stdout"}) }()
	if got := j.next(); got["MESSAGE"][0] != "four" || got["YOI_STREAM"][0] != "stdout" || got["YOI_WORKER_ID"][0] != "wk-1" {
		t.Errorf("%v", got)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// TestSendWaits until the journal has it, or the caller has had enough.
func TestSendWaits(t *testing.T) {
	j := newJournald(t)
	filled := j.fill()
	_, w, _ := j.logger(slog.LevelInfo)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	if err := w.Send(ctx, Entry{Message: "x"}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	for range filled {
		j.next()
	}
}

func TestOpen(t *testing.T) {
	d := policy.Errorf(policy.CodeDiskFull, "x.y", "full")
	started, _ := policy.DescribeEvent(policy.EventWorkerStarted)
	for _, format := range []string{"logfmt", "json", "auto", ""} {
		t.Setenv("JOURNAL_STREAM", "not:numbers")
		var b bytes.Buffer
		log, err := Open(Options{Format: format, Identifier: "yoi-test", Level: slog.LevelInfo, Stderr: &b})
		if err != nil {
			t.Fatal(err)
		}
		log.Debug("quiet")
		log.Info("a\nb", KeyEvent, policy.EventWorkerStarted, "error", d, "evil\nkey", "v")
		if err := log.Close(); err != nil {
			t.Error(err)
		}
		out := b.String()
		if strings.Count(out, "\n") != 1 {
			t.Errorf("%s: not one line: %q", format, out)
		}
		if format == "json" {
			var v map[string]any
			if err := json.Unmarshal(b.Bytes(), &v); err != nil || v["diagnostic"] != "disk_full" || v["message_id"] != started.MessageID || v["msg"] != "a\nb" {
				t.Errorf("%v %v", v, err)
			}
		} else if !strings.Contains(out, `msg="a\nb"`) || !strings.Contains(out, "diagnostic=disk_full") || !strings.Contains(out, "message_id="+started.MessageID) {
			t.Errorf("%s", out)
		}
	}
	if _, err := Open(Options{Format: "xml", Level: slog.LevelInfo, Stderr: io.Discard}); !errors.Is(err, policy.CodeConfigInvalid) {
		t.Errorf("%v", err)
	}
}

// TestAutoFollowsStandardError: JOURNAL_STREAM is inherited; only where standard error
// still is that stream does the log go to the journal.
func TestAutoFollowsStandardError(t *testing.T) {
	t.Setenv("JOURNAL_STREAM", "1:1")
	log, err := Open(Options{Identifier: "yoi-test", Level: slog.LevelInfo, Stderr: os.Stderr})
	if err != nil || log.Journal != nil {
		t.Errorf("%+v %v", log, err)
	}
}

func FuzzEntry(f *testing.F) {
	f.Add("hello", "x\nPRIORITY=0", "wk-1", []byte{0, 1, 2})
	f.Fuzz(func(t *testing.T, message, hint, worker string, line []byte) {
		for _, e := range []Entry{{Message: message, Hint: hint, Worker: policy.WorkerID(worker)}, {Message: string(line), Stream: "stdout"}} {
			got := parse(t, e.encode())
			for k, v := range got {
				if !slices.Contains(known, k) || len(v) != 1 {
					t.Errorf("%q %q", k, v)
				}
			}
			if len(e.Message) <= maxMessage && got["MESSAGE"][0] != e.Message {
				t.Errorf("the message became %q", got["MESSAGE"][0])
			}
		}
	})
}
