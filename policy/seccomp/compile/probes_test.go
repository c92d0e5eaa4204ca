//go:build cgo

package compile

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

// probe is a call made with arguments that do no harm where nothing stops it:
// the control run makes it as root and without a filter.
type probe struct {
	nr   uintptr
	args [4]uintptr
	want unix.Errno // under default
}

const (
	bad  = ^uintptr(0) // an address, a descriptor, an operation that does not exist
	high = uintptr(1) << 32
)

var probes = map[string]probe{
	"mount":             {unix.SYS_MOUNT, [4]uintptr{bad, bad, bad}, unix.EPERM},
	"umount2":           {unix.SYS_UMOUNT2, [4]uintptr{bad, 0}, unix.EPERM},
	"pivot_root":        {unix.SYS_PIVOT_ROOT, [4]uintptr{bad, bad}, unix.EPERM},
	"chroot":            {unix.SYS_CHROOT, [4]uintptr{bad}, unix.EPERM},
	"move_mount":        {unix.SYS_MOVE_MOUNT, [4]uintptr{bad, bad, bad, bad}, unix.EPERM},
	"open_tree":         {unix.SYS_OPEN_TREE, [4]uintptr{bad, bad, 0}, unix.EPERM},
	"fsopen":            {unix.SYS_FSOPEN, [4]uintptr{bad, 0}, unix.EPERM},
	"fsmount":           {unix.SYS_FSMOUNT, [4]uintptr{bad, 0, 0}, unix.EPERM},
	"mount_setattr":     {unix.SYS_MOUNT_SETATTR, [4]uintptr{bad, bad, 0, 0}, unix.EPERM},
	"setns":             {unix.SYS_SETNS, [4]uintptr{bad, 0}, unix.EPERM},
	"unshare user":      {unix.SYS_UNSHARE, [4]uintptr{unix.CLONE_NEWUTS}, unix.EPERM},
	"unshare high bits": {unix.SYS_UNSHARE, [4]uintptr{high | unix.CLONE_NEWUTS}, unix.EPERM},
	// CLONE_NEWUTS with CLONE_SIGHAND but not CLONE_VM: EINVAL where it is allowed.
	"clone":             {unix.SYS_CLONE, [4]uintptr{unix.CLONE_NEWUTS | unix.CLONE_SIGHAND}, unix.EPERM},
	"clone3":            {unix.SYS_CLONE3, [4]uintptr{bad, 64}, unix.ENOSYS},
	"io_uring_setup":    {unix.SYS_IO_URING_SETUP, [4]uintptr{1, bad}, unix.ENOSYS},
	"ptrace":            {unix.SYS_PTRACE, [4]uintptr{0x7fff, 0}, unix.EPERM},
	"process_vm_readv":  {unix.SYS_PROCESS_VM_READV, [4]uintptr{bad, 0, 0, 0}, unix.EPERM},
	"pidfd_getfd":       {unix.SYS_PIDFD_GETFD, [4]uintptr{bad, bad, 0}, unix.EPERM},
	"kcmp":              {unix.SYS_KCMP, [4]uintptr{bad, bad, 0, 0}, unix.EPERM},
	"bpf":               {unix.SYS_BPF, [4]uintptr{bad, bad, 8}, unix.EPERM},
	"perf_event_open":   {unix.SYS_PERF_EVENT_OPEN, [4]uintptr{bad, 0, 0, bad}, unix.EPERM},
	"keyctl":            {unix.SYS_KEYCTL, [4]uintptr{bad}, unix.EPERM},
	"add_key":           {unix.SYS_ADD_KEY, [4]uintptr{bad, bad, 0, 0}, unix.EPERM},
	"request_key":       {unix.SYS_REQUEST_KEY, [4]uintptr{bad, bad, bad, 0}, unix.EPERM},
	"kexec_load":        {unix.SYS_KEXEC_LOAD, [4]uintptr{0, 0, 0, bad}, unix.EPERM},
	"init_module":       {unix.SYS_INIT_MODULE, [4]uintptr{bad, 0, bad}, unix.EPERM},
	"delete_module":     {unix.SYS_DELETE_MODULE, [4]uintptr{bad, 0}, unix.EPERM},
	"reboot":            {unix.SYS_REBOOT, [4]uintptr{0, 0, 0}, unix.EPERM},
	"swapon":            {unix.SYS_SWAPON, [4]uintptr{bad, 0}, unix.EPERM},
	"swapoff":           {unix.SYS_SWAPOFF, [4]uintptr{bad}, unix.EPERM},
	"syslog":            {unix.SYS_SYSLOG, [4]uintptr{bad}, unix.EPERM},
	"acct":              {unix.SYS_ACCT, [4]uintptr{bad}, unix.EPERM},
	"quotactl":          {unix.SYS_QUOTACTL, [4]uintptr{bad, bad, 0, 0}, unix.EPERM},
	"iopl":              {unix.SYS_IOPL, [4]uintptr{99}, unix.EPERM},
	"open_by_handle_at": {unix.SYS_OPEN_BY_HANDLE_AT, [4]uintptr{bad, bad, 0}, unix.EPERM},
	"userfaultfd":       {unix.SYS_USERFAULTFD, [4]uintptr{bad}, unix.EPERM},
	"fanotify_init":     {unix.SYS_FANOTIFY_INIT, [4]uintptr{bad, bad}, unix.EPERM},
	"sethostname":       {unix.SYS_SETHOSTNAME, [4]uintptr{bad, bad}, unix.EPERM},
	"settimeofday":      {unix.SYS_SETTIMEOFDAY, [4]uintptr{bad, 0}, unix.EPERM},
	"clock_settime":     {unix.SYS_CLOCK_SETTIME, [4]uintptr{bad, bad}, unix.EPERM},
	"personality":       {unix.SYS_PERSONALITY, [4]uintptr{0x40000}, unix.EPERM},
	"TIOCSTI":           {unix.SYS_IOCTL, [4]uintptr{bad, unix.TIOCSTI}, unix.EPERM},
	"TIOCSTI high bits": {unix.SYS_IOCTL, [4]uintptr{bad, high | unix.TIOCSTI}, unix.EPERM},
	"TIOCLINUX":         {unix.SYS_IOCTL, [4]uintptr{bad, high | 0x541c}, unix.EPERM},
	"AF_ALG":            {unix.SYS_SOCKET, [4]uintptr{unix.AF_ALG, bad}, unix.EAFNOSUPPORT},
	"AF_VSOCK":          {unix.SYS_SOCKET, [4]uintptr{high | unix.AF_VSOCK, bad}, unix.EAFNOSUPPORT},
	"AF_PACKET":         {unix.SYS_SOCKET, [4]uintptr{unix.AF_PACKET, bad}, unix.EAFNOSUPPORT},
	"netlink audit":     {unix.SYS_SOCKET, [4]uintptr{unix.AF_NETLINK, bad, unix.NETLINK_AUDIT}, unix.EPROTONOSUPPORT},
	"newer call":        {467, [4]uintptr{bad, bad, bad, bad}, unix.ENOSYS},

	// Allowed: the kernel's own answer comes through.
	"close":         {unix.SYS_CLOSE, [4]uintptr{bad}, unix.EBADF},
	"other ioctl":   {unix.SYS_IOCTL, [4]uintptr{bad, unix.TCGETS}, unix.EBADF},
	"socket":        {unix.SYS_SOCKET, [4]uintptr{unix.AF_UNIX, bad}, unix.EINVAL},
	"netlink route": {unix.SYS_SOCKET, [4]uintptr{unix.AF_NETLINK, bad, high}, unix.EINVAL},
	"landlock":      {unix.SYS_LANDLOCK_RESTRICT_SELF, [4]uintptr{bad, bad}, unix.EINVAL},
	"seccomp":       {unix.SYS_SECCOMP, [4]uintptr{bad, bad, bad}, unix.EINVAL},
}

// The kernel itself, as root: the refusals can only be the filter's. The
// control run shows that each would have been answered otherwise without it.
func TestKernelVerdicts(t *testing.T) {
	testenv.Root(t)
	same := 0
	for name, p := range probes {
		t.Run(name, func(t *testing.T) {
			got, sig := probed(t, policy.SeccompDefault, name)
			if got != p.want || sig != 0 {
				t.Fatalf("under default: %v %v, want %v", got, sig, p.want)
			}
			if free, _ := probed(t, "", name); free == got && (p.want == unix.EPERM || p.want == unix.ENOSYS) {
				same++
				t.Logf("without the filter it is %v as well: no such call in this kernel, or refused to root too", free)
			}
		})
	}
	if same > 6 {
		t.Errorf("%d calls fail alike without a filter: this test shows too little", same)
	}
}

// The profiles' differences, by the kernel.
func TestKernelProfiles(t *testing.T) {
	testenv.Root(t)
	for _, c := range []struct {
		profile policy.SeccompProfile
		call    string
		refused bool
	}{
		{policy.SeccompDebug, "ptrace", false},
		{policy.SeccompDebug, "personality", false},
		{policy.SeccompDebug, "mount", true},
		{policy.SeccompNested, "mount", false},
		{policy.SeccompNested, "clone", false},
		{policy.SeccompNested, "ptrace", true},
		{policy.SeccompStrict, "mount", true},
		{policy.SeccompAudit, "mount", true},
		{policy.SeccompAudit, "clone3", true},
	} {
		t.Run(fmt.Sprintf("%s %s", c.profile, c.call), func(t *testing.T) {
			got, _ := probed(t, c.profile, c.call)
			refused := got == probes[c.call].want
			if refused != c.refused {
				t.Errorf("errno %v", got)
			}
		})
	}
}
