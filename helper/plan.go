package helper

import (
	"cmp"
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/policy"
)

// Where a Worker finds things. These paths are part of the product's contract:
// the private git directories name objectsAt in their alternates.
const (
	workspaceAt = policy.WorkspacesAt
	scratchAt   = "/scratch"
	homeAt      = "/home/worker"
	objectsAt   = "/run/yoi/objects"
	baseAt      = "/run/yoi/base"
)

// lookBytes bounds what a look may write: the objects of what the workspace has
// and the point has not.
const lookBytes = 1 << 30

// sources turns a path below the Runtime root into the source of a bind or a
// layer: a detached idmapped mount where the helper is privileged, else a path
// that the child resolves beneath the Runtime root in its own copy of the
// mount tree, where only it has the capability to clone it (open_tree(2)).
type sources interface {
	source(rel string, attr mounts.Attr) (mounts.Source, error)
	direct(dir *os.File, attr mounts.Attr) (mounts.Source, error)
	image(rel string, owned bool) (mounts.Source, error)
}

// covered are the entries of /proc that say or change something about the
// whole host, each with the reason. In a user namespace their modes protect
// most of them already; a mode is one kernel bug away from no protection.
var coveredProc = []mounts.Mask{
	{Target: "/proc/kcore"},             // the kernel's memory
	{Target: "/proc/keys"},              // keyrings are not namespaced
	{Target: "/proc/key-users"},         // counts of every user's keys
	{Target: "/proc/timer_list"},        // kernel addresses and every process' timers
	{Target: "/proc/latency_stats"},     // kernel stacks
	{Target: "/proc/sched_debug"},       // every process of the host
	{Target: "/proc/interrupts"},        // keystroke timing by interrupt counts
	{Target: "/proc/acpi", IsDir: true}, // firmware
	{Target: "/proc/scsi", IsDir: true}, // devices
}

// readOnlyProc are the entries that act on the host when written.
var readOnlyProc = []string{
	"/proc/sys",           // sysctl: core_pattern, modprobe, …
	"/proc/sysrq-trigger", // reboot
	"/proc/irq",
	"/proc/bus",
	"/proc/fs",
}

// buildPlan is the sandbox's mount plan: exactly what the request names, in the
// order in which it is made. It does no I/O but through src.
func buildPlan(req LaunchRequest, host *hostRoot, direct []*os.File, src sources) (mounts.Plan, error) {
	var ops []mounts.Op
	var layers []mounts.Source
	switch {
	case req.Image != nil:
		var err error
		if ops, layers, err = imageRoot(req, host, src); err != nil {
			return mounts.Plan{}, err
		}
	case req.tools != nil:
		ops = append(ops, host.toolOps(req.tools, req.Root, req.HostNetwork)...)
	case req.Root == policy.RootSystem:
		ops = append(ops, host.ops(req.HostNetwork)...)
	}
	ops = append(ops, generatedEtc(req.Egress)...)
	inside := mounts.Attr{NoSuid: true, NoDev: true}
	ops = append(ops,
		mounts.Proc{Target: "/proc"},
		mounts.Dev{Target: "/dev", ShmBytes: cmp.Or(req.Limits.ShmSize, policy.DefaultShmSize)},
		inMemory("/tmp", 0o1777, false, req.Limits.TmpSize),
		inMemory(homeAt, 0o700, true, req.Limits.HomeSize),
		mounts.Dir{Target: "/var", Mode: 0o755},
		mounts.Symlink{Target: "/var/tmp", To: "../tmp"},
	)
	for _, p := range coveredProc {
		ops = append(ops, p)
	}
	for _, p := range readOnlyProc {
		ops = append(ops, mounts.ReadOnlyPath{Target: p})
	}
	if req.ReadOnly {
		ops = append(ops, mounts.Tmpfs{Target: scratchAt, Mode: 0o700, Worker: true, SizeBytes: lookBytes, Attr: inside})
	} else {
		scratchAttr := inside
		scratchAttr.NoExec = req.NoExec
		scratch, err := veiled(src, req.AllocationID, scratchAt, "scratch", scratchWork, scratchAttr, true)
		if err != nil {
			return mounts.Plan{}, err
		}
		ops = append(ops, scratch)
	}
	if req.External {
		more, err := externalOps(req, src)
		return mounts.Plan{Ops: append(ops, more...)}, err
	}
	if !req.ReadOnly {
		cache, err := req.caches.buildCacheOps(src, req.AllocationID)
		if err != nil {
			return mounts.Plan{}, err
		}
		ops = append(ops, cache...)
	}
	if req.ConfigBundle != "" {
		bundle, err := bundleOp(req.ConfigBundle, src)
		if err != nil {
			return mounts.Plan{}, err
		}
		ops = append(ops, bundle)
	}
	for _, t := range req.Repositories {
		more, err := repositoryOps(req, t, &direct, src)
		if err != nil {
			return mounts.Plan{}, err
		}
		ops = append(ops, more...)
	}
	return mounts.Plan{Ops: ops, Layers: layers}, nil
}

// inMemory is a directory of the Worker's in memory. Its inodes are bounded too: the
// kernel's memory for one is not part of the size, and a tmpfs would have as many as
// half of the host's pages.
func inMemory(at string, mode uint32, worker bool, size uint64) mounts.Tmpfs {
	if size == 0 {
		size = defaultTmp(hostMemory())
	}
	return mounts.Tmpfs{Target: at, Mode: mode, Worker: worker, SizeBytes: size, Inodes: max(size/bytesPerInode, leastInodes),
		Attr: mounts.Attr{NoSuid: true, NoDev: true}}
}

const (
	bytesPerInode = 16 << 10 // as ext4 has it
	leastInodes   = 4096
)

// defaultTmp is the size of /tmp, and of the home, on a host of so much memory.
func defaultTmp(memory uint64) uint64 {
	if quarter := memory / 4; quarter < policy.DefaultTmpSize {
		return max(quarter, 64<<20)
	}
	return policy.DefaultTmpSize
}

// hostMemory is the size of the machine's memory.
var hostMemory = sync.OnceValue(func() uint64 {
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err != nil {
		return 0 // the least default, then
	}
	return si.Totalram * uint64(si.Unit)
})

// bundleOp mounts a configuration bundle, as a layer like everything that lies in the
// Runtime root.
func bundleOp(d policy.BundleDigest, src sources) (mounts.Op, error) {
	hex, err := d.Hex()
	if err != nil {
		return nil, err
	}
	attr := mounts.Attr{ReadOnly: true, NoSuid: true, NoDev: true}
	layer, err := src.source(rootdir.Bundle(hex)+"/tree", attr)
	if errors.Is(err, policy.CodeAllocationUnknown) {
		err = policy.Errorf(policy.CodeBundleUnknown, "helper.launch", "no configuration bundle of that digest is stored").With("bundle", string(d)).Because(err)
	}
	return mounts.Overlay{Target: policy.BundleAt, Lower: []mounts.Source{layer}, Attr: attr}, err
}

// repositoryOps mounts one repository and the cache's objects beside it.
func repositoryOps(req LaunchRequest, t RepositoryTree, direct *[]*os.File, src sources) ([]mounts.Op, error) {
	at := policy.WorkspacePath(t.RepositoryID)
	attr := mounts.Attr{NoSuid: true, NoDev: true, ReadOnly: req.ReadOnly}
	if t.Strategy == policy.StrategyDirect {
		if len(*direct) == 0 {
			return nil, policy.Errorf(policy.CodeBadRequest, "helper.launch", "the directory of %s was not given", t.RepositoryID)
		}
		s, err := src.direct((*direct)[0], attr)
		*direct = (*direct)[1:]
		return []mounts.Op{mounts.Bind{Target: at, Source: s, Recursive: true, Attr: attr}}, err
	}
	ro := mounts.Attr{ReadOnly: true, NoSuid: true, NoDev: true, NoExec: true}
	objects, err := src.source(rootdir.Objects(t.RepositoryID), ro)
	if err != nil {
		return nil, err
	}
	ops := []mounts.Op{mounts.Overlay{Target: objectsAt + "/" + string(t.RepositoryID), Lower: []mounts.Source{objects}, Attr: ro}}
	if req.ReadOnly {
		more, err := lookOps(req, t, src)
		return append(ops, more...), err
	}
	below, err := req.caches.dependencyLayers(src, t.RepositoryID)
	if err != nil {
		return nil, err
	}
	if t.Strategy != policy.StrategyOverlay {
		o, err := veiled(src, req.AllocationID, at, "root/"+string(t.RepositoryID), string(t.RepositoryID), attr, volatile(req))
		o.Lower = below
		return append(ops, o), err
	}
	lower, err := src.source(rootdir.Tree(t.RepositoryID, t.TreeKey), mounts.Attr{ReadOnly: true, NoSuid: true, NoDev: true})
	if err != nil {
		return nil, err
	}
	layers, err := src.source(rootdir.Layers(req.AllocationID, t.RepositoryID), mounts.Attr{NoSuid: true, NoDev: true})
	if err != nil {
		return nil, err
	}
	return append(ops, mounts.Overlay{Target: at, Lower: append([]mounts.Source{lower}, below...), Data: layers, Upper: "upper", Work: "work", Volatile: volatile(req), Attr: attr}), nil
}

// lookOps mounts one repository for a look: all that could be written to is a
// lower layer, so that a live Worker's mount of the same directories is left in
// peace and several looks may go on at once. What such a Worker changes meanwhile
// is seen or not (overlayfs.rst, "Changes to underlying filesystems"); neither the
// kernel nor the workspace takes harm. Beside it, at baseAt, lies the index with
// which the workspace began, as no Worker can have changed it.
func lookOps(req LaunchRequest, t RepositoryTree, src sources) ([]mounts.Op, error) {
	attr := mounts.Attr{ReadOnly: true, NoSuid: true, NoDev: true}
	lower := []string{rootdir.Repository(req.AllocationID, t.RepositoryID)}
	if t.Strategy == policy.StrategyOverlay {
		lower = []string{rootdir.Layers(req.AllocationID, t.RepositoryID) + "/upper", rootdir.Tree(t.RepositoryID, t.TreeKey)}
	}
	base := rootdir.Tree(t.RepositoryID, t.TreeKey) + "/.git"
	if !keepsStat(t.Strategy) {
		base = rootdir.BaseIndex(req.AllocationID, t.RepositoryID)
	}
	var ops []mounts.Op
	for _, m := range []struct {
		target string
		lower  []string
	}{{workspaceAt, lower}, {baseAt, []string{base}}} {
		o := mounts.Overlay{Target: m.target + "/" + string(t.RepositoryID), Attr: attr}
		for _, rel := range m.lower {
			l, err := src.source(rel, attr)
			if err != nil {
				return nil, err
			}
			o.Lower = append(o.Lower, l)
		}
		ops = append(ops, o)
	}
	return ops, nil
}

// keepsStat tells whether a strategy's files have the inode numbers and ctimes of
// the pristine tree's, so that its index is right for them.
func keepsStat(s policy.StrategyName) bool {
	return s == policy.StrategyOverlay || s == policy.StrategyBtrfsSnapshot
}

// volatile tells whether a workspace's overlay may leave out syncing. Without
// that the kernel syncs the whole file system below an overlay at its end
// (ovl_sync_fs), other Workers' files and all, and the sandbox's exit waits for
// it. Scratch is always volatile; a workspace that may be wanted after a power
// failure never is.
func volatile(req LaunchRequest) bool { return req.Volatile }

// veiled mounts a directory of the allocation by way of an overlay that has it
// as its only layer with anything in it. A plain bind mount would do the same, but its root's
// path on the host stands in /proc/self/mountinfo for the Worker to read
// (proc_pid_mountinfo(5)); an overlay shows only "/". work names the directory
// below mounts/.work that overlayfs wants beside the upper one.
func veiled(src sources, id policy.AllocationID, at, upper, work string, attr mounts.Attr, volatile bool) (mounts.Overlay, error) {
	data, err := src.source(rootdir.Workspace(id), mounts.Attr{NoSuid: true, NoDev: true})
	if err != nil {
		return mounts.Overlay{}, err
	}
	return mounts.Overlay{Target: at, Data: data, Upper: upper, Work: "mounts/" + overlayWork + "/" + work, Bottom: "mounts/" + overlayWork + "/" + overlayBottom, Volatile: volatile, Attr: attr}, nil
}

// None is a repository's id. overlayBottom is an empty directory.
const (
	overlayWork   = ".work"
	scratchWork   = ".scratch"
	overlayBottom = ".bottom"
)
