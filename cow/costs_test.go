package cow

import (
	"strings"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/policy"
)

func samples(s policy.StrategyName, removal bool, files int64, took ...time.Duration) []Sample {
	var out []Sample
	for _, d := range took {
		out = append(out, Sample{Device: "dev", Strategy: s, Removal: removal, Files: files, Took: d})
	}
	return out
}

func everything(file string) *Table {
	t := &Table{FileSystem: file}
	for _, s := range Strategies() {
		t.Entries = append(t.Entries, Entry{s.Name(), Support{OK: true, Reason: "it works"}})
	}
	return t
}

// TestAutoGoesByWhatIsClear: order, unless both sides were measured and the other
// one is far cheaper.
func TestAutoGoesByWhatIsClear(t *testing.T) {
	const ms = time.Millisecond
	overlay := samples(policy.StrategyOverlay, false, 150, 10*ms, 10*ms, 10*ms)
	for name, c := range map[string]struct {
		files int64
		all   []Sample
		off   policy.StrategyName // not possible
		want  policy.StrategyName
	}{
		"nothing known":      {100, nil, policy.StrategyBtrfsSnapshot, policy.StrategyOverlay},
		"far cheaper":        {999, append(overlay, samples(policy.StrategyReflink, false, 100, 4*ms, 4*ms, 90*ms)...), policy.StrategyBtrfsSnapshot, policy.StrategyReflink},
		"not clearly":        {100, append(overlay, samples(policy.StrategyReflink, false, 100, 6*ms, 6*ms, 6*ms)...), policy.StrategyBtrfsSnapshot, policy.StrategyOverlay},
		"too few":            {100, append(overlay, samples(policy.StrategyReflink, false, 100, ms, ms)...), policy.StrategyBtrfsSnapshot, policy.StrategyOverlay},
		"another size":       {1000, append(overlay, samples(policy.StrategyReflink, false, 100, ms, ms, ms)...), policy.StrategyBtrfsSnapshot, policy.StrategyOverlay},
		"size not known":     {0, append(overlay, samples(policy.StrategyReflink, false, 100, ms, ms, ms)...), policy.StrategyBtrfsSnapshot, policy.StrategyOverlay},
		"dear to remove":     {100, append(append(overlay, samples(policy.StrategyReflink, false, 100, ms, ms, ms)...), samples(policy.StrategyReflink, true, 100, 9*ms, 9*ms, 9*ms)...), policy.StrategyBtrfsSnapshot, policy.StrategyOverlay},
		"copy costs disk":    {100, append(overlay, samples(policy.StrategyCopy, false, 100, ms, ms, ms)...), policy.StrategyBtrfsSnapshot, policy.StrategyOverlay},
		"only by name":       {100, append(overlay, samples(policy.StrategyGitSparse, false, 100, ms, ms, ms)...), policy.StrategyBtrfsSnapshot, policy.StrategyOverlay},
		"first was measured": {100, append(samples(policy.StrategyBtrfsSnapshot, false, 100, 50*ms, 50*ms, 50*ms), overlay...), "", policy.StrategyOverlay},
		"not possible here":  {100, append(overlay, samples(policy.StrategyReflink, false, 100, ms, ms, ms)...), policy.StrategyReflink, policy.StrategyBtrfsSnapshot},
	} {
		tab := everything("ext4")
		for i := range tab.Entries {
			if tab.Entries[i].Name == c.off {
				tab.Entries[i].Support = Support{Reason: "it does not"}
			}
		}
		costs := learn(c.all, "dev")
		s, reason, err := tab.ChooseFor(policy.StrategyAuto, c.files, costs)
		if err != nil || s.Name() != c.want {
			t.Errorf("%s: %v %v, want %s", name, s, err, c.want)
			continue
		}
		if measured := strings.Contains(reason, "measured"); measured != (name == "far cheaper" || name == "first was measured") {
			t.Errorf("%s: %s", name, reason)
		}
		if s, _, err := tab.ChooseFor(policy.StrategyCopy, c.files, costs); err != nil || s.Name() != policy.StrategyCopy {
			t.Errorf("%s: by name: %v %v", name, s, err)
		}
	}
	if other := learn(overlay, "another device"); len(other) != 0 {
		t.Errorf("another device's: %v", other)
	}
}

func TestSamplesRoundTrip(t *testing.T) {
	all := append(samples(policy.StrategyOverlay, false, 5, 1, 2, 3), samples(policy.StrategyGitSparse, true, 70000, time.Hour)...)
	var text strings.Builder
	for _, s := range all {
		text.WriteString(s.line())
	}
	whole := parseSamples(text.String())
	if len(whole) != len(all) {
		t.Fatalf("%v", whole)
	}
	for i := range all {
		if whole[i] != all[i] {
			t.Errorf("%+v, want %+v", whole[i], all[i])
		}
	}
	// However it is cut, what is left is a prefix of the truth.
	for n := range text.Len() {
		got := parseSamples(text.String()[:n])
		for i := range got {
			if got[i] != all[i] {
				t.Fatalf("cut at %d: %+v, want %+v", n, got[i], all[i])
			}
		}
	}
	if kept := newest(samples(policy.StrategyCopy, false, 5, make([]time.Duration, 50)...)); len(kept) != keptSamples {
		t.Errorf("%d kept", len(kept))
	}
}

func FuzzSamples(f *testing.F) {
	f.Add("c1 ext4-0 overlay create 5 100 .\n")
	f.Add("c1 ext4-0 overlay remove 5 100 .\nc1 x copy create 1 1 .")
	f.Add("c2 ext4-0 overlay create -5 100 .\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, s := range parseSamples(text) {
			if again, ok := parseSample(strings.TrimSuffix(s.line(), "\n")); !ok || again != s {
				t.Errorf("%+v became %+v", s, again)
			}
			if s.Files < 1 || s.Took < 0 {
				t.Errorf("%+v", s)
			}
		}
	})
}
