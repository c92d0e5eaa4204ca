package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// desk is a Runtime that only copies output, to a sink of the test's.
type desk struct {
	t   *testing.T
	dir string
	r   *Runtime
	o   *outputs
	log *bytes.Buffer

	mu    sync.Mutex
	lines []string
	fail  error
	turn  *sync.Cond
}

func newDesk(t *testing.T, dir string, j JournalConfig) *desk {
	t.Helper()
	root, err := rootdir.Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	d := &desk{t: t, dir: dir, log: new(bytes.Buffer)}
	d.turn = sync.NewCond(&d.mu)
	d.r = &Runtime{id: "rt-1", root: root, log: slog.New(slog.NewTextHandler(d, nil))}
	d.r.settings.Store(&settings{config: Config{Journal: j}})
	d.r.background, d.r.stop = context.WithCancel(context.Background())
	if d.o, err = newOutputs(d.r, d.sink); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.close)
	return d
}

// close is the daemon's end.
func (d *desk) close() {
	d.r.stop()
	d.r.wg.Wait()
	d.r.root.Close()
}

// Write takes the log.
func (d *desk) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.Write(p)
}

func (d *desk) logged() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.String()
}

func (d *desk) sink(_ context.Context, l OutputLine) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.turn.Broadcast()
	if d.fail != nil {
		return d.fail
	}
	if l.WorkerID != "wk-1" || l.AllocationID != "ws-1" || l.WorkspaceID != "default" || l.RuntimeID != "rt-1" {
		d.t.Errorf("a line of %+v", l)
	}
	d.lines = append(d.lines, l.Stream+" "+l.Text)
	return nil
}

// want waits until so many lines have come, and compares all.
func (d *desk) want(lines ...string) {
	d.t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.lines) < len(lines) {
		d.turn.Wait()
	}
	if !slices.Equal(d.lines, lines) {
		d.t.Errorf("copied were %.200q, not %.200q", d.lines, lines)
	}
}

// worker makes the directory of one that runs.
func (d *desk) worker() registry.Worker {
	d.t.Helper()
	for _, p := range []string{"metadata", "logs"} {
		if err := os.MkdirAll(filepath.Join(d.dir, "workers/wk-1", p), 0o700); err != nil {
			d.t.Fatal(err)
		}
	}
	d.write("stdout", "")
	d.write("stderr", "")
	return registry.Worker{ID: "wk-1", AllocationID: "ws-1", WorkspaceID: "default", Logs: []string{"stdout", "stderr"}}
}

func (d *desk) write(stream, s string) {
	d.t.Helper()
	f, err := os.OpenFile(filepath.Join(d.dir, "workers/wk-1/logs", stream), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err == nil {
		_, err = f.WriteString(s)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		d.t.Fatal(err)
	}
}

func TestOutputLines(t *testing.T) {
	d := newDesk(t, t.TempDir(), JournalConfig{})
	w := d.worker()
	d.write("stdout", "before\n")
	d.o.follow(w)
	d.want("stdout before")
	d.write("stderr", "an error\n")
	d.want("stdout before", "stderr an error")
	d.write("stdout", "half a ")
	d.write("stderr", "\n\r\n\x00\xff\x1b[2J=\n<0>PRIORITY\n")
	d.want("stdout before", "stderr an error", "stderr ", "stderr \r", "stderr \x00\xff\x1b[2J=", "stderr <0>PRIORITY")
	d.write("stdout", "line\nthe rest")
	d.o.finish(w.ID)
	d.want("stdout before", "stderr an error", "stderr ", "stderr \r", "stderr \x00\xff\x1b[2J=", "stderr <0>PRIORITY", "stdout half a line", "stdout the rest")
	if s := d.logged(); s != "" {
		t.Errorf("the log says %s", s)
	}
}

// TestOutputLongLine comes in parts, and nothing of it is lost.
func TestOutputLongLine(t *testing.T) {
	d := newDesk(t, t.TempDir(), JournalConfig{})
	w := d.worker()
	long := strings.Repeat("x", 2*maxOutputLine+10)
	d.write("stdout", long+"\nshort\n"+long[:maxOutputLine]+"\n")
	d.o.follow(w)
	part := "stdout " + long[:maxOutputLine]
	d.want(part, part, "stdout xxxxxxxxxx", "stdout short", part)
	d.o.finish(w.ID)
}

// TestOutputOverRestart: what was copied is not copied again, whoever was there, and
// what was written while nobody was is.
func TestOutputOverRestart(t *testing.T) {
	dir := t.TempDir()
	d := newDesk(t, dir, JournalConfig{})
	w := d.worker()
	d.write("stdout", "one\ntw")
	d.o.follow(w)
	d.want("stdout one")
	d.close()
	d.write("stdout", "o\nthree\n")
	d.write("stderr", "four\n")
	d = newDesk(t, dir, JournalConfig{})
	d.o.follow(w)
	d.o.follow(w) // twice is once
	d.want("stdout two", "stdout three", "stderr four")
	d.close()
	d = newDesk(t, dir, JournalConfig{})
	d.o.follow(w)
	d.write("stdout", "five\n")
	d.o.finish(w.ID)
	d.want("stdout five")
	d.o.finish(w.ID)
}

// TestOutputBounds: a stream that writes more than its rate is left out up to its last
// words, and says so; one that has used up its bound of all is, too. A Worker's last
// words come always.
func TestOutputBounds(t *testing.T) {
	for name, c := range map[string]struct {
		config JournalConfig
		reason string
	}{
		"rate": {JournalConfig{WorkerOutputRate: "64K"}, "reason=rate"},
		"size": {JournalConfig{WorkerOutputMax: "64K"}, "reason=size"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t, t.TempDir(), c.config)
			w := d.worker()
			d.o.follow(w)
			const n = 40000
			var b strings.Builder
			for i := range n {
				fmt.Fprintf(&b, "line %d\n", i)
			}
			d.write("stdout", b.String())
			d.write("stderr", "quiet\n")
			d.o.finish(w.ID)
			d.mu.Lock()
			defer d.mu.Unlock()
			var got []string
			for _, l := range d.lines {
				if s, ok := strings.CutPrefix(l, "stdout "); ok {
					got = append(got, s)
				}
			}
			if len(got) == 0 || len(got) > n/2 || got[0] != "line 0" || got[len(got)-1] != fmt.Sprintf("line %d", n-1) {
				t.Errorf("%d lines, from %q to %q", len(got), got[0], got[len(got)-1])
			}
			gaps := 0
			for i := 1; i < len(got); i++ {
				var a, b int
				if _, err := fmt.Sscanf(got[i-1]+" "+got[i], "line %d line %d", &a, &b); err != nil || b <= a {
					t.Fatalf("%q is followed by %q", got[i-1], got[i])
				}
				if b != a+1 {
					gaps++
				}
			}
			if gaps != 1 || strings.Count(d.log.String(), "bytes=") != 1 || !strings.Contains(d.log.String(), c.reason) || !strings.Contains(d.log.String(), "worker.output_left_out") {
				t.Errorf("%d gaps, and the log says %s", gaps, d.log)
			}
			if !slices.Contains(d.lines, "stderr quiet") {
				t.Error("the other stream was held up")
			}
		})
	}
}

// TestOutputSinkRefuses: a journal that refuses is asked again later; at the Worker's
// end it is said what it did not take.
func TestOutputSinkRefuses(t *testing.T) {
	d := newDesk(t, t.TempDir(), JournalConfig{})
	w := d.worker()
	d.fail = errors.New("no journal")
	d.write("stdout", "one\n")
	d.o.follow(w)
	d.o.finish(w.ID)
	if s := d.logged(); !strings.Contains(s, "reason=journal") || !strings.Contains(s, "bytes=4") {
		t.Errorf("the log says %s", s)
	}
}

// TestOutputSinkStandsStill: the end of a Worker is not held up by it.
func TestOutputSinkStandsStill(t *testing.T) {
	d := newDesk(t, t.TempDir(), JournalConfig{})
	d.o.sink = func(ctx context.Context, _ OutputLine) error {
		<-ctx.Done()
		return ctx.Err()
	}
	d.o.farewell = 10 * time.Millisecond
	w := d.worker()
	d.write("stdout", "one\n")
	d.o.follow(w)
	d.o.finish(w.ID)
	if s := d.logged(); !strings.Contains(s, "reason=journal") {
		t.Errorf("the log says %s", s)
	}
}

func TestOutputRefused(t *testing.T) {
	plain := registry.Worker{}
	tty := registry.Worker{Terminal: true}
	file := registry.Worker{Secrets: []policy.SecretUse{{As: policy.SecretFile}}}
	header := registry.Worker{Secrets: []policy.SecretUse{{As: policy.SecretHTTPHeader}}}
	for _, c := range []struct {
		how  string
		w    registry.Worker
		want string
	}{
		{"", plain, ""}, {"", tty, "terminal"}, {"", file, "secrets"}, {"", header, ""},
		{"always", file, ""}, {"always", tty, "terminal"}, {"never", plain, "configuration"}, {"unless_secret", file, "secrets"},
	} {
		if got := (Config{Journal: JournalConfig{WorkerOutput: c.how}}).outputRefused(c.w); got != c.want {
			t.Errorf("%q, %+v: %q, not %q", c.how, c.w, got, c.want)
		}
	}
	for _, bad := range []string{`worker_output = "sometimes"`, `worker_output_max = "1"`, `worker_output_rate = "fast"`, `worker_output_max = "9E"`, `other = 1`} {
		if _, err := ParseConfig([]byte("[journal]\n" + bad)); !errors.Is(err, policy.CodeConfigInvalid) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestBudget(t *testing.T) {
	b := budget{size: 10}
	at := time.Now()
	take := func(after time.Duration, n int64, want bool) {
		t.Helper()
		until, ok := b.take(at.Add(after), n)
		if ok != want || (!ok && until != at.Add(outputInterval)) {
			t.Errorf("after %v %d: %v, %v", after, n, ok, until.Sub(at))
		}
	}
	take(0, 8, true)
	take(time.Second, 3, false)
	take(time.Second, 2, true)
	take(2*time.Second, 1, false)
	take(outputInterval, 1000, true) // alone, or it would never come
}

// TestOutputOverAGap: what a log's limit took away before it was copied is left out,
// and said to be.
func TestOutputOverAGap(t *testing.T) {
	const block = 64 << 10
	d := newDesk(t, t.TempDir()+"/root", JournalConfig{})
	w := d.worker()
	d.write("stdout", "first\npart "+strings.Repeat("x", 2*block)+"\nlast\n")
	f, err := os.OpenFile(filepath.Join(d.dir, "workers/wk-1/logs/stdout"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 4096, 2*block-4096); err != nil {
		t.Fatal(err)
	}
	d.o.follow(w)
	rest := strings.Repeat("x", len("first\npart "))
	d.want("stdout first", "stdout part "+strings.Repeat("x", 4096-len("first\npart ")), "stdout "+rest, "stdout last")
	if log := d.logged(); !strings.Contains(log, "reason=log_size") || !strings.Contains(log, fmt.Sprintf("bytes=%d", 2*block-4096)) {
		t.Errorf("said is %s", log)
	}
}
