package helper

import (
	"context"
	"errors"
	"os"

	"yoi.dev/yoi-runtime/internal/cgroup"
	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/nsexec"
	"yoi.dev/yoi-runtime/policy"
)

// PauseRequest stops all processes of a live Worker, or lets them go on.
type PauseRequest struct {
	WorkerID policy.WorkerID `json:"worker_id"`
	// AllocationID is the Worker's, for the ledger.
	AllocationID policy.AllocationID `json:"allocation_id"`
	Resume       bool                `json:"resume,omitempty"`
}

// pauseRounds bounds how often a Worker that forks is looked through for processes
// that are not in the group yet. Each round stops all that it finds.
const pauseRounds = 64

// Pause freezes a Worker by its control group, or one made for that, which holds all
// of it but PID 1. To its processes nothing happens, unlike by SIGSTOP, which their
// parents see.
func (l *Local) Pause(ctx context.Context, req PauseRequest) error {
	const op = "helper.pause"
	if err := policy.CheckID("allocation", string(req.AllocationID)); err != nil {
		return err
	}
	init, err := l.initOf(ctx, req.WorkerID)
	if err != nil {
		return err
	}
	defer init.Close()
	l.pausing.Lock()
	defer l.pausing.Unlock()
	g, made, err := l.freezer(ctx, req, init)
	if err != nil || g == nil {
		return err
	}
	if req.Resume {
		if err := g.SetFrozen(false); err != nil {
			return policy.Errorf(policy.CodePauseUnavailable, op, "the worker cannot be let go on").Because(err)
		}
		return nil
	}
	err = g.SetFrozen(true)
	if err == nil && made {
		err = gather(ctx, init, g)
	}
	if err == nil {
		err = g.AwaitFrozen()
	}
	if err != nil {
		err = errors.Join(err, g.SetFrozen(false))
		if hasEnded(init) {
			return policy.Errorf(policy.CodeWorkerNotRunning, op, "the worker %s has ended", req.WorkerID)
		}
		return policy.Errorf(policy.CodePauseUnavailable, op, "the worker %s does not stop: it forks faster than it can be held, or sleeps in the kernel", req.WorkerID).Because(err).
			WithHint("Try again, or stop it with yoi worker stop.")
	}
	return nil
}

// freezer is the group that the Worker is frozen by; made says that it may not hold
// all of the Worker. Resuming a Worker that has none is nothing to do.
func (l *Local) freezer(ctx context.Context, req PauseRequest, init *os.File) (g *cgroup.Group, made bool, err error) {
	rs, err := l.workerRecords(ctx, req.WorkerID)
	if err != nil {
		return nil, false, err
	}
	scoped := false
	for _, r := range rs {
		scoped = scoped || r.Kind == ledger.KindProcess && r.Attrs[scopeAttr] != ""
		if r.Kind != ledger.KindCgroup {
			continue
		}
		if g := groupOf(r); g.CanFreeze() {
			return g, r.Attrs["freezer"] != "", nil
		}
	}
	if req.Resume {
		return nil, false, nil
	}
	unavailable := func(err error) error {
		return policy.Errorf(policy.CodePauseUnavailable, "helper.pause", "no control group can be made for the worker").Because(err)
	}
	pid := 0
	if scoped { // its scope may have limits, which are not to be left for good
		if pid, err = nsexec.PidOf(init); err != nil {
			return nil, false, notLooked("helper.pause", req.WorkerID, init, err)
		}
	}
	dirs, err := cgroup.PlanFreezer("yoi-"+string(req.WorkerID), pid)
	if err == nil && hasEnded(init) { // whose group it was, then
		err = os.ErrProcessDone
	}
	if err != nil {
		return nil, false, unavailable(err)
	}
	r := newResource(ledger.KindCgroup, req.AllocationID, "")
	r.Attrs = map[string]string{"worker": string(req.WorkerID), "freezer": "1"}
	for c, dir := range dirs {
		r.Attrs[groupAttr+c] = dir
	}
	if err := l.intend(ctx, req.AllocationID, r); err != nil {
		return nil, false, err
	}
	if g, err = cgroup.Make(dirs, cgroup.Limits{}); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, false, errors.Join(unavailable(err), l.release(req.AllocationID, r))
	}
	l.mu.Lock()
	if w := l.workers[req.WorkerID]; w != nil {
		w.mu.Lock()
		w.rs = append(w.rs, r)
		w.mu.Unlock()
	}
	l.mu.Unlock()
	return g, true, nil
}

// gather moves all of a Worker but PID 1 into a frozen group, where each stops.
func gather(ctx context.Context, init *os.File, g *cgroup.Group) error {
	for range pauseRounds {
		in, err := g.Has()
		if err != nil {
			return err
		}
		all, err := membersOf(ctx, init)
		if err != nil {
			return err
		}
		moved := 0
		for _, m := range all {
			if m.inside == 1 || in[m.host] {
				continue
			}
			// ESRCH: it has just ended, and nobody has its number before it is reaped.
			if err := g.Add(m.host); err == nil {
				moved++
			}
		}
		if moved == 0 {
			return nil
		}
	}
	return errors.New("new processes in every round")
}

// thaw lets a Worker's processes go on, so that they can be ended: a frozen process
// of v1 does not even die.
func (l *Local) thaw(ctx context.Context, id policy.WorkerID) {
	rs, err := l.workerRecords(ctx, id)
	if err != nil {
		return
	}
	for _, r := range rs {
		if r.Kind == ledger.KindCgroup {
			_ = groupOf(r).SetFrozen(false) // it may have no freezer
		}
	}
}
