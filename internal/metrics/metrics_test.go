package metrics

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// busy is a meter that has seen each thing, and odd ones.
func busy(t *testing.T) (*Metrics, []byte) {
	t.Helper()
	m := New(func() int { return 7 })
	for _, s := range append(policy.Strategies(), "x\ny", policy.StrategyName(strings.Repeat("z", 1<<16))) {
		m.Materialized(s, 30*time.Millisecond)
		m.Launched(s, 3*time.Millisecond)
	}
	for _, e := range append(runtime.WorkerEnds(), "abducted") {
		m.Ended(e)
	}
	m.Tree(true)
	m.Tree(true)
	m.Tree(false)
	m.Egress(3, 5)
	m.QuotaUsed("disk_bytes", 0.3)
	m.QuotaUsed("wk-1", 0.3)
	m.Failed(policy.CodeDiskFull)
	m.Failed("\"} 1\nevil{x=\"")
	text, err := m.Text(runtime.Levels{
		Version:     "1.2",
		Allocations: map[registry.AllocationStatus]int{registry.AllocationActive: 4, "stolen": 9},
		Workers:     map[registry.WorkerStatus]int{registry.WorkerRunning: 2},
		Trees:       3, TreeBytes: 300, DiskSize: 1000, DiskFree: 400, Leftovers: 1, LedgerLag: 2,
		Intents: map[ledger.Kind]int{ledger.KindDirectory: 5, "planet": 1, "moon": 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	return m, text
}

// TestText: what was counted is there, and what is in no list is "other".
func TestText(t *testing.T) {
	m, text := busy(t)
	for _, line := range []string{
		`yoi_build_info{version="1.2"} 1`, `yoi_allocations{status="active"} 4`, `yoi_allocations{status="failed"} 0`, `yoi_workers{status="running"} 2`,
		`yoi_materialization_seconds_count{strategy="overlay"} 1`, `yoi_materialization_seconds_bucket{strategy="overlay",le="0.032"} 1`, `yoi_materialization_seconds_bucket{strategy="overlay",le="0.016"} 0`,
		`yoi_materialization_seconds_count{strategy="other"} 2`, `yoi_launch_seconds_count{strategy="reflink"} 1`,
		`yoi_worker_ends_total{end="oom"} 1`, `yoi_worker_ends_total{end="other"} 1`,
		`yoi_cache_tree_requests_total{result="hit"} 2`, `yoi_cache_tree_requests_total{result="miss"} 1`, `yoi_cache_trees 3`, `yoi_cache_tree_bytes 300`,
		`yoi_disk_size_bytes 1000`, `yoi_disk_free_bytes 400`, `yoi_ledger_open_intents{kind="directory"} 5`, `yoi_ledger_open_intents{kind="other"} 2`, `yoi_ledger_open_intents{kind="cgroup"} 0`,
		`yoi_ledger_leftovers 1`, `yoi_ledger_lag_records 2`, `yoi_egress_decisions_total{decision="allowed"} 3`, `yoi_egress_decisions_total{decision="refused"} 5`,
		`yoi_quota_used_ratio_bucket{bound="disk_bytes",le="0.5"} 1`, `yoi_quota_used_ratio_count{bound="other"} 1`,
		`yoi_request_failures_total{code="disk_full"} 1`, `yoi_request_failures_total{code="other"} 1`, `yoi_journal_entries_lost_total 7`,
	} {
		if !bytes.Contains(text, []byte("\n"+line+"\n")) {
			t.Errorf("there is no %s", line)
		}
	}
	for _, bad := range []string{"stolen", "planet", "evil", "abducted", "zz", "wk-1"} {
		if bytes.Contains(text, []byte(bad)) {
			t.Errorf("%q chose a label", bad)
		}
	}
	again, err := m.Text(runtime.Levels{Version: "1.2"})
	if err != nil || bytes.Contains(again, []byte(`kind="other"`)) || !bytes.Contains(again, []byte(`yoi_allocations{status="active"} 0`)) {
		t.Errorf("what is gone is still there: %v", err)
	}
}

// names are the metrics that there are; those of histograms with their suffixes.
func names(t *testing.T) (all []string, families []string) {
	t.Helper()
	_, text := busy(t)
	p := expfmt.NewTextParser(model.UTF8Validation)
	fs, err := p.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for n, f := range fs {
		families = append(families, n)
		all = append(all, n)
		if f.GetType().String() == "HISTOGRAM" {
			all = append(all, n+"_bucket", n+"_sum", n+"_count")
		}
	}
	return all, families
}

var metricName = regexp.MustCompile(`\b(yoi|go|process)_[a-z_]*[a-z]`)

// TestNamesExist: what dashboard, rules and document name there is, and the document
// names all of ours.
func TestNamesExist(t *testing.T) {
	all, families := names(t)
	rules, err := os.ReadFile("../../systemd/yoi-alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var exprs []string
	for line := range strings.Lines(string(rules)) {
		if _, e, ok := strings.Cut(line, "expr: "); ok {
			exprs = append(exprs, e)
		}
	}
	if len(exprs) < 10 {
		t.Errorf("only %d rules were found", len(exprs))
	}
	b, err := os.ReadFile("../../systemd/yoi-dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(b, &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, p := range dashboard.Panels {
		if p.Title == "" || len(p.Targets) == 0 {
			t.Errorf("a panel without a title or a target: %+v", p)
		}
		for _, x := range p.Targets {
			exprs = append(exprs, x.Expr)
		}
	}
	for _, e := range exprs {
		found := metricName.FindAllString(e, -1)
		if len(found) == 0 {
			t.Errorf("%s is of no metric", e)
		}
		for _, n := range found {
			if !slices.Contains(all, n) {
				t.Errorf("%s: there is no %s", e, n)
			}
		}
	}
	doc, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := regexp.MustCompile("`(yoi_[a-z_]+)`").FindAllStringSubmatch(string(doc), -1)
	for _, d := range documented {
		if !slices.Contains(families, d[1]) {
			t.Errorf("docs/metrics.md has %s, which there is not", d[1])
		}
	}
	for _, f := range families {
		if strings.HasPrefix(f, "go_") || strings.HasPrefix(f, "process_") {
			t.Errorf("%s is a name of a node exporter's own", f)
		}
		librarys := strings.HasPrefix(f, "yoi_go_") || strings.HasPrefix(f, "yoi_process_")
		if !librarys && !slices.ContainsFunc(documented, func(d []string) bool { return d[1] == f }) {
			t.Errorf("docs/metrics.md lacks %s", f)
		}
	}
}

// TestPromtool has Prometheus' own tool judge the text, the rules and every expression
// of the dashboard.
func TestPromtool(t *testing.T) {
	promtool := func(in []byte, args ...string) {
		t.Helper()
		cmd := exec.Command("promtool", args...)
		cmd.Stdin = bytes.NewReader(in)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %q (make setup installs it): %v\n%s", args, err, out)
		}
	}
	_, text := busy(t)
	promtool(text, "check", "metrics")
	promtool(nil, "check", "rules", "../../systemd/yoi-alerts.yaml")
	b, err := os.ReadFile("../../systemd/yoi-dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var rules strings.Builder
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	n := 0
	for _, m := range regexp.MustCompile(`"expr": ("(?:[^"\\]|\\.)*")`).FindAllSubmatch(b, -1) {
		n++
		rules.WriteString("  - record: panel:" + strings.Repeat("x", n) + "\n    expr: " + string(m[1]) + "\n")
	}
	file := t.TempDir() + "/panels.yaml"
	if err := os.WriteFile(file, []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if n < 15 {
		t.Errorf("only %d expressions were found", n)
	}
	promtool(nil, "check", "rules", file)
}
