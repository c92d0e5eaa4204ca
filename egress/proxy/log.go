package proxy

import (
	"encoding/json"
	"os"
	"sync"
	"time"

	"yoi.dev/yoi-runtime/egress"
)

// logWriter appends decisions as lines of JSON, up to a bound.
type logWriter struct {
	mu   sync.Mutex
	f    *os.File
	left int
}

func newLog(f *os.File) *logWriter { return &logWriter{f: f, left: egress.MaxLog} }

// write reports whether there was room.
func (l *logWriter) write(d egress.Decision) bool {
	d.Time = time.Now().UTC()
	if len(d.Host) > 300 {
		d.Host = d.Host[:300]
	}
	b, err := json.Marshal(d)
	if err != nil {
		return false
	}
	b = append(b, '\n')
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(b) > l.left {
		l.left = 0 // no gaps: what is missing is the end
		return false
	}
	l.left -= len(b)
	_, err = l.f.Write(b)
	return err == nil
}
