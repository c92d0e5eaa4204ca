package nsexec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"syscall"
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
	// OOM: the kernel ended a process for memory. TasksDenied: it refused a fork because
	// of a limit of all processes together. Both are set here by Spec.Counters only, else
	// by whoever has made the control group.
	OOM, TasksDenied bool
	// Denied is never set here: whoever answers the filter's notifications counts
	// what it refused.
	Denied []Denial
	// Stopped is never set here either: the service manager was told to stop it.
	Stopped bool
	// Lost: PID 1 ended without an outcome record, because it was killed from
	// outside or its launcher died.
	Lost bool
	// Exceeded is never set here: whoever holds the workspace's quota says which
	// bound of it ended the Worker.
	Exceeded string
	// UserTime, SystemTime and MaxRSS are of the Worker's process and those of its
	// descendants that were waited for (getrusage(2)).
	UserTime   time.Duration
	SystemTime time.Duration
	MaxRSS     int64 // bytes, of the largest process
	StartedAt  time.Time
	EndedAt    time.Time
}

// Denial is a system call that was refused.
type Denial struct {
	Call    int32  // its number
	Errno   uint16 // the answer
	Program string // that made it, by its own word (comm)
	Count   uint64
}

// OutcomeSize is the size of the record that PID 1 writes at the start of the
// outcome file, little-endian:
//
//	 0  8 bytes   "YOIOUT1\n"
//	 8  int32     wait status of the Worker (wait(2))
//	12  uint32    flags, 1: timed out
//	16  2 int64   when PID 1 started, struct timespec
//	32  2 int64   when the Worker ended
//	48  144 bytes struct rusage
//	192 512 bytes memory.events, as the kernel has it; none without Spec.Counters
//	704 512 bytes pids.events
const OutcomeSize = recordSize + 2*counterSize

const (
	recordSize  = 192
	counterSize = 512
)

const outcomeMagic = "YOIOUT1\n"

// ReadOutcome reads the record at the start of r. ok is false when none was
// written (yet); err tells of a record that is not ours.
func ReadOutcome(r io.ReaderAt) (out Outcome, ok bool, err error) {
	var b [OutcomeSize]byte
	n, err := r.ReadAt(b[:], 0)
	if n < recordSize { // that of a Worker of an earlier version is no longer
		if err == io.EOF || err == nil {
			return Outcome{}, false, nil
		}
		return Outcome{}, false, err
	}
	return parseOutcome(b[:])
}

func parseOutcome(b []byte) (Outcome, bool, error) {
	le := binary.LittleEndian
	if le.Uint64(b) == 0 {
		return Outcome{}, false, nil
	}
	if string(b[:8]) != outcomeMagic {
		return Outcome{}, false, errors.New("not an outcome record")
	}
	i64 := func(off int) int64 { return int64(le.Uint64(b[off:])) }
	timeval := func(off int) time.Duration {
		return time.Duration(i64(off))*time.Second + time.Duration(i64(off+8))*time.Microsecond
	}
	ws := syscall.WaitStatus(le.Uint32(b[8:]))
	out := Outcome{
		TimedOut:   le.Uint32(b[12:])&1 != 0,
		StartedAt:  time.Unix(i64(16), i64(24)),
		EndedAt:    time.Unix(i64(32), i64(40)),
		UserTime:   timeval(48),
		SystemTime: timeval(64),
		MaxRSS:     i64(80) << 10,

		OOM:         counted(b[recordSize:recordSize+counterSize], "oom_kill"),
		TasksDenied: counted(b[recordSize+counterSize:], "max"),
	}
	if ws.Signaled() {
		out.Signal, out.CoreDump = int(ws.Signal()), ws.CoreDump()
		out.ExitCode = 128 + out.Signal
	} else {
		out.ExitCode = ws.ExitStatus()
	}
	return out, true, nil
}

// counted reports whether a flat keyed file (cgroup-v2.rst) has more than 0 for a key.
func counted(text []byte, key string) bool {
	for line := range bytes.Lines(text) {
		f := bytes.Fields(line)
		if len(f) == 2 && string(f[0]) == key {
			return string(f[1]) != "0"
		}
	}
	return false
}
