package helper

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// The mounts of a sandbox are taken down behind its Worker's end: this process
// holds the mount namespace and the allocation's lock until the end has been
// reported, then closes both, in that order. Whoever wants the allocation next
// waits for that. If this process dies first, the kernel closes them.

// beginTeardown marks an allocation as still mounted, and returns what ends that.
// w.teardown is nothing, or the mount namespace and the allocation's lock. The
// caller holds l.mu.
func (l *Local) beginTeardown(w *worker) func() {
	id, files := w.allocation, w.teardown
	if len(files) == 0 || l.closed {
		return func() { closeAll(files) }
	}
	done := make(chan struct{})
	l.teardown[id] = done
	l.reclaim.Add(1)
	return func() {
		defer l.reclaim.Done()
		files[0].Close()
		// The next launch would clear what is left here, while somebody waits.
		for _, d := range w.workDirs {
			if err := l.clearMark(context.Background(), d); err != nil {
				l.log.Warn("an overlay's mark is left to the next launch", "allocation", id, "error", err)
			}
		}
		// Closing is not enough: a child of another launch that is just being cloned
		// has a copy of the descriptor for a moment, and the lock would be its.
		if err := unix.Flock(int(files[1].Fd()), unix.LOCK_UN); err != nil {
			l.log.Warn("a workspace's lock was not given back", "allocation", id, "error", err)
		}
		files[1].Close()
		l.mu.Lock()
		if l.teardown[id] == done {
			delete(l.teardown, id)
		}
		l.mu.Unlock()
		close(done)
	}
}

// awaitTeardown waits until an allocation's last sandbox is wholly gone, if its
// Worker has ended: a caller may know that from the pidfd before we do.
func (l *Local) awaitTeardown(ctx context.Context, id policy.AllocationID) error {
	for {
		wait := l.pendingTeardown(id)
		if wait == nil {
			return nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return policy.Errorf(policy.CodeCanceled, "helper.teardown", "the operation was canceled").Because(ctx.Err())
		}
	}
}

// pendingTeardown returns what closes when the next step of an allocation's
// teardown is done, nil if none is under way.
func (l *Local) pendingTeardown(id policy.AllocationID) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if done := l.teardown[id]; done != nil {
		return done
	}
	for _, w := range l.workers {
		if w.allocation == id && len(w.teardown) > 0 && hasEnded(w.pidfd) {
			return w.done
		}
	}
	return nil
}

// hasEnded polls a pidfd, pidfd_open(2). A closed one is of an ended process.
func hasEnded(pidfd *os.File) bool {
	p := []unix.PollFd{{Fd: int32(pidfd.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return n > 0 || p[0].Fd < 0 || (err != nil && !errors.Is(err, unix.EINTR))
}
