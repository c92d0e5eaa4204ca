// Package cgroup gives one Worker a control group with limits: on cgroup v2, or
// on the v1 hierarchies that older and hybrid hosts have. Resource limits of a
// process (setrlimit(2)) bound each process for itself; only a control group
// bounds what a Worker uses together, and tells that it was ended for it.
//
// Groups are made below the caller's own, and only where it may: on v2 in a
// subtree that was delegated to it (Delegate=, systemd.resource-control(5)) or
// where nobody manages the tree, on v1 wherever it can write. Everything else is
// the service manager's, and taking it would break what the manager believes.
//
// A group is a directory that outlives its processes: whoever makes one writes it
// down first, and removes it. Nothing here is for the sandbox's inside, where the
// group is the root of a cgroup namespace and no cgroup file system is mounted.
//
// See cgroups(7), Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/.
package cgroup
