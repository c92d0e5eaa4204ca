// Command bench measures the product beside the tools that its users would
// otherwise take: bubblewrap, runc, git worktree, cp, rm and bbolt.
//
// A time alone says little: the same machine is half as fast an hour later. So
// every number is a ratio of two medians from one run, the two sides take turns
// (ABAB…) so that a drift hits both, and each side gets what flatters it: the
// peers run without a seccomp filter and write nothing to the disk for the sake
// of a crash, while ours runs as the daemons run it, ledger and all.
//
//	go run ./tests/bench                 the whole table
//	go run ./tests/bench --rows 1,4      some of it
//	go run ./tests/bench --quick --json  fewer runs, for a program to read
//
// It needs root, and bubblewrap, runc, xfsprogs and btrfs-progs, which `make
// bench` installs. File systems are loop-mounted images on the machine's disk
// in a mount namespace of the run's own; all of it is gone afterwards, after a
// ctrl-C too.
//
// It does not promise that the numbers mean anything on a machine that is busy
// with something else.
package main
