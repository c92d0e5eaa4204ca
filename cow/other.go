//go:build !linux

package cow

import (
	"context"
	"os"
	"time"

	"yoi.dev/yoi-runtime/policy"
)

// Statx mirrors the fields of Linux' struct statx that a git index records.
type Statx struct {
	Mode         uint16
	Uid, Gid     uint32
	Ino, Size    uint64
	Mtime, Ctime struct {
		Sec  int64
		Nsec uint32
	}
}

func unsupported(op string) error {
	return policy.Errorf(policy.CodeUnsupported, op, "copy-on-write workspaces are possible on Linux only")
}

// Cached has nothing to return.
func Cached(*os.File) *Table { return nil }

// Probe reports that this platform has no strategies.
func Probe(context.Context, *os.File, *os.File) (*Table, error) {
	return &Table{FileSystem: "unknown", ProbedAt: time.Now()}, unsupported("cow.probe")
}

// MakeTop is not possible on this platform.
func MakeTop(*os.File, string) error { return unsupported("cow.make_top") }

// SealTop is not possible on this platform.
func SealTop(*os.File, string) error { return unsupported("cow.seal_top") }

// RemoveTop is not possible on this platform.
func RemoveTop(*os.File, string) error { return unsupported("cow.remove_top") }

// RemoveTree is not possible on this platform.
func RemoveTree(context.Context, *os.File, string, RemoveOptions) error {
	return unsupported("cow.remove_tree")
}

// Device has no name to give.
func Device(*os.File) string { return "unknown" }

// ReadCosts has nothing to return.
func ReadCosts(*os.File) Costs { return nil }

// Record remembers nothing.
func Record(*os.File, Sample) {}

// Same is not possible on this platform.
func Same(context.Context, *os.File, *os.File, func(string, *Statx)) (Result, error) {
	return Result{}, unsupported("cow.same")
}

// SubvolumeUUID is not possible on this platform.
func SubvolumeUUID(*os.File) (string, error) { return "", unsupported("cow.subvolume_uuid") }

// Usage is what trees occupy.
type Usage struct {
	Referenced, Exclusive, Inodes int64
	Partial                       bool
}

// Meter adds nothing up on this platform.
type Meter struct{}

// NewMeter returns an empty account.
func NewMeter() *Meter { return &Meter{} }

// Usage is empty.
func (*Meter) Usage() Usage { return Usage{} }

// Add is not possible on this platform.
func (*Meter) Add(context.Context, *os.File, string) error { return unsupported("cow.usage") }

// LinkMissing is not possible on this platform.
func LinkMissing(context.Context, *os.File, *os.File, *os.File) error {
	return unsupported("cow.link_missing")
}

// QuotaMode knows none on this platform.
func QuotaMode(*os.File) string { return "" }

// LimitSubvolume is not possible on this platform.
func LimitSubvolume(*os.File, int64) error { return unsupported("cow.limit") }

// ProjectUsage is what the inodes of a project occupy.
type ProjectUsage struct{ Bytes, Inodes int64 }

// The range of project ids.
const ProjectIDs, ProjectIDCount = 0x59000000, 1 << 20

// ProjectQuota knows none on this platform.
func ProjectQuota(*os.File) bool { return false }

// ProjectCountsShared counts nothing on this platform.
func ProjectCountsShared(*os.File) bool { return false }

// UsageOfProject is not possible on this platform.
func UsageOfProject(*os.File, uint32) (ProjectUsage, error) {
	return ProjectUsage{}, unsupported("cow.project")
}

// FreeProject is not possible on this platform.
func FreeProject(*os.File, uint32) (uint32, error) { return 0, unsupported("cow.project") }

// LimitProject is not possible on this platform.
func LimitProject(*os.File, uint32, int64, int64) error { return unsupported("cow.project") }

// SetProject is not possible on this platform.
func SetProject(*os.File, uint32) error { return unsupported("cow.project") }
