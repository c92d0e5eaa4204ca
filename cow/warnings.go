package cow

import (
	"fmt"
	"sync"

	"yoi.dev/yoi-runtime/policy"
)

// maxWarnings bounds what a tree full of FIFOs can put into a document.
const maxWarnings = 100

type warnings struct {
	mu    sync.Mutex
	first []policy.Diagnostic
	rest  int
}

func (ws *warnings) add(r *Request, d policy.Diagnostic) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.first) >= maxWarnings {
		ws.rest++
		return
	}
	ws.first = append(ws.first, d)
	if r.Warn != nil {
		r.Warn(d)
	}
}

func (ws *warnings) list() []policy.Diagnostic {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.rest == 0 {
		return ws.first
	}
	last := ws.first[len(ws.first)-1]
	return append(ws.first, *policy.Warnf(last.Code, last.Op, "%d more warnings were not kept", ws.rest).
		With("count", fmt.Sprint(ws.rest)))
}
