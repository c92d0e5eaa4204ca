package ledger

import (
	"encoding/hex"
	"errors"
	"slices"
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
	from, must := l.settled, false
	if len(entries) > 0 {
		from = l.added
	}
	for _, e := range entries {
		must = must || e.needsRoom()
		l.add(e)
	}
	return l.await(op, from, l.added, must)
}

// await returns when the entries from from to mine, and all before, are durable.
// With must it tells when a full disk has refused one. The caller holds mu.
func (l *Ledger) await(op string, from, mine uint64, must bool) error {
	for l.settled < mine && l.failure == nil {
		if l.committing {
			l.turn.Wait()
			continue
		}
		l.committing = true
		batch := l.pending
		l.pending = nil
		l.mu.Unlock()
		r, err := l.writeWhatFits(batch)
		l.mu.Lock()
		l.committing = false
		l.settle(batch, r, err)
		l.turn.Broadcast()
	}
	if l.failure != nil {
		return l.failure
	}
	for _, r := range l.refused {
		if r.from < mine && from < r.to && (must || r.all) {
			return asWriteError(op, r.err)
		}
	}
	return nil
}

// needsRoom tells the records that a full disk refuses from those that may use
// up the reserve, since what they stand for frees space.
func (e *entry) needsRoom() bool { return e.kind == RecordIntent || e.kind == RecordKeep }

// keptRefusals is how many full-disk refusals are remembered for sleepers.
const keptRefusals = 64

// settle accounts for a batch. What a full disk refused altogether stays for the
// next commit, but for what its callers are told of; any other error is the end
// of this ledger.
func (l *Ledger) settle(batch []entry, r *refusal, err error) {
	from := l.settled
	l.settled += uint64(len(batch))
	if err != nil {
		l.failure = failed("ledger.commit", err)
		return
	}
	if r == nil {
		return
	}
	r.from, r.to = from, l.settled
	for _, p := range l.promises {
		if r.from < p.to && p.from < r.to {
			p.refused = r.err
		}
	}
	l.refused = append(l.refused, *r)
	if n := len(l.refused) - keptRefusals; n > 0 {
		l.refused = slices.Delete(l.refused, 0, n)
	}
	if !r.all {
		return
	}
	rest := slices.DeleteFunc(batch, func(e entry) bool { return e.needsRoom() || e.kind == RecordClose })
	l.pending = append(rest, l.pending...)
	l.added += uint64(len(rest))
}

// writeWhatFits writes a batch, or on a full disk the part of it that the
// reserve is for.
func (l *Ledger) writeWhatFits(batch []entry) (*refusal, error) {
	err := l.writeBatch(batch)
	if !refusedForRoom(err) {
		return nil, err
	}
	r := &refusal{err: err}
	rest := slices.DeleteFunc(slices.Clone(batch), func(e entry) bool { return e.needsRoom() })
	switch err := error(nil); {
	case len(rest) == len(batch):
		r.all = true
	default:
		err = l.writeBatch(rest)
		if r.all = refusedForRoom(err); !r.all && err != nil {
			return nil, err
		}
	}
	return r, nil
}

func refusedForRoom(err error) bool { return noSpace(err) && !errors.Is(err, errUncertain) }

// writeBatch writes and syncs entries. The chain and the state advance only
// when that has succeeded.
func (l *Ledger) writeBatch(batch []entry) error {
	if len(batch) == 0 {
		return nil
	}
	must := slices.ContainsFunc(batch, func(e entry) bool { return e.needsRoom() })
	next := l.chain
	l.buf = l.buf[:0]
	for i := range batch {
		e := &batch[i]
		l.buf = next.append(l.buf, e.kind, e.time, e.enc)
	}
	if !l.overfull && l.written()+int64(len(l.buf)) > l.opts.SegmentSize && l.written() > 0 {
		err := l.rotate()
		if err != nil && (must || !refusedForRoom(err)) {
			return err
		}
		// Without a disk for a new segment, what frees space goes into this one.
		l.overfull = err != nil
		defer func() { l.overfull = false }()
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
	if err := l.write(must); err != nil {
		return err
	}
	if err := l.seg.file.sync(); err != nil {
		// Whatever the errno, ENOSPC of a delayed allocation included: the kernel
		// may have dropped the pages and reports it once (fsync(2), NOTES).
		return errors.Join(errUncertain, err)
	}
	return nil
}

// write puts l.buf into the segment. A full disk leaves the segment as it was.
func (l *Ledger) write(must bool) error {
	if err := l.seg.room(len(l.buf), must); err != nil {
		return err
	}
	err := l.seg.put(l.buf)
	if err == nil || !noSpace(err) {
		return err
	}
	// What reached the file is taken back, so that a later record does not
	// stand behind half of this one.
	werr := l.seg.wipe(int64(len(l.buf)))
	if werr == nil {
		werr = l.seg.file.sync()
	}
	if werr != nil {
		return errors.Join(errUncertain, err, werr)
	}
	return err
}

// errUncertain marks a failure after which nobody knows what is on disk.
var errUncertain = errors.New("what the disk holds is not known any more")

// written is how much stands behind the head and carries. Those do not count
// towards the segment's size: a state larger than that would else be carried
// over again at every commit.
func (l *Ledger) written() int64 { return l.seg.off - l.segStart }

// rotate begins a new segment with the state carried over, then seals the old
// one and drops those that are too old to be of use.
func (l *Ledger) rotate() error {
	// In the order intents before tombstones: see doc.go, Streams.
	if u, err := l.gatherOthers(); err == nil {
		u.prune(l.state, l.name)
	} // else a stream that cannot be read may hold anything: then everything is carried
	if l.chain.durable < l.chain.seq { // the claim: the new head will vouch for it
		if err := l.seg.file.sync(); err != nil {
			return errors.Join(errUncertain, err)
		}
		l.chain.durable = l.chain.seq
	}
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
	// The seal tells a lost successor; without room for one that is all that is lost.
	if err := errors.Join(old.room(len(buf), false), old.put(buf)); err != nil && !noSpace(err) {
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
	if err = seg.room(len(buf), true); err == nil {
		err = seg.put(buf)
	}
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
		return errors.Join(errUncertain, err) // whether the name lasts is not known: no way on
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

// gatherOthers reads the streams beside this one, and makes durable what it
// read: a record dropped here for the sake of one that is still on its way to
// the disk there would after a power failure be missing on both sides.
func (l *Ledger) gatherOthers() (*union, error) {
	u := newUnion()
	err := eachStream(l.ledger, nil, func(s *stream) error {
		if s.name == l.name {
			return nil
		}
		o, err := load(s.dir, s.name, false)
		if err != nil {
			return err
		}
		if b := o.broken(); b != nil {
			return broken("ledger.rotate", b)
		}
		u.add(s, o)
		if o.empty {
			return nil
		}
		return l.opts.disk.syncOther(s.dir, segmentName(o.number))
	})
	return u, err
}
