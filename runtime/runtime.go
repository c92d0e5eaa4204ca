package runtime

import (
	"context"
	"errors"
	"hash"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/gitcache"
	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// Version is set by the linker.
var Version = "devel"

// Options configure a Runtime.
type Options struct {
	// Root is the Runtime root; "" is DefaultRoot.
	Root string
	// Daemon takes the root exclusively and keeps following Workers.
	Daemon bool
	// Ephemeral is for a process that makes nothing which is to last: its registry
	// records do not wait for the disk.
	Ephemeral bool
	// HelperSocket is yoi-helper's; "" does the helper's work in this process.
	HelperSocket string
	// Output is given what Workers of a daemon write, line by line; it may block. Nil
	// leaves it in their log files. See outputs.
	Output func(context.Context, OutputLine) error
	// Meter counts what a daemon does. May be nil.
	Meter Meter
	// Scopes puts Workers under a service manager where this process does the helper's
	// work; nil without one.
	Scopes helper.Scopes
	// Progress is told of git's slow work. May be nil.
	Progress func(gitcache.Progress)
	Log      *slog.Logger
	Clock    func() time.Time
}

// Runtime is one Runtime root in use. Its methods may be called from any
// goroutine.
type Runtime struct {
	id        policy.RuntimeID
	root      *rootdir.Root
	lock      *os.File
	settings  atomic.Pointer[settings]
	reloading sync.Mutex
	ledgerDir *os.File
	ledger    *ledger.Ledger
	registry  *registry.Registry
	cache     *gitcache.Cache
	helper    helper.Helper
	// remoteHelper: the helper is another process.
	remoteHelper bool
	daemon       bool
	ephemeral    bool
	progress     func(gitcache.Progress)
	log          *slog.Logger
	now          func() time.Time
	started      time.Time

	// background is what Close ends and waits for: followers of Workers.
	background context.Context
	stop       context.CancelFunc
	wg         sync.WaitGroup
	directMu   sync.Mutex
	direct     map[policy.WorkerID][]*os.File // locked sources of direct mounts
	events     broadcast
	outputs    *outputs // nil for none
	timeline   timeline
	meter      Meter // nil for none
	cacheSize  cacheSize
	followed   sync.Map // ids of Workers whose end this process waits for
	untouched  untouched
	looks      chan struct{} // a place for each look under way
	// callerSecrets are those of the caller of `yoi run`, for its one Worker.
	callerSecrets map[policy.SecretHandle]CallerSecret
	making        progressBook // creations that can be asked about
	importing     sync.Map     // ids of images that this process is at work on
}

// embeddedSegment keeps the ledger of embedded runs short, since each run reads
// it whole at its start.
const embeddedSegment = 32 << 10

// Open opens a Runtime root, making it if needed. Recovery is the caller's to
// start: Recover, which a daemon does before it serves.
func Open(ctx context.Context, o Options) (_ *Runtime, err error) {
	r := &Runtime{daemon: o.Daemon, log: o.Log, meter: o.Meter, progress: o.Progress, now: o.Clock, direct: make(map[policy.WorkerID][]*os.File), looks: make(chan struct{}, maxLooks)}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	if r.now == nil {
		r.now = time.Now
	}
	r.started = r.now()
	r.background, r.stop = context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	if r.root, r.lock, err = openRoot(ctx, o.Root, o.Daemon); err != nil {
		return r, err
	}
	cfg, err := LoadConfig(r.root)
	if err != nil {
		return r, err
	}
	r.settings.Store(&settings{config: cfg})
	// Both wait for the disk: at once.
	opened := make(chan error, 1)
	go func() { opened <- r.openLedger(ctx) }()
	err = r.openRegistry(ctx, o.Ephemeral)
	if lerr := <-opened; lerr != nil {
		err = lerr
	}
	if err != nil {
		return r, err
	}
	if r.id, err = r.registry.RuntimeID(ctx); err != nil {
		return r, err
	}
	r.log = r.log.With("runtime", r.id)
	if err = r.writeID(); err != nil {
		return r, err
	}
	if o.Output != nil && o.Daemon {
		if r.outputs, err = newOutputs(r, o.Output); err != nil {
			return r, err
		}
	}
	if r.cache, err = gitcache.Open(r.cacheOptions(o.Progress)); err != nil {
		return r, err
	}
	return r, r.openHelper(o)
}

// writeID leaves the Runtime's id where the helper finds it.
func (r *Runtime) writeID() error {
	if was, err := r.root.ReadFile(rootdir.RuntimeID, 128); !r.daemon || (err == nil && string(was) == string(r.id)) {
		return nil
	}
	return rootdir.Failed("runtime.open", "the Runtime's id cannot be written", r.root.WriteFile(rootdir.RuntimeID, []byte(r.id), 0o600))
}

func (r *Runtime) openLedger(ctx context.Context) (err error) {
	if r.ledgerDir, err = ledger.OpenDir(r.root.Abs(rootdir.Ledger), true); err != nil {
		return err
	}
	opts := ledger.Options{Dir: r.ledgerDir, Role: ledger.RoleRuntime, Clock: r.now}
	if !r.daemon {
		opts.SegmentSize = embeddedSegment
	}
	r.ledger, err = ledger.Open(ctx, opts)
	return err
}

func (r *Runtime) openRegistry(ctx context.Context, ephemeral bool) (err error) {
	open := registry.Open
	if r.ephemeral = ephemeral; ephemeral {
		open = registry.OpenRelaxed
	}
	r.registry, err = open(ctx, r.root.Abs(rootdir.Database))
	return err
}

func (r *Runtime) openHelper(o Options) error {
	if o.HelperSocket != "" {
		r.helper, r.remoteHelper = helper.Dial(o.HelperSocket), true
		return nil
	}
	l, err := helper.NewLocal(helper.LocalOptions{
		Root: r.root, Ledger: r.ledger, LedgerDir: r.ledgerDir, IDPool: r.config().pool(), Scopes: o.Scopes, Log: r.log,
	})
	if err != nil {
		return err
	}
	r.helper = l
	return nil
}

// cacheOptions gives the cache its ledger and, for the tops of pristine trees,
// the copy-on-write layer: a tree that snapshots are made of must be a subvolume.
func (r *Runtime) cacheOptions(progress func(gitcache.Progress)) gitcache.Options {
	return gitcache.Options{
		Root: r.root.Path, Ledger: (*journal)(r), Progress: progress, Log: r.log,
		AllowProtocols: r.config().Cache.Protocols,
		OpenSnapshot:   r.openSnapshot, SnapshotLimits: r.config().snapshotLimits(),
		MakeTop: r.top(cow.MakeTop), SealTop: r.top(cow.SealTop),
		RemoveTop: r.top(cow.RemoveTop), Measure: r.exclusive,
		CopyLive: r.copyLive, DigestTree: digestTree,
	}
}

// copyLive and digestTree give the cache the copy-on-write layer's functions in
// its own words.
func (r *Runtime) copyLive(ctx context.Context, source, target *os.File, filter func(string) func(string, bool) bool, progress func(int64)) (int, []policy.Diagnostic, error) {
	res, err := cow.Live(ctx, cow.LiveRequest{Source: source, Target: target, Filter: filter, Progress: progress, Log: r.log})
	return res.Rounds, res.Warnings, err
}

func digestTree(ctx context.Context, tree *os.File, skip string, more func(string, int64) hash.Hash, done func(string, *unix.Statx_t, hash.Hash)) (string, int64, int64, error) {
	d, err := cow.Digest(ctx, cow.DigestRequest{
		Tree: tree, Skip: skip, Hash: more,
		Done: func(rel string, st *cow.Statx, h hash.Hash) { done(rel, (*unix.Statx_t)(st), h) },
	})
	return d.Digest, d.Files + d.Symlinks, d.Bytes, err
}

// Close ends what runs in the background and releases the root. Workers that
// were not to die with their parent go on.
func (r *Runtime) Close() error {
	r.stop()
	r.wg.Wait()
	var errs []error
	if r.helper != nil {
		errs = append(errs, r.helper.Close())
	}
	switch {
	case r.registry == nil:
	case r.ephemeral:
		r.registry.Abandon()
	default:
		errs = append(errs, r.registry.Close())
	}
	if r.ledger != nil {
		errs = append(errs, r.ledger.Close())
	}
	for _, f := range []*os.File{r.ledgerDir, r.lock} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	if r.root != nil {
		errs = append(errs, r.root.Close())
	}
	return errors.Join(errs...)
}

// ID is the Runtime's identity, for who has to name it before it can be asked.
func (r *Runtime) ID() policy.RuntimeID { return r.id }

// Info identifies the Runtime.
func (r *Runtime) Info(ctx context.Context) (Info, error) {
	p, err := r.helper.Probe(ctx)
	if err != nil {
		return Info{}, err
	}
	return Info{RuntimeID: r.id, Version: Version, API: "v1", StartedAt: r.started, Privileged: p.Privileged}, nil
}

var _ Service = (*Runtime)(nil)
