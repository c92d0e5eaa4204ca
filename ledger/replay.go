package ledger

import (
	"encoding/json"
	"slices"
	"time"
)

// replay is a stream's state: the one state machine that the writer, a claim
// and every reader use, so that they cannot disagree.
type replay struct {
	session uint64
	held    map[string]*holding
	keeps   map[string]string // keep's id → owner
	// gone are tombstones: releases of resources and keeps that another stream
	// has the intent of. made are the identities of such resources.
	gone map[string]bool
	made map[string]*Identity
}

// holding is a resource whose intent is in this stream.
type holding struct {
	res     Resource
	done    bool
	session uint64
	since   time.Time
	order   uint64
}

func newReplay() *replay {
	return &replay{held: map[string]*holding{}, keeps: map[string]string{}, gone: map[string]bool{}, made: map[string]*Identity{}}
}

// apply takes one record in. It never fails: a record that its hash vouches
// for is what the writer wrote.
func (s *replay) apply(r *Record) {
	switch r.Kind {
	case RecordHead:
		*s = *newReplay()
		s.session = r.Session
	case RecordClaim:
		s.session = r.Session
	case RecordCarry:
		s.carry(r)
	case RecordIntent:
		if r.Resource != nil {
			s.held[r.Resource.ID] = &holding{res: *r.Resource, session: s.session, since: r.Time, order: r.Seq}
		}
	case RecordDone:
		s.done(r.ID, r.Identity)
	case RecordReleased:
		for _, id := range r.IDs {
			s.release(id)
		}
	case RecordKeep:
		s.keeps[r.ID] = r.Owner
	case RecordUnkeep:
		for _, id := range r.IDs {
			if _, ours := s.keeps[id]; ours {
				delete(s.keeps, id)
			} else {
				s.gone[id] = true
			}
		}
	}
}

func (s *replay) done(id string, ident *Identity) {
	if h := s.held[id]; h == nil {
		s.made[id] = ident
	} else {
		h.done = true
		if ident != nil {
			h.res.Identity = *ident
		}
	}
}

func (s *replay) release(id string) {
	if _, ours := s.held[id]; ours {
		delete(s.held, id)
		return
	}
	delete(s.made, id)
	s.gone[id] = true
}

func (s *replay) carry(r *Record) {
	switch {
	case r.Resource != nil:
		s.held[r.Resource.ID] = &holding{res: *r.Resource, done: r.Done, session: r.Session, since: r.Since, order: r.Seq}
	case r.Owner != "":
		s.keeps[r.ID] = r.Owner
	case r.ID != "":
		s.made[r.ID] = r.Identity
	default:
		for _, id := range r.IDs {
			s.gone[id] = true
		}
	}
}

// sorted returns the holdings by age.
func (s *replay) sorted() []*holding {
	out := make([]*holding, 0, len(s.held))
	for _, h := range s.held {
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b *holding) int {
		if a.order < b.order {
			return -1
		}
		return 1
	})
	return out
}

// tombstonesPerCarry keeps a carry of tombstones well below maxLine.
const tombstonesPerCarry = 200

// carries encodes the whole state as carry records: what a new segment begins
// with, so that the segments before it are not needed any more.
func (s *replay) carries() ([]entry, error) {
	var bodies []Body
	for _, h := range s.sorted() {
		res := h.res
		bodies = append(bodies, Body{Resource: &res, Done: h.done, Session: h.session, Since: h.since})
	}
	for _, id := range sortedKeys(s.keeps) {
		bodies = append(bodies, Body{ID: id, Owner: s.keeps[id]})
	}
	for _, id := range sortedKeys(s.made) {
		bodies = append(bodies, Body{ID: id, Identity: s.made[id]})
	}
	for ids := range slices.Chunk(sortedKeys(s.gone), tombstonesPerCarry) {
		bodies = append(bodies, Body{IDs: ids})
	}
	out := make([]entry, 0, len(bodies))
	for i := range bodies {
		e, err := newEntry(RecordCarry, time.Time{}, bodies[i])
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// entry is a record on its way to the disk: everything but its number.
type entry struct {
	kind RecordKind
	time time.Time
	body Body
	enc  []byte
}

func newEntry(kind RecordKind, t time.Time, b Body) (entry, error) {
	enc, err := json.Marshal(b)
	if err == nil && len(enc) > maxLine-512 {
		err = errTooLong
	}
	return entry{kind: kind, time: t, body: b, enc: enc}, err
}

func (e *entry) record(seq uint64) *Record {
	return &Record{Seq: seq, Time: e.time, Kind: e.kind, Body: e.body}
}
