package nsexec

import (
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// NewNetwork makes a network namespace in which nothing but the loopback
// interface is up, for Spec.Network. It takes CAP_SYS_ADMIN, and the namespace
// belongs to the caller's user namespace: unlike one that the sandbox makes for
// itself, no capability of the sandbox's reaches it. It lives as long as a
// process is in it or the descriptor is open.
func NewNetwork() (*os.File, error) {
	const op = "nsexec.network"
	home, err := homeNetwork()
	if err != nil {
		return nil, policy.Errorf(policy.CodeNamespacesUnavailable, op, "this process's network namespace cannot be opened").Because(err)
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil, policy.Errorf(policy.CodeNamespacesUnavailable, op, "no network namespace can be made").Because(err)
	}
	defer leaveNetwork(home)
	if err := setLoopbackUp(); err != nil {
		return nil, policy.Errorf(policy.CodeLaunchFailed, op, "the loopback interface cannot be set up").Because(err)
	}
	f, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, policy.Errorf(policy.CodeNamespacesUnavailable, op, "the network namespace cannot be opened").Because(err)
	}
	return f, nil
}

// homeNetwork is the network namespace that this process started in.
var homeNetwork = sync.OnceValues(func() (*os.File, error) { return os.Open("/proc/self/ns/net") })

// setLoopbackUp is the launcher's side of script.loopback.
func setLoopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == unix.EAFNOSUPPORT {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}

// enterNetwork moves the calling thread into a network namespace until leave is
// called. A child that is cloned meanwhile is in it, too: it could not enter it
// by itself, since its own user namespace has no capability over that one.
func enterNetwork(network *os.File) (leave func(), err error) {
	if network == nil {
		return func() {}, nil
	}
	home, err := homeNetwork()
	if err != nil {
		return nil, failed("open", err)
	}
	runtime.LockOSThread()
	if err := unix.Setns(int(network.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil, failed("setns", err)
	}
	return func() { leaveNetwork(home) }, nil
}

// leaveNetwork brings the calling thread back home and unlocks it. A thread that
// stayed in a Worker's network would do other work there, unnoticed: there is no
// going on from that, and it cannot happen to who could enter it.
func leaveNetwork(home *os.File) {
	if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err != nil {
		panic("nsexec: a thread cannot leave a Worker's network namespace: " + err.Error())
	}
	runtime.UnlockOSThread()
}
