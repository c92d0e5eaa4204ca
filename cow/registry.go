package cow

import "yoi.dev/yoi-runtime/policy"

// Strategies returns every strategy of this platform, in the order of the
// documentation.
func Strategies() []Strategy {
	return append(platformStrategies(),
		elsewhere{policy.StrategyGitWorktree, "git checks out a detached linked worktree on any file system"},
		elsewhere{policy.StrategyGitSparse, "git checks out the directories of a scope, on any file system; it needs a scope"},
		elsewhere{policy.StrategyRemoteSnapshot, "an archive of a snapshot store fills the cache, and auto goes on from there"},
		elsewhere{policy.StrategyExternal, "the operator's command makes the tree, confined, and what it made is compared with the cache's"},
		elsewhere{policy.StrategyDirect, "the source directory itself is mounted, for debugging only"},
	)
}

// ByName returns the strategy of that name, nil for auto and unknown names.
func ByName(name policy.StrategyName) Strategy {
	for _, s := range Strategies() {
		if s.Name() == name {
			return s
		}
	}
	return nil
}
