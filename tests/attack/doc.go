// Package attack is the hostile Worker: a table of things that it tries from
// inside, each of which must fail for a stated reason.
//
// The tries are those of the program in intruder/, which is committed into the
// repository that the Worker runs on. An attack that never succeeds anywhere
// proves nothing, so each is first shown to succeed, or to reach the kernel,
// in a weakened sandbox: root with its capabilities and without a filter, in
// namespaces of its own so that it does no harm.
//
// What the host does with a Worker's files afterwards (planted links, git
// configuration that runs programs) is attacked in the planted_ files.
package attack
