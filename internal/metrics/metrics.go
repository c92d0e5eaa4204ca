// Package metrics counts what a Runtime's daemon does, and writes it down in the text
// format of Prometheus.
//
// It exists so that only the daemon links Prometheus' library. Every label's values are
// a closed list of the project's own: what is in none of them is "other". There is no
// label for an id, a repository or a host, which others choose. It serves nothing and
// keeps no time series; docs/metrics.md says how a Prometheus server gets them.
package metrics

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"

	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// Metrics is a runtime.Meter.
type Metrics struct {
	registry *prometheus.Registry
	mu       sync.Mutex // one Text at a time: it sets gauges

	materialization, launch, quota        *prometheus.HistogramVec
	trees, ends, egress, failures         *prometheus.CounterVec
	build, allocations, workers, intents  *prometheus.GaugeVec
	cacheTrees, cacheBytes                prometheus.Gauge
	diskSize, diskFree, leftovers, behind prometheus.Gauge
}

var _ runtime.Meter = (*Metrics)(nil)

// New makes the metrics of one daemon. lost says how many entries did not get into the
// journal; nil is none.
func New(lost func() int) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	latency := prometheus.ExponentialBuckets(0.001, 2, 17) // 1 ms to 65 s
	m.build = m.gauges("yoi_build_info", "The daemon's version; the value is 1.", "version")
	m.allocations = m.gauges("yoi_allocations", "Execution Workspaces by status.", "status")
	m.workers = m.gauges("yoi_workers", "Workers that have not ended, by status.", "status")
	m.materialization = m.histogram("yoi_materialization_seconds", "From the request of an Execution Workspace to its record, by strategy.", latency, "strategy")
	m.launch = m.histogram("yoi_launch_seconds", "Starting a Worker in its sandbox, by the strategy of its workspace.", latency, "strategy")
	m.ends = m.counter("yoi_worker_ends_total", "How Workers ended.", "end")
	m.trees = m.counter("yoi_cache_tree_requests_total", "Pristine trees that workspaces asked the cache for, by whether they were there.", "result")
	m.cacheTrees = m.gauge("yoi_cache_trees", "Pristine trees in the cache.")
	m.cacheBytes = m.gauge("yoi_cache_tree_bytes", "Bytes of the files of pristine trees.")
	m.diskSize = m.gauge("yoi_disk_size_bytes", "Size of the file system of the Runtime root.")
	m.diskFree = m.gauge("yoi_disk_free_bytes", "What of it is free for the daemon.")
	m.intents = m.gauges("yoi_ledger_open_intents", "Resources that the cleanup ledger has an intent for and no release, by kind.", "kind")
	m.leftovers = m.gauge("yoi_ledger_leftovers", "Resources of dead processes that wait for recovery.")
	m.behind = m.gauge("yoi_ledger_lag_records", "Ledger records that are not durable yet.")
	m.egress = m.counter("yoi_egress_decisions_total", "What the network policies of ended Workers decided.", "decision")
	m.quota = m.histogram("yoi_quota_used_ratio", "Part of its quota that a workspace had used when a Worker of it ended.", []float64{0.1, 0.25, 0.5, 0.75, 0.9, 1}, "bound")
	m.failures = m.counter("yoi_request_failures_total", "Requests that were refused or failed, by diagnostic.", "code")
	if lost == nil {
		lost = func() int { return 0 }
	}
	m.registry.MustRegister(
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "yoi_journal_entries_lost_total", Help: "Entries that the journal did not take in time."}, func() float64 { return float64(lost()) }),
	)
	// Under names of our own: a node exporter that passes them on has these itself.
	prometheus.WrapRegistererWithPrefix("yoi_", m.registry).MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	m.zero()
	return m
}

func (m *Metrics) histogram(name, help string, buckets []float64, label string) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{label})
	m.registry.MustRegister(v)
	return v
}

func (m *Metrics) counter(name, help, label string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	m.registry.MustRegister(v)
	return v
}

func (m *Metrics) gauges(name, help, label string) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{label})
	m.registry.MustRegister(v)
	return v
}

func (m *Metrics) gauge(name, help string) prometheus.Gauge {
	v := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	m.registry.MustRegister(v)
	return v
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
		m.ends.WithLabelValues(string(e))
	}
	for _, v := range results {
		m.trees.WithLabelValues(v)
	}
	for _, v := range decisions {
		m.egress.WithLabelValues(v)
	}
	for _, v := range bounds {
		m.quota.WithLabelValues(v)
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
	m.materialization.WithLabelValues(one(by, policy.Strategies()...)).Observe(took.Seconds())
}

func (m *Metrics) Launched(by policy.StrategyName, took time.Duration) {
	m.launch.WithLabelValues(one(by, policy.Strategies()...)).Observe(took.Seconds())
}

func (m *Metrics) Tree(hit bool) { m.trees.WithLabelValues(results[hit]).Inc() }

func (m *Metrics) Ended(how runtime.WorkerEnd) {
	m.ends.WithLabelValues(one(how, runtime.WorkerEnds()...)).Inc()
}

func (m *Metrics) Egress(allowed, refused uint64) {
	m.egress.WithLabelValues("allowed").Add(float64(allowed))
	m.egress.WithLabelValues("refused").Add(float64(refused))
}

func (m *Metrics) QuotaUsed(bound string, part float64) {
	m.quota.WithLabelValues(one(bound, bounds...)).Observe(part)
}

func (m *Metrics) Failed(code policy.Code) {
	if !slices.ContainsFunc(policy.Catalog(), func(i policy.Info) bool { return i.Code == code }) {
		code = "other"
	}
	m.failures.WithLabelValues(string(code)).Inc()
}

// Text implements runtime.Meter.
func (m *Metrics) Text(l runtime.Levels) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.set(l)
	families, err := m.registry.Gather()
	if err != nil {
		return nil, fmt.Errorf("gathering: %w", err)
	}
	var b bytes.Buffer
	enc := expfmt.NewEncoder(&b, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		if err := enc.Encode(f); err != nil {
			return nil, fmt.Errorf("encoding %s: %w", f.GetName(), err)
		}
	}
	return b.Bytes(), nil
}

func (m *Metrics) set(l runtime.Levels) {
	m.build.Reset()
	m.build.WithLabelValues(l.Version).Set(1)
	for _, s := range statuses {
		m.allocations.WithLabelValues(string(s)).Set(float64(l.Allocations[s]))
	}
	for _, s := range running {
		m.workers.WithLabelValues(string(s)).Set(float64(l.Workers[s]))
	}
	m.intents.Reset()
	for _, k := range ledger.Kinds() {
		m.intents.WithLabelValues(string(k))
	}
	for kind, n := range l.Intents {
		m.intents.WithLabelValues(one(kind, ledger.Kinds()...)).Add(float64(n))
	}
	m.cacheTrees.Set(float64(l.Trees))
	m.cacheBytes.Set(float64(l.TreeBytes))
	m.diskSize.Set(float64(l.DiskSize))
	m.diskFree.Set(float64(l.DiskFree))
	m.leftovers.Set(float64(l.Leftovers))
	m.behind.Set(float64(l.LedgerLag))
}
