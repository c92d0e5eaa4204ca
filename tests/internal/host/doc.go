// Package host boots a machine with systemd(1) as its first process, on the running
// kernel: what an operator does with units, the journal and packages can only be
// tested where a service manager does it.
//
// A Host is a process in new pid, mount, network, ipc, uts and cgroup namespaces
// whose file system is this machine's own /usr, /etc and package database, below
// layers of its own on an ext4 of its own; so nothing has to be downloaded, and
// nothing that happens there reaches this machine. Its control groups are children
// of ours in every hierarchy that this kernel has. It dies with the test.
//
// It does not promise that this machine's services run in it (none does), nor a
// kernel of its own: sysctls that have no namespace, time and modules are shared.
package host
