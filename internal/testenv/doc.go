// Package testenv gives tests real kernel objects (file systems on loop
// devices, ordinary users, git repositories) without leaving any behind.
//
// It exists because a test that mounts, forks or attaches a loop device can
// die at any line, and what it leaves then breaks the next run or the
// machine. So the test binary runs once more inside a private mount namespace
// (see Main), under a parent that outlives it: mounts vanish with the
// namespace, loop devices with their last mount, and the parent reaps every
// orphan, removes the files and fails the package if anything is left.
//
// It does not promise isolation from a hostile test: process ids, the network
// and cgroups are the machine's. Tests that need those private make their own
// namespaces. Nothing but tests may import it.
package testenv
