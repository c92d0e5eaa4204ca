// Package vm boots a virtual machine with a kernel of its own: Debian's, with cgroup v2
// and every controller, systemd(1) as its first process, and a disk that forgets what
// was not flushed when its power is lost.
//
// The machine that runs the tests may have control groups of v1, and what its kernel's
// caches have is not lost with a process. What limits really do, and what is really on
// the disk, can be asked of another kernel only. The processor is emulated, so that it
// is the same wherever the tests run; correct, and many times slower, so one machine is
// for many cases, and nothing there is measured.
//
// Its /usr and /etc are the host's own, read-only over 9p below a layer, with a package's
// tree on top; nothing is fetched but the kernel, by scripts/setup. What must outlive a
// loss of power is on the disk: /etc, /var, /home, /srv. It has no network, no udev(7),
// and dies with the test.
//
// For what takes a service manager but no kernel of its own, tests/internal/host is
// faster.
package vm
