package runtime

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"

	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// broadcast wakes followers of the event stream.
type broadcast struct {
	mu sync.Mutex
	ch chan struct{}
	n  uint64
}

// count is how many events there were.
func (b *broadcast) count() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n
}

func (b *broadcast) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

func (b *broadcast) wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n++
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}

// event writes a safe line of the timeline into the ledger. It rides with the
// next commit: an event lost to a crash is of something the ledger still tells.
func (r *Runtime) event(kind policy.EventKind, owner string, fields map[string]string) {
	r.tell(kind, owner, fields, slog.String("owner", owner))
}

// workspaceEvent and workerEvent are event, and in the log the ids of all that the
// event belongs to.
func (r *Runtime) workspaceEvent(kind policy.EventKind, a registry.Allocation, fields map[string]string) {
	r.tell(kind, string(a.ID), fields, allocationAttrs(a)...)
}

func (r *Runtime) workerEvent(kind policy.EventKind, w registry.Worker, fields map[string]string) {
	r.tell(kind, string(w.ID), fields, workerAttrs(w)...)
}

func allocationAttrs(a registry.Allocation) []slog.Attr {
	return []slog.Attr{slog.String("allocation", string(a.ID)), slog.String("workspace", string(a.WorkspaceID))}
}

func workerAttrs(w registry.Worker) []slog.Attr {
	return []slog.Attr{slog.String("worker", string(w.ID)), slog.String("allocation", string(w.AllocationID)), slog.String("workspace", string(w.WorkspaceID))}
}

func (r *Runtime) tell(kind policy.EventKind, owner string, fields map[string]string, ids ...slog.Attr) {
	if err := r.ledger.Event(string(kind), owner, fields); err != nil {
		r.log.Error("event not recorded", "kind", kind, "owner", owner, "error", err)
	}
	info, _ := policy.DescribeEvent(kind)
	attrs := append(ids, slog.String("event", string(kind)))
	for _, k := range slices.Sorted(maps.Keys(fields)) {
		switch k {
		case "workspace": // an allocation, which ids names
		case "command": // its arguments may be secrets, and a log is read by more people
		default:
			attrs = append(attrs, slog.String(k, fields[k]))
		}
	}
	level := slog.LevelInfo
	if kind == policy.EventWorkerFailed {
		level = slog.LevelWarn
	}
	r.log.LogAttrs(context.Background(), level, info.Title, attrs...)
	r.events.wake()
}

// note logs diagnostics that stopped nothing. Without a daemon the caller is shown
// them, and there is no log to look them up in.
func (r *Runtime) note(ds []policy.Diagnostic, ids ...slog.Attr) {
	if !r.daemon {
		return
	}
	for i := range ds {
		r.log.LogAttrs(context.Background(), slog.LevelWarn, "noted", append(ids, slog.Any("error", &ds[i]))...)
	}
}

// timeline holds the events of the ledger as it stands. Each record is read once,
// however many follow and however often somebody asks.
type timeline struct {
	mu     sync.Mutex
	reader ledger.Reader
	events []told
	count  int // events so far, those whose segments are gone too
}

// told is an event with the number under which it was read, and where.
type told struct {
	Event
	number          int
	stream, segment string
}

// since returns what was read after the given number and satisfies want, oldest first,
// and the number of the last one read.
func (t *timeline) since(ctx context.Context, dir *os.File, number int, want func(Event) bool) (batch []Event, last int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	err = t.reader.Next(ctx, dir, func(rec ledger.Record) {
		if rec.Kind != ledger.RecordEvent {
			return
		}
		t.count++
		e := Event{Seq: rec.Time.UnixNano(), Time: rec.Time, Kind: rec.Event, Owner: rec.Owner, Fields: rec.Fields}
		t.events = append(t.events, told{e, t.count, rec.Stream, rec.Segment})
	})
	if err != nil {
		return nil, 0, err
	}
	t.events = slices.DeleteFunc(t.events, func(e told) bool { return t.reader.Gone(e.stream, e.segment) })
	first, _ := slices.BinarySearchFunc(t.events, number+1, func(e told, n int) int { return e.number - n })
	for _, e := range t.events[first:] {
		if want(e.Event) {
			batch = append(batch, e.Event)
		}
	}
	slices.SortStableFunc(batch, func(a, b Event) int { return a.Time.Compare(b.Time) })
	return batch, t.count, nil
}

// selects returns the test of whether a request is about an event. A Worker's events
// are its allocation's too, of one that was started since as well.
func (r *Runtime) selects(ctx context.Context, req EventsRequest) (func(Event) bool, error) {
	if req.AllocationID == "" {
		return func(e Event) bool { return req.Owner == "" || req.Owner == e.Owner }, nil
	}
	mine := map[string]bool{string(req.AllocationID): true}
	filter := registry.Filter{AllocationID: req.AllocationID, Limit: 1000}
	for {
		workers, err := r.registry.ListWorkers(ctx, filter)
		if err != nil {
			return nil, err
		}
		for _, w := range workers.Items {
			mine[string(w.ID)] = true
		}
		if filter.After = workers.Next; filter.After == "" {
			break
		}
	}
	return func(e Event) bool {
		if e.Kind == string(policy.EventWorkerStarted) && e.Fields["workspace"] == string(req.AllocationID) {
			mine[e.Owner] = true
		}
		return mine[e.Owner] && (req.Owner == "" || req.Owner == e.Owner)
	}, nil
}

// Events replays the timeline, oldest first, and follows it if asked. An
// event's sequence number is its time in nanoseconds after the epoch. Who follows
// gets what comes by the ledger's own numbers: a clock that is set back hides nothing.
func (r *Runtime) Events(ctx context.Context, req EventsRequest, yield func(Event) bool) error {
	about, err := r.selects(ctx, req)
	if err != nil {
		return err
	}
	for last := 0; ; {
		wake := r.events.wait()
		if err := r.ledger.Sync(ctx); err != nil {
			return err
		}
		// What is read later is new, although another process may have written it earlier.
		again := last > 0
		batch, now, err := r.timeline.since(ctx, r.ledgerDir, last, func(e Event) bool {
			return about(e) && (again || e.Seq > req.After)
		})
		if err != nil {
			return err
		}
		last = now
		for _, e := range batch {
			if !yield(e) {
				return nil
			}
		}
		if !req.Follow {
			return nil
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return nil
		case <-r.background.Done():
			return policy.Errorf(policy.CodeUnavailable, "runtime.events", "the runtime is stopping")
		}
	}
}

// LedgerRecords shows the ledger, or with Held what is held.
func (r *Runtime) LedgerRecords(ctx context.Context, req LedgerRequest, yield func(LedgerRecord) bool) error {
	if err := r.ledger.Sync(ctx); err != nil {
		return err
	}
	if req.Held {
		state, err := ledger.Scan(ctx, r.ledgerDir)
		if err != nil {
			return err
		}
		for _, h := range state.Held {
			rec := LedgerRecord{Stream: h.Stream, Time: h.Since, Kind: string(ledger.RecordIntent)}
			fillResource(&rec, &h.Resource)
			if (req.Owner == "" || req.Owner == rec.Owner) && !yield(rec) {
				return nil
			}
		}
		return nil
	}
	return ledger.Records(ctx, r.ledgerDir, func(v ledger.Record) bool {
		rec := LedgerRecord{Stream: v.Stream, Seq: v.Seq, Time: v.Time, Kind: string(v.Kind), Resource: v.ID, Owner: v.Owner, Type: v.Event}
		if v.Resource != nil {
			fillResource(&rec, v.Resource)
		}
		if req.Owner != "" && rec.Owner != req.Owner {
			return true
		}
		for _, id := range v.IDs {
			rec.Resource = id
			if !yield(rec) {
				return false
			}
		}
		return len(v.IDs) > 0 || yield(rec)
	})
}

func fillResource(rec *LedgerRecord, res *ledger.Resource) {
	rec.Resource, rec.Type, rec.Owner = res.ID, string(res.Kind), res.Owner
	rec.Path = policy.Printable(res.Path)
}

// LedgerVerify checks every stream's hash chain.
func (r *Runtime) LedgerVerify(ctx context.Context) (LedgerReport, error) {
	if err := r.ledger.Sync(ctx); err != nil {
		return LedgerReport{}, err
	}
	return verifyLedger(ctx, r.ledgerDir)
}
