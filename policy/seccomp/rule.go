package seccomp

import (
	"cmp"
	"fmt"
	"slices"
)

// Action is a filter's return value, as in <linux/seccomp.h>.
type Action uint32

const (
	KillProcess Action = 0x80000000
	Allow       Action = 0x7fff0000
	errno       Action = 0x00050000
)

// Errno makes the call fail with e without being made.
func Errno(e uint16) Action { return errno | Action(e) }

// ErrnoOf is the error number of an Errno action.
func (a Action) ErrnoOf() (uint16, bool) {
	return uint16(a), a&0xffff0000 == errno
}

// The numbers are Linux's, the same on every 64-bit architecture we build for.
const (
	ePERM           = 1
	eNOSYS          = 38
	ePROTONOSUPPORT = 93
	eAFNOSUPPORT    = 97
)

// Cond holds when the argument's bits under Mask equal Value. There is no
// comparison of the whole register on purpose: the kernel ignores the upper
// half of an int argument, and a filter that does not can be passed by setting
// it (CVE-2019-7303).
type Cond struct {
	Arg   uint   `json:"arg"`
	Mask  uint64 `json:"mask"`
	Value uint64 `json:"value"`
}

// Rule gives Action to the call when all of When hold. Rules of one call never
// overlap, so their order has no meaning.
type Rule struct {
	Call   string `json:"call"`
	When   []Cond `json:"when,omitempty"`
	Action Action `json:"action"`
}

// Group is a set of rules that are there for the same reason.
type Group struct {
	Name  string `json:"-"`
	Why   string `json:"-"`
	Rules []Rule `json:"rules"`
}

// choice decides by the bits of one argument: the first branch that has the
// value, else otherwise. It expands to disjoint masked comparisons, the only
// kind that allows "all but these values" on half a register.
type choice struct {
	arg       uint
	mask      uint64
	branches  []branch
	otherwise Action
}

// branch is what happens for values: a further choice when then is set.
type branch struct {
	values []uint64
	action Action
	then   *choice
}

const low32 = 0xffffffff

// decide is the rules of a choice for one call.
func decide(call string, c choice) []Rule { return c.expand(call, nil) }

func (c choice) expand(call string, above []Cond) []Rule {
	var rules []Rule
	var named []uint64
	for _, b := range c.branches {
		for _, v := range b.values {
			if v&^c.mask != 0 || slices.Contains(named, v) {
				panic(fmt.Sprintf("seccomp: %s: value %#x is outside the mask or named twice", call, v))
			}
			named = append(named, v)
			when := append(slices.Clone(above), Cond{c.arg, c.mask, v})
			if b.then != nil {
				rules = append(rules, b.then.expand(call, when)...)
			} else {
				rules = append(rules, Rule{call, when, b.action})
			}
		}
	}
	for _, cond := range complement(c.arg, c.mask, named) {
		rules = append(rules, Rule{call, append(slices.Clone(above), cond), c.otherwise})
	}
	return rules
}

// complement covers every value under mask that is not in values by disjoint
// conditions: walking the mask's bits from the top, each bit at which a prefix
// of some value can be left for one that no value has.
func complement(arg uint, mask uint64, values []uint64) []Cond {
	prefixes := map[uint64]bool{0: true}
	var seen uint64
	var out []Cond
	for bit := uint64(1) << 63; bit != 0; bit >>= 1 {
		if mask&bit == 0 {
			continue
		}
		seen |= bit
		next := map[uint64]bool{}
		for _, v := range values {
			next[v&seen] = true
		}
		for p := range prefixes {
			for _, candidate := range []uint64{p, p | bit} {
				if !next[candidate] {
					out = append(out, Cond{arg, seen, candidate})
				}
			}
		}
		prefixes = next
	}
	slices.SortFunc(out, compareConds)
	return out
}

func compareConds(a, b Cond) int {
	return cmp.Or(cmp.Compare(a.Arg, b.Arg), cmp.Compare(a.Mask, b.Mask), cmp.Compare(a.Value, b.Value))
}
