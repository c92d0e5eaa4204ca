package runtime

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// ParseSignal reads "TERM", "SIGTERM", "term" or a number from 1 to 64.
func ParseSignal(s string) (int, error) {
	if n, err := strconv.Atoi(s); err == nil {
		if n >= 1 && n <= 64 {
			return n, nil
		}
	} else {
		name := strings.ToUpper(s)
		if !strings.HasPrefix(name, "SIG") {
			name = "SIG" + name
		}
		if n := unix.SignalNum(name); n != 0 {
			return int(n), nil
		}
	}
	return 0, policy.Errorf(policy.CodeSignalInvalid, "runtime.signal", "%q is no signal", policy.Printable(s))
}

// SignalWorker passes a signal to a Worker's main process.
func (r *Runtime) SignalWorker(ctx context.Context, id policy.WorkerID, req SignalRequest) error {
	n, err := ParseSignal(req.Signal)
	if err != nil {
		return err
	}
	if err := r.running(ctx, id); err != nil {
		return err
	}
	return r.helper.Signal(ctx, id, n)
}

// WorkerUsage is what a Worker's processes use, together.
type WorkerUsage struct {
	WorkerID policy.WorkerID `json:"worker_id"`
	// CPUTime is since its start; a process that ends without being waited for takes
	// its share with it.
	CPUTime time.Duration `json:"cpu_time_ns"`
	// MemoryBytes are resident; what processes share counts for each of them.
	MemoryBytes int64     `json:"memory_bytes"`
	Processes   int       `json:"processes"`
	Tasks       int       `json:"tasks"` // with threads
	MeasuredAt  time.Time `json:"measured_at"`
}

// WorkerUsage measures a running Worker. One that has ended is worker_not_running.
func (r *Runtime) WorkerUsage(ctx context.Context, id policy.WorkerID) (WorkerUsage, error) {
	if err := r.running(ctx, id); err != nil {
		return WorkerUsage{}, err
	}
	at := r.now()
	u, err := r.helper.ProcessUsage(ctx, id)
	return WorkerUsage{WorkerID: id, CPUTime: u.CPU, MemoryBytes: u.Memory, Processes: u.Processes, Tasks: u.Tasks, MeasuredAt: at}, err
}

func (r *Runtime) running(ctx context.Context, id policy.WorkerID) error {
	w, err := r.workerRecord(ctx, id)
	if err != nil {
		return err
	}
	if w.Status != registry.WorkerRunning && w.Status != registry.WorkerStarting {
		return policy.Errorf(policy.CodeWorkerNotRunning, "runtime.signal", "the worker %s is %s", id, w.Status)
	}
	return nil
}

const (
	defaultGrace = 10 * time.Second
	// killGrace is for PID 1 to record a KILL before it is killed itself.
	killGrace = 2 * time.Second
	// deathGrace is for the kernel to end what was killed: one process that sleeps
	// uninterruptibly keeps the whole pid namespace.
	deathGrace = 5 * time.Second
)

// notThere says that the helper has no such process: it has ended, or its launch was cut
// off. The record tells which.
func notThere(err error) bool {
	return errors.Is(err, policy.CodeWorkerNotRunning) || errors.Is(err, policy.CodeWorkerUnknown)
}

// StopWorker ends a Worker: TERM, the grace, KILL.
func (r *Runtime) StopWorker(ctx context.Context, id policy.WorkerID, req StopRequest) (Worker, error) {
	if req.Grace < 0 || req.Grace > time.Hour {
		return Worker{}, policy.Errorf(policy.CodeBadRequest, "runtime.stop", "the grace is not between nothing and an hour")
	}
	if req.Grace == 0 {
		req.Grace = defaultGrace
	}
	err := r.running(ctx, id)
	if errors.Is(err, policy.CodeWorkerNotRunning) {
		return r.GetWorker(ctx, id) // stopping twice is no error
	}
	if err != nil {
		return Worker{}, err
	}
	if w, err := r.workerRecord(ctx, id); err == nil && w.Paused {
		// What is paused can neither answer nor, on v1, even die.
		if _, err := r.setPaused(ctx, id, false); err != nil && !errors.Is(err, policy.CodeWorkerNotRunning) {
			return Worker{}, err
		}
	}
	if err := r.helper.Signal(ctx, id, int(unix.SIGTERM)); err != nil && !notThere(err) {
		return Worker{}, err
	}
	grace, cancel := context.WithTimeout(ctx, req.Grace)
	w, err := r.WaitWorker(grace, id)
	cancel()
	if err == nil || ctx.Err() != nil {
		return w, err
	}
	// KILL by way of PID 1, which then records the end; it ends the rest itself.
	if err := r.helper.Signal(ctx, id, int(unix.SIGKILL)); err != nil && !notThere(err) {
		return Worker{}, err
	}
	last, cancel := context.WithTimeout(ctx, killGrace)
	w, err = r.WaitWorker(last, id)
	cancel()
	if err == nil || ctx.Err() != nil {
		return w, err
	}
	if err := r.helper.Kill(ctx, id); err != nil && !notThere(err) {
		return Worker{}, err
	}
	dying, cancel := context.WithTimeout(ctx, deathGrace)
	w, err = r.WaitWorker(dying, id)
	cancel()
	if err == nil || ctx.Err() != nil || !errors.Is(dying.Err(), context.DeadlineExceeded) {
		return w, err
	}
	// It may have ended long ago, and its record waits for a look at what it did.
	look, cancel := context.WithTimeout(ctx, time.Second)
	_, lerr := r.helper.Wait(look, id)
	cancel()
	if lerr == nil {
		return r.WaitWorker(ctx, id)
	}
	return Worker{}, policy.Errorf(policy.CodeWorkerUnkillable, "runtime.stop", "the worker %s was killed and does not end", id).Because(err)
}

// WaitWorker returns once a Worker has ended and its outcome is recorded.
func (r *Runtime) WaitWorker(ctx context.Context, id policy.WorkerID) (Worker, error) {
	const longest = 100 * time.Millisecond
	first := true
	for while := 2 * time.Millisecond; ; while, first = min(2*while, longest), false {
		followed := r.follows(id) // before its record could have said that it has ended
		w, err := r.workerRecord(ctx, id)
		if err != nil {
			return Worker{}, err
		}
		if w.Status != registry.WorkerRunning && w.Status != registry.WorkerStarting {
			return r.workerView(ctx, w, nil), nil
		}
		if first && !r.daemon {
			// Whoever started it may be gone. A daemon has adopted it at its start; this
			// process does now, and so goes on with what the other did, measuring say.
			if _, err := r.Recover(ctx); err != nil && !errors.Is(err, policy.CodeLedgerBusy) {
				return Worker{}, err
			}
		}
		_, err = r.helper.Wait(ctx, id)
		begun := !errors.Is(err, policy.CodeWorkerUnknown) || !followed // else its launch was cut off
		if err != nil && begun && !errors.Is(err, policy.CodeUnavailable) {
			return Worker{}, err
		}
		if err := r.awaitRecord(ctx, id, while); err != nil {
			return Worker{}, err
		}
	}
}

// logPoll is how often a followed log file is looked at.
const logPoll = 100 * time.Millisecond

// WorkerLogs copies a Worker's output.
func (r *Runtime) WorkerLogs(ctx context.Context, id policy.WorkerID, req LogsRequest, w io.Writer) (int64, error) {
	const op = "runtime.logs"
	switch req.Stream {
	case "":
		req.Stream = "stdout"
	case "stdout", "stderr":
	default:
		return 0, policy.Errorf(policy.CodeBadRequest, op, "%q is no log stream", policy.Printable(req.Stream)).WithHint("Use stdout or stderr.")
	}
	if req.Offset < 0 || req.Limit < 0 {
		return 0, policy.Errorf(policy.CodeBadRequest, op, "the offset or the limit is negative")
	}
	if _, err := r.workerRecord(ctx, id); err != nil {
		return 0, err
	}
	f, err := r.root.OpenFile(rootdir.Worker(id)+"/logs/"+req.Stream, unix.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // removed with its workspace, or never had any
	}
	if err != nil {
		return 0, policy.Errorf(policy.CodeInternal, op, "the log of %s cannot be opened", id).Because(err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return 0, policy.Errorf(policy.CodeInternal, op, "the log of %s cannot be looked at", id).Because(err)
	}
	// An offset past the end is the end, so that a caller learns where that is.
	req.Offset = min(req.Offset, fi.Size())
	at, left := req.Offset, req.Limit
	if left == 0 {
		left = 1 << 62
	}
	for {
		ended := true
		if req.Follow {
			rec, err := r.workerRecord(ctx, id)
			if err != nil {
				return at, err
			}
			ended = rec.Status != registry.WorkerRunning && rec.Status != registry.WorkerStarting
		}
		next, n, err := copyLog(w, f, at, left)
		at, left = next, left-n
		if err != nil || ended || left == 0 {
			return at, err
		}
		select {
		case <-time.After(logPoll):
		case <-ctx.Done():
			return at, nil
		}
	}
}
