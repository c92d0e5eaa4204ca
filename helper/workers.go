package helper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/nsexec"
	"yoi.dev/yoi-runtime/policy"
)

func utoa(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// worker is a live Worker: one that this process launched, or adopted.
type worker struct {
	id         policy.WorkerID
	allocation policy.AllocationID
	transient  bool
	killed     atomic.Bool // by Kill: PID 1 had no time for a record
	exceeded   atomic.Pointer[string]
	pidfd      *os.File
	teardown   []*os.File
	proxyGone  chan struct{} // closed when its proxy has ended; nil without one
	workDirs   []string
	done       chan struct{}
	outcome    nsexec.Outcome
	err        error

	mu sync.Mutex
	rs []ledger.Resource // that end with it
}

func (w *worker) records() []ledger.Resource {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.rs)
}

// processIdentity is what tells a process from a later one with the same pid.
func (l *Local) processIdentity(pid int) ledger.Identity {
	return ledger.Identity{PID: pid, StartTime: startTime(pid), BootID: l.bootID}
}

// identityFile is the process identity of a sandbox's PID 1, in its Worker's directory.
func identityFile(r ledger.Resource) string {
	return besideWorker(r, "process")
}

// lockFile is what a sandbox's PID 1 holds as long as it lives.
func lockFile(r ledger.Resource) string { return besideWorker(r, "lock") }

func besideWorker(r ledger.Resource, name string) string {
	if role := r.Attrs[roleAttr]; role != "" {
		name = role + "." + name
	}
	return rootdir.Worker(policy.WorkerID(r.Attrs["worker"])) + "/metadata/" + name
}

func (l *Local) writeIdentity(r ledger.Resource, ident ledger.Identity) error {
	b, err := json.Marshal(ident)
	if err != nil {
		return err
	}
	f, err := l.root.OpenFile(identityFile(r), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

// identityOf is the identity of a process resource: the ledger's, or where a
// crash came before that record, the Worker directory's.
func (l *Local) identityOf(r ledger.Resource) ledger.Identity {
	if r.Identity.PID > 0 {
		return r.Identity
	}
	var ident ledger.Identity
	b, err := l.root.ReadFile(identityFile(r), 4096)
	if err != nil || json.Unmarshal(b, &ident) != nil {
		return ledger.Identity{} // it was never started
	}
	return ident
}

// startTime is field 22 of /proc/<pid>/stat, proc_pid_stat(5): clock ticks after
// boot. 0 if there is no such process.
func startTime(pid int) uint64 {
	n, err := strconv.ParseUint(string(statField(strconv.Itoa(pid), 22)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// statField is a field of /proc/PID/stat by its number in proc_pid_stat(5), from the
// third on. The second may hold anything, so they are counted from its closing
// parenthesis. Nothing if there is no such process.
func statField(pid string, number int) []byte {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return nil
	}
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < number-2 {
		return nil
	}
	return fields[number-3]
}

// watch waits for a launched process in a goroutine of its own and releases the
// Worker's process and uid range once it has ended.
func (l *Local) watch(req LaunchRequest, p *nsexec.Process, audit *audit, rs []ledger.Resource, teardown []*os.File, proxy *nsexec.Process) {
	w := &worker{id: req.WorkerID, allocation: req.AllocationID, transient: req.Transient, pidfd: p.Pidfd, done: make(chan struct{}),
		teardown: teardown, workDirs: workDirs(req), rs: rs}
	if proxy != nil {
		w.proxyGone = make(chan struct{})
	}
	l.mu.Lock()
	l.workers[w.id] = w
	l.mu.Unlock()
	l.guardQuota(w)
	if proxy != nil {
		go func() {
			defer close(w.proxyGone)
			l.watchProxy(w, func() { <-proxy.Done() })
			proxy.Close()
		}()
	}
	go func() {
		o, err := p.Wait(context.Background())
		if audit != nil {
			o.Denied = l.endAudit(w.id, audit)
		}
		l.finish(w, o, err)
	}()
}

// finish records a Worker's end. Its directory stays, since it holds the
// outcome, unless the Worker was transient.
func (l *Local) finish(w *worker, o nsexec.Outcome, err error) {
	l.mu.Lock()
	if l.closed {
		// The ledger may be closed already: the next process finds the outcome.
		l.mu.Unlock()
		w.outcome, w.err = o, err
		close(w.done)
		closeAll(w.teardown)
		w.pidfd.Close()
		return
	}
	l.reclaim.Add(1)
	l.mu.Unlock()
	defer l.reclaim.Done()
	if w.proxyGone != nil {
		<-w.proxyGone // its PID 1 watches the Worker's; its uid is of the range that is released now
	}
	var gone []ledger.Resource
	for _, r := range w.records() {
		switch {
		case isProxy(r):
			gone = append(gone, r)
		case r.Kind == ledger.KindProcess:
			l.endScope(r)
			gone = append(gone, r)
			o = l.withLimits(w.id, o)
		case r.Kind == ledger.KindUIDRange:
			gone = append(gone, r)
		case r.Kind == ledger.KindCgroup:
			if rerr := l.endGroup(r); rerr != nil {
				l.log.Warn("a control group is left to the ledger", "worker", w.id, "error", rerr)
				continue
			}
			gone = append(gone, r)
			o = l.withLimits(w.id, o)
		case w.transient:
			if rerr := l.removeResource(context.Background(), r); rerr != nil {
				l.log.Warn("transient worker left to the ledger", "worker", w.id, "error", rerr)
				continue
			}
			gone = append(gone, r)
		}
	}
	if rerr := l.release(w.allocation, gone...); rerr != nil {
		l.log.Error("ledger refuses records", "error", rerr)
	}
	if o.Lost && w.killed.Load() {
		o.Lost, o.Signal, o.ExitCode, o.EndedAt = false, int(unix.SIGKILL), 128+int(unix.SIGKILL), time.Now()
	}
	if over := w.exceeded.Load(); over != nil && o.Signal == int(unix.SIGKILL) {
		o.Exceeded = *over
	}
	w.outcome, w.err = o, err
	l.mu.Lock()
	delete(l.workers, w.id)
	if w.transient {
		l.ended[w.id] = w
	}
	takeDown := l.beginTeardown(w)
	closing := l.closed
	l.mu.Unlock()
	close(w.done)
	takeDown()
	w.pidfd.Close()
	if !w.transient && !closing {
		l.syncOutcome(w.id)
	}
}

// syncOutcome makes a Worker's outcome survive power loss too. PID 1 has written
// it, so that no crash of ours loses it, and does not wait for the disk: nor does
// whoever waits for the Worker. One that is removed at once needs no disk.
func (l *Local) syncOutcome(id policy.WorkerID) {
	f, err := l.root.OpenFile(rootdir.Worker(id)+"/metadata/outcome", unix.O_RDWR, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if err := unix.Fdatasync(int(f.Fd())); err != nil {
		l.log.Warn("outcome not synced", "worker", id, "error", err)
	}
}

func (l *Local) worker(id policy.WorkerID) *worker {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.workers[id]; w != nil {
		return w
	}
	return l.ended[id]
}

// Wait returns the outcome of a Worker, live or ended.
func (l *Local) Wait(ctx context.Context, id policy.WorkerID) (nsexec.Outcome, error) {
	if err := policy.CheckID("worker", string(id)); err != nil {
		return nsexec.Outcome{}, err
	}
	if w := l.worker(id); w != nil {
		select {
		case <-w.done:
			l.mu.Lock()
			delete(l.ended, id)
			l.mu.Unlock()
			return w.outcome, w.err
		case <-ctx.Done():
			return nsexec.Outcome{}, policy.Errorf(policy.CodeCanceled, "helper.wait", "waiting for %s was canceled", id).Because(ctx.Err())
		}
	}
	return l.recorded(ctx, id)
}

// recorded reads the outcome of a Worker that this process does not watch: one
// that ended before, or one that another process launched and that may be live.
func (l *Local) recorded(ctx context.Context, id policy.WorkerID) (nsexec.Outcome, error) {
	for {
		live, err := l.lockHeld(id)
		if err != nil {
			return nsexec.Outcome{}, err
		}
		if !live {
			break
		}
		select { // no event tells of a lock's release
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nsexec.Outcome{}, policy.Errorf(policy.CodeCanceled, "helper.wait", "waiting for %s was canceled", id).Because(ctx.Err())
		}
	}
	f, err := l.root.OpenFile(rootdir.Worker(id)+"/metadata/outcome", unix.O_RDONLY, 0)
	if err != nil {
		return nsexec.Outcome{}, policy.Errorf(policy.CodeWorkerUnknown, "helper.wait", "there is no worker %s", id).Because(err)
	}
	defer f.Close()
	o, ok, err := nsexec.ReadOutcome(f)
	if err != nil || !ok {
		if over := l.exceededBy(id); over != "" { // killed, so that there was no time for a record
			return nsexec.Outcome{Signal: int(unix.SIGKILL), ExitCode: 128 + int(unix.SIGKILL), Exceeded: over, EndedAt: time.Now()}, nil
		}
		o = nsexec.Outcome{Lost: true}
	}
	o.Denied = l.deniedTo(id)
	return l.withLimits(id, o), nil
}

// lockHeld reports whether a Worker's PID 1 lives: it holds the lock on
// metadata/lock, and nobody else keeps it.
func (l *Local) lockHeld(id policy.WorkerID) (bool, error) {
	return l.locked(rootdir.Worker(id) + "/metadata/lock")
}

func (l *Local) locked(rel string) (bool, error) {
	f, err := l.root.OpenFile(rel, unix.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, policy.Errorf(policy.CodeInternal, "helper.lock", "the worker's lock cannot be opened").Because(err)
	}
	defer f.Close()
	// A shared lock, so that two who look at once do not see each other as a
	// live Worker.
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	if err != nil {
		return false, policy.Errorf(policy.CodeInternal, "helper.lock", "the worker's lock cannot be tried").Because(err)
	}
	return false, nil
}

// Signal has PID 1 of the sandbox pass a signal on to the Worker's process group,
// KILL and STOP too, so that the Worker's end is recorded whatever ended it.
func (l *Local) Signal(ctx context.Context, id policy.WorkerID, signal int) error {
	const op = "helper.signal"
	if err := policy.CheckID("worker", string(id)); err != nil {
		return err
	}
	if signal < 1 || signal > 64 {
		return policy.Errorf(policy.CodeSignalInvalid, op, "%d is no signal", signal)
	}
	pidfd, err := l.openWorker(ctx, id)
	if err != nil {
		return err
	}
	defer pidfd.Close()
	return l.sent(op, id, nsexec.SignalPidfd(pidfd, unix.Signal(signal)))
}

func (l *Local) sent(op string, id policy.WorkerID, err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrClosed) || errors.Is(err, policy.CodeWorkerNotRunning) {
		return policy.Errorf(policy.CodeWorkerNotRunning, op, "the worker %s has ended", id)
	}
	if err != nil {
		return policy.Errorf(policy.CodeInternal, op, "the worker %s cannot be signalled", id).Because(err)
	}
	return nil
}

// Kill ends a Worker's process tree: the kernel kills every process of a pid
// namespace with its PID 1, pid_namespaces(7).
func (l *Local) Kill(ctx context.Context, id policy.WorkerID) error {
	const op = "helper.kill"
	if err := policy.CheckID("worker", string(id)); err != nil {
		return err
	}
	pidfd, err := l.openWorker(ctx, id)
	if err != nil {
		return err
	}
	defer pidfd.Close()
	if w := l.worker(id); w != nil {
		w.killed.Store(true)
	}
	err = unix.PidfdSendSignal(int(pidfd.Fd()), unix.SIGKILL, nil, 0)
	l.thaw(ctx, id)
	return l.sent(op, id, err)
}

// openWorker returns a pidfd of a live Worker's PID 1: this process' own, or
// found through the ledger and proved to be that process.
func (l *Local) openWorker(ctx context.Context, id policy.WorkerID) (*os.File, error) {
	l.mu.Lock()
	const op = "helper.signal"
	if w := l.workers[id]; w != nil {
		defer l.mu.Unlock()
		f, err := dup(w.pidfd)
		if err != nil { // it is closed as soon as the process is reaped
			return nil, policy.Errorf(policy.CodeWorkerNotRunning, op, "the worker %s has ended", id).Because(err)
		}
		return f, nil
	}
	l.mu.Unlock()
	live, err := l.lockHeld(id)
	if err != nil {
		return nil, err
	}
	if !live {
		if ok, err := l.root.Exists(rootdir.Worker(id)); err == nil && !ok {
			return nil, policy.Errorf(policy.CodeWorkerUnknown, op, "there is no worker %s", id)
		}
		return nil, policy.Errorf(policy.CodeWorkerNotRunning, op, "the worker %s has ended", id)
	}
	if err := l.ledger.Sync(ctx); err != nil {
		return nil, err
	}
	state, err := ledger.Scan(ctx, l.ledgerDir, l.roles...)
	if err != nil {
		return nil, err
	}
	for _, h := range state.Held {
		if isWorker(h.Resource) && h.Resource.Attrs["worker"] == string(id) {
			if f := l.openProcess(h.Resource); f != nil {
				return f, nil
			}
		}
	}
	return nil, policy.Errorf(policy.CodeWorkerNotRunning, op, "the process of worker %s cannot be found", id)
}

// openProcess returns a pidfd of the process that a ledger record names, nil if
// it is gone. The pidfd is opened first and the identity read after, so that a
// recycled pid cannot pass: the start time read belongs to whatever has the pid
// while the pidfd still answers.
func (l *Local) openProcess(r ledger.Resource) *os.File {
	ident := l.identityOf(r)
	if ident.PID <= 0 || ident.BootID != l.bootID {
		return nil
	}
	fd, err := unix.PidfdOpen(ident.PID, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	if startTime(ident.PID) != ident.StartTime || unix.PidfdSendSignal(fd, 0, nil, 0) != nil {
		f.Close()
		return nil
	}
	// Only then: a recycled pid's descriptors are nobody's business, and one of
	// them may lie on a file system that does not answer.
	if l.privileged && !l.holdsLock(ident.PID, r) {
		f.Close()
		return nil
	}
	return f
}

// holdsLock reports whether a process has the lock file of a record open, as its PID 1
// has. The records that name a process lie in directories of the Runtime root's
// owner; whoever can change them must not be able to aim a root's signal at
// another process of the host.
func (l *Local) holdsLock(pid int, r ledger.Resource) bool {
	lock, err := l.root.OpenFile(lockFile(r), unix.O_PATH, 0)
	if err != nil {
		return false
	}
	defer lock.Close()
	want := identify(lock)
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	open, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, e := range open {
		var st unix.Stat_t
		if unix.Stat(dir+e.Name(), &st) == nil && st.Dev == want.Dev && st.Ino == want.Ino && want.Ino != 0 {
			return true
		}
	}
	return false
}

// Live lists the Workers that run now and are known to this process.
func (l *Local) Live(context.Context) ([]policy.WorkerID, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ids := make([]policy.WorkerID, 0, len(l.workers))
	for id := range l.workers {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, nil
}

// adopt watches a Worker that an earlier helper launched.
func (l *Local) adopt(r ledger.Resource, pidfd *os.File, rs []ledger.Resource) policy.WorkerID {
	id := policy.WorkerID(r.Attrs["worker"])
	w := &worker{id: id, allocation: policy.AllocationID(r.Owner), pidfd: pidfd, done: make(chan struct{}), rs: rs}
	l.mu.Lock()
	l.workers[id] = w
	l.mu.Unlock()
	l.watchScope(id, r)
	l.guardQuota(w)
	l.adoptProxy(w)
	go func() {
		waitPidfd(pidfd)
		o, err := l.recorded(context.Background(), id)
		l.finish(w, o, err)
	}()
	return id
}

// waitPidfd returns when the process has ended: its pidfd polls readable,
// pidfd_open(2).
func waitPidfd(f *os.File) {
	for {
		p := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
		n, err := unix.Poll(p, -1)
		if n > 0 || (err != nil && !errors.Is(err, unix.EINTR)) {
			return
		}
	}
}
