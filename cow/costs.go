package cow

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"yoi.dev/yoi-runtime/policy"
)

// Sample is one measured materialization or removal.
type Sample struct {
	Device   string // see Device
	Strategy policy.StrategyName
	Removal  bool
	Files    int64
	Took     time.Duration
}

// Cost is what a strategy was measured to cost for trees of one size class.
type Cost struct {
	// Class is the number of files, down to a power of ten.
	Class int64 `json:"class"`
	// Create and Remove are medians of Runs and Removals measurements; 0 without any.
	Create   time.Duration `json:"create_ns"`
	Remove   time.Duration `json:"remove_ns,omitempty"`
	Runs     int           `json:"runs"`
	Removals int           `json:"removals,omitempty"`
	// Taken is set where auto takes this strategy for what it was measured to cost.
	Taken bool `json:"taken,omitempty"`
}

// Costs holds the measured costs on one device, by strategy, ascending by class.
type Costs map[policy.StrategyName][]Cost

// sizeClass is a number of files, down to a power of ten: costs within are alike.
func sizeClass(files int64) int64 {
	class := int64(1)
	for files >= 10*class && class < 1e9 {
		class *= 10
	}
	return class
}

// A line of the file is written with one write(2), but a crash or a full disk can
// cut it, and a number that lost its end is a number too: hence the last field.
const (
	sampleVersion = "c1"
	sampleEnd     = "."
)

func (s Sample) line() string {
	op := "create"
	if s.Removal {
		op = "remove"
	}
	return fmt.Sprintf("%s %s %s %s %d %d %s\n", sampleVersion, s.Device, s.Strategy, op, s.Files, s.Took.Nanoseconds(), sampleEnd)
}

// parseSample reads a line; what is not exactly one counts for nothing.
func parseSample(line string) (s Sample, ok bool) {
	f := strings.Split(line, " ")
	if len(f) != 7 || f[0] != sampleVersion || f[6] != sampleEnd || f[1] == "" || len(f[1]) > 64 {
		return s, false
	}
	files, err := strconv.ParseInt(f[4], 10, 64)
	took, err2 := strconv.ParseInt(f[5], 10, 64)
	if err != nil || err2 != nil || files < 1 || took < 0 || took > int64(24*time.Hour) {
		return s, false
	}
	s = Sample{Device: f[1], Strategy: policy.StrategyName(f[2]), Removal: f[3] == "remove", Files: files, Took: time.Duration(took)}
	return s, (f[3] == "create" || s.Removal) && slices.Contains(policy.Strategies(), s.Strategy)
}

// parseSamples reads the file, oldest first.
func parseSamples(text string) []Sample {
	var out []Sample
	for line := range strings.Lines(text) {
		if s, ok := parseSample(strings.TrimSuffix(line, "\n")); ok {
			out = append(out, s)
		}
	}
	return out
}

// keptSamples bounds what is remembered of one strategy, operation and size class.
const keptSamples = 9

type sampleKey struct {
	device   string
	strategy policy.StrategyName
	removal  bool
	class    int64
}

func (s Sample) key() sampleKey {
	return sampleKey{s.Device, s.Strategy, s.Removal, sizeClass(s.Files)}
}

// newest keeps the last samples of each kind, in order.
func newest(all []Sample) []Sample {
	count := make(map[sampleKey]int)
	var kept []Sample
	for _, s := range slices.Backward(all) {
		if k := s.key(); count[k] < keptSamples {
			count[k]++
			kept = append(kept, s)
		}
	}
	slices.Reverse(kept)
	return kept
}

// learn sums the samples of one device up.
func learn(all []Sample, device string) Costs {
	took := make(map[sampleKey][]time.Duration)
	for _, s := range newest(all) {
		if s.Device == device {
			took[s.key()] = append(took[s.key()], s.Took)
		}
	}
	costs := make(Costs)
	for k, ds := range took {
		if k.removal {
			continue
		}
		removals := took[sampleKey{k.device, k.strategy, true, k.class}]
		costs[k.strategy] = append(costs[k.strategy], Cost{
			Class: k.class, Create: medianOf(ds), Remove: medianOf(removals), Runs: len(ds), Removals: len(removals),
		})
	}
	for _, cs := range costs {
		slices.SortFunc(cs, func(a, b Cost) int { return int(a.Class - b.Class) })
	}
	return costs
}

func medianOf(ds []time.Duration) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	ds = slices.Sorted(slices.Values(ds))
	return ds[len(ds)/2]
}

// of returns a strategy's cost for a size class if it was measured often enough
// to be believed.
func (c Costs) of(name policy.StrategyName, class int64) (Cost, bool) {
	for _, cost := range c[name] {
		if cost.Class == class {
			return cost, cost.Runs >= enoughRuns
		}
	}
	return Cost{}, false
}

const (
	// enoughRuns are needed of both sides before a measurement counts.
	enoughRuns = 3
	// clearlyLess is how much cheaper another strategy has to be before auto
	// leaves its order for it: what is measured is not all that counts.
	clearlyLess = 2
)

// ChooseFor is Choose for a tree of so many files, 0 if that is not known: auto
// then goes by what was measured where that is clear. It leaves its own order
// only for a strategy that costs no disk either, whose creation and removal
// together took less than half as long.
func (t *Table) ChooseFor(name policy.StrategyName, files int64, costs Costs) (Strategy, string, error) {
	s, reason, err := t.Choose(name)
	if err != nil || files < 1 || name != "" && name != policy.StrategyAuto || s.Name() == policy.StrategyCopy {
		return s, reason, err
	}
	class := sizeClass(files)
	usual, ok := costs.of(s.Name(), class)
	if !ok {
		return s, reason, nil
	}
	best, bestCost := s, usual
	for _, other := range autoOrder {
		cost, ok := costs.of(other, class)
		e, known := t.Lookup(other)
		if ok && known && e.Support.OK && !e.Support.Costly && other != policy.StrategyCopy && cost.total() < bestCost.total() {
			best, bestCost = ByName(other), cost
		}
	}
	if best.Name() == s.Name() || bestCost.total()*clearlyLess >= usual.total() {
		return s, reason, nil
	}
	return best, fmt.Sprintf("auto chose %s on %s by what was measured for %d to %d files: %s against %s by %s (%d and %d runs)",
		best.Name(), t.FileSystem, class, 10*class-1, short(bestCost.total()), short(usual.total()), s.Name(), bestCost.Runs, usual.Runs), nil
}

func (c Cost) total() time.Duration { return c.Create + c.Remove }

func short(d time.Duration) string {
	if d > 10*time.Millisecond {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(10 * time.Microsecond).String()
}

// Report is the costs with Taken set where ChooseFor would take a strategy for
// its measurements.
func (t *Table) Report(costs Costs) Costs {
	out := make(Costs, len(costs))
	for name, cs := range costs {
		for _, c := range cs {
			s, _, err := t.ChooseFor(policy.StrategyAuto, c.Class, costs)
			usual, _, err2 := t.Choose(policy.StrategyAuto)
			c.Taken = err == nil && err2 == nil && s.Name() == name && usual.Name() != name
			out[name] = append(out[name], c)
		}
	}
	return out
}
