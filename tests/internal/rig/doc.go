// Package rig runs the built programs the way their users do, and looks at
// what they leave behind.
//
// The suites below tests/ share it because each of them needs the same three
// things: programs built with the Makefile's own flags, a Runtime root on a
// given file system that belongs to a given user, and a check that can tell a
// clean Runtime root and machine from one with a leftover. What a suite proves
// stands in the suite.
//
// It looks at Runtime roots from outside, by the layout that ARCHITECTURE.md
// promises and the ledger's own reader, never through package runtime: a bug
// there must not hide itself. Only tests may import it.
package rig
