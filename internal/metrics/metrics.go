// Package metrics counts what a Runtime's daemon does, and writes it down in the text
// format of Prometheus.
//
// It writes that format itself, a page of code: Prometheus' library and the protocol
// buffers behind it would be a tenth of the idle daemon's memory. Its parser and promtool
// judge the text in the tests. Every label's values are a closed list of the project's
// own: what is in none of them is "other". There is no label for an id, a repository or a
// host, which others choose. It serves nothing and keeps no time series; docs/metrics.md
// says how a Prometheus server gets them.
package metrics

import (
	"bytes"
	"slices"
	"strings"
	"sync"
	"time"

	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// Metrics is a runtime.Meter.
type Metrics struct {
	mu  sync.Mutex // of all families: what is counted is rare
	all []*family

	materialization, launch, quota        *family
	trees, ends, egress, failures         *family
	build, allocations, workers, intents  *family
	cacheTrees, cacheBytes                *family
	diskSize, diskFree, leftovers, behind *family
}

var _ runtime.Meter = (*Metrics)(nil)

// New makes the metrics of one daemon. lost says how many entries did not get into the
// journal; nil is none.
func New(lost func() int) *Metrics {
	m := new(Metrics)
	var latency []float64 // 1 ms to 65 s
	for b := 0.001; len(latency) < 17; b *= 2 {
		latency = append(latency, b)
	}
	m.build = m.add(gauge, "yoi_build_info", "The daemon's version; the value is 1.", "version")
	m.allocations = m.add(gauge, "yoi_allocations", "Execution Workspaces by status.", "status")
	m.workers = m.add(gauge, "yoi_workers", "Workers that have not ended, by status.", "status")
	m.materialization = m.add(histogram, "yoi_materialization_seconds", "From the request of an Execution Workspace to its record, by strategy.", "strategy", latency...)
	m.launch = m.add(histogram, "yoi_launch_seconds", "Starting a Worker in its sandbox, by the strategy of its workspace.", "strategy", latency...)
	m.ends = m.add(counter, "yoi_worker_ends_total", "How Workers ended.", "end")
	m.trees = m.add(counter, "yoi_cache_tree_requests_total", "Pristine trees that workspaces asked the cache for, by whether they were there.", "result")
	m.cacheTrees = m.add(gauge, "yoi_cache_trees", "Pristine trees in the cache.", "")
	m.cacheBytes = m.add(gauge, "yoi_cache_tree_bytes", "Bytes of the files of pristine trees.", "")
	m.diskSize = m.add(gauge, "yoi_disk_size_bytes", "Size of the file system of the Runtime root.", "")
	m.diskFree = m.add(gauge, "yoi_disk_free_bytes", "What of it is free for the daemon.", "")
	m.intents = m.add(gauge, "yoi_ledger_open_intents", "Resources that the cleanup ledger has an intent for and no release, by kind.", "kind")
	m.leftovers = m.add(gauge, "yoi_ledger_leftovers", "Resources of dead processes that wait for recovery.", "")
	m.behind = m.add(gauge, "yoi_ledger_lag_records", "Ledger records that are not durable yet.", "")
	m.egress = m.add(counter, "yoi_egress_decisions_total", "What the network policies of ended Workers decided.", "decision")
	m.quota = m.add(histogram, "yoi_quota_used_ratio", "Part of its quota that a workspace had used when a Worker of it ended.", "bound", 0.1, 0.25, 0.5, 0.75, 0.9, 1)
	m.failures = m.add(counter, "yoi_request_failures_total", "Requests that were refused or failed, by diagnostic.", "code")
	if lost == nil {
		lost = func() int { return 0 }
	}
	m.ask(counter, "yoi_journal_entries_lost_total", "Entries that the journal did not take in time.", func() float64 { return float64(lost()) })
	m.process()
	slices.SortFunc(m.all, func(a, b *family) int { return strings.Compare(a.name, b.name) })
	m.zero()
	return m
}

func (m *Metrics) add(k kind, name, help, label string, bounds ...float64) *family {
	f := &family{name: name, help: help, kind: k, label: label, bounds: bounds, series: make(map[string]*series)}
	m.all = append(m.all, f)
	return f
}

// ask is add of what is known only when somebody asks.
func (m *Metrics) ask(k kind, name, help string, read func() float64) {
	m.add(k, name, help, "").read = read
}

var (
	bounds    = []string{"disk_bytes", "inodes"}
	decisions = []string{"allowed", "refused"}
	results   = map[bool]string{true: "hit", false: "miss"}
	statuses  = []registry.AllocationStatus{registry.AllocationActive, registry.AllocationStopped, registry.AllocationCleanupPending, registry.AllocationFailed}
	running   = []registry.WorkerStatus{registry.WorkerStarting, registry.WorkerRunning}
)

// zero makes the series that alerts look at, so that a rate sees the first of them.
func (m *Metrics) zero() {
	for _, e := range runtime.WorkerEnds() {
		m.ends.of(string(e))
	}
	for _, v := range results {
		m.trees.of(v)
	}
	for _, v := range decisions {
		m.egress.of(v)
	}
	for _, v := range bounds {
		m.quota.of(v)
	}
}

// one is v if it is in the list, else "other".
func one[T ~string](v T, list ...T) string {
	if slices.Contains(list, v) {
		return string(v)
	}
	return "other"
}

func (m *Metrics) Materialized(by policy.StrategyName, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.materialization.observe(one(by, policy.Strategies()...), took.Seconds())
}

func (m *Metrics) Launched(by policy.StrategyName, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.launch.observe(one(by, policy.Strategies()...), took.Seconds())
}

func (m *Metrics) Tree(hit bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trees.add(results[hit], 1)
}

func (m *Metrics) Ended(how runtime.WorkerEnd) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ends.add(one(how, runtime.WorkerEnds()...), 1)
}

func (m *Metrics) Egress(allowed, refused uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.egress.add("allowed", float64(allowed))
	m.egress.add("refused", float64(refused))
}

func (m *Metrics) QuotaUsed(bound string, part float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.quota.observe(one(bound, bounds...), part)
}

func (m *Metrics) Failed(code policy.Code) {
	if !slices.ContainsFunc(policy.Catalog(), func(i policy.Info) bool { return i.Code == code }) {
		code = "other"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failures.add(string(code), 1)
}

// Text implements runtime.Meter.
func (m *Metrics) Text(l runtime.Levels) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.set(l)
	var b bytes.Buffer
	for _, f := range m.all {
		f.write(&b)
	}
	return b.Bytes(), nil
}

func (m *Metrics) set(l runtime.Levels) {
	clear(m.build.series)
	m.build.set(l.Version, 1)
	for _, s := range statuses {
		m.allocations.set(string(s), float64(l.Allocations[s]))
	}
	for _, s := range running {
		m.workers.set(string(s), float64(l.Workers[s]))
	}
	clear(m.intents.series)
	for _, k := range ledger.Kinds() {
		m.intents.of(string(k))
	}
	for kind, n := range l.Intents {
		m.intents.add(one(kind, ledger.Kinds()...), float64(n))
	}
	m.cacheTrees.set("", float64(l.Trees))
	m.cacheBytes.set("", float64(l.TreeBytes))
	m.diskSize.set("", float64(l.DiskSize))
	m.diskFree.set("", float64(l.DiskFree))
	m.leftovers.set("", float64(l.Leftovers))
	m.behind.set("", float64(l.LedgerLag))
}
