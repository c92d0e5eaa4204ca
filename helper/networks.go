package helper

import (
	"os"
	"sync"
	"time"

	"yoi.dev/yoi-runtime/nsexec"
)

// networks has network namespaces ready for privileged launches. To make one is
// most of what a sandbox's namespaces cost, and nothing of it depends on the
// Worker. Each is used once: a socket of one Worker that outlives it, in whoever
// was given it, must not be on the next one's loopback interface.
type networks struct {
	spare int // kept ready once there was a launch

	mu     sync.Mutex
	ready  []*os.File
	making int
	wg     sync.WaitGroup
	closed bool
}

// prepare has at least n namespaces ready soon. One that cannot be made now is
// made, or refused with its diagnostic, by the launch that needs it.
func (n *networks) prepare(want int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for !n.closed && len(n.ready)+n.making < want {
		n.making++
		n.wg.Go(n.makeOne)
	}
}

func (n *networks) makeOne() {
	f, err := nsexec.NewNetwork()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.making--
	switch {
	case err != nil:
	case n.closed:
		f.Close()
	default:
		n.ready = append(n.ready, f)
	}
}

// take returns a namespace for one Worker, the caller's to close.
func (n *networks) take() (*os.File, error) {
	n.mu.Lock()
	var f *os.File
	if last := len(n.ready) - 1; last >= 0 {
		f, n.ready = n.ready[last], n.ready[:last]
	}
	n.mu.Unlock()
	if n.spare > 0 {
		time.AfterFunc(refillDelay, func() { n.prepare(n.spare) })
	}
	if f != nil {
		return f, nil
	}
	return nsexec.NewNetwork()
}

// refillDelay lets the launch that took a namespace go first: making one takes
// the same locks of the kernel.
const refillDelay = 5 * time.Millisecond

func (n *networks) close() {
	n.mu.Lock()
	n.closed = true
	closeAll(n.ready)
	n.ready = nil
	n.mu.Unlock()
	n.wg.Wait()
}
