package ledger

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"time"
)

// loaded is a stream's state, from its last segment.
type loaded struct {
	number uint64
	data   []byte
	parsed *parsed
	replay *replay
	empty  bool // no segment yet
}

func (l *loaded) broken() *Break {
	if l.parsed == nil {
		return nil
	}
	return l.parsed.brk
}

// load reads the last segment of a stream. Its writer may replace it meanwhile;
// then the new last one is read. own says that the caller holds the stream.
func load(dir *os.File, name string, own bool) (*loaded, error) {
	for {
		numbers, err := segmentNumbers(dir)
		if err != nil {
			return nil, err
		}
		if len(numbers) == 0 {
			return &loaded{empty: true, replay: newReplay()}, nil
		}
		last := numbers[len(numbers)-1]
		var state *replay
		data, p, err := readLast(dir, last, own, func(b []byte) *parsed {
			state = newReplay()
			return parseSegment(b, state.apply)
		})
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if p.brk == nil && p.sealed {
			again, err := segmentNumbers(dir)
			if err != nil {
				return nil, err
			}
			if len(again) > 0 && again[len(again)-1] != last {
				continue
			}
			p.fail(p.records, "the segment is sealed and has no successor")
		}
		l := &loaded{number: last, data: data, parsed: p, replay: state}
		if b := l.parsed.brk; b != nil {
			b.Stream, b.Segment = name, segmentName(last)
		}
		return l, nil
	}
}

// readLast reads a segment that may be written to meanwhile. A read takes one
// page after the other: it can show an early page as it was before a write and
// a late one as it is after the next, which looks like damage. Damage stays as
// it is when one looks again; once more at once where nobody else writes, since
// the reader holds the stream itself (own) or its lock is free.
func readLast(dir *os.File, number uint64, own bool, parse func([]byte) *parsed) ([]byte, *parsed, error) {
	quiet := func() bool {
		live, err := streamLocked(dir)
		return own || err == nil && !live
	}
	return lookAgain(func() ([]byte, error) { return readSegment(dir, number) }, parse, quiet)
}

func lookAgain(read func() ([]byte, error), parse func([]byte) *parsed, quiet func() bool) ([]byte, *parsed, error) {
	const looks = 5
	for i, last := 1, false; ; i++ {
		data, err := read()
		if err != nil {
			return nil, nil, err
		}
		p := parse(data)
		if p.brk == nil || i == looks || last {
			return data, p, nil
		}
		if last = quiet(); !last {
			time.Sleep(time.Duration(i) * time.Millisecond)
		}
	}
}

func checkOnly(b []byte) *parsed { return parseSegment(b, nil) }

// union gathers what all streams say.
type union struct {
	held  []Held
	keeps map[string]string
	gone  map[string]bool
	made  map[string]*Identity
	infos []StreamInfo
	last  map[string]uint64 // stream → its last segment
}

func newUnion() *union {
	return &union{keeps: map[string]string{}, gone: map[string]bool{}, made: map[string]*Identity{}, last: map[string]uint64{}}
}

// gather reads all streams one after the other. If meanwhile one stream dropped
// an intent for another's tombstone, and that one then the tombstone, the read
// would show the intent alone. Both begin a segment for that, so it is read again.
func gather(ctx context.Context, dir *os.File, roles []string) (*union, error) {
	const reads = 20
	for i := 1; ; i++ {
		u, err := gatherOnce(ctx, dir, roles)
		if err != nil || i == reads {
			return u, err
		}
		same := true
		err = eachStream(dir, roles, func(s *stream) error {
			numbers, err := segmentNumbers(s.dir)
			if n := len(numbers); n > 0 {
				same = same && u.last[s.name] == numbers[n-1]
			}
			return err
		})
		if err != nil {
			return nil, asLedgerError("ledger.scan", err)
		}
		if same {
			return u, nil
		}
	}
}

func gatherOnce(ctx context.Context, dir *os.File, roles []string) (*union, error) {
	const op = "ledger.scan"
	u := newUnion()
	err := eachStream(dir, roles, func(s *stream) error {
		if err := canceled(op, ctx); err != nil {
			return err
		}
		l, err := s.observe()
		if err != nil {
			return unreadable(op, err)
		}
		if b := l.broken(); b != nil {
			return broken(op, b)
		}
		if err := checkOlder(s.dir, s.name, l); err != nil {
			return asLedgerError(op, err)
		}
		u.add(s, l)
		return nil
	})
	if err != nil {
		return nil, asLedgerError(op, err)
	}
	return u, nil
}

// observe reads a stream and whether it is live. A process may claim the stream,
// or its writer die, at any moment between the two. Asked only before the read,
// the resources of one who came in between would pass for a dead one's, and be
// taken from under it; asked only behind it, what the dying one wrote last would
// be missing. So it is asked on both sides, until the answers agree, and the
// later answer holds.
func (s *stream) observe() (l *loaded, err error) {
	s.live, err = aroundRead(func() (bool, error) { return streamLocked(s.dir) }, func() error {
		l, err = load(s.dir, s.name, false)
		return err
	})
	return l, err
}

func aroundRead(locked func() (bool, error), read func() error) (bool, error) {
	const looks = 5
	for i := 1; ; i++ {
		before, err := locked()
		if err != nil {
			return false, err
		}
		if err := read(); err != nil {
			return false, err
		}
		after, err := locked()
		if err != nil || before == after || i == looks {
			return after, err
		}
	}
}

func (u *union) add(s *stream, l *loaded) {
	info := StreamInfo{Name: s.name, Live: s.live}
	if !l.empty {
		info.Segments, info.Records, info.Torn = 1, l.parsed.records, l.parsed.torn
	}
	u.infos = append(u.infos, info)
	u.last[s.name] = l.number
	for _, h := range l.replay.sorted() {
		live := s.live && h.session == l.replay.session
		u.held = append(u.held, Held{Resource: h.res, Stream: s.name, Live: live, Done: h.done, Since: h.since})
	}
	for id, owner := range l.replay.keeps {
		u.keeps[id] = owner
	}
	for id := range l.replay.gone {
		u.gone[id] = true
	}
	for id, ident := range l.replay.made {
		u.made[id] = ident
	}
}

// Scan reads every stream of the roles, all if none is named, and returns their
// union. A broken chain anywhere is CodeLedgerBroken.
func Scan(ctx context.Context, dir *os.File, roles ...string) (*State, error) {
	u, err := gather(ctx, dir, roles)
	if err != nil {
		return nil, err
	}
	kept := map[string]bool{}
	for id, owner := range u.keeps {
		if !u.gone[id] {
			kept[owner] = true
		}
	}
	st := &State{Streams: u.infos, Kept: sortedKeys(kept)}
	for _, h := range u.held {
		if u.gone[h.Resource.ID] {
			continue
		}
		if ident, ok := u.made[h.Resource.ID]; ok {
			h.Done = true
			if ident != nil {
				h.Resource.Identity = *ident
			}
		}
		h.Kept = kept[h.Resource.Owner]
		st.Held = append(st.Held, h)
	}
	return st, nil
}

// Verify checks every segment of every stream, and how they join.
func Verify(ctx context.Context, dir *os.File, roles ...string) (*Report, error) {
	const op = "ledger.verify"
	rep := &Report{OK: true}
	err := eachStream(dir, roles, func(s *stream) error {
		if err := canceled(op, ctx); err != nil {
			return err
		}
		info, err := verifyStream(s, nil)
		if err != nil {
			return unreadable(op, err)
		}
		rep.OK = rep.OK && info.Break == nil
		rep.Streams = append(rep.Streams, info)
		return nil
	})
	if err != nil {
		return nil, asLedgerError(op, err)
	}
	return rep, nil
}

// verifyStream walks all segments in order. visit, if given, sees each record.
func verifyStream(s *stream, visit func(*Record)) (info StreamInfo, err error) {
	info.Name = s.name
	if info.Live, err = streamLocked(s.dir); err != nil {
		return info, err
	}
	numbers, err := segmentNumbers(s.dir)
	if err != nil {
		return info, err
	}
	var before *parsed
	for i, n := range numbers {
		data, p, err := readLast(s.dir, n, false, checkOnly)
		if errors.Is(err, fs.ErrNotExist) {
			before = nil // its writer has just dropped it, and all before it, as too old
			continue
		}
		if err != nil {
			return info, err
		}
		if visit != nil {
			p = parseSegment(data, func(r *Record) {
				r.Stream, r.Segment = s.name, segmentName(n)
				visit(r)
			})
		}
		info.Segments++
		info.Records += p.records
		info.Torn = p.torn
		if info.Break = follows(before, p, numbers, i); info.Break != nil {
			info.Break.Stream, info.Break.Segment = s.name, segmentName(n)
			return info, nil
		}
		before = p
	}
	return info, sealedLast(s, &info, before, numbers)
}

// follows says what is wrong with the i-th segment, by itself or behind the one
// before. Torn bytes behind an old segment's last record are no damage: they are
// a seal cut off by a crash, and the head that follows vouches for the rest.
func follows(before, p *parsed, numbers []uint64, i int) *Break {
	switch {
	case p.brk != nil:
		return p.brk
	case before == nil:
		return nil
	case numbers[i-1] != numbers[i]-1:
		return &Break{Reason: fmt.Sprintf("segment %s is missing before it", segmentName(numbers[i]-1))}
	case p.head.Prev != before.last.hash.String() || p.head.Seq != before.last.seq+1:
		return &Break{Line: 1, Reason: "the head does not follow from the segment before"}
	}
	return nil
}

// sealedLast finds a last segment that says it is not the last one.
func sealedLast(s *stream, info *StreamInfo, last *parsed, numbers []uint64) error {
	if last == nil || !last.sealed {
		return nil
	}
	again, err := segmentNumbers(s.dir)
	if err != nil || len(again) > 0 && again[len(again)-1] != numbers[len(numbers)-1] {
		return err // begun meanwhile
	}
	info.Break = &Break{Stream: s.name, Segment: segmentName(numbers[len(numbers)-1]), Line: last.records,
		Offset: last.end, Reason: "the segment is sealed and has no successor"}
	return nil
}

// Records yields every record of every stream, stream by stream, until yield
// returns false. Records before a break are yielded, and the break is the error.
func Records(ctx context.Context, dir *os.File, yield func(Record) bool) error {
	const op = "ledger.records"
	stop := errors.New("stop")
	err := eachStream(dir, nil, func(s *stream) error {
		if err := canceled(op, ctx); err != nil {
			return err
		}
		going := true
		info, err := verifyStream(s, func(r *Record) { going = going && yield(*r) })
		switch {
		case !going:
			return stop
		case err != nil:
			return unreadable(op, err)
		case info.Break != nil:
			return broken(op, info.Break)
		}
		return nil
	})
	if errors.Is(err, stop) {
		return nil
	}
	return asLedgerError(op, err)
}

// prune drops from own what need not be carried into a new segment: tombstones
// of what no other stream has, and intents and keeps that another stream has the
// tombstone of. The tombstone goes last, when no stream has the intent any more.
func (u *union) prune(own *replay, ownName string) {
	elsewhere := map[string]bool{}
	for _, h := range u.held {
		if h.Stream != ownName {
			elsewhere[h.Resource.ID] = true
		}
	}
	for id := range u.keeps {
		if _, mine := own.keeps[id]; !mine {
			elsewhere[id] = true
		}
	}
	maps.DeleteFunc(own.gone, func(id string, _ bool) bool { return !elsewhere[id] })
	maps.DeleteFunc(own.made, func(id string, _ *Identity) bool { return !elsewhere[id] })
	maps.DeleteFunc(own.held, func(id string, _ *holding) bool { return u.gone[id] })
	maps.DeleteFunc(own.keeps, func(id, _ string) bool { return u.gone[id] })
}
