package systemd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/api"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/host"
)

// traces are what a machine has of the service: files, users, groups, units, control
// groups and mounts of its name.
func traces(h *host.Host) string {
	return h.OK("sh", "-c", `find /usr /etc /var/lib /run -xdev -name 'yoi*' -not -path '/var/lib/systemd/*'
		getent passwd | grep yoi; getent group | grep yoi
		systemctl list-units --all --no-legend --plain 'yoi*'
		find /sys/fs/cgroup -type d -name '*yoi-w*'; cut -d' ' -f5 /proc/1/mountinfo | grep yoi; true`)
}

// TestLife is the service's life on a host, from nothing to nothing: it is installed and
// enabled, runs a Worker whose story the journal tells, is restarted and upgraded under
// load without losing a Worker or an exit code, and purged without a trace.
func TestLife(t *testing.T) {
	untouched := host.New(t)
	before := traces(untouched)
	untouched.Kill()

	h := installed(t) // and its sockets enabled, and a user and her repository made
	yoi(h, "repo", "add", "/srv/app").Want(0)

	ws := workspace(t, h)
	wk := spawned(t, h, ws, "sh", "-c", "cat README; exit 3")
	if w := ended(t, h, wk); w.Outcome == nil || w.Outcome.ExitCode == nil || *w.Outcome.ExitCode != 3 {
		t.Errorf("the first worker: %+v", w)
	}
	if got, want := told(t, h, wk), []string{"worker.started", "stdout hello", "worker.ended"}; !slices.Equal(got, want) {
		t.Errorf("the journal tells of it %q, not %q", got, want)
	}

	l := startLoad(t, h)
	pids := func() string { return h.MainPID("yoi-runtimed") + " " + h.MainPID("yoi-helper") }
	for _, change := range []struct {
		name string
		act  func()
	}{
		{"restart", func() { h.OK("systemctl", "restart", "yoi-helper", "yoi-runtimed") }},
		{"upgrade", func() { install(t, h, 1) }},
	} {
		l.more(10)
		old := pids()
		change.act()
		if now := pids(); now == old {
			t.Errorf("the %s left the old services running: %s", change.name, now)
		}
		l.more(10)
		// What an older version started is still a sandbox that can be entered.
		if out := yoi(h, "worker", "exec", string(l.residents[0].ID), "--", "cat", "README").Want(0).Stdout; out != "hello\n" {
			t.Errorf("after the %s a worker from before says %q", change.name, out)
		}
	}
	if v := h.OK("dpkg-query", "--show", "--showformat=${Version}", "yoi-runtime"); v != "1.1" {
		t.Errorf("the version is %s", v)
	}
	l.end()
	h.OK("userdel", "agent") // she is in the service's group
	h.OK("dpkg", "--purge", "yoi-runtime")
	if after := traces(h); after != before {
		t.Errorf("purging leaves\n%sof what was\n%s", after, before)
	}
	if r := h.Run("pgrep", "--list-full", "yoi"); r.Code == 0 {
		t.Errorf("purging leaves the processes %s", r.Stdout)
	}
}

// load is Workers that live on while the service is changed under them, and callers
// that start others all the time. Each has an exit code that no other has.
type load struct {
	t         *testing.T
	h         *host.Host
	c         *api.Client
	places    []policy.AllocationID
	residents []runtime.Worker
	callers   sync.WaitGroup
	stop      context.CancelFunc

	mu       sync.Mutex
	launched int
	refused  map[policy.Code]int // requests that were repeated
	grown    *sync.Cond
}

const (
	residents = 6
	callers   = 3
)

func startLoad(t *testing.T, h *host.Host) *load {
	t.Helper()
	l := &load{t: t, h: h, c: dial(t, h), refused: make(map[policy.Code]int)}
	l.grown = sync.NewCond(&l.mu)
	for range residents + callers {
		ws, err := create(t, l.c)
		if err != nil {
			t.Fatal(err)
		}
		l.places = append(l.places, ws)
	}
	for i := range residents {
		w, err := l.c.SpawnWorker(t.Context(), runtime.SpawnWorkerRequest{AllocationID: l.places[i],
			Command: []string{"sh", "-c", fmt.Sprintf("exec 2>/dev/null; trap 'exit %d' USR1; echo ready; while :; do sleep 0.05; done", 100+i)}})
		if err != nil {
			t.Fatal(err)
		}
		h.Eventually("a worker is ready", func() bool { return yoi(h, "worker", "logs", string(w.ID)).Stdout == "ready\n" })
		l.residents = append(l.residents, w)
	}
	ctx, stop := context.WithCancel(t.Context())
	l.stop = stop
	t.Cleanup(func() { stop(); l.callers.Wait() })
	for i := range callers {
		l.callers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				l.launch(i, n)
			}
		})
	}
	return l
}

// launch starts one Worker and waits for its end, and repeats what was refused because
// the service was away.
func (l *load) launch(caller, n int) {
	code := 1 + n%99
	req := runtime.SpawnWorkerRequest{AllocationID: l.places[residents+caller], IdempotencyKey: fmt.Sprintf("launch-%d-%d", caller, n),
		Command: []string{"sh", "-c", fmt.Sprintf("sleep 0.1; exit %d # %d %d", code, caller, n)}}
	var w runtime.Worker
	again := func(what string, act func() error) bool {
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
			err := act()
			if err == nil {
				return true
			}
			l.mu.Lock()
			l.refused[policy.AsDiagnostic(err).Code]++
			l.mu.Unlock()
			if !errors.Is(err, policy.CodeUnavailable) || time.Now().After(deadline) {
				l.t.Errorf("%s %s: %v", what, req.IdempotencyKey, err)
				return false
			}
		}
	}
	ok := again("launch", func() (err error) { w, err = l.c.SpawnWorker(l.t.Context(), req); return err }) &&
		again("wait", func() error {
			v, err := l.c.WaitWorker(l.t.Context(), w.ID)
			if err == nil {
				w = v
			}
			return err
		})
	if ok && (w.Outcome == nil || w.Outcome.ExitCode != code || w.Outcome.Lost || w.Outcome.Signal != "") {
		l.t.Errorf("%s: %s ended with %+v, not %d", req.IdempotencyKey, w.ID, w.Outcome, code)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.launched++
	l.grown.Broadcast()
}

// more waits for so many launches more.
func (l *load) more(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for until := l.launched + n; l.launched < until && !l.t.Failed(); {
		l.grown.Wait()
	}
}

// end ends the load, and looks that the service knows how each Worker ended: once, and
// with its own code.
func (l *load) end() {
	l.t.Helper()
	l.stop()
	l.callers.Wait()
	for i, w := range l.residents {
		if err := l.c.SignalWorker(l.t.Context(), w.ID, runtime.SignalRequest{Signal: "USR1"}); err != nil {
			l.t.Fatal(err)
		}
		v, err := l.c.WaitWorker(l.t.Context(), w.ID)
		if err != nil || v.Outcome == nil || v.Outcome.ExitCode != 100+i || v.Outcome.Lost {
			l.t.Errorf("the worker that lived on ended with %+v, not %d: %v", v.Outcome, 100+i, err)
		}
		s := slices.DeleteFunc(told(l.t, l.h, string(w.ID)), func(line string) bool { return strings.HasPrefix(line, "session.") })
		if !slices.Equal(s, []string{"worker.started", "stdout ready", "worker.ended"}) {
			l.t.Errorf("the journal tells of it %q", s)
		}
	}
	var known int
	for _, place := range l.places[residents:] {
		for after := ""; ; {
			list, err := l.c.ListWorkers(l.t.Context(), runtime.ListFilter{AllocationID: place, After: after})
			if err != nil {
				l.t.Fatal(err)
			}
			for _, w := range list.Items {
				if w.Status == runtime.WorkerFailed {
					continue // never started, and its caller was told
				}
				known++
				text, _, _ := strings.Cut(w.Command[2], " #")
				if w.Outcome == nil || fmt.Sprintf("sleep 0.1; exit %d", w.Outcome.ExitCode) != text {
					l.t.Errorf("%s is %s with %+v after %q", w.ID, w.Status, w.Outcome, w.Command)
				}
			}
			if after = list.Next; after == "" {
				break
			}
		}
	}
	if known != l.launched {
		l.t.Errorf("%d launches made %d workers", l.launched, known)
	}
	l.t.Logf("%d launches beside %d workers, repeated %v", l.launched, len(l.residents), l.refused)
	each(l.t, len(l.places), 1, func(i int) error { return remove(l.t, l.c, l.places[i]) })
	l.c.Close()
}
