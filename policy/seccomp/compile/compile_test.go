//go:build cgo

package compile

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/policy/seccomp"
	"yoi.dev/yoi-runtime/policy/seccomp/internal/cbpf"
)

const x8664 = unix.AUDIT_ARCH_X86_64

func decode(t testing.TB, b []byte) cbpf.Program {
	t.Helper()
	p, err := cbpf.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func run(t testing.TB, p cbpf.Program, nr int32, args [6]uint64) seccomp.Action {
	t.Helper()
	v, _, err := p.Run(cbpf.Data{Nr: nr, Arch: x8664, Args: args})
	if err != nil {
		t.Fatal(err)
	}
	return seccomp.Action(v)
}

func amd64Only(t testing.TB) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Fatal("the tests of the filters are written for amd64")
	}
}

// oracle is what the rules say, by the plainest reading of them.
type oracle struct {
	dflt  seccomp.Action
	rules map[int32][]seccomp.Rule
}

func newOracle(t testing.TB, p seccomp.Profile) oracle {
	t.Helper()
	o := oracle{p.Default, map[int32][]seccomp.Rule{}}
	for _, r := range p.Rules() {
		nr, err := number(r.Call)
		if err != nil {
			t.Fatalf("%s: %v", r.Call, err)
		}
		o.rules[int32(nr)] = append(o.rules[int32(nr)], r)
	}
	return o
}

func (o oracle) verdict(nr int32, args [6]uint64) seccomp.Action {
	for _, r := range o.rules[nr] {
		holds := true
		for _, c := range r.When {
			holds = holds && args[c.Arg]&c.Mask == c.Value
		}
		if holds {
			return r.Action
		}
	}
	return o.dflt
}

// arguments are random words and every value that a rule of the call looks
// for, with one bit flipped and with the other half of the register filled.
func (o oracle) arguments(rnd *rand.Rand, nr int32) [][6]uint64 {
	var out [][6]uint64
	random := func() (a [6]uint64) {
		for i := range a {
			a[i] = rnd.Uint64() >> rnd.IntN(64)
		}
		return a
	}
	for range 8 {
		out = append(out, random())
	}
	for _, r := range o.rules[nr] {
		exact := random()
		for _, c := range r.When {
			exact[c.Arg] = c.Value
		}
		out = append(out, exact)
		for _, c := range r.When {
			for bit := range 64 {
				near := exact
				near[c.Arg] ^= 1 << bit
				out = append(out, near)
			}
			filled := exact
			filled[c.Arg] = c.Value | rnd.Uint64()<<32
			out = append(out, filled)
		}
	}
	return out
}

// libseccomp's program must mean the rules, for every call and many arguments.
func TestCompiledMeansTheRules(t *testing.T) {
	amd64Only(t)
	rnd := rand.New(rand.NewPCG(7, 303))
	for _, p := range seccomp.Profiles() {
		b, err := Profile(p)
		if err != nil {
			t.Fatal(err)
		}
		prog, o := decode(t, b), newOracle(t, p)
		for nr := int32(-1); nr < 1000; nr++ {
			for _, args := range o.arguments(rnd, nr) {
				if got, want := run(t, prog, nr, args), o.verdict(nr, args); got != want {
					t.Fatalf("%s: call %d%x: %v, the rules say %v", p.Name, nr, args, got, want)
				}
			}
		}
	}
}

// The embedded filters are of these profiles, and mean what libseccomp makes
// of them: for every number, for arguments at and around every value that a
// rule names, and for every ABI.
func TestEmbeddedMeansLibseccomps(t *testing.T) {
	amd64Only(t)
	rnd := rand.New(rand.NewPCG(11, 13))
	for _, p := range append(seccomp.Profiles(), seccomp.Egress()) {
		embedded, err := seccomp.Filter(policy.SandboxPolicy{Seccomp: p.Name})
		if p.Name == seccomp.Egress().Name {
			embedded, err = seccomp.EgressFilter()
		}
		if err != nil {
			t.Fatal(err)
		}
		if fresh, err := seccomp.Assemble(p, Native()); err != nil || !bytes.Equal(fresh, embedded) {
			t.Errorf("%s: the embedded filter is not of this profile (%v): run go generate ./policy/seccomp", p.Name, err)
		}
		reference, err := Profile(p)
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs, o := decode(t, embedded), decode(t, reference), newOracle(t, p)
		for _, nr := range numbers(rnd) {
			for _, args := range o.arguments(rnd, nr) {
				for _, arch := range []uint32{x8664, unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_AARCH64, 0} {
					d := cbpf.Data{Nr: nr, Arch: arch, Args: args, IP: rnd.Uint64()}
					a, _, errA := ours.Run(d)
					b, _, errB := theirs.Run(d)
					if a != b || errA != nil || errB != nil {
						t.Fatalf("%s: %+v: embedded %v, libseccomp's %v (%v, %v)", p.Name, d,
							seccomp.Action(a), seccomp.Action(b), errA, errB)
					}
				}
			}
		}
	}
}

// numbers are all that mean something, x32's, and some that mean nothing.
func numbers(rnd *rand.Rand) []int32 {
	out := []int32{-1, -2, 1<<30 - 1, 1 << 30, 1<<31 - 1, -1 << 31}
	for nr := range int32(1000) {
		out = append(out, nr, nr|1<<30)
	}
	for range 1000 {
		out = append(out, int32(rnd.Uint32()))
	}
	return out
}

func TestFurtherCalls(t *testing.T) {
	amd64Only(t)
	strict := policy.SandboxPolicy{Seccomp: policy.SeccompStrict, SeccompAllow: []string{"memfd_create", "read", "memfd_create"}}
	b, err := Filter(strict)
	if err != nil {
		t.Fatal(err)
	}
	prog := decode(t, b)
	for nr, want := range map[int32]seccomp.Action{
		unix.SYS_MEMFD_CREATE: seccomp.Allow, unix.SYS_READ: seccomp.Allow,
		unix.SYS_SPLICE: seccomp.Errno(uint16(unix.ENOSYS)), unix.SYS_MOUNT: seccomp.Errno(uint16(unix.EPERM)),
	} {
		if got := run(t, prog, nr, [6]uint64{}); got != want {
			t.Errorf("call %d: %v, want %v", nr, got, want)
		}
	}
	v, _, err := prog.Run(cbpf.Data{Arch: unix.AUDIT_ARCH_I386, Nr: unix.SYS_MEMFD_CREATE})
	if err != nil || seccomp.Action(v) != seccomp.KillProcess {
		t.Errorf("i386: %v %v", seccomp.Action(v), err)
	}
}

func TestFurtherCallsRefused(t *testing.T) {
	for _, c := range []struct {
		profile policy.SeccompProfile
		name    string
		code    policy.Code
	}{
		{"", "no_such_call", policy.CodeSeccompInvalid},
		{"", "", policy.CodeSeccompInvalid},
		{"", "READ", policy.CodeSeccompInvalid},
		{"", "read\x00mount", policy.CodeSeccompInvalid},
		{"", "socketcall", policy.CodeSeccompInvalid}, // i386's
		{"", "mount", policy.CodeSeccompInvalid},
		{"", "clone3", policy.CodeSeccompInvalid},
		{"", "io_uring_setup", policy.CodeSeccompInvalid},
		{"", "ptrace", policy.CodeSeccompInvalid},
		{"", "ioctl", policy.CodeSeccompInvalid},
		{"", "socket", policy.CodeSeccompInvalid},
		{"", "clone", policy.CodeSeccompInvalid},
		{policy.SeccompNested, "bpf", policy.CodeSeccompInvalid},
		{policy.SeccompAudit, "keyctl", policy.CodeSeccompInvalid},
		{"unconfined", "read", policy.CodePolicyInvalid},
	} {
		b, err := Filter(policy.SandboxPolicy{Seccomp: c.profile, SeccompAllow: []string{"read", c.name}})
		if !errors.Is(err, c.code) || b != nil {
			t.Errorf("%q on %q: %d bytes, %v, want %s", c.name, c.profile, len(b), err, c.code)
		}
	}
}

func TestBuiltinNeedsNoCompiling(t *testing.T) {
	a, err := Filter(policy.SandboxPolicy{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := seccomp.Filter(policy.SandboxPolicy{})
	if err != nil || !bytes.Equal(a, b) {
		t.Errorf("%v", err)
	}
}

// Whatever a policy names, the answer is a filter in which nothing refused by
// name has become allowed, or the one diagnostic.
func FuzzFurtherCalls(f *testing.F) {
	for _, s := range []string{"read", "memfd_create", "mount", "", "x32_read", "-1", "UNKNOWN", "a\x00b", "clone3", "socketcall", "\xff"} {
		f.Add(s)
	}
	o := newOracle(f, must(seccomp.Lookup("")))
	f.Fuzz(func(t *testing.T, name string) {
		b, err := Filter(policy.SandboxPolicy{SeccompAllow: []string{name}})
		if err != nil {
			if !errors.Is(err, policy.CodeSeccompInvalid) {
				t.Fatalf("%q: %v", name, err)
			}
			return
		}
		prog := decode(t, b)
		for nr, rules := range o.rules {
			want := o.verdict(nr, [6]uint64{})
			if got := run(t, prog, nr, [6]uint64{}); got != want {
				t.Fatalf("%q changed %s from %v to %v", name, rules[0].Call, want, got)
			}
		}
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
