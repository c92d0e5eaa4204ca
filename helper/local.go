package helper

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/internal/cgroup"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/internal/toolroot"
	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/policy"
)

// LocalOptions configure a Local.
type LocalOptions struct {
	Root   *rootdir.Root
	Ledger *ledger.Ledger
	// LedgerDir is the Runtime root's ledger directory, for scans.
	LedgerDir *os.File
	// Role restricts scans to the streams of one role; "" reads all.
	Role   string
	IDPool IDPool // zero is DefaultIDPool
	// SpareNetworks is how many network namespaces a privileged helper has ready
	// for the next Workers.
	SpareNetworks int
	// LayersProgram is yoi-layers; "" is layers.Program().
	LayersProgram string
	// EgressProgram is yoi-egress; "" is egress.Program().
	EgressProgram string
	// Scopes is nil without a service manager.
	Scopes Scopes
	Log    *slog.Logger
}

// Local does the work in this process, with this process' privilege: as root it
// gives each Worker a host uid range of its own and idmapped mounts; as an
// ordinary user everything happens in user namespaces.
type Local struct {
	root       *rootdir.Root
	ledger     *ledger.Ledger
	ledgerDir  *os.File
	roles      []string
	log        *slog.Logger
	privileged bool
	ranges     *idRanges // nil unless privileged
	networks   networks
	bootID     string
	layersProg string
	egressProg string
	scopes     Scopes

	hostOnce sync.Once
	host     *hostRoot
	hostErr  error

	userOnce  sync.Once
	userRange *userRange // of subordinate ids
	userErr   error

	pausing sync.Mutex

	cgroupOnce sync.Once
	cgroups    *cgroup.Tree
	cgroupErr  error

	probeMu sync.Mutex
	table   *cow.Table

	mu      sync.Mutex
	workers map[policy.WorkerID]*worker
	held    map[policy.AllocationID][]ledger.Resource // made by this process
	own     map[policy.AllocationID]bool              // all of it is in held
	kept    map[policy.AllocationID]bool              // by this process
	left    map[policy.AllocationID]bool              // by who made it, unkept
	made    map[policy.AllocationID]made              // by this process, until removed
	ended   map[policy.WorkerID]*worker               // transient, until asked for
	// launching are the launches under way.
	launching map[policy.WorkerID]bool
	// sessions are those that nobody has waited for.
	sessions map[policy.SessionID]*session
	// teardown has an allocation whose last sandbox is still being taken down.
	teardown map[policy.AllocationID]chan struct{}
	reclaim  sync.WaitGroup
	closed   bool
}

// NewLocal returns a Local for an open Runtime root and ledger. Both stay the
// caller's to close, after Close.
func NewLocal(o LocalOptions) (*Local, error) {
	if o.IDPool == (IDPool{}) {
		o.IDPool = DefaultIDPool
	}
	if err := o.IDPool.Validate(); err != nil {
		return nil, err
	}
	l := &Local{
		root: o.Root, ledger: o.Ledger, ledgerDir: o.LedgerDir, log: o.Log,
		privileged: hasAdmin(), layersProg: o.LayersProgram, egressProg: o.EgressProgram, scopes: o.Scopes,
		workers:   make(map[policy.WorkerID]*worker),
		held:      make(map[policy.AllocationID][]ledger.Resource),
		own:       make(map[policy.AllocationID]bool),
		kept:      make(map[policy.AllocationID]bool),
		left:      make(map[policy.AllocationID]bool),
		made:      make(map[policy.AllocationID]made),
		ended:     make(map[policy.WorkerID]*worker),
		launching: make(map[policy.WorkerID]bool),
		sessions:  make(map[policy.SessionID]*session),
		teardown:  make(map[policy.AllocationID]chan struct{}),
	}
	if o.Role != "" {
		l.roles = []string{o.Role}
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	if l.privileged {
		l.ranges = newIDRanges(o.IDPool)
		l.networks.spare = o.SpareNetworks
	}
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, policy.Errorf(policy.CodeUnsupported, "helper.open", "the boot id cannot be read").Because(err)
	}
	l.bootID = string(id[:min(36, len(id))])
	return l, nil
}

// hasAdmin reports whether this process is root with CAP_SYS_ADMIN effective,
// which is what clone of detached mounts and idmapped mounts take.
func hasAdmin() bool {
	if os.Geteuid() != 0 {
		return false
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return false
	}
	return data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

func (l *Local) hostRoot() (*hostRoot, error) {
	l.hostOnce.Do(func() {
		if l.host, l.hostErr = readHostRoot(); l.hostErr == nil && l.root.UID == os.Geteuid() {
			// Of a Runtime root that is another's a helper believes nothing.
			l.host.tools.Load = func() ([]byte, error) { return l.root.ReadFile(rootdir.Tools, toolroot.MaxStored) }
			l.host.tools.Store = func(b []byte) error { return l.root.WriteFile(rootdir.Tools, b, 0o600) }
		}
	})
	if l.hostErr != nil {
		return nil, policy.Errorf(policy.CodeUnsupported, "helper.launch", "the host's system directories cannot be read").Because(l.hostErr)
	}
	return l.host, nil
}

// ProbeStrategies has the answer ready for whoever asks next.
func (l *Local) ProbeStrategies(ctx context.Context) { _, _ = l.strategies(ctx) }

// strategies is the Runtime root's strategy table: kept from an earlier probe, or
// probed now in a directory that the ledger knows.
func (l *Local) strategies(ctx context.Context) (*cow.Table, error) {
	l.probeMu.Lock()
	defer l.probeMu.Unlock()
	if l.table == nil {
		l.table = cow.Cached(l.root.Dir)
	}
	if l.table != nil {
		return l.table, nil
	}
	// An owner of its own: recovery leaves what this process is at work on alone, and
	// a dead one's probe is somebody else's.
	owner := policy.AllocationID(policy.NewID("probe-"))
	r := newResource(ledger.KindDirectory, owner, rootdir.Tmp+"/"+string(owner))
	if err := l.intend(ctx, owner, r); err != nil {
		return nil, err
	}
	t, err := l.probe(ctx, r)
	rerr := l.removePath(context.WithoutCancel(ctx), r.Path) // of a probe that was cut off, too
	if rerr == nil {
		rerr = l.release(owner, r)
	}
	if err == nil {
		err = rerr
	} else if rerr != nil {
		l.log.Warn("a probe's files are left to the ledger", "path", r.Path, "error", rerr)
	}
	if err != nil {
		return nil, err
	}
	l.table = t
	return t, nil
}

func (l *Local) probe(ctx context.Context, r ledger.Resource) (*cow.Table, error) {
	scratch, err := l.root.Mkdir(r.Path, 0o700)
	if err != nil {
		return nil, diskError("helper.probe", err)
	}
	defer scratch.Close()
	return cow.Probe(ctx, l.root.Dir, scratch)
}

// intend writes resources to the ledger, durably, and remembers them for the
// allocation's removal.
func (l *Local) intend(ctx context.Context, id policy.AllocationID, rs ...ledger.Resource) error {
	if err := l.ledger.Intend(ctx, rs...); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[id] = append(l.held[id], rs...)
	return nil
}

// release records that resources are gone.
func (l *Local) release(id policy.AllocationID, rs ...ledger.Resource) error {
	ids := make([]string, len(rs))
	for i, r := range rs {
		ids[i] = r.ID
	}
	l.mu.Lock()
	left := without(l.held[id], ids)
	if len(left) == 0 {
		delete(l.held, id)
		delete(l.own, id)
		delete(l.kept, id)
		delete(l.left, id)
	} else {
		l.held[id] = left
	}
	l.mu.Unlock()
	return l.ledger.Release(ids...)
}

// without takes resources out of a list, in place. A workspace's has an entry for each
// Worker that it ever had, and each one's end takes out a few of the last.
func without(rs []ledger.Resource, ids []string) []ledger.Resource {
	if len(ids) > 8 {
		gone := make(map[string]bool, len(ids))
		for _, id := range ids {
			gone[id] = true
		}
		return slices.DeleteFunc(rs, func(r ledger.Resource) bool { return gone[r.ID] })
	}
	for _, id := range ids {
		for i := len(rs) - 1; i >= 0; i-- {
			if rs[i].ID == id {
				rs = slices.Delete(rs, i, i+1)
				break
			}
		}
	}
	return rs
}

// resourcesOf returns what the ledger holds for an allocation: from memory if
// this process made the allocation, else also from the streams of all writers.
func (l *Local) resourcesOf(ctx context.Context, id policy.AllocationID) ([]ledger.Resource, error) {
	l.mu.Lock()
	rs := append([]ledger.Resource(nil), l.held[id]...)
	complete := l.own[id]
	l.mu.Unlock()
	if complete {
		return rs, nil
	}
	if err := l.ledger.Sync(ctx); err != nil {
		return nil, err
	}
	state, err := ledger.Scan(ctx, l.ledgerDir, l.roles...)
	if err != nil {
		return nil, err
	}
	rs = nil // the streams hold what memory does, with identities
	for _, h := range state.Held {
		if h.Resource.Owner == string(id) && own(h.Resource) {
			rs = append(rs, h.Resource)
		}
	}
	return rs, nil
}

// own reports whether a resource is the helper's to release; the others are the
// repository cache's, and the configuration bundles'.
func own(r ledger.Resource) bool {
	switch r.Kind {
	case ledger.KindDirectory, ledger.KindSubvolume:
		return !strings.HasPrefix(r.Path, rootdir.Cache+"/") && !strings.HasPrefix(r.Path, rootdir.Bundles+"/")
	case ledger.KindProcess, ledger.KindUIDRange, ledger.KindCgroup, ledger.KindProject, ledger.KindImage, ledger.KindImageReference:
		return true
	}
	return false
}

func newResource(kind ledger.Kind, id policy.AllocationID, rel string) ledger.Resource {
	return ledger.Resource{ID: ledger.NewResourceID(), Kind: kind, Owner: string(id), Path: rel}
}

// identify reads what tells a directory from another at the same place later.
func identify(dir *os.File) ledger.Identity {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return ledger.Identity{}
	}
	return ledger.Identity{Dev: st.Dev, Ino: st.Ino}
}

// diskError turns the errors of making things into diagnostics.
func diskError(op string, err error) error {
	var d *policy.Diagnostic
	if !errors.As(err, &d) && errors.Is(err, fs.ErrNotExist) {
		return policy.Errorf(policy.CodeAllocationUnknown, op, "a part of the workspace does not exist").Because(err)
	}
	return rootdir.Failed(op, "the Runtime root cannot be changed", err)
}

// Close waits for space that is being reclaimed. Workers go on unless they were
// launched with DieWithParent.
func (l *Local) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.reclaim.Wait()
	l.networks.close()
	if l.ranges != nil {
		l.ranges.close()
	}
	return nil
}

var _ Helper = (*Local)(nil)
