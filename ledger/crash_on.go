//go:build crashtest

package ledger

import (
	"os"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// The crash walk of tests/crash builds the programs with this tag and starts
// them with YOI_CRASH_AT=n: at its n-th crash point a process kills its whole
// process group. A point lies before each record is added and behind each
// batch that has reached the disk, so the acts on both sides of every record
// are cut off once before and once after it.
var (
	crashAt, _  = strconv.ParseInt(os.Getenv("YOI_CRASH_AT"), 10, 64)
	crashPoints atomic.Int64
)

func crashPoint() {
	if crashAt > 0 && crashPoints.Add(1) == crashAt {
		_ = unix.Kill(0, unix.SIGKILL)
		select {} // nothing more is written while the signal is on its way
	}
}
