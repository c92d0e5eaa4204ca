package runtime

import (
	"context"
	"time"

	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// Process is one process in a Worker's sandbox. Command is the Worker's own claim,
// made printable.
type Process struct {
	// PID and Parent are as the sandbox has them; a parent of 0 is outside.
	PID    int `json:"pid"`
	Parent int `json:"parent"`
	// State is a letter, proc_pid_stat(5).
	State       string        `json:"state"`
	StartedAt   time.Time     `json:"started_at"`
	CPUTime     time.Duration `json:"cpu_time_ns"`
	MemoryBytes int64         `json:"memory_bytes"` // resident
	Threads     int           `json:"threads"`
	Command     string        `json:"command"`
}

// ProcessList is what runs in a Worker's sandbox, by PID.
type ProcessList struct {
	Items []Process `json:"items"`
}

// WorkerProcesses lists what runs in a Worker's sandbox: the Worker's processes and
// those of sessions.
func (r *Runtime) WorkerProcesses(ctx context.Context, id policy.WorkerID) (ProcessList, error) {
	if err := r.running(ctx, id); err != nil {
		return ProcessList{}, err
	}
	ps, err := r.helper.Processes(ctx, id)
	out := ProcessList{Items: make([]Process, 0, len(ps))}
	for _, p := range ps {
		out.Items = append(out.Items, Process{
			PID: p.PID, Parent: p.Parent, State: p.State, StartedAt: p.StartedAt, CPUTime: p.CPU,
			MemoryBytes: p.Memory, Threads: p.Threads, Command: p.Command,
		})
	}
	return out, err
}

// PauseWorker stops all of a Worker's processes where they are. Its time limit goes on.
func (r *Runtime) PauseWorker(ctx context.Context, id policy.WorkerID) (Worker, error) {
	return r.setPaused(ctx, id, true)
}

// ResumeWorker lets a paused Worker go on; of another it is nothing to do.
func (r *Runtime) ResumeWorker(ctx context.Context, id policy.WorkerID) (Worker, error) {
	return r.setPaused(ctx, id, false)
}

func (r *Runtime) setPaused(ctx context.Context, id policy.WorkerID, on bool) (Worker, error) {
	w, err := r.workerRecord(ctx, id)
	if err != nil {
		return Worker{}, err
	}
	if w.Status != registry.WorkerRunning {
		return Worker{}, policy.Errorf(policy.CodeWorkerNotRunning, "runtime.pause", "the worker %s is %s", id, w.Status)
	}
	if err := r.helper.Pause(ctx, helper.PauseRequest{WorkerID: id, AllocationID: w.AllocationID, Resume: !on}); err != nil {
		return Worker{}, err
	}
	kind := map[bool]policy.EventKind{true: policy.EventWorkerPaused, false: policy.EventWorkerResumed}[on]
	changed := w.Paused != on
	if w, err = r.registry.UpdateWorker(ctx, id, func(v *registry.Worker) error {
		v.Paused = on
		return nil
	}); err != nil {
		return Worker{}, err
	}
	if changed {
		r.workerEvent(kind, w, nil)
	}
	return r.workerView(ctx, w, nil), nil
}
