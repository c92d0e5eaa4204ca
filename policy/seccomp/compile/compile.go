//go:build cgo

package compile

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"

	libseccomp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/policy/seccomp"
)

const op = "seccomp.compile"

// Filter returns the compiled filter of p: the embedded one where p uses a
// built-in profile as it is, else a fresh one with p.SeccompAllow added.
func Filter(p policy.SandboxPolicy) ([]byte, error) {
	if len(p.SeccompAllow) == 0 {
		return seccomp.Filter(p)
	}
	profile, err := seccomp.Lookup(p.Seccomp)
	if err != nil {
		return nil, err
	}
	rules, err := extend(profile, p.SeccompAllow)
	if err != nil {
		return nil, err
	}
	return compile(profile, rules)
}

// Profile is libseccomp's own program for a built-in profile: the reference
// that the embedded one is held to.
func Profile(p seccomp.Profile) ([]byte, error) { return compile(p, p.Rules()) }

// extend adds names to the profile's rules. A call that the profile names with
// any condition or refusal stays as it is: a list of names in a policy must
// not be the way to mount, clone3 or TIOCSTI.
func extend(p seccomp.Profile, names []string) ([]seccomp.Rule, error) {
	rules := p.Rules()
	known := map[string]bool{} // call → allowed without condition
	for _, r := range rules {
		known[r.Call] = r.Action == seccomp.Allow && len(r.When) == 0
	}
	names = slices.Clone(names)
	slices.Sort(names)
	for _, n := range slices.Compact(names) {
		if _, err := number(n); err != nil {
			return nil, policy.Errorf(policy.CodeSeccompInvalid, op, "%q is not a system call of this machine", policy.Printable(n)).Because(err)
		}
		allowed, named := known[n]
		if allowed {
			continue
		}
		if named {
			return nil, policy.Errorf(policy.CodeSeccompInvalid, op, "the profile %s refuses or limits %q by name", p.Name, n).
				WithHint("Choose a profile that has it: debug for tracing, nested for namespaces and mounts.")
		}
		rules = append(rules, seccomp.Rule{Call: n, Action: seccomp.Allow})
	}
	return rules, nil
}

// Name is the name of a call by its number on the machine's own architecture, or
// the number itself if it is newer than libseccomp.
func Name(nr int32) string {
	name, err := libseccomp.ScmpSyscall(nr).GetName()
	if err != nil {
		return strconv.Itoa(int(nr))
	}
	return name
}

// number is the call's number on the machine's own architecture.
func number(name string) (libseccomp.ScmpSyscall, error) {
	nr, err := libseccomp.GetSyscallFromName(name)
	if err != nil {
		return 0, err
	}
	// Asked back, because C ends the name at the first NUL.
	if back, err := nr.GetName(); err != nil || back != name {
		return 0, fmt.Errorf("the name means %q", back)
	}
	// Negative numbers are libseccomp's for calls of other architectures.
	if nr < 0 {
		return 0, fmt.Errorf("%s does not exist on this architecture", name)
	}
	return nr, nil
}

// Native is the machine that this program runs on, by libseccomp's tables.
func Native() seccomp.Machine {
	m := seccomp.Machine{Arch: unix.AUDIT_ARCH_AARCH64}
	if runtime.GOARCH == "amd64" {
		m.Arch, m.ForeignBit = unix.AUDIT_ARCH_X86_64, 0x40000000 // __X32_SYSCALL_BIT
	}
	m.Number = func(name string) (uint32, error) {
		nr, err := number(name)
		return uint32(nr), err
	}
	return m
}

func compile(p seccomp.Profile, rules []seccomp.Rule) ([]byte, error) {
	fail := func(what string, err error) ([]byte, error) {
		return nil, policy.Errorf(policy.CodeSeccompUnavailable, op, "libseccomp cannot compile the profile %s: %s", p.Name, what).Because(err)
	}
	// NewFilter turns TSYNC on, and has no way to turn it off. The flag belongs
	// to libseccomp's own load, which is never called: the exported program
	// knows nothing of it.
	f, err := libseccomp.NewFilter(action(p.Default))
	if err != nil {
		return fail("new filter", err)
	}
	defer f.Release()
	if err := f.SetBadArchAction(action(p.BadABI)); err != nil {
		return fail("bad architecture action", err)
	}
	// A binary tree by call number. At loading the kernel runs the filter once
	// for every call there is, to find the ones that are always allowed
	// (seccomp_cache_prepare, Linux 5.11): a linear list makes that quadratic.
	if err := f.SetOptimize(2); err != nil {
		return fail("optimize", err)
	}
	for _, r := range rules {
		if err := add(f, p.Default, r); err != nil {
			return fail(r.Call, err)
		}
	}
	b, err := export(f)
	if err != nil {
		return fail("export", err)
	}
	return b, nil
}

// export takes the program through a memory file: ExportBPFMem needs
// libseccomp 2.6, and Debian 12 has 2.5.
func export(f *libseccomp.ScmpFilter) ([]byte, error) {
	fd, err := unix.MemfdCreate("seccomp", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	mem := os.NewFile(uintptr(fd), "seccomp")
	defer mem.Close()
	if err := f.ExportBPF(mem); err != nil {
		return nil, err
	}
	if _, err := mem.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(mem)
}

func add(f *libseccomp.ScmpFilter, dflt seccomp.Action, r seccomp.Rule) error {
	if r.Action == dflt {
		return nil // libseccomp takes a rule that says the default for a mistake
	}
	nr, err := number(r.Call)
	if err != nil {
		return err
	}
	var conds []libseccomp.ScmpCondition
	for _, w := range r.When {
		c, err := libseccomp.MakeCondition(w.Arg, libseccomp.CompareMaskedEqual, w.Mask, w.Value)
		if err != nil {
			return err
		}
		conds = append(conds, c)
	}
	// "Exact": fail rather than let libseccomp approximate.
	return f.AddRuleConditionalExact(nr, action(r.Action), conds)
}

func action(a seccomp.Action) libseccomp.ScmpAction {
	if e, ok := a.ErrnoOf(); ok {
		return libseccomp.ActErrno.SetReturnCode(int16(e))
	}
	switch a {
	case seccomp.Allow:
		return libseccomp.ActAllow
	}
	return libseccomp.ActKillProcess
}
