package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"
)

// SelectSnapshot selects an archive of a snapshot store by its digest; the
// repository's source must be such a store.
const SelectSnapshot SelectorKind = "snapshot"

// StrategyRemoteSnapshot fills the cache from an archive of a snapshot store;
// the workspace is then made of the cache's tree as auto would.
const StrategyRemoteSnapshot StrategyName = "remote_snapshot"

const digestPrefix = "sha256:"

// ValidDigest reports whether s is "sha256:" and 64 lower-case hexadecimal digits.
func ValidDigest(s string) bool {
	hex, ok := strings.CutPrefix(s, digestPrefix)
	return ok && isHex(hex, 64, 64)
}

// SnapshotDigest names an archive by its content: "sha256:" and 64 digits.
type SnapshotDigest string

// FormatDigest is the text form of a SHA-256 sum.
func FormatDigest(sum []byte) string { return digestPrefix + hex.EncodeToString(sum) }

// TreeKey is the cache's name of the point's pristine tree: the tree id, with
// "." and 16 digits behind for a scope, or for a workspace's archive, whose
// files are not the tree's.
func (p RepositoryPoint) TreeKey() string {
	switch {
	case p.Snapshot != "":
		h := sha256.Sum256([]byte("snapshot\x00" + p.Snapshot))
		return p.TreeID + "." + hex.EncodeToString(h[:8])
	case len(p.Scope) > 0:
		return p.TreeID + "." + p.Scope.Key()
	}
	return p.TreeID
}

// SnapshotLimits bound what is unpacked from an archive, which may come from
// anybody who can write to its store. Zero takes the default.
type SnapshotLimits struct {
	// MaxBytes bounds the archive unpacked, and with it each of its parts.
	MaxBytes int64 `json:"max_bytes,omitempty" toml:"max_bytes"`
	// MaxFiles bounds the files, symbolic links and directories of the tree, and
	// the git objects.
	MaxFiles int64 `json:"max_files,omitempty" toml:"max_files"`
	// MaxRatio bounds bytes unpacked for each byte received, beyond the first 64 MiB.
	MaxRatio int64 `json:"max_ratio,omitempty" toml:"max_ratio"`
	// StallTimeout is how long a store may send or take nothing.
	StallTimeout time.Duration `json:"stall_timeout,omitempty" toml:"-"`
}

// Normalize fills in the defaults.
func (l SnapshotLimits) Normalize() SnapshotLimits {
	if l.MaxBytes == 0 {
		l.MaxBytes = 64 << 30
	}
	if l.MaxFiles == 0 {
		l.MaxFiles = 5_000_000
	}
	if l.MaxRatio == 0 {
		l.MaxRatio = 1000
	}
	if l.StallTimeout == 0 {
		l.StallTimeout = 30 * time.Second
	}
	return l
}

// Validate refuses what bounds nothing.
func (l SnapshotLimits) Validate() error {
	if l.MaxBytes < 0 || l.MaxFiles < 0 || l.MaxRatio < 0 || l.StallTimeout < 0 {
		return Errorf(CodePolicyInvalid, "policy.snapshots", "a limit of snapshots is negative")
	}
	return nil
}

// Touches reports whether the scope (cone mode) has files in or below dir.
func (s Scope) Touches(dir string) bool {
	if len(s) == 0 {
		return true
	}
	for _, d := range s {
		if d == dir || strings.HasPrefix(dir, d+"/") || strings.HasPrefix(d, dir+"/") {
			return true
		}
	}
	return false
}

// Holds reports whether the scope has the file: it is below one of the
// directories, or directly in one of their ancestors.
func (s Scope) Holds(file string) bool {
	i := strings.LastIndexByte(file, '/')
	return i < 0 || s.Touches(file[:i])
}
