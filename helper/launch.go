package helper

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/cgroup"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/internal/secret"
	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/nsexec"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/policy/seccomp"
)

// Launch starts a Worker on an allocation: intent, the Worker's directory with
// its lock and outcome file, the uid range, the mount plan, and then one call
// of nsexec.
func (l *Local) Launch(ctx context.Context, req LaunchRequest, files LaunchFiles) (*Launched, error) {
	const op = "helper.launch"
	if err := req.validate(); err != nil {
		return nil, err
	}
	if ok, err := l.root.Exists(rootdir.Workspace(req.AllocationID)); err != nil || !ok {
		return nil, policy.Errorf(policy.CodeAllocationUnknown, op, "there is no execution workspace %s", req.AllocationID).Because(err)
	}
	if !l.privileged {
		// Entering another's network takes a privilege (setns(2)): the way out is our own.
		files.Outside = nil
	}
	// Of two at once for one id the loser would take the winner's directory away.
	l.mu.Lock()
	taken := l.launching[req.WorkerID]
	l.launching[req.WorkerID] = true
	l.mu.Unlock()
	if taken {
		return nil, policy.Errorf(policy.CodeConflict, op, "the worker %s is being launched", req.WorkerID)
	}
	defer func() {
		l.mu.Lock()
		delete(l.launching, req.WorkerID)
		l.mu.Unlock()
	}()
	a := &attempt{l: l, req: req, files: files}
	defer a.close()
	if err := a.openSecrets(); err != nil {
		return nil, err
	}
	launched, err := a.run(ctx)
	if err != nil {
		if uerr := a.undo(context.WithoutCancel(ctx)); uerr != nil {
			l.log.Warn("half-made worker left to the ledger", "worker", req.WorkerID, "error", uerr)
		}
		return nil, err
	}
	return launched, nil
}

// attempt is one launch under way: what it opened, to be closed whatever
// happens, and what it wrote down, to be released if it fails.
type attempt struct {
	l         *Local
	req       LaunchRequest
	files     LaunchFiles
	resources []ledger.Resource
	opened    []*os.File
	idRange   idRange
	// userIDs is an ordinary user's range, nil without.
	userIDs *userRange
	// protections are those of spec.
	protections policy.Protections
	// allocation is the locked execution-workspaces/<id>/lock.
	allocation *os.File
	// teardown is what is closed behind the Worker's end, in this order.
	teardown []*os.File
	// group is nil without limits of all processes together; groupDirs are planned.
	group       *cgroup.Group
	groupDirs   map[string]string
	groupLimits cgroup.Limits
	// scope is what the service manager keeps.
	scope    cgroup.Scope
	counters *nsexec.Counters // of the scope
	warnings []policy.Diagnostic
	// audit is nil unless the Worker's refusals are told.
	audit       *audit
	toolsDigest string
	// secrets are wiped when the attempt is over.
	secrets secret.Set
	// egress is the running yoi-egress, if the Worker has one.
	egress *nsexec.Process
}

func (a *attempt) keep(f *os.File) *os.File {
	a.opened = append(a.opened, f)
	return f
}

func (a *attempt) close() {
	closeAll(a.opened)
	a.secrets.Wipe()
}

func (a *attempt) run(ctx context.Context) (*Launched, error) {
	l, req := a.l, a.req
	if l.privileged {
		g, err := l.ranges.acquire()
		if err != nil {
			return nil, err
		}
		a.idRange = g
		a.keep(g.lock)
		a.protections.IDRange = rangeSize
	} else if err := a.takeUserRange(ctx); err != nil {
		return nil, err
	}
	if !req.ReadOnly {
		if err := l.awaitTeardown(ctx, req.AllocationID); err != nil {
			return nil, err
		}
		if err := a.occupy(); err != nil {
			return nil, err
		}
	}
	uses, err := l.cacheUsesOf(req.AllocationID)
	if err != nil {
		return nil, err
	}
	req.caches, a.req.caches = uses, uses
	quota, err := l.countBase(ctx, req.AllocationID)
	if err != nil {
		return nil, err
	}
	if err := a.planGroup(); err != nil {
		return nil, err
	}
	recorded := make(chan error, 1)
	go func() { recorded <- a.intend(ctx) }()
	plan, network, err := a.traceless(ctx)
	if rerr := <-recorded; rerr != nil {
		return nil, rerr
	}
	if err != nil {
		return nil, err
	}
	w, err := a.workerDir()
	if err != nil {
		return nil, err
	}
	spec := a.spec(plan, w)
	spec.Network = network
	if a.files.Outside != nil && req.HostNetwork {
		spec.Network, spec.HostNetwork = a.files.Outside, false
	}
	if spec.Landlock, a.protections.LandlockABI, err = landlockFor(req, nsexec.LandlockABI()); err != nil {
		return nil, err
	}
	if req.Logs {
		if err := a.logs(spec); err != nil {
			return nil, err
		}
	}
	if err := a.listen(ctx, spec); err != nil {
		return nil, err
	}
	if err := a.makeGroup(); err != nil {
		return nil, err
	}
	if err := a.enterGroup(spec); err != nil {
		return nil, err
	}
	if err := a.withScope(spec); err != nil {
		return nil, err
	}
	made := func() {}
	if !req.ReadOnly {
		if made, err = l.makeRoom(req.AllocationID, quota); err != nil {
			return nil, err
		}
	}
	p, err := nsexec.Launch(ctx, spec)
	made()
	if err != nil {
		a.endEgress()
		closeAll(a.teardown)
		return nil, err
	}
	started := time.Now()
	pidfd, err := dup(p.Pidfd)
	if err != nil {
		err = errors.Join(policy.Errorf(policy.CodeLaunchFailed, "helper.launch", "no descriptor is left").Because(err), p.Kill())
		<-p.Done() // undo takes away what it stands on
		closeAll([]*os.File{p.Pidfd, p.Terminal, p.Notifications})
		a.endEgress()
		closeAll(a.teardown)
		return nil, err
	}
	if p.Notifications != nil {
		a.audit = startAudit(p.Notifications, a.files.Filter)
	}
	l.watch(req, p, a.audit, a.resources, a.teardown, a.egress)
	return &Launched{Pidfd: pidfd, Terminal: p.Terminal, StartedAt: started, IDBase: a.idRange.base, ToolsDigest: a.toolsDigest, Protections: a.protections, Warnings: a.warnings}, nil
}

// traceless does what a launch needs and a crash takes back by itself, so that it
// need not wait for the intent to be on the disk: mounts that only descriptors
// hold, and a network namespace.
func (a *attempt) traceless(ctx context.Context) (plan mounts.Plan, network *os.File, err error) {
	l, req := a.l, a.req
	if !req.ReadOnly {
		if err := a.clearVolatile(ctx); err != nil {
			return plan, nil, err
		}
		if err := a.layBottom(); err != nil {
			return plan, nil, err
		}
	}
	host, err := l.hostRoot()
	if err != nil {
		return plan, nil, err
	}
	if len(req.Tools) > 0 {
		if req.tools, err = host.tools.Get(req.Tools); err != nil {
			return plan, nil, err
		}
		a.toolsDigest = req.tools.Digest
	}
	if plan, err = buildPlan(req, host, a.files.Direct, a); err != nil {
		return plan, nil, err
	}
	plan.Ops = append(plan.Ops, secretFiles(a.secrets)...)
	if l.privileged && !req.HostNetwork {
		if network, err = l.networks.take(); err == nil {
			a.keep(network)
		}
	}
	return plan, network, err
}

// parked records which process it is before the Worker can run. A Worker that
// would outlive us must be findable after our crash. That takes a written file,
// not a synced one: after a power failure there is no process to find. The
// ledger's own record follows with its next commit.
func (a *attempt) parked() func(int, *os.File) error {
	if a.req.DieWithParent {
		return nil
	}
	return func(pid int, _ *os.File) error {
		ident := a.l.processIdentity(pid)
		if err := a.l.writeIdentity(a.resources[0], ident); err != nil {
			return diskError("helper.launch", err)
		}
		a.holdMounts(pid)
		return a.l.ledger.Done(a.resources[0].ID, ident)
	}
}

// enterGroup has the sandbox's first process born in its control group (v2), or
// move there before it starts anything (v1).
func (a *attempt) enterGroup(s *nsexec.Spec) error {
	s.Parked = a.parked()
	if a.group == nil {
		return nil
	}
	dir, err := a.group.Dir()
	if err != nil {
		return policy.Errorf(policy.CodeLimitsUnavailable, "helper.cgroup", "the control group cannot be opened").Because(err)
	}
	if dir != nil {
		s.Cgroup = a.keep(dir)
		return nil
	}
	tasks, err := a.group.Tasks()
	if err != nil {
		return policy.Errorf(policy.CodeLimitsUnavailable, "helper.cgroup", "the control group cannot be opened").Because(err)
	}
	for _, f := range tasks {
		s.Tasks = append(s.Tasks, a.keep(f))
	}
	return nil
}

// holdMounts keeps the sandbox's mount namespace for a moment longer than the
// Worker: the end of an overlay syncs its whole file system, and whoever waits
// for the Worker need not wait for that (teardown.go). Without it, as for an
// ordinary user who may not open it, the kernel takes the mounts down before the
// Worker counts as ended.
func (a *attempt) holdMounts(pid int) {
	if !a.l.privileged || a.allocation == nil {
		return
	}
	ns, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/mnt")
	if err != nil {
		return
	}
	lock, err := dup(a.allocation)
	if err != nil {
		ns.Close()
		return
	}
	a.teardown = []*os.File{ns, lock}
}

// logs sends output to files that the sandbox opens through a detached mount of
// the log directory, so that /proc/self/fd/1 shows no host path.
func (a *attempt) logs(s *nsexec.Spec) error {
	rel := rootdir.Worker(a.req.WorkerID) + "/logs"
	dir, err := a.source(rel, mounts.Attr{NoSuid: true, NoDev: true, NoExec: true})
	if err != nil {
		return err
	}
	s.Logs = nsexec.Logs{Dir: dir, Stdout: "stdout", Stderr: "stderr", Limit: cmp.Or(a.req.Limits.LogSize, policy.DefaultLogSize)}
	return nil
}

// occupy takes the allocation's lock for the Worker: PID 1 will hold it. Two
// sandboxes must not mount one upper directory at once (overlayfs: the result
// is undefined), and two Workers in one tree is what allocations are there to
// prevent.
func (a *attempt) occupy() error {
	f, err := a.l.occupyAllocation(a.req.AllocationID)
	if err != nil {
		return err
	}
	a.allocation = a.keep(f)
	return nil
}

func (l *Local) occupyAllocation(id policy.AllocationID) (*os.File, error) {
	const op = "helper.launch"
	f, err := l.root.OpenFile(rootdir.Workspace(id)+"/lock", unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		return nil, diskError(op, err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		f.Close()
		return nil, policy.Errorf(policy.CodeAllocationInUse, op, "a live worker stands on %s", id)
	}
	if err != nil {
		f.Close()
		return nil, policy.Errorf(policy.CodeLaunchFailed, op, "the workspace's lock cannot be taken").Because(err)
	}
	return f, nil
}

// clearVolatile removes the mark by which overlayfs refuses the upper directory
// of an earlier volatile mount (Documentation/filesystems/overlayfs.rst, "Volatile
// mount"): after a power failure files of it could be torn. Those of a workspace
// that was volatile are thrown away after a crash, and scratch promises nothing.
func (a *attempt) clearVolatile(ctx context.Context) error {
	for _, d := range workDirs(a.req) {
		if err := a.l.clearMark(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// layBottom makes the empty layer below a workspace's overlays, in one that was made
// before there was such a thing too.
func (a *attempt) layBottom() error {
	d, err := a.l.root.Ensure(rootdir.Workspace(a.req.AllocationID) + "/mounts/" + overlayWork + "/" + overlayBottom)
	if err != nil {
		return diskError("helper.launch", err)
	}
	return d.Close()
}

// workDirs are where overlayfs makes its own directory, "work", for a launch.
func workDirs(req LaunchRequest) []string {
	mounts := rootdir.Workspace(req.AllocationID) + "/mounts/"
	dirs := []string{mounts + overlayWork + "/" + scratchWork}
	if u := req.caches; u != nil && u.Build != nil {
		dirs = append(dirs, mounts+overlayWork+"/"+cacheWork)
	}
	for _, t := range req.Repositories {
		switch t.Strategy {
		case policy.StrategyDirect:
		case policy.StrategyOverlay:
			dirs = append(dirs, mounts+string(t.RepositoryID)+"/work")
		default:
			dirs = append(dirs, mounts+overlayWork+"/"+string(t.RepositoryID))
		}
	}
	return dirs
}

// clearMark removes the mark from overlayfs's own directory, which has mode 000:
// an ordinary user cannot look into it, and has it made anew.
func (l *Local) clearMark(ctx context.Context, dir string) error {
	work := dir + "/work"
	if !l.privileged {
		return l.removePath(ctx, work)
	}
	marked, err := l.root.Exists(work + "/incompat")
	if err != nil || !marked {
		return err
	}
	return l.removePath(ctx, work+"/incompat")
}

// intend writes down the process, its directory and its uid range, in one
// durable record.
func (a *attempt) intend(ctx context.Context) error {
	id := a.req.AllocationID
	worker := map[string]string{"worker": string(a.req.WorkerID)}
	process := newResource(ledger.KindProcess, id, rootdir.Worker(a.req.WorkerID))
	process.Attrs = worker
	if a.scoped() {
		process.Attrs = map[string]string{"worker": string(a.req.WorkerID), scopeAttr: "1"}
	}
	if ok, err := a.l.root.Exists(rootdir.Worker(a.req.WorkerID)); err != nil || ok {
		return policy.Errorf(policy.CodeConflict, "helper.launch", "the worker %s exists already", a.req.WorkerID).Because(err)
	}
	dir := newResource(ledger.KindDirectory, id, rootdir.Worker(a.req.WorkerID))
	dir.Attrs = worker
	if a.req.Transient {
		dir.Attrs = map[string]string{"worker": string(a.req.WorkerID), "transient": "1"}
	}
	a.resources = []ledger.Resource{process, dir}
	if a.l.privileged {
		r := newResource(ledger.KindUIDRange, id, "")
		r.Attrs = map[string]string{"base": utoa(a.idRange.base), "size": utoa(rangeSize), "worker": string(a.req.WorkerID)}
		a.resources = append(a.resources, r)
	}
	if a.groupDirs != nil {
		a.resources = append(a.resources, a.groupResource())
	}
	if a.req.Egress != nil {
		a.resources = append(a.resources, a.proxyResource())
	}
	return a.l.intend(ctx, id, a.resources...)
}

// workerFiles are what PID 1 of the sandbox holds open.
type workerFiles struct {
	lock, outcome *os.File
}

// workerDir makes workers/<id>/ with metadata/lock (locked), metadata/outcome
// (empty) and logs/.
func (a *attempt) workerDir() (w workerFiles, err error) {
	const op = "helper.launch"
	l := a.l
	top, err := l.root.Mkdir(rootdir.Worker(a.req.WorkerID), 0o700)
	if err != nil {
		return w, diskError(op, err)
	}
	defer top.Close()
	if err := l.ledger.Done(a.resources[1].ID, identify(top)); err != nil {
		return w, err
	}
	meta, err := l.root.MkdirAt(top, "metadata", 0o700)
	if err != nil {
		return w, diskError(op, err)
	}
	defer meta.Close()
	if w.lock, err = l.newFile(meta, "lock"); err != nil {
		return w, diskError(op, err)
	}
	a.keep(w.lock)
	if err := unix.Flock(int(w.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return w, policy.Errorf(policy.CodeLaunchFailed, op, "the worker's lock cannot be taken").Because(err)
	}
	if w.outcome, err = l.newFile(meta, "outcome"); err != nil {
		return w, diskError(op, err)
	}
	a.keep(w.outcome)
	if !a.req.Logs {
		return w, nil
	}
	logs, err := l.root.MkdirAt(top, "logs", 0o700)
	if err != nil {
		return w, diskError(op, err)
	}
	return w, logs.Close()
}

// newFile makes an empty file that belongs to the Runtime root's owner.
func (l *Local) newFile(dir *os.File, name string) (*os.File, error) {
	f, err := rootdir.OpenAt(dir, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if l.privileged && (l.root.UID != 0 || l.root.GID != 0) {
		if err := f.Chown(l.root.UID, l.root.GID); err != nil {
			f.Close()
			return nil, err
		}
	}
	return f, nil
}

// spec turns the request into nsexec's.
func (a *attempt) spec(plan mounts.Plan, w workerFiles) *nsexec.Spec {
	req := a.req
	s := &nsexec.Spec{
		Argv: req.Command, Env: req.Env,
		CwdRoot: cwdRoot(req), RelativeCwd: req.RelativeCwd,
		Stdio: a.files.Stdio, Filter: a.files.Filter,
		Plan: plan, UID: workerID, GID: workerID,
		Hostname: "worker", HostNetwork: req.HostNetwork,
		UserLimits: userLimits(req.Mounts), Rlimits: rlimits(req.Limits), Nice: req.Limits.Nice, OOMScoreAdj: req.Limits.OOMScoreAdj, Umask: 0o022,
		WallClock: req.Limits.WallClock, DieWithParent: req.DieWithParent,
		Hold: []*os.File{w.lock}, Outcome: w.outcome,
		Terminal: req.Terminal, Resident: req.Resident,
	}
	s.SecretEnv = secretEnv(a.secrets)
	if req.Audit {
		s.Filter, s.Notify = seccomp.Notifying(a.files.Filter), true
	}
	s.Winsize.Rows, s.Winsize.Cols = req.Rows, req.Columns
	if a.allocation != nil {
		s.Hold = append(s.Hold, a.allocation)
	}
	if a.l.privileged {
		m := []nsexec.IDMap{{Inside: 0, Outside: a.idRange.base, Count: rangeSize}}
		s.UIDMap, s.GIDMap = m, m
		s.Hold = append(s.Hold, a.idRange.lock)
	}
	if a.userIDs != nil {
		s.UIDMap, s.GIDMap, s.MapPrograms = a.userIDs.uids, a.userIDs.gids, &a.userIDs.programs
	}
	return s
}

// landlockFor is the second wall as far as a kernel of that ABI has it, and the
// ABI that it is applied by, 0 for none.
func landlockFor(req LaunchRequest, abi int) (*nsexec.Landlock, int, error) {
	ll := &nsexec.Landlock{Mounts: req.Mounts, Writable: []string{scratchAt, "/tmp", homeAt, "/dev/shm"}}
	switch {
	case req.External:
		ll.Writable = append(ll.Writable, externalTargetAt)
	case !req.ReadOnly:
		ll.Writable = append(ll.Writable, workspaceAt)
		if req.caches != nil && req.caches.Build != nil {
			ll.Writable = append(ll.Writable, buildCacheAt)
		}
	}
	switch {
	case ll.Applies(abi):
		return ll, abi, nil
	case slices.Contains(req.Require, policy.ProtectLandlock):
		return nil, 0, policy.Errorf(policy.CodeKernelFeatureMissing, "helper.launch", "the policy requires Landlock, which this kernel does not have as needed").
			With("feature", "landlock").With("abi", strconv.Itoa(abi)).
			WithHint("Boot a kernel with Landlock (lsm=landlock,…), or take landlock out of the policy's require.")
	}
	return nil, 0, nil
}

// rlimits are setrlimit(2)'s. Core files would be written into the workspace by
// the kernel with the Worker's rights, or to a host program; none are wanted.
func rlimits(l policy.Limits) []nsexec.Rlimit {
	rs := []nsexec.Rlimit{{Resource: unix.RLIMIT_CORE}}
	add := func(resource int, v uint64) {
		if v != 0 {
			rs = append(rs, nsexec.Rlimit{Resource: resource, Soft: v, Hard: v})
		}
	}
	add(unix.RLIMIT_NOFILE, l.OpenFiles)
	add(unix.RLIMIT_NPROC, l.Processes)
	add(unix.RLIMIT_FSIZE, l.FileSize)
	add(unix.RLIMIT_AS, l.AddressSpace)
	add(unix.RLIMIT_STACK, l.StackSize)
	add(unix.RLIMIT_CPU, uint64((l.CPUTime+time.Second-1)/time.Second))
	// Signals that wait, and timers of timer_create(2), are counted for the launcher too.
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_SIGPENDING, &own); err == nil {
		add(unix.RLIMIT_SIGPENDING, min(own.Cur/4, maxSignals))
	}
	return rs
}

const (
	maxSignals    = 4096
	maxInotify    = 128 // what Linux gives a user by default
	maxWatches    = 1 << 20
	maxNamespaces = 1024
)

// userLimits leave most of what the kernel gives a user of the host to others: where
// Workers are their caller's user they share it with him. Namespaces can be
// made only where the policy lets a Worker mount.
func userLimits(namespaces bool) []nsexec.UserLimit {
	var ls []nsexec.UserLimit
	add := func(name string, most uint64) {
		v, err := strconv.ParseUint(sysctl("user/"+name), 10, 31)
		if err == nil { // else this kernel does not count it
			ls = append(ls, nsexec.UserLimit{Name: name, Max: int32(min(v/4, most))})
		}
	}
	add("max_inotify_instances", maxInotify)
	add("max_inotify_watches", maxWatches)
	if namespaces {
		for _, kind := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"} {
			add("max_"+kind+"_namespaces", maxNamespaces)
		}
	}
	return ls
}

// source implements sources.
func (a *attempt) source(rel string, attr mounts.Attr) (mounts.Source, error) {
	if !a.l.privileged {
		return mounts.Source{Path: a.l.root.Path, Beneath: rel}, nil
	}
	idmap, err := a.l.ranges.idmap(a.idRange, a.l.root.UID, a.l.root.GID)
	if err != nil {
		return mounts.Source{}, err
	}
	m, err := mounts.CloneDetached(a.l.root.Dir, rel, attr, idmap, false)
	if errors.Is(err, fs.ErrNotExist) {
		return mounts.Source{}, policy.Errorf(policy.CodeAllocationUnknown, "helper.launch", "a part of the workspace does not exist").Because(err)
	}
	if err != nil {
		return mounts.Source{}, err
	}
	return mounts.Source{Mount: a.keep(m)}, nil
}

// direct implements sources for a directory that the caller opened.
func (a *attempt) direct(dir *os.File, attr mounts.Attr) (mounts.Source, error) {
	const op = "helper.launch"
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return mounts.Source{}, policy.Errorf(policy.CodeBadRequest, op, "a descriptor is not a directory").Because(err)
	}
	if !a.l.privileged {
		// The child cannot clone a mount of our namespace by descriptor; it finds
		// the directory by name, and the name was the caller's own to begin with.
		p, err := os.Readlink("/proc/self/fd/" + utoa(uint32(dir.Fd())))
		return mounts.Source{Path: p}, err
	}
	idmap, err := newIDMap(a.idRange, int(st.Uid), int(st.Gid))
	if err != nil {
		return mounts.Source{}, err
	}
	a.keep(idmap)
	m, err := mounts.CloneDetached(dir, "", attr, idmap, true)
	if err != nil {
		return mounts.Source{}, err
	}
	return mounts.Source{Mount: a.keep(m)}, nil
}

// undo releases what a failed launch wrote down.
func (a *attempt) undo(ctx context.Context) error {
	if len(a.resources) == 0 {
		return nil
	}
	if a.group != nil {
		if err := a.group.Remove(); err != nil {
			return err
		}
	}
	if err := a.l.removeDir(ctx, rootdir.Workers, string(a.req.WorkerID)); err != nil {
		return err
	}
	return a.l.release(a.req.AllocationID, a.resources...)
}

func dup(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
