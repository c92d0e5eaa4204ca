// Package attack is the hostile Worker: a table of things that it tries from
// inside, each of which must fail for a stated reason.
//
// The tries are those of the program in intruder/, which is committed into the
// repository that the Worker runs on. An attack that never succeeds anywhere
// proves nothing, so each must succeed once where what stops it is missing: in a
// sandbox of a yoi that is built to leave single protections out of an otherwise
// whole launch (the build tag attacktest, nsexec/weaken_on.go), or, where the
// user namespace alone refuses it, in a set-up with less.
//
// What the host does with a Worker's files afterwards (planted links, git
// configuration that runs programs) is attacked in the planted_ files; what a
// Worker can find out about the host in sweep_test.go; what it can use up in
// resources_test.go.
package attack
