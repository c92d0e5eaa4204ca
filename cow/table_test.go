package cow

import (
	"errors"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/policy"
)

const (
	yes    = "yes"
	no     = "no"
	costly = "costly"
)

// table makes one out of answers for btrfs_snapshot, overlay, reflink, copy.
func table(answers ...string) *Table {
	t := &Table{FileSystem: "testfs"}
	for i, n := range []policy.StrategyName{policy.StrategyBtrfsSnapshot, policy.StrategyOverlay, policy.StrategyReflink, policy.StrategyCopy} {
		t.Entries = append(t.Entries, Entry{n, Support{OK: answers[i] != no, Costly: answers[i] == costly, Reason: "reason of " + string(n), Fix: "fix of " + string(n)}})
	}
	return t
}

func TestAuto(t *testing.T) {
	for _, c := range []struct {
		answers []string
		want    policy.StrategyName
	}{
		{[]string{yes, yes, yes, yes}, policy.StrategyBtrfsSnapshot},
		{[]string{costly, yes, yes, yes}, policy.StrategyOverlay},
		{[]string{no, yes, yes, yes}, policy.StrategyOverlay},
		{[]string{costly, no, yes, yes}, policy.StrategyReflink},
		{[]string{costly, no, no, no}, policy.StrategyBtrfsSnapshot},
		{[]string{no, no, yes, yes}, policy.StrategyReflink},
		{[]string{no, no, no, yes}, policy.StrategyCopy},
	} {
		for _, name := range []policy.StrategyName{"", policy.StrategyAuto} {
			s, why, err := table(c.answers...).Choose(name)
			if err != nil || s.Name() != c.want {
				t.Errorf("%v: %v %v, want %s", c.answers, s, err, c.want)
				continue
			}
			if !strings.HasPrefix(why, "auto chose "+string(c.want)+" on testfs: reason of "+string(c.want)) {
				t.Errorf("%v: %q", c.answers, why)
			}
			if c.answers[0] != yes && c.want != policy.StrategyBtrfsSnapshot && !strings.Contains(why, "passed over btrfs_snapshot (reason of btrfs_snapshot)") {
				t.Errorf("%v: %q does not say what was passed over", c.answers, why)
			}
		}
	}
	if _, _, err := table(no, no, no, no).Choose(policy.StrategyAuto); !errors.Is(err, policy.CodeStrategyUnsupported) {
		t.Errorf("nothing works: %v", err)
	}
}

func TestChooseByName(t *testing.T) {
	tab := table(no, costly, yes, yes)
	for name, want := range map[policy.StrategyName]policy.Code{
		policy.StrategyOverlay: "", policy.StrategyReflink: "",
		policy.StrategyBtrfsSnapshot: policy.CodeStrategyUnsupported,
		"zfs":                        policy.CodeStrategyUnknown,
		policy.StrategyGitWorktree:   policy.CodeStrategyUnknown, // not in this table
	} {
		s, why, err := tab.Choose(name)
		switch {
		case want == "" && (err != nil || s.Name() != name || !strings.Contains(why, "was asked for")):
			t.Errorf("%s: %v %q %v", name, s, why, err)
		case want != "" && !errors.Is(err, want):
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	_, _, err := tab.Choose(policy.StrategyBtrfsSnapshot)
	if d := policy.AsDiagnostic(err); d.Hint != "fix of btrfs_snapshot" || !strings.Contains(d.Message, "reason of btrfs_snapshot") {
		t.Errorf("%+v", d)
	}
}

// Every name that a request may carry is known here, but auto, which is none.
func TestEveryNameIsKnown(t *testing.T) {
	for _, n := range policy.Strategies() {
		if s := ByName(n); (s == nil) != (n == policy.StrategyAuto) {
			t.Errorf("%s: %v", n, s)
		}
	}
	for _, n := range []policy.StrategyName{policy.StrategyGitWorktree, policy.StrategyDirect} {
		if _, err := ByName(n).Materialize(t.Context(), Request{}); !errors.Is(err, policy.CodeInternal) {
			t.Errorf("%s: %v", n, err)
		}
	}
}
