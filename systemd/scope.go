package systemd

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"path"
	"strings"
	"time"

	unitbus "github.com/coreos/go-systemd/v22/dbus"
	unitname "github.com/coreos/go-systemd/v22/unit"
	"github.com/godbus/dbus/v5"

	"yoi.dev/yoi-runtime/internal/cgroup"
	"yoi.dev/yoi-runtime/policy"
)

// stopTimeout is how long `systemctl stop` of a scope waits between TERM and KILL.
const stopTimeout = 10 * time.Second

// ScopeName is the name of a Worker's scope, such as "yoi-wk-abc.scope".
func ScopeName(id policy.WorkerID) string { return "yoi-" + string(id) + ".scope" }

// SliceName is the name of a workspace's slice: below yoi-workspace.slice, which is
// below yoi.slice. A dash in a slice's name is a level of the tree, so those of the
// id are escaped.
func SliceName(id policy.AllocationID) string {
	return "yoi-workspace-" + unitname.UnitNameEscape(string(id)) + ".slice"
}

// properties are systemd.scope(5)'s and systemd.resource-control(5)'s.
func properties(w policy.WorkerID, a policy.AllocationID, l cgroup.Limits, pid int) []unitbus.Property {
	p := func(name string, v any) unitbus.Property {
		return unitbus.Property{Name: name, Value: dbus.MakeVariant(v)}
	}
	tasks := l.Tasks
	if tasks == 0 {
		tasks = math.MaxUint64 // the manager's own default would be a limit that nobody asked for
	}
	ps := []unitbus.Property{
		p("Description", "Worker "+string(w)+" of yoi-runtime"),
		p("Slice", SliceName(a)),
		p("PIDs", []uint32{uint32(pid)}),
		p("TimeoutStopUSec", uint64(stopTimeout.Microseconds())),
		p("TasksMax", tasks),
		p("Delegate", true), // or no process could join later
	}
	for _, n := range []struct {
		name  string
		value uint64
	}{
		{"MemoryMax", l.MemoryMax}, {"MemoryHigh", l.MemoryHigh}, {"CPUQuotaPerSecUSec", l.CPUPercent * 10_000},
		{"CPUWeight", l.CPUWeight}, {"IOWeight", l.IOWeight},
	} {
		if n.value != 0 {
			ps = append(ps, p(n.name, n.value))
		}
	}
	if l.MemoryMax != 0 {
		ps = append(ps, p("MemorySwapMax", l.SwapMax))
	}
	type bandwidth struct {
		Device string
		BPS    uint64
	}
	for name, bps := range map[string]uint64{"IOReadBandwidthMax": l.IOReadBPS, "IOWriteBandwidthMax": l.IOWriteBPS} {
		if bps != 0 {
			ps = append(ps, p(name, []bandwidth{{"/dev/block/" + l.Device, bps}}))
		}
	}
	return ps
}

// Start puts a process into a new scope for a Worker, and returns when it is in there.
// The limits are the manager's to keep; empty where others keep them.
func (m *Manager) Start(ctx context.Context, w policy.WorkerID, a policy.AllocationID, l cgroup.Limits, pid int) error {
	name, done := ScopeName(w), make(chan string, 1)
	m.seen.await(name, done)
	defer m.seen.await(name, nil)
	m.seen.watch(pathOf(name))
	err := m.call(ctx, "StartTransientUnit", name, "fail", properties(w, a, l, pid), []unitbus.PropertyCollection{})
	if err != nil {
		return err
	}
	select {
	case result := <-done:
		if result != "done" {
			return policy.Errorf(policy.CodeServiceManager, "systemd.scope", "the scope did not start").With("result", result)
		}
	case <-ctx.Done():
		return unavailable(ctx.Err())
	}
	return inScope(pid, name)
}

// inScope checks with the kernel. Every hierarchy that the manager keeps has the
// process in a group of the scope's name; its own one at least.
func inScope(pid int, name string) error {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return policy.Errorf(policy.CodeServiceManager, "systemd.scope", "the worker's control groups cannot be read").Because(err)
	}
	for line := range bytes.Lines(b) {
		f := strings.SplitN(strings.TrimSuffix(string(line), "\n"), ":", 3)
		if len(f) == 3 && (f[1] == "name=systemd" || f[0] == "0") && path.Base(f[2]) == name {
			return nil
		}
	}
	return policy.Errorf(policy.CodeServiceManager, "systemd.scope", "the worker is not in its scope")
}

// Join puts another process into a Worker's scope. One that the manager does not have
// is no error: then the Worker is not in it either.
func (m *Manager) Join(ctx context.Context, w policy.WorkerID, pid int) error {
	err := m.call(ctx, "AttachProcessesToUnit", ScopeName(w), "", []uint32{uint32(pid)})
	if noUnit(err) {
		return nil
	}
	return err
}

// Watch has End know of what happens to a Worker's scope from now on.
func (m *Manager) Watch(w policy.WorkerID) error {
	m.seen.watch(pathOf(ScopeName(w)))
	_, err := m.connection() // signals come to who is connected
	return err
}

// Clear stops a workspace's slice. The manager makes it with the first scope, and
// keeps it when that is gone.
func (m *Manager) Clear(ctx context.Context, a policy.AllocationID) error {
	err := m.call(ctx, "StopUnit", SliceName(a), "replace")
	if noUnit(err) {
		return nil
	}
	return err
}

// End says what became of a Worker's scope once its processes are gone, and forgets
// it. stopped: the manager was told to stop it, by `systemctl stop` or a shutdown;
// oom: the kernel killed one of its processes for memory (cgroup v2 only).
func (m *Manager) End(ctx context.Context, w policy.WorkerID) (stopped, oom bool, err error) {
	name := ScopeName(w)
	defer m.seen.forget(pathOf(name))
	result, err := m.property(ctx, name, scope, "Result")
	if err != nil {
		return false, false, err
	}
	state, err := m.property(ctx, name, unit, "SubState")
	if err != nil {
		return false, false, err
	}
	if state == "failed" { // it would be kept until somebody does this
		if err := m.call(ctx, "ResetFailedUnit", name); err != nil {
			return false, false, err
		}
	}
	return m.seen.wasStopped(pathOf(name)) || strings.HasPrefix(state, "stop-"), result == "oom-kill", nil
}
