package systemd

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"yoi.dev/yoi-runtime/internal/cgroup"
)

func TestNames(t *testing.T) {
	if s := ScopeName("wk-abc"); s != "yoi-wk-abc.scope" {
		t.Error(s)
	}
	if s := SliceName("ws-abc"); s != `yoi-workspace-ws\x2dabc.slice` {
		t.Error(s)
	}
	if s := pathOf("yoi-wk-1.scope"); s != "/org/freedesktop/systemd1/unit/yoi_2dwk_2d1_2escope" {
		t.Error(s)
	}
}

func TestProperties(t *testing.T) {
	text := func(l cgroup.Limits) (out []string) {
		for _, p := range properties("wk-1", "ws-1", cgroup.Scope{Limits: l, RuntimeMax: time.Duration(l.SwapMax) * time.Second}, 7) {
			out = append(out, fmt.Sprintf("%s=%v", p.Name, p.Value.Value()))
		}
		slices.Sort(out)
		return out
	}
	bare := []string{"Delegate=true", "Description=Worker wk-1 of yoi-runtime", "PIDs=[7]", `Slice=yoi-workspace-ws\x2d1.slice`, "TasksMax=18446744073709551615", "TimeoutStopUSec=10000000"}
	if got := text(cgroup.Limits{}); !slices.Equal(got, bare) {
		t.Errorf("no limits: %q", got)
	}
	want := []string{"CPUQuotaPerSecUSec=1500000", "CPUWeight=200", "Delegate=true", "Description=Worker wk-1 of yoi-runtime",
		"IOReadBandwidthMax=[{/dev/block/8:0 4096}]", "IOWeight=50", "IOWriteBandwidthMax=[{/dev/block/8:0 8192}]",
		"MemoryHigh=536870912", "MemoryMax=1073741824", "MemorySwapMax=3", "PIDs=[7]", "RuntimeMaxUSec=3000000", `Slice=yoi-workspace-ws\x2d1.slice`, "TasksMax=10", "TimeoutStopUSec=10000000"}
	got := text(cgroup.Limits{MemoryMax: 1 << 30, MemoryHigh: 1 << 29, SwapMax: 3, Tasks: 10, CPUPercent: 150, CPUWeight: 200, IOWeight: 50, IOReadBPS: 4096, IOWriteBPS: 8192, Device: "8:0"})
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}

// TestSignals: what the manager says of our scopes is remembered, of others nothing;
// malformed signals do nothing.
func TestSignals(t *testing.T) {
	var s signals
	removed := func(unit, result any) {
		s.DeliverSignal("", "", &dbus.Signal{Name: manager + ".JobRemoved", Body: []any{uint32(1), dbus.ObjectPath("/j"), unit, result}})
	}
	c := make(chan string, 1)
	s.await("a.scope", c)
	removed("b.scope", "failed")
	removed(7, "failed")
	s.DeliverSignal("", "", &dbus.Signal{Name: manager + ".JobRemoved"})
	removed("a.scope", "done")
	removed("a.scope", "failed") // a later job: nobody waits, and the channel is full
	if r := <-c; r != "done" {
		t.Error(r)
	}
	state := func(p dbus.ObjectPath, v any) {
		s.DeliverSignal("", "", &dbus.Signal{Path: p, Name: "org.freedesktop.DBus.Properties.PropertiesChanged",
			Body: []any{unit, map[string]dbus.Variant{"SubState": dbus.MakeVariant(v)}, []string{}}})
	}
	s.watch("/ours")
	for _, v := range []any{"running", "dead", 7} {
		state("/ours", v)
	}
	state("/others", "stop-sigterm")
	if s.wasStopped("/ours") || s.wasStopped("/others") {
		t.Error("stopped by nobody")
	}
	state("/ours", "stop-sigterm")
	state("/ours", "dead")
	s.watch("/ours") // again, after a reconnection
	if !s.wasStopped("/ours") {
		t.Error("a stop is forgotten")
	}
	s.forget("/ours")
	if state("/ours", "stop-sigterm"); s.wasStopped("/ours") || len(s.stopping) != 0 {
		t.Error("what was forgotten is watched")
	}
}
