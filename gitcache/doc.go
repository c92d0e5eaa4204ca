// Package gitcache keeps one bare mirror per registered repository, resolves
// selectors to RepositoryPoints, and builds pristine checked-out trees that the
// copy-on-write strategies start from.
//
// It exists because a full clone per Worker is slow and big, a linked worktree
// breaks git inside a sandbox, and both lose commits when upstream is
// force-pushed. A mirror is fetched with +refs/heads/*:refs/heads/* and
// +refs/tags/*:refs/tags/* and --prune. It is not +refs/*:refs/*: under that
// refspec prune deletes every ref that the remote does not have, and with them
// the pins (refs/yoi/pins/<holder>/<commit>) which keep a commit alive for as
// long as an allocation stands on it.
//
// The source repository is hostile data. git never runs under the source's own
// configuration: it is shown a private git directory (a view) that borrows
// only the source's refs, index and objects, with a configuration of ours. So
// no hook, filter, fsmonitor, textconv or ssh command of the source can run.
//
// # What it does not promise
//
//   - Damage is looked for by stat: a file that was lost, cut short or written
//     again is noticed at the next use, and rebuilt. Bit rot that leaves size and
//     modification time as they were is found when git reads it, not before, and
//     in the checked-out files of a pristine tree not at all.
//   - Objects of a source's alternates are read wherever they lie.
//   - Submodules are left as empty directories and Git LFS pointers as pointer
//     files; Pristine says so with a warning.
//   - It never runs git in a tree that a Worker could write, and must not be
//     made to: that belongs inside the Worker's sandbox.
package gitcache
