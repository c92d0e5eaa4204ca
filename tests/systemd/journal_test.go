package systemd

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/tests/internal/host"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// entry is one of the journal's, by field. What is not UTF-8 is a list of numbers.
type entry map[string]any

func (e entry) get(field string) string {
	switch v := e[field].(type) {
	case string:
		return v
	case []any:
		var b []byte
		for _, n := range v {
			if f, ok := n.(float64); ok {
				b = append(b, byte(f))
			}
		}
		return string(b)
	}
	return ""
}

// journal is what the journal has for these matches, in order.
func journal(t *testing.T, h *host.Host, matches ...string) (es []entry) {
	t.Helper()
	h.OK("journalctl", "--sync")
	out := h.OK(append([]string{"journalctl", "--no-pager", "--all", "-o", "json"}, matches...)...)
	for line := range strings.Lines(out) {
		var e entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		es = append(es, e)
	}
	return es
}

// story is a Worker's entries in short: its events, and the lines of its output.
func story(t *testing.T, h *host.Host, worker string) (lines []string) {
	t.Helper()
	for _, e := range journal(t, h, "YOI_WORKER_ID="+worker) {
		if s := e.get("YOI_STREAM"); s != "" {
			lines = append(lines, s+" "+e.get("MESSAGE"))
		} else {
			lines = append(lines, e.get("YOI_EVENT"))
		}
	}
	return lines
}

// told waits until the journal has a Worker's end.
func told(t *testing.T, h *host.Host, worker string) []string {
	t.Helper()
	h.Eventually("the journal has the end of "+worker, func() bool {
		s := story(t, h, worker)
		return len(s) > 0 && s[len(s)-1] == string(policy.EventWorkerEnded)
	})
	return story(t, h, worker)
}

func spawned(t *testing.T, h *host.Host, ws string, args ...string) string {
	t.Helper()
	return rig.Answer[made](yoi(h, append([]string{"worker", "spawn", "--json", ws, "--"}, args...)...)).ID
}

func workspace(t *testing.T, h *host.Host) string {
	t.Helper()
	return rig.Answer[made](yoi(h, "ws", "create", "--json", "app", "--cleanup", "keep_until_asked")).ID
}

// TestJournal: the journal tells every event and every refusal, by fields that can be
// asked for, explains them, and holds no secret that passed by.
func TestJournal(t *testing.T) {
	h := installed(t)
	yoi(h, "repo", "add", "/srv/app").Want(0)
	ws := workspace(t, h)
	const secret = "hunter2-in-an-argument"
	wk := rig.Answer[made](yoi(h, "worker", "spawn", "--json", "--env", "TOKEN="+secret, ws, "--", "sh", "-c", "trap 'exit 3' USR1; while :; do sleep 0.05; done")).ID
	yoi(h, "worker", "exec", wk, "--", "echo", secret).Want(0)
	yoi(h, "worker", "pause", wk).Want(0)
	yoi(h, "worker", "resume", wk).Want(0)
	yoi(h, "worker", "signal", wk, "USR1").Want(0)
	ended(t, h, wk)
	if r := yoi(h, "worker", "spawn", ws, "--", "/no/such/command"); r.Code == 0 {
		t.Error("a command that is not there was started")
	}
	if r := yoi(h, "ws", "create", "no-such-repository"); r.Code == 0 {
		t.Error("a repository that is not there was found")
	}
	yoi(h, "ws", "rm", ws).Want(0)
	var events []struct {
		Kind, Owner string
	}
	for line := range strings.Lines(yoi(h, "events", "--json").Want(0).Stdout) {
		var e struct{ Kind, Owner string }
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
	runtimeID := rig.Answer[struct {
		RuntimeID string `json:"runtime_id"`
	}](yoi(h, "info", "--json")).RuntimeID
	told(t, h, wk)
	var kinds []string
	for _, e := range journal(t, h, "_SYSTEMD_UNIT=yoi-runtimed.service", "SYSLOG_IDENTIFIER=yoi-runtimed") {
		if e.get("YOI_RUNTIME_ID") != runtimeID {
			t.Errorf("an entry of the daemon has the Runtime %q: %v", e.get("YOI_RUNTIME_ID"), e)
		}
		k := e.get("YOI_EVENT")
		if k == "" {
			continue
		}
		kinds = append(kinds, k)
		info, ok := policy.DescribeEvent(policy.EventKind(k))
		if !ok || e.get("MESSAGE_ID") != info.MessageID || (e.get("PRIORITY") != "6" && k != "worker.failed") {
			t.Errorf("%s: %v", k, e)
		}
		if strings.HasPrefix(k, "worker.") && (e.get("YOI_WORKER_ID") == "" || e.get("YOI_ALLOCATION_ID") != ws || e.get("YOI_WORKSPACE_ID") != "default") {
			t.Errorf("%s: %v", k, e)
		}
		if strings.HasPrefix(k, "workspace.") && (e.get("YOI_ALLOCATION_ID") != ws || e.get("YOI_WORKSPACE_ID") != "default") {
			t.Errorf("%s: %v", k, e)
		}
	}
	var want []string
	for _, e := range events {
		want = append(want, e.Kind)
	}
	if len(want) < 9 || !slices.Equal(kinds, want) {
		t.Errorf("the journal has the events\n%q\nthe timeline\n%q", kinds, want)
	}
	for unit, code := range map[string]string{"yoi-runtimed": "repository_unknown", "yoi-helper": "command_not_found"} {
		es := journal(t, h, "_SYSTEMD_UNIT="+unit+".service", "YOI_DIAGNOSTIC="+code)
		if len(es) == 0 || es[0].get("YOI_HINT") == "" || es[0].get("YOI_RUNTIME_ID") != runtimeID {
			t.Errorf("%s says of %s %v", unit, code, es)
		}
	}
	metrics := yoi(h, "metrics").Want(0).Stdout
	for _, line := range []string{`yoi_worker_ends_total{end="failure"} 1`, `yoi_worker_ends_total{end="not_started"} 1`, `yoi_workers{status="running"} 0`,
		`yoi_request_failures_total{code="repository_unknown"} 1`, `yoi_ledger_leftovers 0`, `yoi_journal_entries_lost_total 0`, `yoi_cache_tree_requests_total{result="miss"} 1`, `yoi_cache_trees 1`} {
		if !strings.Contains(metrics, "\n"+line+"\n") {
			t.Errorf("the metrics lack %s in\n%s", line, metrics)
		}
	}
	for _, name := range []string{"yoi_process_resident_memory_bytes", "yoi_process_open_fds", "yoi_go_goroutines"} { // its unit could hide /proc
		if !strings.Contains(metrics, "\n"+name+" ") {
			t.Errorf("the metrics lack %s", name)
		}
	}
	// -x explains: the texts of the catalog, with the entry's own fields in them.
	out := h.OK("journalctl", "--no-pager", "-x", "YOI_WORKER_ID="+wk)
	for _, s := range []string{"Subject: A Worker was started", "What to do: Nothing is to be done", "journalctl YOI_WORKER_ID=" + wk, "Defined-By: yoi-runtime"} {
		if !strings.Contains(out, s) {
			t.Errorf("journalctl -x lacks %q in\n%s", s, out)
		}
	}
	if list := h.OK("journalctl", "--no-pager", "--list-catalog"); strings.Count(list, "yoi-runtime") == 0 && strings.Count(list, "A Worker ended") != 1 {
		t.Errorf("the catalog is not there: %s", list)
	}
	for _, e := range journal(t, h, "_SYSTEMD_UNIT=yoi-runtimed.service", "+", "_SYSTEMD_UNIT=yoi-helper.service") {
		for field := range e {
			if strings.HasPrefix(field, "YOI_") && !slices.Contains([]string{"YOI_EVENT", "YOI_DIAGNOSTIC", "YOI_OPERATION", "YOI_HINT", "YOI_RUNTIME_ID",
				"YOI_WORKSPACE_ID", "YOI_ALLOCATION_ID", "YOI_WORKER_ID", "YOI_STREAM"}, field) {
				t.Errorf("the field %s: %v", field, e)
			}
			if strings.Contains(e.get(field), secret) {
				t.Errorf("the secret is in %s: %v", field, e)
			}
		}
	}
}

// TestWorkerStory: one question to the journal tells what the runtime did with a Worker
// and what the Worker said, in order, as it said it, over restarts of the daemon; and a
// Worker can say nothing but that.
func TestWorkerStory(t *testing.T) {
	h := installed(t)
	yoi(h, "repo", "add", "/srv/app").Want(0)
	ws := workspace(t, h)
	wk := spawned(t, h, ws, "sh", "-c", `echo one; printf 'bad\000\377=\n\n<0>x\nPRIORITY=0\nYOI_WORKER_ID=wk-evil\nlast'; exit 3`)
	ended(t, h, wk)
	want := []string{"worker.started", "stdout one", "stdout bad\x00\xff=", "stdout ", "stdout <0>x", "stdout PRIORITY=0", "stdout YOI_WORKER_ID=wk-evil", "stdout last", "worker.ended"}
	if got := told(t, h, wk); !slices.Equal(got, want) {
		t.Errorf("the story is\n%q\nnot\n%q", got, want)
	}
	if es := journal(t, h, "YOI_WORKER_ID=wk-evil"); len(es) > 0 {
		t.Errorf("a worker speaks as another: %v", es)
	}
	for _, e := range journal(t, h, "YOI_WORKER_ID="+wk) {
		if e.get("PRIORITY") != "6" || e.get("YOI_ALLOCATION_ID") != ws || e.get("YOI_RUNTIME_ID") == "" || e.get("_SYSTEMD_UNIT") != "yoi-runtimed.service" {
			t.Errorf("%v", e)
		}
	}
	const n = 300
	wk = spawned(t, h, ws, "sh", "-c", fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo $i; echo $i >&2; i=$((i+1)); sleep 0.01; done", n))
	reached := func(line string) {
		t.Helper()
		h.Eventually("the journal has "+line, func() bool { return slices.Contains(story(t, h, wk), line) })
	}
	reached("stdout 20")
	h.OK("systemctl", "restart", "yoi-runtimed")
	yoi(h, "info").Want(0)
	reached("stdout 100")
	h.OK("systemctl", "kill", "--kill-whom=main", "-s", "KILL", "yoi-runtimed")
	yoi(h, "worker", "wait", wk)
	next, twice := map[string]int{}, 0
	for _, line := range told(t, h, wk) {
		var stream string
		var i int
		if _, err := fmt.Sscanf(line, "%s %d", &stream, &i); err != nil {
			continue // an event
		}
		switch i {
		case next[stream]:
			next[stream]++
		case next[stream] - 1: // on its way when the daemon was killed
			twice++
		default:
			t.Fatalf("%s comes behind %d", line, next[stream]-1)
		}
	}
	if next["stdout"] != n || next["stderr"] != n || twice > 1 {
		t.Errorf("the journal has %v lines, %d of them twice", next, twice)
	}
	// One that would fill the journal is cut short, and says so.
	wk = spawned(t, h, ws, "sh", "-c", "seq -f 'line %.0f' 300000; echo so long; exit 4")
	if w := ended(t, h, wk); w.Outcome == nil || w.Outcome.ExitCode == nil || *w.Outcome.ExitCode != 4 {
		t.Errorf("%+v", w)
	}
	s := told(t, h, wk)
	if len(s) > 20000 || !slices.Contains(s, "worker.output_left_out") || s[1] != "stdout line 1" || s[len(s)-2] != "stdout so long" {
		t.Errorf("a loud worker has %d entries, from %q to %q", len(s), s[:2], s[len(s)-2:])
	}
	yoi(h, "ws", "rm", ws).Want(0)
	tellsNoSecret(t, h)
}

// tellsNoSecret: what a Worker says that was given a secret stays in its log file.
func tellsNoSecret(t *testing.T, h *host.Host) {
	t.Helper()
	const secret = "hunter2-in-a-file"
	h.Write("/etc/yoi/token", secret, 0o400)
	h.Write("/var/lib/yoi/config.toml", "[secrets.token]\nfile = \"/etc/yoi/token\"\n", 0o600)
	h.OK("chown", "yoi:yoi", "/etc/yoi/token", "/var/lib/yoi/config.toml")
	h.OK("systemctl", "restart", "yoi-runtimed")
	ws := rig.Answer[made](yoi(h, "ws", "create", "--json", "app", "--cleanup", "keep_until_asked", "--secret", "token")).ID
	wk := spawned(t, h, ws, "sh", "-c", "cat /run/secrets/token")
	ended(t, h, wk)
	if got, want := told(t, h, wk), []string{"worker.started", "worker.output_left_out", "worker.ended"}; !slices.Equal(got, want) {
		t.Errorf("the story of a worker with a secret is %q, not %q", got, want)
	}
	if out := yoi(h, "worker", "logs", wk).Want(0).Stdout; out != secret {
		t.Errorf("it said %q", out)
	}
	for _, e := range journal(t, h, "_SYSTEMD_UNIT=yoi-runtimed.service", "+", "_SYSTEMD_UNIT=yoi-helper.service") {
		for field := range e {
			if strings.Contains(e.get(field), secret) {
				t.Errorf("the secret is in %s: %v", field, e)
			}
		}
	}
	yoi(h, "ws", "rm", ws).Want(0)
}

// TestJournalTrouble: whatever becomes of the journal, Workers start, write and end as
// ever, the daemons go on, and when the journal is back it tells again.
func TestJournalTrouble(t *testing.T) {
	h := installed(t)
	yoi(h, "repo", "add", "/srv/app").Want(0)
	ws := workspace(t, h)
	pids := func() string {
		return h.OK("systemctl", "show", "--property=MainPID", "--value", "yoi-runtimed", "yoi-helper")
	}
	// Of a thousand refusals and a loud Worker nothing may be held up.
	busy := func(name string) string {
		t.Helper()
		wk := spawned(t, h, ws, "sh", "-c", "seq -f 'line %.0f' 30000; seq -f 'error %.0f' 1000 >&2; exit 7")
		if w := ended(t, h, wk); w.Outcome == nil || w.Outcome.ExitCode == nil || *w.Outcome.ExitCode != 7 {
			t.Errorf("%s: %+v", name, w)
		}
		if out := yoi(h, "worker", "logs", wk).Want(0).Stdout; !strings.HasSuffix(out, "\nline 30000\n") {
			t.Errorf("%s: the log ends with %q", name, out[max(0, len(out)-30):])
		}
		return wk
	}
	quiet := func(name string) {
		t.Helper()
		wk := spawned(t, h, ws, "echo", name)
		ended(t, h, wk)
		// What a journal has no room for it drops itself, the oldest first.
		if s := told(t, h, wk); len(s) == 0 || s[0] != "worker.started" && name != "full" || s[len(s)-1] != "worker.ended" {
			t.Errorf("%s: the journal tells %q", name, s)
		}
	}
	yoi(h, "doctor")
	before := pids()

	h.OK("systemctl", "kill", "-s", "KILL", "systemd-journald")
	busy("killed")
	h.Eventually("the journal is back", func() bool { return h.Run("systemctl", "is-active", "systemd-journald").Code == 0 })
	quiet("killed")

	h.OK("systemctl", "kill", "-s", "STOP", "systemd-journald")
	busy("standing still")
	h.OK("systemctl", "kill", "-s", "CONT", "systemd-journald")
	quiet("standing still")

	sockets := []string{"systemd-journald.socket", "systemd-journald-dev-log.socket", "systemd-journald-audit.socket"}
	h.Run(append([]string{"systemctl", "stop", "systemd-journald.service"}, sockets...)...)
	h.Run("rm", "-f", "/run/systemd/journal/socket") // the name stays behind
	busy("absent")
	if now := pids(); now != before {
		t.Errorf("the daemons were %q and are %q", before, now)
	}
	h.OK("systemctl", "restart", "yoi-runtimed", "yoi-helper")
	busy("absent from the start")
	h.Run(append([]string{"systemctl", "start", "systemd-journald.service"}, sockets[:2]...)...)
	h.OK("systemctl", "restart", "yoi-runtimed", "yoi-helper")
	quiet("absent")

	h.Write("/etc/systemd/journald.conf.d/tiny.conf", "[Journal]\nStorage=volatile\nRuntimeMaxUse=1M\nRuntimeMaxFileSize=512K\nRateLimitIntervalSec=0\n", 0o644)
	h.OK("systemctl", "restart", "systemd-journald")
	for i := range 3 {
		busy(fmt.Sprint("full ", i))
	}
	quiet("full")
	yoi(h, "ws", "rm", ws).Want(0)
	h.OK("systemctl", "stop", "yoi-runtimed", "yoi-helper")
	h.OK("yoi", "--runtime-root", "/var/lib/yoi", "ledger", "verify")
}
