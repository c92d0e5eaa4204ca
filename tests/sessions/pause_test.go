package sessions

import (
	"encoding/json"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// TestPause stops a Worker of several processes, with and without a control group for
// its limits, and lets it go on, end, or be killed.
func TestPause(t *testing.T) {
	eachHost(t, func(t *testing.T, h *host) {
		privileged := h.daemons != nil && h.daemons.HelperUID == 0 || h.daemons == nil && h.UID == 0
		const counts = `(while :; do sleep 1000; done) & echo up; while :; do :; done`
		if !privileged {
			wk := h.spawn(t, nil, counts)
			h.Run(t, "worker", "pause", wk).Refused(t, 1, policy.CodePauseUnavailable)
			h.OK(t, "worker", "resume", wk)
			return
		}
		for name, flags := range map[string][]string{"plain": nil, "limited": {"--limit", "tasks=50"}} {
			t.Run(name, func(t *testing.T) {
				wk := h.spawn(t, flags, counts)
				spent := func() string {
					var out strings.Builder
					for _, p := range h.processes(t, wk) {
						out.WriteString(p.CPUTime.String() + " ")
					}
					return out.String()
				}
				h.OK(t, "worker", "pause", wk)
				before := spent()
				h.OK(t, "worker", "pause", wk) // again
				if list := h.OK(t, "worker", "list"); !strings.Contains(list, "paused") {
					t.Errorf("the list says\n%s", list)
				}
				h.Run(t, "worker", "exec", wk, "--", "true").Refused(t, 125, policy.CodeWorkerPaused)
				if now := spent(); now != before || before == "" {
					t.Errorf("it runs while it is paused: CPU %s, then %s", before, now)
				}
				h.OK(t, "worker", "resume", wk)
				rig.Eventually(t, "it goes on", func() bool { return spent() != before })
				h.OK(t, "worker", "exec", wk, "--", "true")
				h.OK(t, "worker", "pause", wk)
				h.OK(t, "worker", "stop", "--grace", "1s", wk)
			})
		}
		wk := h.spawn(t, nil, counts)
		h.OK(t, "worker", "pause", wk)
		if h.daemons != nil { // a crash: the next ones let it go on to end it
			h.daemons.Runtimed.Kill(t)
			h.daemons.Helper.Kill(t)
			h.daemons.Start(t)
		}
	})
}

func (h *host) processes(t *testing.T, wk string) []runtime.Process {
	t.Helper()
	var list runtime.ProcessList
	if err := json.Unmarshal([]byte(h.OK(t, "worker", "top", "--json", wk)), &list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func TestTop(t *testing.T) {
	eachHost(t, func(t *testing.T, h *host) {
		wk := h.spawn(t, nil, `sh -c 'echo up; sleep 1000; :' "$(printf '\033]0;owned\007')"; :`)
		cmd := h.exec(wk, "--", "sh", "-c", "echo here; exec sleep 1002")
		rig.Begin(t, cmd)
		rig.Eventually(t, "all are listed", func() bool {
			text := h.OK(t, "worker", "top", wk)
			return strings.Contains(text, "sleep 1000") && strings.Contains(text, "sleep 1002") && strings.Contains(text, `\x1b]0;owned\a`)
		})
		for _, args := range [][]string{{"worker", "top", wk}, {"worker", "top", "--json", wk}, {"worker", "list"}} {
			if text := h.OK(t, args...); strings.ContainsAny(text, "\x1b\x07") {
				t.Errorf("%v shows what a Worker's name does to a terminal: %q", args, text)
			}
		}
		parents := map[int]int{}
		for _, p := range h.processes(t, wk) {
			parents[p.PID] = p.Parent
			if p.PID < 2 || p.StartedAt.IsZero() || p.Threads != 1 {
				t.Errorf("%+v", p)
			}
			if strings.Contains(p.Command, "1002") && p.Parent != 0 {
				t.Errorf("the session's parent is in the sandbox: %+v", p)
			}
		}
		if len(parents) < 4 || parents[2] != 1 {
			t.Errorf("the processes and their parents are %v", parents)
		}
		h.OK(t, "worker", "stop", wk)
		_ = cmd.Wait() // it went with the Worker
	})
}
