package helper

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/policy"
)

// Recover acts on what dead writers hold in the ledger. Processes come first,
// then directories, so that nothing is deleted under a live Worker. It touches
// only what the ledger names and what still is that thing.
func (l *Local) Recover(ctx context.Context) (RecoverResult, error) {
	var res RecoverResult
	unlock, err := ledger.RecoverLock(l.ledgerDir)
	if err != nil {
		return res, err
	}
	defer unlock()
	state, err := ledger.Scan(ctx, l.ledgerDir, l.roles...)
	if err != nil {
		return res, err
	}
	byOwner := l.leftovers(state)
	for owner, hs := range byOwner {
		l.recoverOwner(ctx, policy.AllocationID(owner), hs, &res)
	}
	return res, l.ledger.Sync(ctx)
}

// leftovers groups what is not in the hands of a live writer by allocation.
func (l *Local) leftovers(state *ledger.State) map[string][]ledger.Held {
	byOwner := make(map[string][]ledger.Held)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range state.Held {
		if !own(h.Resource) || h.Live {
			continue
		}
		if _, mine := l.held[policy.AllocationID(h.Resource.Owner)]; mine {
			continue // this process is at work on it
		}
		byOwner[h.Resource.Owner] = append(byOwner[h.Resource.Owner], h)
	}
	return byOwner
}

func (l *Local) recoverOwner(ctx context.Context, id policy.AllocationID, hs []ledger.Held, res *RecoverResult) {
	kept := false
	for _, h := range hs {
		kept = kept || h.Kept
	}
	if !kept && l.rescue(ctx, id, hs) {
		res.Rescued = append(res.Rescued, id)
		kept = true
	}
	if kept {
		l.settle(ctx, id, hs, res)
		return
	}
	res.Leftovers += len(hs)
	var rs []ledger.Resource
	for pass := range 2 {
		for _, h := range hs {
			if (h.Resource.Kind == ledger.KindProcess) != (pass == 0) {
				continue
			}
			if err := l.removeResource(ctx, h.Resource); err != nil {
				d := policy.AsDiagnostic(err)
				l.log.Warn("leftover not removed", "path", h.Resource.Path, "error", err)
				res.Diagnostics = append(res.Diagnostics, *d)
				if pass == 0 {
					return // its process lives: nothing under it may go
				}
				continue
			}
			rs = append(rs, h.Resource)
		}
	}
	l.clearSlice(ctx, id)
	err := l.syncParents(rs)
	if err == nil {
		err = l.release(id, rs...)
	}
	if err != nil {
		res.Diagnostics = append(res.Diagnostics, *policy.AsDiagnostic(err))
		return
	}
	res.Removed += len(rs)
}

// rescue decides whether a workspace that nobody asked to keep is kept all the
// same: its Worker was cut down by a crash and may have made commits that
// nobody has collected.
func (l *Local) rescue(ctx context.Context, id policy.AllocationID, hs []ledger.Held) bool {
	found := false
	for _, h := range hs {
		if h.Resource.Kind == ledger.KindDirectory && h.Resource.Path == rootdir.Workspace(id) && h.Resource.Attrs[attrFork] == "" {
			found = l.anyObjects(id)
		}
	}
	if !found {
		return false
	}
	// A Worker that is still live is of a writer that died; it ends with it.
	for _, h := range hs {
		if h.Resource.Kind == ledger.KindProcess {
			if err := l.endProcess(ctx, h.Resource); err != nil {
				return true
			}
		}
	}
	if err := l.ledger.Keep(ctx, string(id)); err != nil {
		l.log.Error("workspace with commits could not be marked as kept", "allocation", id, "error", err)
	}
	return true
}

// anyObjects looks at every repository directory of an allocation, both in
// root/ and in the overlay's upper layers.
func (l *Local) anyObjects(id policy.AllocationID) bool {
	for _, sub := range []struct{ dir, tail string }{{"root", ""}, {"mounts", "/upper"}} {
		d, err := l.root.OpenDir(rootdir.Workspace(id) + "/" + sub.dir)
		if err != nil {
			continue
		}
		names, _ := d.Readdirnames(64)
		d.Close()
		for _, n := range names {
			if !policy.ValidID(n) {
				continue
			}
			found, err := l.hasObjects(rootdir.Workspace(id) + "/" + sub.dir + "/" + n + sub.tail + "/.git/objects")
			if err != nil || found {
				return true
			}
		}
	}
	return false
}

// settle looks at the processes of a kept allocation: a live one is adopted, an
// ended one released. A transient Worker's directory goes with it.
func (l *Local) settle(ctx context.Context, id policy.AllocationID, hs []ledger.Held, res *RecoverResult) {
	var rs, gone []ledger.Resource
	for _, h := range hs {
		switch r := h.Resource; {
		case r.Kind == ledger.KindProcess, r.Kind == ledger.KindUIDRange, r.Kind == ledger.KindCgroup, r.Attrs["transient"] != "":
			rs = append(rs, r)
		default:
			res.Kept++
		}
	}
	for _, r := range rs {
		worker := policy.WorkerID(r.Attrs["worker"])
		live, err := l.lockHeld(worker)
		if err == nil && !live && (r.Kind == ledger.KindDirectory || r.Kind == ledger.KindCgroup || isProxy(r)) {
			err = l.removeResource(ctx, r)
		}
		if err != nil {
			res.Diagnostics = append(res.Diagnostics, *policy.AsDiagnostic(err))
			continue
		}
		if !live {
			if r.Kind == ledger.KindProcess {
				l.endScope(r)
			}
			gone = append(gone, r)
			continue
		}
		if isWorker(r) && l.worker(worker) == nil {
			if pidfd := l.openProcess(r); pidfd != nil {
				res.Adopted = append(res.Adopted, l.adopt(r, pidfd, workerResources(rs, worker)))
			}
		}
	}
	if len(gone) == 0 {
		return
	}
	res.Leftovers += len(gone)
	err := l.syncParents(gone)
	if err == nil {
		err = l.release(id, gone...)
	}
	if err != nil {
		res.Diagnostics = append(res.Diagnostics, *policy.AsDiagnostic(err))
		return
	}
	res.Removed += len(gone)
}

func workerResources(rs []ledger.Resource, id policy.WorkerID) []ledger.Resource {
	var out []ledger.Resource
	for _, r := range rs {
		if r.Attrs["worker"] == string(id) {
			out = append(out, r)
		}
	}
	return out
}

// endProcess kills the process of a ledger record and waits until its lock is
// free. A process that cannot be identified is never signalled.
func (l *Local) endProcess(ctx context.Context, r ledger.Resource) error {
	const op = "helper.end_process"
	id := policy.WorkerID(r.Attrs["worker"])
	deadline := time.Now().Add(10 * time.Second)
	for {
		live, err := l.locked(lockFile(r))
		if err != nil || !live {
			return err
		}
		if pidfd := l.openProcess(r); pidfd != nil {
			_ = unix.PidfdSendSignal(int(pidfd.Fd()), unix.SIGKILL, nil, 0) // ESRCH: it has just ended
			l.thaw(ctx, id)
			pidfd.Close()
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return policy.Errorf(policy.CodeCleanupIncomplete, op, "the worker %s does not end", id)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
