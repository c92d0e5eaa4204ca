package helper

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/cgroup"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/nsexec"
	"yoi.dev/yoi-runtime/policy"
)

// groupAttr begins the attributes of a control group's record: the directory for
// each controller.
const groupAttr = "cgroup."

// cgroupTree is where this process may make control groups.
func (l *Local) cgroupTree() (*cgroup.Tree, error) {
	l.cgroupOnce.Do(func() { l.cgroups, l.cgroupErr = cgroup.Find() })
	if l.cgroupErr != nil {
		return nil, policy.Errorf(policy.CodeLimitsUnavailable, "helper.cgroup", "the host's control groups cannot be read").Because(l.cgroupErr)
	}
	return l.cgroups, nil
}

// PrepareGroups is for a process that launches many Workers, before the first: one
// that was launched without limits would be in the way of those with limits later.
// That there are no control groups is no failure until a limit needs one.
func (l *Local) PrepareGroups() {
	switch t, err := l.cgroupTree(); {
	case err != nil:
		l.log.Warn("no limits of all of a worker's processes together", "error", err)
	case t.Version == 0:
		l.log.Info("no limits of all of a worker's processes together", "reason", t.Reason)
	}
}

// groupLimits are the limits of all of a Worker's processes together.
func (l *Local) groupLimits(p policy.Limits) (cgroup.Limits, error) {
	g := cgroup.Limits{
		MemoryMax: p.MemoryMax, MemoryHigh: p.MemoryHigh, SwapMax: p.SwapMax, Tasks: p.Tasks,
		CPUPercent: p.CPUPercent, CPUWeight: p.CPUWeight, IOWeight: p.IOWeight, IOReadBPS: p.IORead, IOWriteBPS: p.IOWrite,
	}
	if p.IORead == 0 && p.IOWrite == 0 {
		return g, nil
	}
	dev, err := blockDevice(l.root.Device)
	if err != nil {
		return g, policy.Errorf(policy.CodeLimitsUnavailable, "helper.cgroup", "the Runtime root is on no block device that could be limited").Because(err)
	}
	g.Device = dev
	return g, nil
}

// blockDevice is the whole disk under a file system's device, as "major:minor":
// limits are of the disk, not of a partition (sysfs-block).
func blockDevice(dev uint64) (string, error) {
	name := fmt.Sprintf("%d:%d", unix.Major(dev), unix.Minor(dev))
	dir := "/sys/dev/block/" + name
	if _, err := os.Stat(dir); err != nil {
		return "", err
	}
	if _, err := os.Stat(dir + "/partition"); err != nil {
		return name, nil
	}
	b, err := os.ReadFile(dir + "/../dev")
	return strings.TrimSpace(string(b)), err
}

// planGroup decides whether the launch has a control group, and names its
// directories for the ledger. Limits that cannot be kept refuse the launch if
// the policy requires them, and are a warning otherwise.
func (a *attempt) planGroup() error {
	limits, err := a.l.groupLimits(a.req.Limits)
	if err == nil && len(limits.Controllers()) == 0 {
		if err := a.planSlice(); err != nil {
			return a.withoutGroup(err)
		}
		return nil
	}
	var tree *cgroup.Tree
	if err == nil {
		tree, err = a.tree()
	}
	if err == nil {
		err = a.planSlice()
	}
	if err == nil {
		if lacks := tree.Lacks(limits); len(lacks) > 0 {
			d := policy.Errorf(policy.CodeLimitsUnavailable, "helper.cgroup", "this host gives the helper no control group for %s", strings.Join(lacks, ", "))
			if tree.Fix != "" {
				d = d.Because(errors.New(tree.Reason)).WithHint("%s", tree.Fix)
			}
			err = d
		}
	}
	if err != nil {
		return a.withoutGroup(err)
	}
	if tree.Version == 2 && a.scoped() {
		a.scope.Limits, a.protections.CgroupVersion = limits, 2 // a process is in one group only
		return nil
	}
	a.groupLimits, a.groupDirs = limits, tree.Plan("yoi-"+string(a.req.WorkerID), limits)
	return nil
}

// tree is where the launch's control group can be made: by the service manager, if
// that makes one on v2 anyway.
func (a *attempt) tree() (*cgroup.Tree, error) {
	t, err := a.l.cgroupTree()
	if err == nil && a.scoped() {
		t = t.Managed()
	}
	return t, err
}

// planSlice has the workspace's slice carry the workspace's own limits, below which
// its Workers' are whatever their caller asks for. On v1 a Worker's groups are not below
// its slice, and its own limits are all.
func (a *attempt) planSlice() error {
	if !a.scoped() || a.req.WorkspaceLimits == (policy.Limits{}) {
		return nil
	}
	tree, err := a.tree()
	if err != nil || tree.Version != 2 {
		return err
	}
	limits, err := a.l.groupLimits(a.req.WorkspaceLimits)
	if err == nil && len(tree.Lacks(limits)) == 0 {
		a.scope.Workspace = limits
	}
	return err
}

func (a *attempt) withoutGroup(err error) error {
	if slices.Contains(a.req.Require, policy.ProtectLimits) {
		return err
	}
	w := *policy.AsDiagnostic(err)
	w.Severity = policy.SeverityWarning
	a.warnings = append(a.warnings, w)
	return nil
}

// groupResource is the ledger's record of the planned group.
func (a *attempt) groupResource() ledger.Resource {
	r := newResource(ledger.KindCgroup, a.req.AllocationID, "")
	r.Attrs = map[string]string{"worker": string(a.req.WorkerID)}
	for c, dir := range a.groupDirs {
		r.Attrs[groupAttr+c] = dir
	}
	return r
}

// makeGroup makes the group that the ledger has been told of.
func (a *attempt) makeGroup() error {
	if a.groupDirs == nil {
		return nil
	}
	g, err := cgroup.Make(a.groupDirs, a.groupLimits)
	if err != nil {
		return policy.Errorf(policy.CodeLimitsUnavailable, "helper.cgroup", "the control group cannot be made").Because(err)
	}
	a.group, a.protections.CgroupVersion = g, g.Version()
	return nil
}

// groupOf is a recorded group. The record decides nothing but its name.
func groupOf(r ledger.Resource) *cgroup.Group {
	dirs := make(map[string]string)
	for k, dir := range r.Attrs {
		c, ok := strings.CutPrefix(k, groupAttr)
		if ok && strings.HasSuffix(dir, "/yoi-"+r.Attrs["worker"]) && policy.ValidID(r.Attrs["worker"]) {
			dirs[c] = dir
		}
	}
	return cgroup.Open(dirs)
}

// endGroup takes what an ended Worker's group counted down in its directory, and
// removes the group.
func (l *Local) endGroup(r ledger.Resource) error {
	g := groupOf(r)
	id := policy.WorkerID(r.Attrs["worker"])
	events := g.Events()
	for name, n := range map[string]uint64{oomFile: events.OOMKills, tasksFile: events.TasksDenied} {
		if n == 0 {
			continue
		}
		err := l.writeCount(id, name, n)
		if err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
			l.log.Warn("what a worker's limits did is not recorded", "worker", id, "limit", name, "error", err)
		}
	}
	_ = g.SetFrozen(false) // what is left in it could not die; most have no freezer
	if err := g.Remove(); err != nil {
		return policy.Errorf(policy.CodeInternal, "helper.cgroup", "a control group cannot be removed").Because(err)
	}
	return nil
}

// Names beside the outcome: how many processes of a Worker the kernel killed for
// memory, and how many forks it refused.
const (
	oomFile   = "oom"
	tasksFile = "tasks"
	// stoppedFile: the service manager was told to stop the Worker. timeoutFile: it
	// did so by itself when the Worker's time was over.
	stoppedFile = "stopped"
	timeoutFile = "timeout"
)

func countFile(id policy.WorkerID, name string) string {
	return rootdir.Worker(id) + "/metadata/" + name
}

func (l *Local) writeCount(id policy.WorkerID, name string, n uint64) error {
	f, err := l.root.OpenFile(countFile(id, name), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strconv.FormatUint(n, 10) + "\n")
	return errors.Join(err, f.Close())
}

// withLimits adds to an outcome what was done to the Worker from outside: forks that
// were refused, a stop by the service manager, and that the kernel killed a process
// because there was no memory left. If that was PID 1 there is no record, but nothing is
// lost: that is how it ended.
func (l *Local) withLimits(id policy.WorkerID, o nsexec.Outcome) nsexec.Outcome {
	noted := func(name string) bool {
		ok, err := l.root.Exists(countFile(id, name))
		return err == nil && ok
	}
	o.TasksDenied = o.TasksDenied || noted(tasksFile)
	o.Stopped = o.Stopped || noted(stoppedFile)
	o.TimedOut = o.TimedOut || noted(timeoutFile)
	o.OOM = o.OOM || noted(oomFile)
	if o.Lost && (o.Stopped || o.TimedOut || o.OOM) { // PID 1 was killed with all others
		o.Lost, o.Signal, o.ExitCode, o.EndedAt = false, int(unix.SIGKILL), 128+int(unix.SIGKILL), time.Now()
	}
	return o
}
