package runtime

import (
	"context"
	"slices"
	"sync"

	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/policy"
)

// broadcast wakes followers of the event stream.
type broadcast struct {
	mu sync.Mutex
	ch chan struct{}
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
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}

// event writes a safe line of the timeline into the ledger. It rides with the
// next commit: an event lost to a crash is of something the ledger still tells.
func (r *Runtime) event(kind, owner string, fields map[string]string) {
	if err := r.ledger.Event(kind, owner, fields); err != nil {
		r.log.Error("event not recorded", "kind", kind, "owner", owner, "error", err)
	}
	r.log.Info(kind, "owner", owner)
	r.events.wake()
}

// Events replays the timeline, oldest first, and follows it if asked. An
// event's sequence number is its time in nanoseconds after the epoch.
func (r *Runtime) Events(ctx context.Context, req EventsRequest, yield func(Event) bool) error {
	for {
		wake := r.events.wait()
		if err := r.ledger.Sync(ctx); err != nil {
			return err
		}
		var batch []Event
		err := ledger.Records(ctx, r.ledgerDir, func(rec ledger.Record) bool {
			e := Event{Seq: rec.Time.UnixNano(), Time: rec.Time, Kind: rec.Event, Owner: rec.Owner, Fields: rec.Fields}
			if rec.Kind == ledger.RecordEvent && e.Seq > req.After && (req.Owner == "" || req.Owner == e.Owner) {
				batch = append(batch, e)
			}
			return true
		})
		if err != nil {
			return err
		}
		slices.SortStableFunc(batch, func(a, b Event) int { return a.Time.Compare(b.Time) })
		for _, e := range batch {
			if !yield(e) {
				return nil
			}
			req.After = max(req.After, e.Seq)
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
