package ledger

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Reader reads the ledger piece by piece: each Next yields what was written since the
// one before, and takes in no more than that. The zero value begins at the oldest
// segment. It is for one goroutine at a time.
type Reader struct {
	at     map[string]place  // by stream
	oldest map[string]string // the first segment of each stream
	taken  int64             // bytes that were parsed
}

// place is how far a stream was read: the chain goes on from there, so that what was
// read once is as good as read again.
type place struct {
	number uint64
	parsed parsed
}

// Next yields the records behind those of the last call, stream by stream. If it fails,
// what it did not yield is yielded by the next call.
func (r *Reader) Next(ctx context.Context, dir *os.File, yield func(Record)) error {
	const op = "ledger.records"
	if r.at == nil {
		r.at, r.oldest = map[string]place{}, map[string]string{}
	}
	return asLedgerError(op, eachStream(dir, nil, func(s *stream) error {
		if err := canceled(op, ctx); err != nil {
			return err
		}
		b, err := r.next(s, yield)
		switch {
		case err != nil:
			return unreadable(op, err)
		case b != nil:
			return broken(op, b)
		}
		return nil
	}))
}

// Gone says that the segment in which a record was read has been dropped as too old.
func (r *Reader) Gone(stream, segment string) bool { return segmentBefore(segment, r.oldest[stream]) }

// segmentBefore compares names of segments, whose numbers may outgrow their zeros.
func segmentBefore(a, b string) bool { return len(a) < len(b) || len(a) == len(b) && a < b }

func (r *Reader) next(s *stream, yield func(Record)) (*Break, error) {
	numbers, err := segmentNumbers(s.dir)
	if err != nil || len(numbers) == 0 {
		return nil, err
	}
	r.oldest[s.name] = segmentName(numbers[0])
	at, begun := r.at[s.name]
	if begun && at.number < numbers[0] {
		begun = false // dropped before it was read to its end
	}
	for _, n := range numbers {
		if begun && (n < at.number || n == at.number && at.parsed.sealed) {
			continue
		}
		var before place
		if begun && n == at.number {
			before = at
		}
		var got []Record
		p, err := r.tail(s, n, before.parsed, &got)
		if errors.Is(err, fs.ErrNotExist) {
			begun = false // its writer has just dropped it, and all before it
			continue
		}
		if err != nil {
			return nil, err
		}
		if b := joins(at, begun, n, p); b != nil {
			b.Stream, b.Segment = s.name, segmentName(n)
			return b, nil
		}
		at, begun = place{n, *p}, true
		r.at[s.name] = at
		for _, v := range got {
			yield(v)
		}
	}
	return nil, nil
}

// tail parses what stands in a segment behind what is known of it.
func (r *Reader) tail(s *stream, number uint64, known parsed, got *[]Record) (*parsed, error) {
	data, p, err := lookAgain(func() ([]byte, error) { return readSegmentFrom(s.dir, number, known.end) }, func(b []byte) *parsed {
		p := known
		*got = nil
		p.goOn(b, func(v *Record) {
			v.Stream, v.Segment = s.name, segmentName(number)
			*got = append(*got, *v)
		})
		return &p
	}, func() bool {
		live, err := streamLocked(s.dir)
		return err == nil && !live
	})
	r.taken += int64(lengthWithoutZeros(data))
	return p, err
}

// joins says what is wrong with a segment, by itself or behind what was read before.
func joins(at place, begun bool, number uint64, p *parsed) *Break {
	switch {
	case p.brk != nil:
		return p.brk
	case !begun || number == at.number:
		return nil
	case number != at.number+1:
		return &Break{Reason: fmt.Sprintf("segment %s is missing before it", segmentName(number-1))}
	case p.head.Prev != at.parsed.last.hash.String() || p.head.Seq != at.parsed.last.seq+1:
		return &Break{Line: 1, Reason: "the head does not follow from the segment before"}
	}
	return nil
}
