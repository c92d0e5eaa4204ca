package runtime

import (
	"errors"
	"testing"

	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// TestEndOf: what ended a Worker from outside goes before how that looked from inside.
func TestEndOf(t *testing.T) {
	seen := map[WorkerEnd]bool{EndUnbegun: true}
	for _, c := range []struct {
		o    registry.Outcome
		want WorkerEnd
	}{
		{registry.Outcome{}, EndSuccess},
		{registry.Outcome{ExitCode: 3}, EndFailure},
		{registry.Outcome{ExitCode: 137, Signal: "SIGKILL"}, EndSignal},
		{registry.Outcome{ExitCode: 137, Signal: "SIGKILL", OOMKilled: true}, EndOOM},
		{registry.Outcome{OOMKilled: true}, EndSuccess}, // it lost a child, and went on
		{registry.Outcome{ExitCode: 137, Signal: "SIGKILL", TimedOut: true}, EndTimeout},
		{registry.Outcome{ExitCode: 143, Signal: "SIGTERM", Exceeded: "inodes"}, EndQuota},
		{registry.Outcome{ExitCode: 143, Signal: "SIGTERM", Stopped: true}, EndStopped},
		{registry.Outcome{Lost: true}, EndLost},
	} {
		if got := endOf(c.o); got != c.want {
			t.Errorf("%+v is %q, not %q", c.o, got, c.want)
		}
		seen[c.want] = true
	}
	for _, e := range WorkerEnds() {
		if !seen[e] {
			t.Errorf("nothing ends as %q", e)
		}
	}
}

func TestMetricsWithoutDaemon(t *testing.T) {
	if _, err := new(Runtime).Metrics(t.Context()); !errors.Is(err, policy.CodeUnsupported) {
		t.Errorf("%v", err)
	}
}
