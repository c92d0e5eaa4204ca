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

func property(name string, v any) unitbus.Property {
	return unitbus.Property{Name: name, Value: dbus.MakeVariant(v)}
}

// properties are systemd.scope(5)'s.
func properties(w policy.WorkerID, a policy.AllocationID, s cgroup.Scope, pid int) []unitbus.Property {
	ps := []unitbus.Property{
		property("Description", "Worker "+string(w)+" of yoi-runtime"),
		property("Slice", SliceName(a)),
		property("PIDs", []uint32{uint32(pid)}),
		property("TimeoutStopUSec", uint64(stopTimeout.Microseconds())),
		property("Delegate", true), // or no process could join later
	}
	if s.RuntimeMax > 0 {
		ps = append(ps, property("RuntimeMaxUSec", uint64(s.RuntimeMax.Microseconds())))
	}
	if s.Limits.Tasks == 0 {
		// The manager's own default would be a limit that nobody asked for.
		ps = append(ps, property("TasksMax", uint64(math.MaxUint64)))
	}
	return append(ps, resources(s.Limits)...)
}

// resources are systemd.resource-control(5)'s.
func resources(l cgroup.Limits) (ps []unitbus.Property) {
	for _, n := range []struct {
		name  string
		value uint64
	}{
		{"TasksMax", l.Tasks}, {"MemoryMax", l.MemoryMax}, {"MemoryHigh", l.MemoryHigh}, {"CPUQuotaPerSecUSec", l.CPUPercent * 10_000},
		{"CPUWeight", l.CPUWeight}, {"IOWeight", l.IOWeight},
	} {
		if n.value != 0 {
			ps = append(ps, property(n.name, n.value))
		}
	}
	if l.MemoryMax != 0 {
		ps = append(ps, property("MemorySwapMax", l.SwapMax))
	}
	type bandwidth struct {
		Device string
		BPS    uint64
	}
	for name, bps := range map[string]uint64{"IOReadBandwidthMax": l.IOReadBPS, "IOWriteBandwidthMax": l.IOWriteBPS} {
		if bps != 0 {
			ps = append(ps, property(name, []bandwidth{{"/dev/block/" + l.Device, bps}}))
		}
	}
	return ps
}

// limitSlice has a workspace's slice carry limits. The first Worker's launch makes it;
// a workspace's limits do not change.
func (m *Manager) limitSlice(ctx context.Context, a policy.AllocationID, l cgroup.Limits) error {
	ps := append([]unitbus.Property{property("Description", "Workspace "+string(a)+" of yoi-runtime")}, resources(l)...)
	err := m.call(ctx, "StartTransientUnit", SliceName(a), "fail", ps, []unitbus.PropertyCollection{})
	if named(err, "UnitExists") {
		return nil
	}
	return err
}

// Start puts a process into a new scope for a Worker, and returns when it is in there.
func (m *Manager) Start(ctx context.Context, w policy.WorkerID, a policy.AllocationID, s cgroup.Scope, pid int) (err error) {
	if len(s.Workspace.Controllers()) > 0 {
		if err := m.limitSlice(ctx, a, s.Workspace); err != nil {
			return err
		}
	}
	name, done := ScopeName(w), make(chan string, 1)
	m.seen.await(name, done)
	defer m.seen.await(name, nil)
	m.seen.watch(pathOf(name))
	defer func() {
		if err != nil {
			m.seen.forget(pathOf(name))
		}
	}()
	err = m.call(ctx, "StartTransientUnit", name, "fail", properties(w, a, s, pid), []unitbus.PropertyCollection{})
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
	_, done, err := m.use() // signals come to who is connected
	if err == nil {
		done()
	}
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
// it. It was stopped by somebody if the manager was told to: by `systemctl stop` or a
// shutdown.
func (m *Manager) End(ctx context.Context, w policy.WorkerID) (end cgroup.ScopeEnd, err error) {
	name := ScopeName(w)
	defer m.seen.forget(pathOf(name))
	result, err := m.property(ctx, name, scope, "Result")
	if err != nil {
		return end, err
	}
	state, err := m.property(ctx, name, unit, "SubState")
	if err != nil {
		return end, err
	}
	if state == "failed" { // it would be kept until somebody does this
		if err := m.call(ctx, "ResetFailedUnit", name); err != nil {
			return end, err
		}
	}
	end.OOM, end.TimedOut = result == "oom-kill", result == "timeout"
	// The end of its time is a stop too, and nobody's.
	end.Stopped = !end.TimedOut && (m.seen.wasStopped(pathOf(name)) || strings.HasPrefix(state, "stop-"))
	return end, nil
}
