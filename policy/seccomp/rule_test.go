package seccomp

import (
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"yoi.dev/yoi-runtime/policy"
)

// Every value is covered by exactly one condition: no hole, no overlap.
func TestComplement(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		mask := rnd.Uint64() & rnd.Uint64()
		if rnd.IntN(2) == 0 {
			mask = low32
		}
		var values []uint64
		for range rnd.IntN(5) {
			if v := rnd.Uint64() & mask; !slices.Contains(values, v) {
				values = append(values, v)
			}
		}
		conds := complement(0, mask, values)
		probe := func(x uint64) {
			matches := 0
			for _, c := range conds {
				if x&c.Mask == c.Value {
					matches++
				}
			}
			want := 1
			if slices.Contains(values, x&mask) {
				want = 0
			}
			if matches != want {
				t.Fatalf("mask %#x values %#x: %#x matches %d conditions, want %d", mask, values, x, matches, want)
			}
		}
		for range 200 {
			probe(rnd.Uint64())
		}
		for _, v := range values { // neighbours by one bit, and the high half set
			probe(v)
			for bit := range 64 {
				probe(v ^ 1<<bit)
			}
		}
	}
}

func TestChoiceRefusesMistakes(t *testing.T) {
	for name, c := range map[string]choice{
		"outside the mask": {mask: 0xf, branches: []branch{{values: []uint64{0x10}}}},
		"twice":            {mask: 0xf, branches: []branch{{values: []uint64{1, 1}}}},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			decide("x", c)
		})
	}
}

// A call named by two groups of a profile would have two answers.
func TestEachCallIsInOneGroup(t *testing.T) {
	for _, p := range Profiles() {
		in := map[string]string{}
		for _, g := range p.Groups {
			if g.Name == "" || g.Why == "" || len(g.Rules) == 0 {
				t.Errorf("%s: a group without name, reason or rules: %+v", p.Name, g)
			}
			for _, c := range g.calls() {
				if other, ok := in[c]; ok {
					t.Errorf("%s: %s is in %q and %q", p.Name, c, other, g.Name)
				}
				in[c] = g.Name
			}
		}
	}
}

// What may differ between profiles, said by calls and not by groups.
func TestProfilesDifferOnlyWhereTheyShould(t *testing.T) {
	base := free(t, policy.SeccompDefault)
	for name, c := range map[policy.SeccompProfile]struct{ more, less []string }{
		policy.SeccompAudit: {},
		policy.SeccompDebug: {more: []string{"kcmp", "pidfd_getfd", "process_madvise", "process_vm_readv", "process_vm_writev", "ptrace"}},
		policy.SeccompNested: {more: []string{"chroot", "clone", "fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr",
			"move_mount", "open_tree", "pivot_root", "setdomainname", "sethostname", "setns", "umount2", "unshare"}},
		policy.SeccompStrict: {less: []string{"execveat", "io_cancel", "io_destroy", "io_getevents", "io_pgetevents", "io_setup", "io_submit",
			"memfd_create", "mq_getsetattr", "mq_notify", "mq_open", "mq_timedreceive", "mq_timedsend", "mq_unlink",
			"msgctl", "msgget", "msgrcv", "msgsnd", "semctl", "semget", "semop", "semtimedop",
			"shmat", "shmctl", "shmdt", "shmget", "splice", "tee", "vmsplice"}},
	} {
		got := free(t, name)
		if more := minus(got, base); !slices.Equal(more, c.more) {
			t.Errorf("%s allows more than default: %q", name, more)
		}
		if less := minus(base, got); !slices.Equal(less, c.less) {
			t.Errorf("%s allows less than default: %q", name, less)
		}
	}
}

// free lists the calls that are allowed whatever their arguments, sorted.
func free(t *testing.T, name policy.SeccompProfile) []string {
	p, err := Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, r := range p.Rules() {
		if r.Action == Allow && len(r.When) == 0 {
			out = append(out, r.Call)
		}
	}
	slices.Sort(out)
	return out
}

func minus(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
}

func TestGeneratedFilesAreFresh(t *testing.T) {
	digests, err := Digests()
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"bpf/amd64/DIGESTS": digests, "../../docs/seccomp.md": Markdown()} {
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s is not of these profiles: run go generate ./policy/seccomp", file)
		}
	}
}

func TestDigest(t *testing.T) {
	digest := func(p policy.SandboxPolicy) string {
		d, err := Digest(p)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if digest(policy.SandboxPolicy{}) != digest(policy.SandboxPolicy{Seccomp: policy.SeccompDefault}) {
		t.Error("the zero policy is not the default one")
	}
	a := digest(policy.SandboxPolicy{SeccompAllow: []string{"b", "a"}})
	if b := digest(policy.SandboxPolicy{SeccompAllow: []string{"a", "b", "b"}}); a != b {
		t.Error("the order of names changes the digest")
	}
	seen := map[string]bool{a: true}
	for _, p := range Profiles() {
		d := digest(policy.SandboxPolicy{Seccomp: p.Name})
		if seen[d] {
			t.Errorf("%s has the digest of another", p.Name)
		}
		seen[d] = true
	}
	if _, err := Digest(policy.SandboxPolicy{Seccomp: "none"}); err == nil {
		t.Error("an unknown profile has a digest")
	}
}
