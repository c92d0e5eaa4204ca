package seccomp

import (
	"encoding/binary"
	"testing"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/policy/seccomp/internal/cbpf"
)

// A filter that notifies lets through what the other does, kills where it kills,
// and every refusal of it is one of the other's.
func TestNotifying(t *testing.T) {
	for _, profile := range Profiles() {
		plain, err := Filter(policy.SandboxPolicy{Seccomp: profile.Name})
		if err != nil {
			t.Fatal(err)
		}
		notifying, err := cbpf.Decode(Notifying(plain))
		if err != nil {
			t.Fatal(err)
		}
		p, err := cbpf.Decode(plain)
		if err != nil {
			t.Fatal(err)
		}
		refused := 0
		for nr := int32(-1); nr < 600; nr++ {
			for _, arch := range []uint32{x8664, 0x40000003} {
				for _, arg := range []uint64{0, 16, 0x5412, 0x10000000} {
					c := Call{Nr: nr, Arch: arch, Args: [6]uint64{arg, arg, arg}}
					want, _, err1 := p.Run(c)
					got, _, err2 := notifying.Run(c)
					if err1 != nil || err2 != nil {
						t.Fatal(err1, err2)
					}
					if e, refuses := Action(want).ErrnoOf(); refuses {
						refused++
						if got != userNotif || Refusal(plain, c) != e {
							t.Fatalf("%s: call %d: %#x, answered with %d, want %d", profile.Name, nr, got, Refusal(plain, c), e)
						}
					} else if got != want {
						t.Fatalf("%s: call %d: %#x, want %#x", profile.Name, nr, got, want)
					}
				}
			}
		}
		if refused == 0 {
			t.Error("nothing is refused: this proves nothing")
		}
	}
	for _, broken := range [][]byte{nil, {1}, make([]byte, 8), binary.NativeEndian.AppendUint64(nil, 0x7fff000000000006)} {
		if e := Refusal(broken, Call{}); e != ePERM {
			t.Errorf("by %v: %d", broken, e)
		}
	}
}
