package runtime

import (
	"context"
	"errors"
	"time"

	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// Meter counts what a daemon does and writes it down with what there is (Levels). What
// tells things apart is of closed lists, and never an id or a name: whoever could
// choose one would choose how much memory the meter takes.
type Meter interface {
	// Materialized is told how long a workspace took from its request to its record.
	Materialized(by policy.StrategyName, took time.Duration)
	// Launched is told how long a Worker's sandbox took, on a workspace made by that.
	Launched(by policy.StrategyName, took time.Duration)
	// Tree is told of each pristine tree that was wanted, and whether it was there.
	Tree(hit bool)
	Ended(how WorkerEnd)
	Egress(allowed, refused uint64)
	// QuotaUsed is how much of a quota a workspace had used when a Worker of it ended.
	QuotaUsed(bound string, part float64)
	// Failed is told of each request that was refused or failed.
	Failed(code policy.Code)
	// Text is everything, in the text format of Prometheus.
	Text(l Levels) ([]byte, error)
}

// WorkerEnd is how a Worker ended, in one word: what ended it, if that was a limit or
// somebody else.
type WorkerEnd string

const (
	EndSuccess WorkerEnd = "success"
	EndFailure WorkerEnd = "failure"     // its own exit code
	EndSignal  WorkerEnd = "signal"      // its own, or one that somebody sent
	EndTimeout WorkerEnd = "timeout"     // the time limit
	EndOOM     WorkerEnd = "oom"         // the memory limit
	EndQuota   WorkerEnd = "quota"       // the workspace's
	EndStopped WorkerEnd = "stopped"     // by the service manager
	EndLost    WorkerEnd = "lost"        // nobody knows
	EndUnbegun WorkerEnd = "not_started" // the launch failed
)

// WorkerEnds lists them.
func WorkerEnds() []WorkerEnd {
	return []WorkerEnd{EndSuccess, EndFailure, EndSignal, EndTimeout, EndOOM, EndQuota, EndStopped, EndLost, EndUnbegun}
}

func endOf(o registry.Outcome) WorkerEnd {
	switch {
	case o.Exceeded != "":
		return EndQuota
	case o.TimedOut:
		return EndTimeout
	case o.Stopped:
		return EndStopped
	case o.Lost:
		return EndLost
	case o.OOMKilled && o.ExitCode != 0: // on v1 only one process of it may have died
		return EndOOM
	case o.Signal != "":
		return EndSignal
	case o.ExitCode != 0:
		return EndFailure
	}
	return EndSuccess
}

// Levels is what there is now, for a Meter.
type Levels struct {
	Version string
	// Allocations and Workers count records by status, of what is not gone.
	Allocations map[registry.AllocationStatus]int
	Workers     map[registry.WorkerStatus]int
	// Trees are the pristine trees of the cache, TreeBytes their files'.
	Trees     int
	TreeBytes int64
	// DiskSize and DiskFree are of the Runtime root's file system.
	DiskSize, DiskFree int64
	// Intents are resources that the ledger has an intent for and no release, by kind;
	// Leftovers those of dead writers, which nobody keeps.
	Intents   map[ledger.Kind]int
	Leftovers int
	// LedgerLag counts records that are not durable yet.
	LedgerLag int
}

// Metrics writes what the daemon's meter has.
func (r *Runtime) Metrics(ctx context.Context) ([]byte, error) {
	const op = "runtime.metrics"
	if r.meter == nil {
		return nil, policy.Errorf(policy.CodeUnsupported, op, "only a daemon has metrics").WithHint("Name its socket with --socket.")
	}
	l, err := r.levels(ctx)
	if err != nil {
		return nil, err
	}
	b, err := r.meter.Text(l)
	if err != nil {
		return nil, policy.Errorf(policy.CodeInternal, op, "the metrics cannot be written").Because(err)
	}
	return b, nil
}

func (r *Runtime) levels(ctx context.Context) (l Levels, err error) {
	l.Version, l.LedgerLag = Version, r.ledger.Lag()
	if l.Allocations, l.Workers, err = r.registry.Counts(ctx); err != nil {
		return l, err
	}
	if l.Trees, l.TreeBytes, err = r.cache.Size(ctx); err != nil {
		return l, err
	}
	state, err := ledger.Scan(ctx, r.ledgerDir)
	if err != nil {
		return l, err
	}
	l.Intents, l.Leftovers = make(map[ledger.Kind]int), len(state.Leftovers())
	for _, h := range state.Held {
		l.Intents[h.Resource.Kind]++
	}
	if l.DiskSize, l.DiskFree, err = r.disk(); err != nil {
		return l, policy.Errorf(policy.CodeInternal, "runtime.metrics", "the disk cannot be looked at").Because(err)
	}
	return l, nil
}

// measureQuota tells the meter how much of a workspace's quota is used.
func (r *Runtime) measureQuota(ctx context.Context, a registry.Allocation) {
	q := a.SandboxPolicy.Quota
	if r.meter == nil || (q.Bytes == 0 && q.Inodes == 0) {
		return
	}
	u, err := r.helper.Usage(ctx, a.ID)
	if err != nil {
		if !errors.Is(err, policy.CodeAllocationUnknown) {
			r.log.Warn("a workspace's use of its quota is not known", "allocation", a.ID, "error", err)
		}
		return
	}
	part := func(bound string, used, most int64) {
		if most > 0 {
			r.meter.QuotaUsed(bound, float64(used)/float64(most))
		}
	}
	part("disk_bytes", u.Exclusive, q.Bytes)
	part("inodes", u.Inodes, q.Inodes)
}

// noMeter counts nothing.
type noMeter struct{}

func (noMeter) Materialized(policy.StrategyName, time.Duration) {}
func (noMeter) Launched(policy.StrategyName, time.Duration)     {}
func (noMeter) Tree(bool)                                       {}
func (noMeter) Ended(WorkerEnd)                                 {}
func (noMeter) Egress(uint64, uint64)                           {}
func (noMeter) QuotaUsed(string, float64)                       {}
func (noMeter) Failed(policy.Code)                              {}
func (noMeter) Text(Levels) ([]byte, error)                     { return nil, nil }

// count is the meter, or one that counts nothing.
func (r *Runtime) count() Meter {
	if r.meter == nil {
		return noMeter{}
	}
	return r.meter
}
