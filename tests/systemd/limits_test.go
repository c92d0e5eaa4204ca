package systemd

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/internal/cgroup"
	"yoi.dev/yoi-runtime/systemd"
	"yoi.dev/yoi-runtime/tests/internal/host"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// scopeProgram is the test binary's name while it puts a process of the machine into
// a scope: whether the manager takes every property is for the manager to say, also
// where the helper would keep the limits itself (cgroup v1).
const scopeProgram = "yoi-test-scope"

var (
	scopeLimits     = cgroup.Limits{MemoryMax: 256 << 20, MemoryHigh: 192 << 20, Tasks: 10, CPUPercent: 150, CPUWeight: 50, IOWeight: 60}
	workspaceLimits = cgroup.Limits{MemoryMax: 512 << 20, Tasks: 20, CPUPercent: 200}
)

// scopeStage becomes that program if this process was started for it: two Workers of
// one workspace, of which the second has a second to live.
func scopeStage() {
	if filepath.Base(os.Args[0]) != scopeProgram {
		return
	}
	end, err := runScopes()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(end); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

func runScopes() (end cgroup.ScopeEnd, err error) {
	ctx := context.Background()
	m := new(systemd.Manager)
	defer m.Close()
	first := exec.Command("sleep", "987654")
	if err := first.Start(); err != nil {
		return end, err
	}
	if err := m.Start(ctx, "wk-first", "ws-limits", cgroup.Scope{Limits: scopeLimits, Workspace: workspaceLimits}, first.Process.Pid); err != nil {
		return end, err
	}
	second := exec.Command("sleep", "30") // a scope without an end is one that was not ended by its time
	if err := second.Start(); err != nil {
		return end, err
	}
	if err := m.Start(ctx, "wk-second", "ws-limits", cgroup.Scope{Workspace: workspaceLimits, RuntimeMax: time.Second}, second.Process.Pid); err != nil {
		return end, err
	}
	_ = second.Wait() // the manager kills it
	return m.End(ctx, "wk-second")
}

// TestScopeLimits: the manager takes the limits of a Worker and of its workspace, and
// a scope whose time is over is not one that somebody stopped.
func TestScopeLimits(t *testing.T) {
	h := host.New(t)
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	h.Write("/var/tmp/"+scopeProgram, string(self), 0o755)
	end := rig.Answer[cgroup.ScopeEnd](h.Run("/var/tmp/" + scopeProgram))
	if end != (cgroup.ScopeEnd{TimedOut: true}) {
		t.Errorf("the end of its time: %+v", end)
	}
	show := func(unit, properties string) string { return h.OK("systemctl", "show", "--property="+properties, unit) }
	const slice = `yoi-workspace-ws\x2dlimits.slice`
	if out := show("yoi-wk-first.scope", "Slice,MemoryMax,MemoryHigh,TasksMax,CPUQuotaPerSecUSec,CPUWeight,IOWeight,RuntimeMaxUSec"); out !=
		"RuntimeMaxUSec=infinity\nSlice="+slice+"\nCPUWeight=50\nCPUQuotaPerSecUSec=1.500000s\nIOWeight=60\nMemoryHigh=201326592\nMemoryMax=268435456\nTasksMax=10\n" {
		t.Errorf("the Worker's scope: %s", out)
	}
	if out := show(slice, "ActiveState,MemoryMax,TasksMax,CPUQuotaPerSecUSec"); out !=
		"CPUQuotaPerSecUSec=2s\nMemoryMax=536870912\nTasksMax=20\nActiveState=active\n" {
		t.Errorf("the workspace's slice: %s", out)
	}
}

// TestEnds: each way in which a limit or an operator ends a Worker has a name in its
// outcome.
func TestEnds(t *testing.T) {
	h := installed(t)
	yoi(h, "repo", "add", "/srv/app").Want(0)
	type outcome struct {
		Outcome struct {
			OOM     bool `json:"oom_killed"`
			Timeout bool `json:"timed_out"`
			Stopped bool `json:"stopped_by_service_manager"`
			Lost    bool
		}
	}
	for name, c := range map[string]struct {
		args []string
		act  func(wk string)
	}{
		"memory": {args: []string{"--limit", "memory_max=64M", "--", "python3", "-c", "x = bytearray(1 << 30)"}},
		"time":   {args: []string{"--timeout", "1s", "--", "sleep", "1000"}},
		// Its own PID 1 keeps the time, unless somebody keeps that from running.
		"time by the manager": {args: []string{"--timeout", "1s", "--", "sleep", "1000"}, act: func(wk string) {
			h.OK("sh", "-c", `kill -STOP $(sort -n "/sys/fs/cgroup/systemd$(systemctl show --property=ControlGroup --value yoi-`+wk+`.scope)/cgroup.procs" | head -1)`)
			h.Eventually("the manager ends it", func() bool {
				h.OK("journalctl", "--sync")
				return strings.Contains(h.OK("journalctl", "-u", "yoi-"+wk+".scope", "-o", "cat"), "Scope reached runtime time limit")
			})
		}},
		"stop": {args: []string{"--", "sleep", "1000"}, act: func(wk string) { h.OK("systemctl", "stop", "yoi-"+wk+".scope") }},
	} {
		ws := rig.Answer[made](yoi(h, "ws", "create", "--json", "app", "--cleanup", "keep_until_asked")).ID
		wk := rig.Answer[made](yoi(h, append([]string{"worker", "spawn", "--json", ws}, c.args...)...)).ID
		if c.act != nil {
			c.act(wk)
		}
		yoi(h, "worker", "wait", wk)
		got := rig.Answer[outcome](yoi(h, "worker", "show", "--json", wk)).Outcome
		var want outcome
		switch strings.Fields(name)[0] {
		case "memory":
			want.Outcome.OOM = true
		case "time":
			want.Outcome.Timeout = true
		case "stop":
			want.Outcome.Stopped = true
		}
		if got != want.Outcome {
			t.Errorf("%s: %+v", name, got)
		}
		yoi(h, "ws", "rm", ws).Want(0)
	}
}
