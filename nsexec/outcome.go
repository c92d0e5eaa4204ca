package nsexec

import (
	"io"
	"time"
)

// Outcome is how a Worker ended.
type Outcome struct {
	// ExitCode is the Worker's, or 128+Signal when a signal ended it.
	ExitCode int
	Signal   int
	CoreDump bool
	// TimedOut: the wall clock ran out and PID 1 killed everything.
	TimedOut bool
	// Lost: PID 1 ended without an outcome record (it was killed from outside).
	Lost       bool
	UserTime   time.Duration
	SystemTime time.Duration
	MaxRSS     int64 // bytes
	StartedAt  time.Time
	EndedAt    time.Time
}

// OutcomeSize is the size of the record that PID 1 writes.
const OutcomeSize = 128

// ReadOutcome reads the record at the start of r. ok is false when none was
// written (yet); err tells of a record that is not ours.
func ReadOutcome(r io.ReaderAt) (out Outcome, ok bool, err error) {
	var b [OutcomeSize]byte
	n, err := r.ReadAt(b[:], 0)
	if n < len(b) {
		if err == io.EOF || err == nil {
			return Outcome{}, false, nil
		}
		return Outcome{}, false, err
	}
	return parseOutcome(b[:])
}
