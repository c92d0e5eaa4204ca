package cow

import (
	"context"
	"log/slog"
	"os"

	"yoi.dev/yoi-runtime/policy"
)

// Strategy is one way to make an Execution Workspace out of a pristine tree.
type Strategy interface {
	Name() policy.StrategyName
	// Probe tries the strategy out inside an empty directory of its own.
	Probe(ctx context.Context, d ProbeDir) Support
	// Materialize makes the target. On an error the target may be half made;
	// RemoveTree removes it.
	Materialize(ctx context.Context, r Request) (Result, error)
}

// Request says what to materialize and where. Descriptors stay the caller's.
type Request struct {
	// Source is the pristine tree's top directory, open for reading.
	Source *os.File
	// TargetParent is the directory in which the target is made, open for reading.
	TargetParent *os.File
	// TargetName is the target's name, one path component. It must not exist.
	TargetName string
	// Layers is where the overlay strategy makes "upper" and "work" (the
	// allocation's mounts/<repository-id>). Other strategies ignore it.
	Layers *os.File
	// Log receives what only an operator wants to know. nil is silent.
	Log *slog.Logger
	// Warn is called for every warning as it happens, never concurrently. The
	// same warnings are in Result.Warnings.
	Warn func(policy.Diagnostic)
	// OnFile is called with the final statx of every regular file and symbolic
	// link that was made, by its slash-separated path below the target, so that
	// a git index can be patched without a second walk. It is called from
	// parallel workers at once and must not keep st. Strategies that keep inode
	// number and ctime (btrfs_snapshot, overlay) never call it.
	OnFile func(rel string, st *Statx)
	// OnCopy is OnFile with the statx that the source had before it was copied, but
	// is not called for files with several names.
	OnCopy func(rel string, from, to *Statx)
	// Busy says that others may be writing to the source: OnCopy is then called only
	// for files that stood still from before they were copied until after.
	Busy bool
	// Layer says that the source is an overlay's upper directory: its whiteouts
	// (overlayfs.rst, "whiteouts and opaque directories") are made, not left out, and
	// opaque directories stay so.
	Layer bool
	// Parallel is the number of workers; 0 lets the strategy choose for the
	// file system.
	Parallel int
}

// Result says what was made. Counters are 0 for strategies that do not look
// at single files.
type Result struct {
	Strategy policy.StrategyName `json:"strategy"`
	// Overlay says that the target is an empty mount point and that the Worker's
	// mount namespace has to mount source, upper and work onto it.
	Overlay     bool  `json:"overlay,omitempty"`
	Files       int64 `json:"files,omitempty"`       // regular files, each name of a hard link counted
	Directories int64 `json:"directories,omitempty"` // without the top
	Symlinks    int64 `json:"symlinks,omitempty"`
	Bytes       int64 `json:"bytes,omitempty"`  // sum of the files' sizes, a hard link's once
	Cloned      int64 `json:"cloned,omitempty"` // files that share their blocks
	Copied      int64 `json:"copied,omitempty"` // files that were copied instead
	// Warnings holds the first maxWarnings and a last one that counts the rest.
	Warnings []policy.Diagnostic `json:"warnings,omitempty"`
}

// Support is a probe's answer.
type Support struct {
	OK bool `json:"ok"`
	// Reason is one sentence for people: why it works or does not.
	Reason string `json:"reason"`
	// Costly says that it works, but that auto takes it only for want of another.
	Costly bool `json:"costly,omitempty"`
	// Fix is what an operator can do about it; empty when there is
	// nothing to mend.
	Fix string `json:"fix,omitempty"`
}

// ProbeDir is an empty directory on the file system in question.
type ProbeDir struct {
	Dir *os.File
	// FileSystem is the type's name: "btrfs", "xfs", "ext4", "tmpfs" …
	FileSystem string
}
