// Package strategies holds those materialization strategies that are not package
// cow's own to the suite that cow's are held to (cow/cowtest), by way of the program
// that users have: git_worktree, git_sparse, external and remote_snapshot.
//
// What arrives is what a commit can say of the suite's tree: names, the executable
// bit, contents and links, each with the commit's time. Modes, attributes, hard links
// and holes that git does not record are the suite's with package cow, whose
// strategies start from trees that have them.
package strategies
