package helper

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/policy"
)

// A quota is held by the file system where it can: on btrfs with quotas on, the
// allocation's directory is a subvolume with a limit; on ext4 and xfs with project
// quotas it is a project with one (project.go). Elsewhere a Worker's
// allocation is measured now and then, by the process that started the Worker or
// has adopted it, and a Worker that exceeds it is killed.

// quotaRecord is execution-workspaces/<id>/quota.json, for processes that adopt a
// Worker. No Worker can reach it.
type quotaRecord struct {
	policy.Quota
	policy.QuotaEvidence
	// Base are the inodes before the first Worker, 0 while they are not counted.
	Base int64 `json:"base_inodes,omitempty"`
	// Project is the directory's project id, where the kernel limits that.
	Project uint32 `json:"project,omitempty"`
}

func quotaFile(id policy.AllocationID) string { return rootdir.Workspace(id) + "/quota.json" }

// exceededFile says, in a Worker's directory, which bound ended it.
func exceededFile(id policy.WorkerID) string { return rootdir.Worker(id) + "/metadata/exceeded" }

const (
	// A measurement costs a walk, so the next comes after tenfold its time.
	firstMeasure   = 200 * time.Millisecond
	longestMeasure = 30 * time.Second
	// mostPartial is how often in a row a tree may not be wholly readable: a Worker
	// that hides what it writes is stopped, one that just passes by such a state not.
	mostPartial = 5
	// partialTree is what exceededFile says of one that could not be measured.
	partialTree = "unmeasurable"
)

// planQuota settles how an allocation's quota is held, before anything is made.
func (l *Local) planQuota(req MaterializeRequest, trees []RepositoryTree) (policy.QuotaEvidence, error) {
	var by policy.QuotaEnforcement
	if req.Quota != (policy.Quota{}) {
		by = l.enforcement()
	}
	return planQuota(req.Quota, by, trees, req.BuildCache != "", cow.ProjectCountsShared(l.root.Dir))
}

// enforcement is how the kernel can limit allocations here, "" if it cannot.
func (l *Local) enforcement() policy.QuotaEnforcement {
	switch {
	case l.limitsSubvolumes():
		return policy.QuotaBtrfs
	case l.privileged && cow.ProjectQuota(l.root.Dir):
		return policy.QuotaProject
	}
	return ""
}

// planQuota is the decision, on what the kernel can do.
func planQuota(q policy.Quota, by policy.QuotaEnforcement, trees []RepositoryTree, cached, countsShared bool) (policy.QuotaEvidence, error) {
	var ev policy.QuotaEvidence
	why, hint := "nothing here enforces a limit on", ""
	cached = cached || slices.ContainsFunc(trees, func(t RepositoryTree) bool { return len(t.Caches) > 0 })
	switch {
	case by == policy.QuotaBtrfs && anyBy(trees, policy.StrategyBtrfsSnapshot):
		by, hint = "", "Use --strategy overlay: a snapshot is a subvolume beside the workspace's own."
	case by == policy.QuotaProject && cached:
		// What is published of a shared cache would go on counting for its workspace.
		by, why, hint = "", "beside shared caches nothing enforces a limit on", "Leave the caches out, or have it measured: without --hard-quota."
	case by == policy.QuotaProject && countsShared && (anyBy(trees, policy.StrategyReflink) || anyBy(trees, policy.StrategyExternal)):
		// xfs counts a shared block for each file that has it.
		by, hint = "", "Use --strategy overlay: xfs counts what a reflink shares as if it were a copy."
	}
	if q.Bytes > 0 {
		if ev.Bytes = by; by == "" {
			ev.Bytes = policy.QuotaMeasured
		}
	}
	if q.Inodes > 0 {
		if ev.Inodes = by; by != policy.QuotaProject { // btrfs does not count a subvolume's inodes
			ev.Inodes = policy.QuotaMeasured
		}
	}
	if !q.Hard || (ev.Bytes != policy.QuotaMeasured && ev.Inodes != policy.QuotaMeasured) {
		return ev, nil
	}
	what := "bytes of the disk"
	if ev.Inodes == policy.QuotaMeasured {
		what = "inodes"
	}
	d := policy.Errorf(policy.CodeQuotaUnsupported, "helper.quota", "%s a workspace's %s", why, what)
	if hint != "" {
		d.WithHint("%s", hint)
	}
	return ev, d
}

func anyBy(trees []RepositoryTree, s policy.StrategyName) bool {
	return slices.ContainsFunc(trees, func(t RepositoryTree) bool { return t.Strategy == s })
}

func (l *Local) limitsSubvolumes() bool { return l.privileged && cow.QuotaMode(l.root.Dir) != "" }

// quotaCheck says how a workspace's disk quota would be held. Measuring is no
// fault of the host's.
func (l *Local) quotaCheck() Check {
	mode := cow.QuotaMode(l.root.Dir)
	project := mode == "" && cow.ProjectQuota(l.root.Dir)
	switch {
	case project && l.privileged:
		return Check{Name: "disk_quota", State: "ok", Message: "enforced by the file system (project quota), inodes too"}
	case mode != "" && l.privileged:
		return Check{Name: "disk_quota", State: "ok", Message: "enforced by the file system (" + mode + "); inodes are measured"}
	case mode != "", project:
		return Check{Name: "disk_quota", State: "ok", Message: "measured while workers run: only root sets limits", Fix: "a privileged yoi-helper"}
	}
	return Check{Name: "disk_quota", State: "ok", Message: "measured while workers run", Fix: "for --hard-quota: btrfs, and btrfs quota enable; or ext4 or xfs, mounted with prjquota"}
}

// makeTop makes an allocation's directory: a subvolume or a project where a limit is to
// be set.
func (l *Local) makeTop(id policy.AllocationID, ev policy.QuotaEvidence, q policy.Quota, project uint32) (*os.File, error) {
	if project != 0 {
		return l.makeProject(id, q, project)
	}
	if ev.Bytes != policy.QuotaBtrfs {
		return l.root.Mkdir(rootdir.Workspace(id), 0o700)
	}
	parent, err := l.root.OpenDir(rootdir.Workspaces)
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	if err := cow.MakeTop(parent, string(id)); err != nil {
		return nil, err
	}
	top, err := l.root.OpenDir(rootdir.Workspace(id))
	if err == nil {
		err = top.Chown(l.root.UID, l.root.GID)
	}
	if err == nil {
		err = cow.LimitSubvolume(top, q.Bytes)
	}
	if err != nil && top != nil {
		top.Close()
		top = nil
	}
	return top, err
}

// overlayfs makes a directory whenever an overlay is mounted, and two files to see what
// the file system below can do (ovl_make_workdir, Linux 6.1).
const (
	roomBytes  = 256 << 10
	roomInodes = 16
)

// makeRoom lets a Worker be launched on an allocation that is full to its kernel's
// limit: what is asked for holds again after done. A crash in between leaves it that
// little more until the next launch.
func (l *Local) makeRoom(id policy.AllocationID, r quotaRecord) (done func(), err error) {
	if r.Project == 0 && r.QuotaEvidence.Bytes != policy.QuotaBtrfs {
		return func() {}, nil
	}
	if err := l.limit(id, r, roomBytes, roomInodes); err != nil {
		return nil, err
	}
	return func() {
		if err := l.limit(id, r, 0, 0); err != nil {
			l.log.Error("a quota stays higher than it is to be", "allocation", id, "error", err)
		}
	}, nil
}

// limit sets the kernel's limit of an allocation, and so many more. Inodes are limited
// beyond what it has before its first Worker, once that is counted.
func (l *Local) limit(id policy.AllocationID, r quotaRecord, bytes, inodes int64) error {
	if r.Project != 0 {
		most := int64(0)
		if r.Base > 0 {
			most = r.Base + r.Quota.Inodes + inodes
		}
		if r.Quota.Bytes == 0 {
			bytes = 0
		}
		return cow.LimitProject(l.root.Dir, r.Project, r.Quota.Bytes+bytes, most)
	}
	top, err := l.root.OpenDir(rootdir.Workspace(id))
	if err != nil {
		return diskError("helper.quota", err)
	}
	defer top.Close()
	return cow.LimitSubvolume(top, r.Quota.Bytes+bytes)
}

func (l *Local) writeQuota(id policy.AllocationID, r quotaRecord) error {
	b, err := json.Marshal(r)
	if err != nil {
		return policy.AsDiagnostic(err)
	}
	return diskError("helper.quota", l.root.WriteFile(quotaFile(id), append(b, '\n'), 0o600))
}

// quotaOf is an allocation's quota; a zero one where there is none.
func (l *Local) quotaOf(id policy.AllocationID) (quotaRecord, error) {
	var r quotaRecord
	b, err := l.root.ReadFile(quotaFile(id), 4096)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		return r, policy.Errorf(policy.CodeInternal, "helper.quota", "the quota of %s cannot be read", id).Because(err)
	}
	return r, nil
}

// countBase is an allocation's quota, with the inodes counted that it has before a
// Worker touches it: only those beyond count.
func (l *Local) countBase(ctx context.Context, id policy.AllocationID) (quotaRecord, error) {
	r, err := l.quotaOf(id)
	if err != nil || r.Quota.Inodes == 0 || r.Base > 0 {
		return r, err
	}
	if r.QuotaEvidence.Inodes == policy.QuotaProject {
		var u cow.ProjectUsage
		if u, err = cow.UsageOfProject(l.root.Dir, r.Project); err == nil {
			r.Base = u.Inodes
			err = l.limit(id, r, 0, 0)
		}
	} else {
		var u UsageResult
		u, err = l.Usage(ctx, id)
		r.Base = u.Inodes
	}
	if err != nil {
		return r, err
	}
	return r, l.writeQuota(id, r)
}

// guardQuota measures a Worker's allocation until the Worker ends, if its quota is
// held that way: once at least, also where this process is about to end.
func (l *Local) guardQuota(w *worker) {
	if w.transient {
		return // the Runtime's own, on a workspace mounted read-only
	}
	r, err := l.quotaOf(w.allocation)
	if err != nil {
		l.log.Error("a quota is not held", "worker", w.id, "error", err)
		return
	}
	if r.QuotaEvidence.Bytes != policy.QuotaMeasured && r.QuotaEvidence.Inodes != policy.QuotaMeasured {
		return
	}
	measured := func() {}
	l.mu.Lock()
	if !l.closed {
		l.reclaim.Add(1)
		measured = sync.OnceFunc(l.reclaim.Done)
	}
	l.mu.Unlock()
	go l.measure(w, r, measured)
}

// measure calls measured when it has acted on its first measurement.
func (l *Local) measure(w *worker, r quotaRecord, measured func()) {
	defer measured()
	partial := 0
	for {
		began := time.Now()
		u, err := l.Usage(context.Background(), w.allocation)
		if err != nil {
			l.log.Warn("a workspace cannot be measured", "worker", w.id, "error", err)
			u.Partial = true
		}
		if partial++; !u.Partial {
			partial = 0
		}
		over := r.exceeded(u)
		if over == "" && partial >= mostPartial {
			over = partialTree
		}
		if over != "" {
			l.stopExceeding(w, over)
			return
		}
		measured()
		pause := min(max(firstMeasure, 10*time.Since(began)), longestMeasure)
		select {
		case <-w.done:
			return
		case <-time.After(pause):
		}
	}
}

// exceeded names the bound that a measurement is over, "" for none.
func (r quotaRecord) exceeded(u UsageResult) string {
	switch {
	case r.QuotaEvidence.Bytes == policy.QuotaMeasured && u.Exclusive > r.Quota.Bytes:
		return "disk_bytes"
	case r.QuotaEvidence.Inodes == policy.QuotaMeasured && u.Inodes-r.Base > r.Quota.Inodes:
		return "inodes"
	}
	return ""
}

// stopExceeding kills a Worker. Why is written down first: whoever asks for its
// outcome later may be another process.
func (l *Local) stopExceeding(w *worker, over string) {
	f, err := l.root.OpenFile(exceededFile(w.id), unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o600)
	if err == nil {
		_, err = f.WriteString(over)
		err = errors.Join(err, f.Close())
	}
	if err != nil { // a full disk is a reason to stop it all the more
		l.log.Warn("why a worker is stopped cannot be written down", "worker", w.id, "error", err)
	}
	w.exceeded.Store(&over)
	l.log.Warn("worker stopped: its workspace exceeds its quota", "worker", w.id, "quota", over)
	if err := l.Kill(context.Background(), w.id); err != nil && !errors.Is(err, policy.CodeWorkerNotRunning) {
		l.log.Error("a worker that exceeds its quota cannot be stopped", "worker", w.id, "error", err)
	}
}

// exceededBy reads which bound ended a Worker that another process may have
// watched, "" for none.
func (l *Local) exceededBy(id policy.WorkerID) string {
	b, err := l.root.ReadFile(exceededFile(id), 64)
	if err != nil {
		return ""
	}
	return policy.Printable(string(b))
}
