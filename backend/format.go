package backend

import (
	"fmt"
	"html/template"
	"slices"
	"strconv"
	"strings"
	"time"
)

var templateFuncs = template.FuncMap{
	"ago": ago, "exact": exact, "bytes": sizeText, "dur": duration, "span": lasted, "short": func(s string) string { return limitText(s, 10) },
	"join": strings.Join, "quote": quoteCommand, "words": words, "line": commandLine, "cut": func(c []string) bool { return quoteCommand(c) != commandLine(c) },
	"sentence": sentence, "differs": func(a, b string) bool { return a != "" && !strings.EqualFold(a, b) }, "count": count, "change": changeText,
	"cwd": func(path string) string {
		if path == "." {
			return "the\u00a0root"
		}
		return path
	},
	"spark": spark, "last": lastSample, "add": func(a, b int) int { return a + b },
	"title": func(s string) string { return strings.ReplaceAll(s, "_", " ") },
	"step": func(name string) string {
		if t, ok := stepTexts[name]; ok {
			return t
		}
		return name
	},
	"network": func(mode string) string { return networkTexts[mode] },
	"policy":  policyText, "reason": reasonText, "refusals": refusals,
	"size":  func(n uint64) string { return sizeText(int64(min(n, 1<<62))) },
	"event": eventText, "has": has,
}

var stepTexts = map[string]string{
	"register": "Looking up the repository", "policy": "Checking the policy", "resolve": "Resolving the selector", "objects": "Fetching objects",
	"tree": "Preparing the tree", "materialize": "Making the working tree", "git": "Setting up git", "clean": "Checking the source for changes",
	"apply": "Applying changes", "record": "Recording evidence",
}

func exact(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// ago is how long ago something was, as scripts say it too (web/src/format.ts).
func ago(t time.Time) string { return agoAt(t, time.Now()) }

func agoAt(t, now time.Time) string {
	d := now.Sub(t)
	switch {
	case t.IsZero():
		return "–"
	case d < 0 && d > -5*time.Second, d >= 0 && d < 5*time.Second:
		return "just now"
	case d < 0:
		return "in " + rough(-d)
	}
	return rough(d) + " ago"
}

func rough(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	switch days := d / (24 * time.Hour); {
	case days < 60:
		return fmt.Sprintf("%d days", days)
	case days < 730:
		return fmt.Sprintf("%d months", days/30)
	default:
		return fmt.Sprintf("%d years", days/365)
	}
}

// duration is a time that something took.
func duration(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d/time.Microsecond)
	case d < time.Second:
		return fmt.Sprintf("%.3g ms", float64(d)/float64(time.Millisecond))
	case d < time.Minute:
		return fmt.Sprintf("%.3g s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
}

// lasted is the time between two moments; until now for one that has not ended.
func lasted(from, to time.Time) string {
	if from.IsZero() {
		return "–"
	}
	if to.IsZero() {
		to = time.Now()
	}
	return duration(max(0, to.Sub(from)))
}

func sizeText(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return strconv.FormatInt(n, 10) + " B"
	}
	v, i := float64(n)/1024, 0
	for v >= 1023.95 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	return strconv.FormatFloat(v, 'f', 1, 64) + " " + units[i:i+1] + "iB"
}

// quoteCommand is a command as splitCommand reads it.
func quoteCommand(argv []string) string {
	out := make([]string, len(argv))
	for i, a := range argv {
		if a == "" || strings.ContainsAny(a, " \t\n\r\"'\\$`;&|<>*?()#~!{}[]") {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		out[i] = a
	}
	return strings.Join(out, " ")
}

// policyTexts say what a policy does, where its name alone would not.
var policyTexts = map[string]string{
	"clean_point_only": "refuse: only what is committed", "current_worktree_snapshot": "take them along as they are",
	"keep_until_asked": "keep it until asked", "remove_on_stop": "remove it", "keep_on_failure": "keep it if the Worker failed",
}

func policyText(s string) string {
	if d, ok := strings.CutPrefix(s, "keep_for:"); ok {
		if v, err := time.ParseDuration(d); err == nil {
			return "keep it for " + strings.TrimSuffix(strings.TrimSuffix(duration(v), " 0 min"), " 0 s")
		}
	}
	if t, ok := policyTexts[s]; ok {
		return t
	}
	return strings.ReplaceAll(s, "_", " ")
}

const shownCommand = 120

// commandLine is a command in one line, cut where it is long.
func commandLine(argv []string) string {
	s := strings.Join(strings.Fields(quoteCommand(argv)), " ")
	if len(s) > shownCommand {
		return limitText(s, shownCommand) + "…"
	}
	return s
}

// sentence is a message as a sentence. What begins with a name stays as it is.
func sentence(s string) string {
	first, _, _ := strings.Cut(s, " ")
	if first != "" && strings.Trim(first, "abcdefghijklmnopqrstuvwxyz") == "" {
		s = strings.ToUpper(s[:1]) + s[1:]
	}
	return strings.TrimSuffix(s, ".") + "."
}

func count(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return strconv.Itoa(n) + " " + of + "s"
}

// changeText words git's two letters.
func changeText(status string) string {
	for _, v := range []struct{ letters, text string }{{"?", "untracked"}, {"U", "in conflict"}, {"D", "deleted"}, {"A", "added"}, {"R", "renamed"}} {
		if strings.Contains(status, v.letters) {
			return v.text
		}
	}
	return "changed"
}

func has(list []string, s string) bool { return slices.Contains(list, s) }

var networkTexts = map[string]string{"none": "none", "allowlist": "only chosen destinations", "host": "everything that the host reaches"}

// words is an enumeration for people.
func words(s string) string { return strings.ReplaceAll(s, ",", ", ") }

const (
	sparkWidth, sparkHeight = 600.0, 90.0
)

// spark is the points of a chart's line; web/src/chart.ts makes the same.
func spark(samples []Sample, of string) string {
	value := func(s Sample) float64 {
		if of == "cpu" {
			return s.CPUPercent
		}
		return float64(s.MemoryBytes)
	}
	most := 0.0
	for _, s := range samples {
		most = max(most, value(s))
	}
	if of == "cpu" {
		most = max(most, 100)
	}
	if len(samples) < 2 || most == 0 {
		return ""
	}
	first, last := samples[0].At, samples[len(samples)-1].At
	whole := max(last.Sub(first).Seconds(), 1)
	var b strings.Builder
	for _, s := range samples {
		x := s.At.Sub(first).Seconds() / whole * sparkWidth
		y := sparkHeight - 4 - value(s)/most*(sparkHeight-8)
		fmt.Fprintf(&b, "%.1f,%.1f ", x, y)
	}
	return strings.TrimSpace(b.String())
}

func lastSample(samples []Sample) *Sample {
	if len(samples) == 0 {
		return nil
	}
	return &samples[len(samples)-1]
}

var eventTexts = map[string]string{
	"workspace.created": "Execution Workspace created", "workspace.removed": "Execution Workspace removed", "workspace.forked": "Forked from another",
	"workspace.collected": "Commits collected", "workspace.rolled_back": "Rolled back", "worker.started": "Worker started", "worker.ended": "Worker ended",
	"worker.failed": "Worker did not start", "worker.paused": "Worker paused", "worker.resumed": "Worker goes on", "worker.output_left_out": "Output left out: the log is full",
	"cache.published": "Shared cache published", "cache.not_published": "Shared cache not published", "session.started": "Somebody entered the sandbox", "session.ended": "Session ended",
}

func eventText(kind string) string {
	if t, ok := eventTexts[kind]; ok {
		return t
	}
	return kind
}

// reasonTexts word what docs/network.md lists.
var reasonTexts = map[string]string{
	"no_rule": "not an allowed destination", "bad_name": "no host name, or an address in an odd form", "address": "the name leads to no public address",
	"sni": "TLS asks for another name", "no_sni": "TLS asks for no name", "ech": "TLS hides which name it asks for", "bad_tls": "malformed TLS",
	"host": "HTTP names another host", "bad_request": "malformed HTTP", "protocol": "what is asked for is not served",
	"max_bytes": "the limit of bytes is used up", "max_connections": "too many connections at once",
	"resolve": "the name could not be looked up", "dial": "the server does not answer",
}

func reasonText(reason string) string {
	if t, ok := reasonTexts[reason]; ok {
		return t
	}
	return reason
}

// refusal is a destination that a Worker did not reach, however often it tried.
type refusal struct {
	Host   string
	Port   int
	Reason string
	Times  int
}

const maxRefusals = 20

// refusals are what a Worker did not reach, the latest first.
func refusals(e Egress) (out []refusal) {
	at := make(map[refusal]int)
	for _, d := range slices.Backward(e.Decisions) {
		if d.Allowed {
			continue
		}
		key := refusal{Host: d.Host, Port: d.Port, Reason: d.Reason}
		i, seen := at[key]
		if !seen {
			if len(out) == maxRefusals {
				continue
			}
			i, at[key] = len(out), len(out)
			out = append(out, key)
		}
		out[i].Times++
	}
	return out
}
