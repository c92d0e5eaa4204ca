package rig

import (
	"testing"

	"yoi.dev/yoi-runtime/policy"
)

// Strategies says which strategies each file system has.
func Strategies(fs string) []policy.StrategyName {
	everywhere := []policy.StrategyName{policy.StrategyOverlay, policy.StrategyGitWorktree, policy.StrategyCopy}
	switch fs {
	case "xfs":
		return append(everywhere, policy.StrategyReflink)
	case "btrfs":
		return append(everywhere, policy.StrategyReflink, policy.StrategyBtrfsSnapshot)
	}
	return everywhere
}

// FileSystems are those that every strategy is tried on.
func FileSystems() []string { return []string{"ext4", "xfs", "btrfs"} }

// EachPlace runs body on each file system, as root and as an ordinary user.
func EachPlace(t *testing.T, body func(t *testing.T, p Place)) {
	t.Helper()
	for _, fs := range FileSystems() {
		for _, uid := range []int{0, Ordinary} {
			t.Run(Place{FS: fs, UID: uid}.String(), func(t *testing.T) {
				body(t, NewPlace(t, fs, uid))
			})
		}
	}
}
