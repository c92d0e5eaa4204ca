package runtime

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/policy"
)

// RuntimeStatus is how the Runtime is now, where Doctor says what the host can do.
type RuntimeStatus struct {
	// Severity is the worst of the problems': ok, degraded or missing.
	Severity  string           `json:"severity"`
	RuntimeID policy.RuntimeID `json:"runtime_id"`
	Version   string           `json:"version"`
	StartedAt time.Time        `json:"started_at"`
	// Daemon is false where a command does the work itself; Helper is ok, unreachable
	// or embedded.
	Daemon bool   `json:"daemon"`
	Helper string `json:"helper"`
	// DiskBytes and DiskFreeBytes are of the Runtime root's file system.
	DiskBytes     int64 `json:"disk_bytes"`
	DiskFreeBytes int64 `json:"disk_free_bytes"`
	// Workers run now. Workspaces are those that are not removed, by their status.
	Workers    int                     `json:"workers"`
	Workspaces map[WorkspaceStatus]int `json:"workspaces"`
	// CacheBytes are of mirrors and pristine trees, measured at CacheMeasuredAt.
	Repositories    int       `json:"repositories"`
	CacheBytes      int64     `json:"cache_bytes"`
	CacheMeasuredAt time.Time `json:"cache_measured_at"`
	// LastCleanup is absent before the first gc.
	LastCleanup *CleanupRecord `json:"last_cleanup,omitempty"`
	// Held are the ledger's resources, OpenIntents those of them whose making is not
	// known to be complete, Leftovers what dead processes left.
	Held        int `json:"held"`
	OpenIntents int `json:"open_intents"`
	Leftovers   int `json:"leftovers"`
	// Problems are the checks that are not ok.
	Problems []DoctorCheck `json:"problems"`
}

// CleanupRecord is what the last gc did.
type CleanupRecord struct {
	At         time.Time `json:"at"`
	Removed    int       `json:"removed"`
	FreedBytes int64     `json:"freed_bytes"`
}

// lastCleanupKey is the registry's note of the last gc.
const lastCleanupKey = "last_cleanup"

// helperPatience is how long a status waits for a helper that may be the problem.
const helperPatience = 2 * time.Second

// Status says how the Runtime is. It asks everything that a request would need, so
// whoever gets an answer knows that requests are served.
func (r *Runtime) Status(ctx context.Context) (RuntimeStatus, error) {
	s := RuntimeStatus{Severity: "ok", RuntimeID: r.id, Version: Version, StartedAt: r.started, Daemon: r.daemon, Problems: []DoctorCheck{}, Workspaces: map[WorkspaceStatus]int{}}
	counts, workers, err := r.registry.Counts(ctx)
	if err != nil {
		return s, err
	}
	for status, n := range counts {
		s.Workspaces[WorkspaceStatus(status)] = n
	}
	for _, n := range workers {
		s.Workers += n
	}
	if s.LastCleanup, err = r.lastCleanup(ctx); err != nil {
		return s, err
	}
	if err := r.cacheStatus(ctx, &s); err != nil {
		return s, err
	}
	if err := r.ledgerStatus(ctx, &s); err != nil {
		return s, err
	}
	s.DiskBytes, s.DiskFreeBytes, _ = r.disk() // what failed diskCheck tells
	s.problem(r.diskCheck())
	s.problem(r.helperStatus(ctx, &s))
	s.problem(r.configCheck())
	return s, nil
}

func (s *RuntimeStatus) problem(c DoctorCheck) {
	if c.State == "ok" {
		return
	}
	s.Problems = append(s.Problems, c)
	s.Severity = worse(s.Severity, c.State)
}

// worse is the graver of two states.
func worse(a, b string) string {
	if severity[b] > severity[a] {
		return b
	}
	return a
}

func (r *Runtime) helperStatus(ctx context.Context, s *RuntimeStatus) DoctorCheck {
	if !r.remoteHelper {
		s.Helper = "embedded"
		return DoctorCheck{Name: "helper", State: "ok"}
	}
	ctx, cancel := context.WithTimeout(ctx, helperPatience)
	defer cancel()
	if _, err := r.helper.Live(ctx); err != nil {
		s.Helper = "unreachable"
		return DoctorCheck{Name: "helper", State: "missing", Message: "yoi-helper does not answer: no workspace can be made, no worker started", Fix: "systemctl status yoi-helper; journalctl -u yoi-helper"}
	}
	s.Helper = "ok"
	return DoctorCheck{Name: "helper", State: "ok"}
}

// ledgerStatus counts what the ledger holds. What a live writer began a moment ago is
// an open intent too, and no problem.
func (r *Runtime) ledgerStatus(ctx context.Context, s *RuntimeStatus) error {
	if err := r.ledger.Sync(ctx); err != nil {
		return err
	}
	state, err := ledger.Scan(ctx, r.ledgerDir)
	if err != nil {
		return err
	}
	s.Held, s.Leftovers = len(state.Held), len(state.Leftovers())
	for _, h := range state.Held {
		if !h.Done {
			s.OpenIntents++
		}
	}
	if s.Leftovers > 0 {
		s.problem(DoctorCheck{Name: "leftovers", State: "degraded", Message: fmt.Sprintf("dead processes left %d resources", s.Leftovers), Fix: "yoi gc"})
	}
	return nil
}

// cacheSize is the cache's size as last measured, which takes a walk of the mirrors.
type cacheSize struct {
	mu    sync.Mutex
	seen  uint64 // the events until then
	at    time.Time
	bytes int64
	repos int
}

// cacheSizeAge is how old a measurement must be before another one.
const cacheSizeAge = 30 * time.Second

// cacheStatus measures the cache anew only if something happened since.
func (r *Runtime) cacheStatus(ctx context.Context, s *RuntimeStatus) error {
	m := &r.cacheSize
	m.mu.Lock()
	defer m.mu.Unlock()
	seen, now := r.events.count(), r.now()
	if m.at.IsZero() || seen != m.seen && now.Sub(m.at).Abs() >= cacheSizeAge {
		infos, err := r.cacheInfos(ctx)
		if err != nil {
			return err
		}
		m.seen, m.at, m.bytes, m.repos = seen, now, 0, len(infos)
		for _, i := range infos {
			m.bytes += i.CacheBytes + i.TreeBytes
		}
	}
	s.Repositories, s.CacheBytes, s.CacheMeasuredAt = m.repos, m.bytes, m.at
	return nil
}

func (r *Runtime) lastCleanup(ctx context.Context) (*CleanupRecord, error) {
	v, err := r.registry.Note(ctx, lastCleanupKey)
	if err != nil || v == "" {
		return nil, err
	}
	rec := new(CleanupRecord)
	if err := json.Unmarshal([]byte(v), rec); err != nil {
		return nil, policy.Errorf(policy.CodeRegistryFailed, "runtime.status", "the registry's note of the last cleanup cannot be read").Because(err)
	}
	return rec, nil
}

func (r *Runtime) noteCleanup(ctx context.Context, rep GCReport) error {
	b, err := json.Marshal(CleanupRecord{At: r.now(), Removed: len(rep.Items), FreedBytes: rep.FreedBytes})
	if err != nil {
		return policy.AsDiagnostic(err)
	}
	return r.registry.SetNote(ctx, lastCleanupKey, string(b))
}

// Line is the status in one line, for `systemctl status`.
func (s RuntimeStatus) Line() string {
	total := 0
	for _, n := range s.Workspaces {
		total += n
	}
	parts := []string{counted(s.Workers, "Worker"), counted(total, "workspace"), "cache " + humanSize(s.CacheBytes)}
	for _, p := range s.Problems {
		parts = append(parts, p.State+": "+p.Message)
	}
	return strings.Join(parts, ", ")
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func humanSize(n int64) string {
	units, f := []string{"B", "KiB", "MiB", "GiB", "TiB"}, float64(n)
	i := 0
	for ; f >= 1024 && i < len(units)-1; i++ {
		f /= 1024
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", f, units[i])
}

// Changed is closed by the next event.
func (r *Runtime) Changed() <-chan struct{} { return r.events.wait() }
