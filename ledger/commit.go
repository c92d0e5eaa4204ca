package ledger

import (
	"encoding/hex"
	"errors"
	"os"
	"slices"

	"yoi.dev/yoi-runtime/policy"
)

// add puts an entry into the next batch. The caller holds mu, or is alone.
func (l *Ledger) add(e entry) {
	crashPoint()
	l.pending = append(l.pending, e)
	l.added++
}

// commit adds entries and returns when they, and all that was added before, are
// durable. The first caller that finds nobody committing commits for everyone
// who has added by then; the others sleep. So n concurrent callers cost one
// fdatasync, and a lone caller no hand-over.
func (l *Ledger) commit(op string, entries ...entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure != nil {
		return l.failure
	}
	from := l.added
	for _, e := range entries {
		l.add(e)
	}
	mine := l.added
	for l.settled < mine && l.failure == nil {
		if l.committing {
			l.turn.Wait()
			continue
		}
		l.committing = true
		batch := l.pending
		l.pending = nil
		l.mu.Unlock()
		err := l.writeBatch(batch)
		l.mu.Lock()
		l.committing = false
		l.settle(batch, err)
		l.turn.Broadcast()
	}
	if l.failure != nil {
		return l.failure
	}
	for _, r := range l.refused {
		if r.from < mine && from < r.to && len(entries) > 0 {
			return asWriteError(op, r.err)
		}
	}
	return nil
}

// keptRefusals is how many full-disk refusals are remembered for sleepers.
const keptRefusals = 64

// settle accounts for a batch. A full disk refuses the batch's intents and keeps
// the rest for later; any other error is the end of this ledger.
func (l *Ledger) settle(batch []entry, err error) {
	from := l.settled
	l.settled += uint64(len(batch))
	switch {
	case err == nil:
	case noSpace(err) && !errors.Is(err, errTakeBack):
		l.refused = append(l.refused, refusal{from, l.settled, err})
		if n := len(l.refused) - keptRefusals; n > 0 {
			l.refused = slices.Delete(l.refused, 0, n)
		}
		var rest []entry
		for _, e := range batch {
			if e.kind != RecordIntent && e.kind != RecordKeep && e.kind != RecordClose {
				rest = append(rest, e)
			}
		}
		l.pending = append(rest, l.pending...)
		l.added += uint64(len(rest))
	default:
		l.failure = failed("ledger.commit", err)
	}
}

// writeBatch writes and syncs entries. The chain and the state advance only
// when that has succeeded.
func (l *Ledger) writeBatch(batch []entry) error {
	if len(batch) == 0 {
		return nil
	}
	must := false
	next := l.chain
	l.buf = l.buf[:0]
	for i := range batch {
		e := &batch[i]
		must = must || e.kind == RecordIntent || e.kind == RecordKeep
		l.buf = next.append(l.buf, e.kind, e.time, e.enc)
	}
	if l.seg.off+int64(len(l.buf)) > l.opts.SegmentSize && l.seg.off > 0 && !l.fresh() {
		if err := l.rotate(); err != nil {
			return err
		}
		return l.writeBatch(batch)
	}
	if err := l.writeSynced(must); err != nil {
		return err
	}
	crashPoint()
	next.durable = next.seq
	seq := l.chain.seq
	for i := range batch {
		seq++
		l.state.apply(batch[i].record(seq))
	}
	l.chain = next
	return nil
}

func (l *Ledger) writeSynced(must bool) error {
	before := l.seg.off
	if err := l.seg.write(l.buf, must); err != nil {
		if noSpace(err) {
			// What reached the file is taken back, so that a later record does not
			// stand behind half of this one.
			if terr := l.takeBack(before); terr != nil {
				return errors.Join(errTakeBack, terr)
			}
		}
		return err
	}
	return l.seg.file.sync()
}

var errTakeBack = errors.New("a record half written to a full disk could not be taken back")

func (l *Ledger) takeBack(off int64) error {
	if err := l.seg.file.truncate(off); err != nil {
		return err
	}
	l.seg.off, l.seg.size = off, off
	return l.seg.file.sync()
}

// fresh reports whether the segment holds nothing but its head and carries: then
// a new one would be no emptier.
func (l *Ledger) fresh() bool { return l.seg.off == l.segStart }

// rotate begins a new segment with the state carried over, then seals the old
// one and drops those that are too old to be of use.
func (l *Ledger) rotate() error {
	// In the order intents before tombstones: see doc.go, Streams.
	if u, err := gatherOthers(l.ledger, l.name); err == nil {
		u.prune(l.state, l.name)
	} // a stream that cannot be read may hold anything: then everything is carried
	old, oldChain := l.seg, l.chain
	if err := l.beginSegment(old.number + 1); err != nil {
		l.seg, l.chain = old, oldChain
		return err
	}
	seal, err := newEntry(RecordSeal, l.opts.Clock(), Body{})
	if err != nil {
		return err
	}
	buf := oldChain.append(nil, seal.kind, seal.time, seal.enc)
	if err := old.write(buf, false); err != nil && !noSpace(err) {
		return err
	}
	if err := errors.Join(old.file.sync(), old.file.Close()); err != nil {
		return err
	}
	return l.dropOld()
}

// beginSegment writes a segment's head and carries under a temporary name and
// gives it its name once they are on disk.
func (l *Ledger) beginSegment(number uint64) error {
	carries, err := l.state.carries()
	if err != nil {
		return err
	}
	now := l.opts.Clock()
	next := l.chain
	head, err := newEntry(RecordHead, now, Body{
		Session: l.state.session, Format: formatVersion, Name: l.name, Number: number,
		Prev: hex.EncodeToString(next.hash[:]), Carried: len(carries),
	})
	if err != nil {
		return err
	}
	buf := next.append(nil, head.kind, now, head.enc)
	for _, c := range carries {
		buf = next.append(buf, c.kind, now, c.enc)
	}
	tmp := segmentName(number) + newSuffix
	f, err := l.opts.disk.create(l.dir, tmp)
	if err != nil {
		return err
	}
	seg := segment{file: f, number: number, alloc: overwrites(l.dir)}
	err = seg.write(buf, true)
	if err == nil {
		err = f.sync()
	}
	if err == nil {
		err = l.opts.disk.rename(l.dir, tmp, segmentName(number))
	}
	if err != nil {
		f.Close()
		_ = l.opts.disk.unlink(l.dir, tmp) // if that fails the next claim drops it
		return err
	}
	if err := l.opts.disk.syncDir(l.dir); err != nil {
		return errors.Join(errTakeBack, err) // whether the name lasts is not known: no way on
	}
	next.durable = next.seq
	l.seg, l.chain, l.segStart = seg, next, seg.off
	return nil
}

// keepSegments is how many old segments stay as evidence.
const keepSegments = 3

func (l *Ledger) dropOld() error {
	numbers, err := segmentNumbers(l.dir)
	if err != nil {
		return err
	}
	for len(numbers) > keepSegments+1 {
		if err := l.opts.disk.unlink(l.dir, segmentName(numbers[0])); err != nil {
			return err
		}
		numbers = numbers[1:]
	}
	return nil
}

// gatherOthers reads the streams beside own.
func gatherOthers(dir *os.File, own string) (*union, error) {
	u := &union{keeps: map[string]string{}, gone: map[string]bool{}, made: map[string]*Identity{}}
	err := eachStream(dir, nil, func(s *stream) error {
		if s.name == own {
			return nil
		}
		l, err := load(s.dir, s.name)
		if err != nil {
			return err
		}
		if l.parsed != nil && l.parsed.brk != nil {
			return policy.Errorf(policy.CodeLedgerBroken, "ledger.rotate", "the stream %s is broken", s.name)
		}
		u.add(s, l)
		return nil
	})
	return u, err
}
