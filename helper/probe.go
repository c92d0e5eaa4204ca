package helper

import (
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/nsexec"
	"yoi.dev/yoi-runtime/policy"
)

// Probe says which strategies work on the Runtime root's file system and which
// of the sandbox's means this kernel offers to this process.
func (l *Local) Probe(ctx context.Context) (ProbeResult, error) {
	t, err := l.strategies(ctx)
	if err != nil {
		return ProbeResult{}, err
	}
	res := ProbeResult{Privileged: l.privileged, FileSystem: t.FileSystem}
	chosen, _, err := t.Choose(policy.StrategyAuto)
	if err != nil {
		return res, err
	}
	costs := t.Report(cow.ReadCosts(l.root.Dir))
	for _, e := range t.Entries {
		res.Strategies = append(res.Strategies, StrategySupport{
			Name: e.Name, OK: e.Support.OK, Chosen: e.Name == chosen.Name(), Reason: e.Support.Reason, Fix: e.Support.Fix, Costs: costs[e.Name],
		})
	}
	res.Checks = append(l.checks(), l.idRangeCheck(ctx))
	return res, nil
}

func (l *Local) checks() []Check {
	checks := []Check{l.privilegeCheck(), l.quotaCheck(), userNamespaceCheck(), seccompCheck(), landlockCheck(), l.cgroupCheck(), openat2Check(), l.imagesCheck()}
	checks = append(checks, l.egressChecks()...)
	return append(checks, kernelCheck())
}

func (l *Local) privilegeCheck() Check {
	if l.privileged {
		return Check{Name: "privilege", State: "ok", Message: "root: each worker has a uid range of its own and idmapped mounts"}
	}
	return Check{
		Name: "privilege", State: "ok",
		Message: "an ordinary user: workers run in user namespaces with the caller's own uid",
	}
}

func userNamespaceCheck() Check {
	c := Check{Name: "user_namespaces", State: "ok", Message: "allowed"}
	if n := sysctl("user/max_user_namespaces"); n == "0" {
		return Check{c.Name, "missing", "user.max_user_namespaces is 0", "sysctl -w user.max_user_namespaces=15000"}
	}
	if os.Geteuid() == 0 {
		return c
	}
	if sysctl("kernel/unprivileged_userns_clone") == "0" {
		return Check{c.Name, "missing", "kernel.unprivileged_userns_clone is 0", "sysctl -w kernel.unprivileged_userns_clone=1"}
	}
	if sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1" {
		return Check{c.Name, "degraded", "AppArmor lets only confined programs make user namespaces", "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile with userns for yoi"}
	}
	return c
}

func sysctl(name string) string {
	b, err := os.ReadFile("/proc/sys/" + name)
	if err != nil {
		return "" // this kernel has no such switch
	}
	return strings.TrimSpace(string(b))
}

func landlockCheck() Check {
	c := Check{Name: "landlock", State: "ok"}
	switch abi := nsexec.LandlockABI(); {
	case abi < 2:
		return Check{c.Name, "degraded", "this kernel cannot restrict files by Landlock: workers have one wall less", "Linux 5.19 or newer, booted with lsm=landlock,…"}
	case abi < 6:
		c.Message = fmt.Sprintf("ABI %d: files; abstract sockets and signals take Linux 6.12", abi)
	default:
		c.Message = fmt.Sprintf("ABI %d: files, abstract sockets, signals", abi)
	}
	return c
}

func (l *Local) cgroupCheck() Check {
	c := Check{Name: "cgroups", State: "degraded", Message: "the host's control groups cannot be read: limits of all of a worker's processes together are not kept"}
	t, err := l.cgroupTree()
	if err == nil && l.scopes != nil {
		t = t.Managed()
	}
	switch {
	case err != nil:
	case t.Version == 0:
		c.Message, c.Fix = t.Reason+": limits of all of a worker's processes together are not kept", t.Fix
	default:
		c.State, c.Message = "ok", fmt.Sprintf("version %d: %s", t.Version, strings.Join(t.Controllers, ", "))
	}
	return c
}

func seccompCheck() Check {
	if sysctl("kernel/seccomp/actions_avail") == "" {
		return Check{"seccomp", "missing", "the kernel has no seccomp filters", "a kernel with CONFIG_SECCOMP_FILTER"}
	}
	return Check{Name: "seccomp", State: "ok", Message: "filters are available"}
}

func openat2Check() Check {
	fd, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC})
	if err != nil {
		return Check{"openat2", "missing", "the kernel has no openat2: " + err.Error(), "Linux 5.6 or newer"}
	}
	unix.Close(fd)
	return Check{Name: "openat2", State: "ok", Message: "beneath-only path walking is available"}
}

// kernelCheck asks for 5.12, the first kernel with mount_setattr and idmapped
// mounts, and 5.19 for overlays on idmapped layers.
func kernelCheck() Check {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Check{"kernel", "missing", err.Error(), ""}
	}
	release := unix.ByteSliceToString(u.Release[:])
	var major, minor int
	if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n != 2 {
		return Check{"kernel", "degraded", "Linux " + release + " cannot be judged", ""}
	}
	switch {
	case major < 5 || major == 5 && minor < 12:
		return Check{"kernel", "missing", "Linux " + release + " is older than 5.12: no mount_setattr", "a newer kernel"}
	case major == 5 && minor < 19:
		return Check{"kernel", "degraded", "Linux " + release + " is older than 5.19: no overlay on idmapped layers", "a newer kernel, or another strategy"}
	}
	return Check{Name: "kernel", State: "ok", Message: "Linux " + release}
}
