package sessions

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"yoi.dev/yoi-runtime/api"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// viewer is somebody at a Worker's terminal.
type viewer struct {
	mu     sync.Mutex
	seen   bytes.Buffer
	keys   *io.PipeWriter
	sizes  chan runtime.WindowSize
	cancel context.CancelFunc
	end    chan runtime.Session
}

func (v *viewer) Write(b []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.seen.Write(b)
}

func (v *viewer) text() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.seen.String()
}

func (v *viewer) expect(t *testing.T, text string) {
	t.Helper()
	rig.Eventually(t, "the screen shows "+text, func() bool { return strings.Contains(v.text(), text) })
}

func (v *viewer) typed(t *testing.T, keys string) {
	t.Helper()
	if _, err := v.keys.Write([]byte(keys)); err != nil {
		t.Fatal(err)
	}
}

func attach(t *testing.T, s runtime.Service, wk string, size runtime.WindowSize) *viewer {
	t.Helper()
	in, keys := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	v := &viewer{keys: keys, sizes: make(chan runtime.WindowSize), cancel: cancel, end: make(chan runtime.Session, 1)}
	started := make(chan bool)
	go func() {
		end, err := s.AttachWorker(ctx, policy.WorkerID(wk), runtime.AttachRequest(size), runtime.SessionStreams{
			Stdin: in, Stdout: v, Sizes: v.sizes, Started: func() { close(started) },
		})
		if err != nil && ctx.Err() == nil && !errors.Is(err, policy.CodeUnavailable) { // the daemon was killed
			t.Errorf("attach: %v", err)
		}
		v.end <- end
	}()
	select {
	case <-started:
	case <-v.end:
		t.FailNow()
	}
	return v
}

// service is the Runtime as a program has it: a client, or the Runtime itself.
func (h *host) service(t *testing.T) runtime.Service {
	t.Helper()
	if h.daemons != nil {
		return h.daemons.Client
	}
	r, err := runtime.Open(t.Context(), runtime.Options{Root: h.Root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// echo answers each line and says its terminal's size when that changes.
const echo = `trap 'echo size $(stty size)' WINCH; echo up; tty; while :; do read l || continue; [ "$l" = end ] && exit 9; echo "got $l"; done`

func TestAttach(t *testing.T) {
	// The test's own process is root; the command line's script is run as both.
	eachHostBut(t, []string{"embedded/user"}, func(t *testing.T, h *host) {
		wk := h.spawn(t, []string{"--tty"}, echo)
		s := h.service(t)
		first := attach(t, s, wk, runtime.WindowSize{Rows: 30, Columns: 100})
		first.expect(t, "size 30 100")
		first.typed(t, "one\n")
		first.expect(t, "got one")
		second := attach(t, s, wk, runtime.WindowSize{})
		second.typed(t, "two\n")
		first.expect(t, "got two")
		second.expect(t, "got two")
		second.sizes <- runtime.WindowSize{Rows: 20, Columns: 70}
		first.expect(t, "size 20 70")

		// One that stops typing leaves; one that is cut off too; the Worker goes on.
		second.keys.Close()
		if end := <-second.end; end.End != "detached" || end.Kind != "attach" {
			t.Errorf("it ended %+v", end)
		}
		first.cancel()
		<-first.end
		third := attach(t, s, wk, runtime.WindowSize{})
		third.typed(t, "three\n")
		third.expect(t, "got three")
		third.typed(t, "end\n")
		if end := <-third.end; end.End != "worker_ended" || end.ExitCode != 9 {
			t.Errorf("it ended %+v", end)
		}
		if log := h.OK(t, "worker", "logs", wk); !strings.Contains(log, "up\r\n/dev/pts/0\r\n") || !strings.Contains(log, "got three\r\n") {
			t.Errorf("the log is %q", log)
		}
		rig.Eventually(t, "all have an end", func() bool {
			for _, v := range h.sessions(t, wk) {
				if v.End == "" {
					return false
				}
			}
			return true
		})
		if all := h.sessions(t, wk); len(all) != 3 || all[0].Kind != "attach" || !all[0].Terminal {
			t.Errorf("the record is %+v", all)
		}
	})
}

// TestTerminalOutlivesDaemons: what it shows while nobody lives is in the log, and
// the next daemons type at it.
func TestTerminalOutlivesDaemons(t *testing.T) {
	eachHostBut(t, []string{"embedded/root", "embedded/user"}, func(t *testing.T, h *host) { // they have no daemons
		// More than any terminal's buffer, after a line that is typed.
		wk := h.spawn(t, []string{"--tty"}, `echo up; read l; i=0; while [ $i -lt 20000 ]; do echo "line $i of many"; i=$((i+1)); done; echo "$l then"; read l; exit 4`)
		v := attach(t, h.service(t), wk, runtime.WindowSize{})
		v.typed(t, "typed\n")
		v.expect(t, "line 1 of")
		h.daemons.Runtimed.Kill(t)
		h.daemons.Helper.Kill(t)
		<-v.end
		log := h.daemons.Root + "/workers/" + wk + "/logs/stdout"
		rig.Eventually(t, "the output goes on", func() bool { return strings.Contains(read(t, log), "typed then") })
		h.daemons.Start(t)
		if all := h.sessions(t, wk); len(all) != 1 || all[0].End != "lost" {
			t.Errorf("the record is %+v", all)
		}
		v = attach(t, api.NewClient(h.daemons.API), wk, runtime.WindowSize{})
		v.typed(t, "\n")
		if end := <-v.end; end.ExitCode != 4 {
			t.Errorf("it ended %+v", end)
		}
	})
}

func TestNoTerminal(t *testing.T) {
	eachHost(t, func(t *testing.T, h *host) {
		wk := h.spawn(t, nil, waits)
		h.Run(t, "worker", "attach", wk).Refused(t, 125, policy.CodeWorkerNoTerminal)
	})
}
