package helper

import (
	"time"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/policy"
)

// made is what an allocation's removal is a measurement of.
type made struct {
	strategy policy.StrategyName
	files    int64
}

// costs are what was measured on the Runtime root's device. Only auto asks.
func (l *Local) costs(s policy.StrategyName) cow.Costs {
	if s != policy.StrategyAuto && s != "" {
		return nil
	}
	return cow.ReadCosts(l.root.Dir)
}

// measured remembers what a tree cost, and whose removal will cost what.
func (l *Local) measured(id policy.AllocationID, s policy.StrategyName, files int64, took time.Duration) {
	cow.Record(l.root.Dir, cow.Sample{Strategy: s, Files: files, Took: took})
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, several := l.made[id]; several {
		files = 0 // one removal of several trees measures none of them
	}
	l.made[id] = made{s, files}
}

// removed remembers what an allocation's removal cost, if this process made it.
func (l *Local) removed(id policy.AllocationID, took time.Duration) {
	l.mu.Lock()
	m := l.made[id]
	delete(l.made, id)
	l.mu.Unlock()
	cow.Record(l.root.Dir, cow.Sample{Strategy: m.strategy, Removal: true, Files: m.files, Took: took})
}
