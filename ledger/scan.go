package ledger

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
)

// loaded is a stream's state, from its last segment.
type loaded struct {
	number uint64
	parsed *parsed
	replay *replay
	empty  bool // no segment yet
}

// load reads the last segment of a stream. Its writer may replace it meanwhile;
// then the new last one is read.
func load(dir *os.File, name string) (*loaded, error) {
	for {
		numbers, err := segmentNumbers(dir)
		if err != nil {
			return nil, err
		}
		if len(numbers) == 0 {
			return &loaded{empty: true, replay: newReplay()}, nil
		}
		last := numbers[len(numbers)-1]
		data, err := readSegment(dir, last)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		l := &loaded{number: last, replay: newReplay()}
		l.parsed = parseSegment(data, l.replay.apply)
		if l.parsed.brk == nil && l.parsed.sealed {
			again, err := segmentNumbers(dir)
			if err != nil {
				return nil, err
			}
			if again[len(again)-1] != last {
				continue
			}
			l.parsed.fail(l.parsed.records, "the segment is sealed and has no successor")
		}
		if b := l.parsed.brk; b != nil {
			b.Stream, b.Segment = name, segmentName(last)
		}
		return l, nil
	}
}

// union gathers what all streams say.
type union struct {
	held  []Held
	keeps map[string]string
	gone  map[string]bool
	made  map[string]*Identity
	infos []StreamInfo
}

func gather(ctx context.Context, dir *os.File, roles []string) (*union, error) {
	const op = "ledger.scan"
	u := &union{keeps: map[string]string{}, gone: map[string]bool{}, made: map[string]*Identity{}}
	err := eachStream(dir, roles, func(s *stream) error {
		if err := canceled(op, ctx); err != nil {
			return err
		}
		l, err := load(s.dir, s.name)
		if err != nil {
			return unreadable(op, err)
		}
		if l.parsed != nil && l.parsed.brk != nil {
			return broken(op, l.parsed.brk)
		}
		u.add(s, l)
		return nil
	})
	if err != nil {
		return nil, asLedgerError(op, err)
	}
	return u, nil
}

func (u *union) add(s *stream, l *loaded) {
	info := StreamInfo{Name: s.name, Live: s.live}
	if !l.empty {
		info.Segments, info.Records, info.Torn = 1, l.parsed.records, l.parsed.torn
	}
	u.infos = append(u.infos, info)
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
func verifyStream(s *stream, visit func(*Record)) (StreamInfo, error) {
	info := StreamInfo{Name: s.name, Live: s.live}
	numbers, err := segmentNumbers(s.dir)
	if err != nil {
		return info, err
	}
	var before *parsed
	for i, n := range numbers {
		data, err := readSegment(s.dir, n)
		if errors.Is(err, fs.ErrNotExist) && before == nil {
			continue // its writer has just dropped it as too old
		}
		if err != nil {
			return info, err
		}
		p := parseSegment(data, func(r *Record) {
			if visit != nil {
				r.Stream, r.Segment = s.name, segmentName(n)
				visit(r)
			}
		})
		info.Segments++
		info.Records += p.records
		brk := p.brk
		switch {
		case brk != nil:
		case before != nil && numbers[i-1] != n-1:
			brk = &Break{Reason: fmt.Sprintf("segment %s is missing before it", segmentName(n-1))}
		case before != nil && (p.head.Prev != hex.EncodeToString(before.last.hash[:]) || p.head.Seq != before.last.seq+1):
			brk = &Break{Line: 1, Reason: "the head does not follow from the segment before"}
		case i < len(numbers)-1 && p.torn > 0:
			brk = &Break{Line: p.records + 1, Offset: p.end, Reason: "bytes stand behind the last record of a segment that has a successor"}
		case i == len(numbers)-1:
			info.Torn = p.torn
		}
		if brk != nil {
			brk.Stream, brk.Segment = s.name, segmentName(n)
			info.Break = brk
			return info, nil
		}
		before = p
	}
	return info, nil
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
