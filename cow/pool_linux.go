package cow

import (
	"errors"
	"sync"

	"yoi.dev/yoi-runtime/policy"
)

// pool hands directories to workers, the newest first: depth before breadth
// keeps few directories open and their inodes in the cache.
type pool struct {
	mu    sync.Mutex
	more  sync.Cond
	stack []*dirNode
	busy  int
	err   error // the first failure; nothing is handed out after it
}

func newPool(top *dirNode) *pool {
	p := &pool{stack: []*dirNode{top}}
	p.more.L = &p.mu
	return p
}

// next waits for a directory. It is nil when all work is done or has failed.
func (p *pool) next() *dirNode {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.stack) == 0 && p.busy > 0 && p.err == nil {
		p.more.Wait()
	}
	if len(p.stack) == 0 || p.err != nil {
		p.more.Broadcast()
		return nil
	}
	n := p.stack[len(p.stack)-1]
	p.stack = p.stack[:len(p.stack)-1]
	p.busy++
	return n
}

// done ends the directory n that next gave, and adds what was found in it. A
// failure puts n back, so that the stack leads to everything still open.
func (p *pool) done(n *dirNode, children []*dirNode, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy--
	if err != nil {
		// That the others were stopped must not hide what stopped them.
		if p.err == nil || errors.Is(p.err, policy.CodeCanceled) {
			p.err = err
		}
		p.stack = append(p.stack, n)
	}
	p.stack = append(p.stack, children...)
	if len(children) > 0 || p.busy == 0 || p.err != nil {
		p.more.Broadcast()
	}
}
