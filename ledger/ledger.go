package ledger

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// Ledger is a claimed stream. Its methods may be called from any goroutine.
type Ledger struct {
	opts   Options
	ledger *os.File // of all streams, for pruning
	dir    *os.File // of this stream
	name   string
	lock   *os.File

	// mu guards what callers add; the committer owns the rest while committing.
	mu         sync.Mutex
	turn       *sync.Cond
	pending    []entry
	added      uint64 // entries ever added
	settled    uint64 // entries written and synced, or refused
	refused    []refusal
	promises   []*promise
	committing bool
	failure    error // sticky

	seg      segment
	segStart int64 // behind the head and carries of seg
	overfull bool  // no room for a new segment: this one goes on
	chain    chain
	state    *replay
	buf      []byte
}

// refusal is a range of entries that a full disk did not take.
type refusal struct {
	from, to uint64
	all      bool // not only what needs room
	err      error
}

// Open claims a free stream of the role, verifying and continuing its chain, or
// makes a new one. A torn tail is healed. A stream with a broken chain is
// CodeLedgerBroken.
func Open(ctx context.Context, o Options) (_ *Ledger, err error) {
	const op = "ledger.open"
	if err := o.fill(); err != nil {
		return nil, err
	}
	l := &Ledger{opts: o, state: newReplay()}
	l.turn = sync.NewCond(&l.mu)
	defer func() {
		if err != nil {
			l.closeFiles()
		}
	}()
	if l.ledger, err = openAt(o.Dir, ".", unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
		return nil, failed(op, err)
	}
	role, err := makeDir(l.ledger, o.Role)
	if err != nil {
		return nil, failed(op, err)
	}
	defer role.Close()
	for n := range maxStreams {
		if err := canceled(op, ctx); err != nil {
			return nil, err
		}
		ok, err := l.claim(role, n)
		if err != nil {
			return nil, asWriteError(op, err)
		}
		if ok {
			return l, nil
		}
	}
	return nil, policy.Errorf(policy.CodeLedgerBusy, op, "all %d streams of the ledger are in use", maxStreams)
}

func (o *Options) fill() error {
	const op = "ledger.open"
	if o.Role != RoleRuntime && o.Role != RoleHelper {
		return badRequest(op, "%q is no role", policy.Printable(o.Role))
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.SegmentSize == 0 {
		o.SegmentSize = DefaultSegmentSize
	}
	if o.SegmentSize < 4<<10 {
		return badRequest(op, "a segment is at least 4 KiB")
	}
	if o.disk == nil {
		o.disk = osDisk{}
	}
	return nil
}

// asWriteError makes an error of the disk a diagnostic.
func asWriteError(op string, err error) error {
	var d *policy.Diagnostic
	switch {
	case err == nil || errors.As(err, &d):
		return err
	case noSpace(err):
		return policy.Errorf(policy.CodeDiskFull, op, "the disk is full: the cleanup ledger takes no more").Because(err)
	}
	return failed(op, err)
}

// claim takes stream n if its lock is free.
func (l *Ledger) claim(role *os.File, n int) (ok bool, err error) {
	dir, err := makeDir(role, streamName(n))
	if err != nil {
		return false, err
	}
	lock, err := openAt(dir, lockName, unix.O_RDWR|unix.O_CREAT)
	if err != nil {
		dir.Close()
		return false, err
	}
	if ok, err = tryLock(lock); !ok || err != nil {
		lock.Close()
		dir.Close()
		return false, err
	}
	l.dir, l.lock, l.name = dir, lock, l.opts.Role+"/"+streamName(n)
	return true, l.takeOver(role)
}

// takeOver goes on where the stream's last writer stopped.
func (l *Ledger) takeOver(role *os.File) error {
	if err := l.dropUnfinished(); err != nil {
		return err
	}
	last, err := load(l.dir, l.name, true)
	if err != nil {
		return err
	}
	if b := last.broken(); b != nil {
		return broken("ledger.open", b)
	}
	l.seg.alloc = overwrites(l.dir)
	if last.empty {
		if err := l.syncAbove(role); err != nil {
			return err
		}
		l.state.session = 1
		return l.beginSegment(1)
	}
	if err := checkOlder(l.dir, l.name, last); err != nil {
		return err
	}
	l.state, l.chain = last.replay, last.parsed.last
	l.chain.durable = l.chain.seq // reopen sees to it
	if err := l.reopen(last); err != nil {
		return err
	}
	return l.beginSession(last.parsed.torn)
}

// syncAbove makes a new stream's directories durable, whoever made them: their
// maker may not have come to that yet, and may never.
func (l *Ledger) syncAbove(role *os.File) error {
	root, err := openDirAt(l.ledger, "..")
	if err != nil {
		return err
	}
	defer root.Close()
	for _, d := range []*os.File{role, l.ledger, root} {
		if err := l.opts.disk.syncDir(d); err != nil {
			return err
		}
	}
	return nil
}

// beginSession writes the claim at once, so that every reader sees from here on
// that what earlier sessions hold is not live. It need not be durable: if it
// is lost to a power failure, so is the session.
func (l *Ledger) beginSession(torn int64) error {
	body := Body{Session: l.state.session + 1}
	if torn > 0 {
		body.Fields = map[string]string{"torn_bytes": strconv.FormatInt(torn, 10)}
	}
	e, err := newEntry(RecordClaim, l.opts.Clock(), body)
	if err != nil {
		return err
	}
	next := l.chain
	l.buf = next.append(l.buf[:0], e.kind, e.time, e.enc)
	err = l.write(false)
	if refusedForRoom(err) { // on a full disk recovery must still be able to begin
		l.add(e)
		return nil
	}
	if err == nil {
		l.state.apply(e.record(next.seq))
		l.chain = next
	}
	return err
}

// dropUnfinished removes segments that never got their name.
func (l *Ledger) dropUnfinished() error {
	all, err := names(l.dir)
	if err != nil {
		return err
	}
	for _, n := range all {
		if strings.HasSuffix(n, newSuffix) {
			if err := l.opts.disk.unlink(l.dir, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// reopen opens the last segment for writing and wipes a torn tail, durably: what
// follows must not be mixed with it. If the last writer did not end in good
// order, its bytes are written again before they are synced: after a failed
// fdatasync the kernel takes pages for clean that never reached the disk, and a
// sync alone would not write them (fsync(2), NOTES).
func (l *Ledger) reopen(last *loaded) error {
	f, err := l.opts.disk.open(l.dir, segmentName(last.number))
	if err != nil {
		return err
	}
	l.seg.file, l.seg.number, l.seg.off = f, last.number, last.parsed.end
	l.seg.size, l.segStart = int64(len(last.data)), last.parsed.start
	if last.parsed.torn > 0 || (!l.seg.alloc && l.seg.size > l.seg.off) {
		if err := l.seg.wipe(last.parsed.torn); err != nil {
			return err
		}
	}
	if last.parsed.torn == 0 && last.parsed.kind == RecordClose {
		return nil
	}
	if _, err := f.WriteAt(last.data[:last.parsed.end], 0); err != nil {
		return err
	}
	return errors.Join(f.sync(), l.opts.disk.syncDir(l.dir))
}

// Stream is the claimed stream's name, "<role>/s<NNN>".
func (l *Ledger) Stream() string { return l.name }

// Intend writes resources down and returns when the records are durable. The
// records of one call become durable together or not at all, as far as a crash
// between two sectors allows; each is valid alone.
func (l *Ledger) Intend(ctx context.Context, rs ...Resource) error {
	const op = "ledger.intend"
	entries, err := l.intents(ctx, op, rs)
	if err != nil {
		return err
	}
	return l.commit(op, entries...)
}

// Later is Intend without waiting: the records go with the next commit, whoever
// asks for it, and wait returns when they are durable. Until it has, and without
// an error, the resources must not be made. It is called once, whatever happens.
func (l *Ledger) Later(ctx context.Context, rs ...Resource) (wait func() error, err error) {
	const op = "ledger.later"
	entries, err := l.intents(ctx, op, rs)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure != nil {
		return nil, l.failure
	}
	p := &promise{from: l.added}
	for _, e := range entries {
		l.add(e)
	}
	p.to = l.added
	l.promises = append(l.promises, p)
	return func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		err := l.await(op, p.from, p.to, true)
		l.promises = slices.DeleteFunc(l.promises, func(q *promise) bool { return q == p })
		if err == nil && p.refused != nil {
			err = asWriteError(op, p.refused)
		}
		return err
	}, nil
}

// promise is what Later is to tell of. It may be asked long after the commit, when
// the refusals that sleepers look at are forgotten.
type promise struct {
	from, to uint64
	refused  error
}

func (l *Ledger) intents(ctx context.Context, op string, rs []Resource) ([]entry, error) {
	entries := make([]entry, 0, len(rs))
	for i := range rs {
		if err := checkResource(&rs[i]); err != nil {
			return nil, err
		}
		r := rs[i]
		e, err := newEntry(RecordIntent, l.opts.Clock(), Body{Resource: &r})
		if err != nil {
			return nil, badRequest(op, "a resource's record is too long")
		}
		entries = append(entries, e)
	}
	return entries, canceled(op, ctx)
}

// Done records that a resource is there, and what it is. It is durable with the
// next commit.
func (l *Ledger) Done(id string, ident Identity) error {
	if !validToken(id) || !utf8.ValidString(ident.SubvolumeUUID+ident.BootID) {
		return badRequest("ledger.done", "the resource id or its identity is malformed")
	}
	return l.buffer("ledger.done", RecordDone, Body{ID: id, Identity: &ident})
}

// idsPerRecord keeps a record of many ids below maxLine.
const idsPerRecord = 400

// Release records that resources are gone. It is durable with the next commit;
// a release lost to a crash is found again by recovery.
func (l *Ledger) Release(ids ...string) error {
	const op = "ledger.release"
	for _, id := range ids {
		if !validToken(id) {
			return badRequest(op, "%q is no resource id", policy.Printable(id))
		}
	}
	for len(ids) > 0 {
		n := min(len(ids), idsPerRecord)
		if err := l.buffer(op, RecordReleased, Body{IDs: append([]string(nil), ids[:n]...)}); err != nil {
			return err
		}
		ids = ids[n:]
	}
	return nil
}

// Event records a line of a timeline. Fields must be safe to show.
func (l *Ledger) Event(kind, owner string, fields map[string]string) error {
	const op = "ledger.event"
	if !validToken(kind) || (owner != "" && !validToken(owner)) {
		return badRequest(op, "the event's kind or owner is malformed")
	}
	for k, v := range fields {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return badRequest(op, "an event's field is not UTF-8")
		}
	}
	return l.buffer(op, RecordEvent, Body{Event: kind, Owner: owner, Fields: fields})
}

// Keep records durably that an owner is wanted: its resources are no leftovers
// when their writer dies.
func (l *Ledger) Keep(ctx context.Context, owner string) error {
	const op = "ledger.keep"
	if !validToken(owner) {
		return badRequest(op, "%q is no owner", policy.Printable(owner))
	}
	e, err := newEntry(RecordKeep, l.opts.Clock(), Body{ID: policy.NewID("k-"), Owner: owner})
	if err == nil {
		err = canceled(op, ctx)
	}
	if err != nil {
		return err
	}
	return l.commit(op, e)
}

// Unkeep undoes every Keep of an owner, in whichever stream, durably.
func (l *Ledger) Unkeep(ctx context.Context, owner string) error {
	const op = "ledger.unkeep"
	if !validToken(owner) {
		return badRequest(op, "%q is no owner", policy.Printable(owner))
	}
	if err := l.Sync(ctx); err != nil {
		return err
	}
	u, err := gather(ctx, l.ledger, nil)
	if err != nil {
		return err
	}
	var ids []string
	for id, o := range u.keeps {
		if o == owner && !u.gone[id] {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	e, err := newEntry(RecordUnkeep, l.opts.Clock(), Body{IDs: ids, Owner: owner})
	if err != nil {
		return failed(op, err)
	}
	return l.commit(op, e)
}

// Sync returns when everything recorded so far is durable.
func (l *Ledger) Sync(ctx context.Context) error {
	if err := canceled("ledger.sync", ctx); err != nil {
		return err
	}
	return l.commit("ledger.sync")
}

// Lag counts the records that are not durable yet.
func (l *Ledger) Lag() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(l.added - l.settled)
}

// Close flushes, ends the session in good order and frees the stream.
func (l *Ledger) Close() error {
	e, err := newEntry(RecordClose, l.opts.Clock(), Body{})
	if err == nil {
		err = l.commit("ledger.close", e)
	}
	l.mu.Lock()
	if l.failure == nil {
		l.failure = failed("ledger.close", os.ErrClosed)
	}
	l.mu.Unlock()
	l.closeFiles()
	return err
}

func (l *Ledger) closeFiles() {
	for _, f := range []*os.File{l.dir, l.ledger} {
		if f != nil {
			f.Close()
		}
	}
	if l.seg.file != nil {
		l.seg.file.Close()
	}
	if l.lock != nil {
		l.lock.Close() // last: the stream is free from here on
	}
}

func (l *Ledger) buffer(op string, kind RecordKind, b Body) error {
	e, err := newEntry(kind, l.opts.Clock(), b)
	if err != nil {
		return badRequest(op, "the record is too long")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure != nil {
		return l.failure
	}
	l.add(e)
	return nil
}

func (l *Ledger) String() string { return fmt.Sprintf("ledger %s", l.name) }
