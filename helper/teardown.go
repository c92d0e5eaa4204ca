package helper

import (
	"context"
	"os"

	"yoi.dev/yoi-runtime/policy"
)

// The mounts of a sandbox are taken down behind its Worker's end: this process
// holds the mount namespace and the allocation's lock until the end has been
// reported, then closes both, in that order. Whoever wants the allocation next
// waits for that. If this process dies first, the kernel closes them.

// beginTeardown marks an allocation as still mounted. The caller holds l.mu.
func (l *Local) beginTeardown(id policy.AllocationID, files []*os.File) func() {
	if len(files) == 0 || l.closed {
		return func() { closeAll(files) }
	}
	done := make(chan struct{})
	l.teardown[id] = done
	l.reclaim.Add(1)
	return func() {
		defer l.reclaim.Done()
		closeAll(files)
		l.mu.Lock()
		if l.teardown[id] == done {
			delete(l.teardown, id)
		}
		l.mu.Unlock()
		close(done)
	}
}

// awaitTeardown waits until an allocation's last sandbox is wholly gone.
func (l *Local) awaitTeardown(ctx context.Context, id policy.AllocationID) error {
	l.mu.Lock()
	done := l.teardown[id]
	l.mu.Unlock()
	if done == nil {
		return nil
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return policy.Errorf(policy.CodeCanceled, "helper.teardown", "the operation was canceled").Because(ctx.Err())
	}
}
