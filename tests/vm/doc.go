// Package vm tests what depends on the kernel: what limits really do on cgroup v2, and
// what is really on the disk after a loss of power.
//
// Both are asked of a virtual machine (tests/internal/vm), because the machine that runs
// the tests may have control groups of v1 only, and must not lose its power. What a limit
// did is read from the kernel's own files, and only then compared with what the product
// says. One machine is for all cases, as its processor is emulated: a boot takes longer
// than most of them. Nothing here is measured in time.
package vm
