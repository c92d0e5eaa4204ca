package ledger

import (
	"os"
	"time"
)

// DefaultSegmentSize is where a segment is closed and the next one begun.
const DefaultSegmentSize = 4 << 20

// Roles of writers. In the daemon set-up the two have different uids.
const (
	RoleRuntime = "runtime"
	RoleHelper  = "helper"
)

// Options says where and as what to write.
type Options struct {
	// Dir is <root>/ledger, from OpenDir. It is not kept and may be closed.
	Dir *os.File
	// Role is the writer's: a stream is claimed below ledger/<role>/.
	Role string
	// Clock is time.Now unless set.
	Clock func() time.Time
	// SegmentSize is DefaultSegmentSize unless set; at least 4 KiB.
	SegmentSize int64

	disk disk // replaced by tests that inject faults
}
