// Package results tests what is taken out of a workspace and made of it: status,
// commits, diffs, exports, collected refs, forks and snapshots, as each kind of
// caller does it and for each strategy.
package results
