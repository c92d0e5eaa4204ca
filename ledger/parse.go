package ledger

import (
	"bytes"
	"encoding/hex"
	"fmt"
)

// parsed is what a segment's bytes say. Parsing never fails: what is wrong is
// in brk (damage) or torn (an unfinished write at the end).
type parsed struct {
	head    *Record
	records int
	// last is the chain behind the last whole record before a seal.
	last chain
	// start is the offset behind the head and carries.
	start int64
	// end is the offset behind the last whole record, and kind its kind.
	end    int64
	kind   RecordKind
	sealed bool
	// torn counts the bytes from end to the last one that is not zero.
	torn int64
	brk  *Break
}

// parseSegment checks data's chain. visit, if not nil, is called for every
// record in order.
func parseSegment(data []byte, visit func(*Record)) *parsed {
	p := &parsed{}
	p.goOn(data, visit)
	return p
}

// goOn parses rest, which stands behind p.end, as a part of the same segment.
func (p *parsed) goOn(rest []byte, visit func(*Record)) {
	p.torn = 0
	for n := p.records + 1; ; n++ {
		end := bytes.IndexByte(rest, '\n')
		if end < 0 {
			p.classify(rest, n)
			break
		}
		why := p.take(rest[:end], n == 1, visit)
		if why != "" {
			p.classify(rest, n)
			if p.brk != nil && p.brk.Reason == "" {
				p.brk.Reason = why
			}
			break
		}
		p.end += int64(end) + 1
		if p.records-1 <= p.head.Carried {
			p.start = p.end
		}
		rest = rest[end+1:]
		if p.sealed {
			if torn := lengthWithoutZeros(rest); torn > 0 {
				p.fail(n+1, "bytes stand behind the seal")
			}
			break
		}
	}
	if p.brk == nil && p.head == nil {
		p.fail(1, "the segment has no head")
	}
	if p.brk == nil && p.records-1 < p.head.Carried {
		p.fail(p.records+1, fmt.Sprintf("%d of %d carried records are missing", p.head.Carried-(p.records-1), p.head.Carried))
	}
	if p.brk != nil {
		p.torn = 0
	}
}

func (p *parsed) fail(line int, why string) {
	p.brk = &Break{Line: line, Offset: p.end, Reason: why}
}

// take checks one line and says why it is refused, or "".
func (p *parsed) take(b []byte, first bool, visit func(*Record)) string {
	l, ok := frame(b)
	if !ok {
		return "the line is not a record"
	}
	if first {
		return p.takeHead(&l, visit)
	}
	switch want := p.last.seq + 1; {
	case l.seq < want:
		return fmt.Sprintf("record %d is repeated or out of order, %d was due", l.seq, want)
	case l.seq > want:
		return fmt.Sprintf("record %d is missing, %d follows", want, l.seq)
	}
	h := p.last.hash.next(l.covered)
	if !l.matches(h) {
		return fmt.Sprintf("the hash of record %d does not match", l.seq)
	}
	if l.kind == RecordHead {
		return "a head stands inside the segment"
	}
	if (l.kind == RecordCarry) != (p.records-1 < p.head.Carried) {
		return "a carried record is out of place"
	}
	if why := visitLine(&l, visit); why != "" {
		return why
	}
	p.records++
	p.kind = l.kind
	if p.sealed = l.kind == RecordSeal; !p.sealed {
		p.last.seq, p.last.hash = l.seq, h
	}
	return ""
}

func (p *parsed) takeHead(l *line, visit func(*Record)) string {
	r, err := l.record()
	if err != nil || l.kind != RecordHead {
		return "the first record is not a head"
	}
	var prev hash
	if len(r.Prev) != hex.EncodedLen(len(prev)) {
		return "the head names no previous hash"
	}
	if _, err := hex.Decode(prev[:], []byte(r.Prev)); err != nil {
		return "the head names no previous hash"
	}
	h := prev.next(l.covered)
	if !l.matches(h) {
		return "the hash of the head does not match"
	}
	if r.Format < 1 || r.Format > formatVersion {
		return fmt.Sprintf("format version %d is not known here", r.Format)
	}
	if r.Carried < 0 {
		return "the head counts less than no carried records"
	}
	if visit != nil {
		visit(r)
	}
	p.head, p.records, p.kind = r, 1, RecordHead
	p.last = chain{seq: l.seq, hash: h}
	return ""
}

func visitLine(l *line, visit func(*Record)) string {
	if visit == nil {
		return ""
	}
	r, err := l.record()
	if err != nil {
		return fmt.Sprintf("record %d has a valid hash but no valid body", l.seq)
	}
	visit(r)
	return ""
}

// classify decides whether rest, which does not go on with a valid record, is
// free space, a torn write or damage; doc.go ("Torn or damaged") has the
// reasons.
func (p *parsed) classify(rest []byte, n int) {
	used := lengthWithoutZeros(rest)
	if p.head == nil {
		p.fail(n, "") // a segment gets its name after its head is on disk
		if used == 0 {
			p.brk.Reason = "the segment is empty"
		} else if bytes.IndexByte(rest, '\n') < 0 {
			p.brk.Reason = "the head is cut off"
		}
		return
	}
	if used == 0 {
		return
	}
	due := p.last.seq + 1
	first := rest
	if i := bytes.IndexByte(rest, '\n'); i >= 0 {
		first = rest[:i]
		whole := bytes.IndexByte(first, 0) < 0 // a torn sector reads as zeros
		if _, isLine := frame(first); isLine || (whole && hasLine(rest[i+1:])) {
			p.fail(n, "")
			return
		}
	}
	if laterLine(rest, func(l *line) bool { return l.durable >= due }) {
		p.fail(n, fmt.Sprintf("record %d was on disk when later ones were written, and is gone", due))
		return
	}
	if p.newlineDamaged(first, due) {
		p.fail(n, "the newline of the last record is damaged")
		return
	}
	p.torn = int64(used)
}

// newlineDamaged: the record is whole and only its newline is another byte.
func (p *parsed) newlineDamaged(b []byte, due uint64) bool {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	i := bytes.LastIndex(b, []byte(lineEnd))
	if i < 0 || i+len(lineEnd) >= len(b) {
		return false
	}
	l, ok := frame(b[:i+len(lineEnd)])
	return ok && l.seq == due && l.matches(p.last.hash.next(l.covered))
}

func hasLine(b []byte) bool { return laterLine(b, func(*line) bool { return true }) }

// laterLine reports whether any line of b, whatever zeros stand before it, is
// framed as a record and satisfies f.
func laterLine(b []byte, f func(*line) bool) bool {
	for len(b) > 0 {
		part := b
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			part, b = b[:i], b[i+1:]
		} else {
			b = nil
		}
		if i := bytes.LastIndexByte(part, 0); i >= 0 {
			part = part[i+1:]
		}
		if l, ok := frame(part); ok && f(&l) {
			return true
		}
	}
	return false
}

func lengthWithoutZeros(b []byte) int {
	const block = 4 << 10
	for len(b) >= block && bytes.Equal(b[len(b)-block:], zeros[:block]) {
		b = b[:len(b)-block]
	}
	return len(bytes.TrimRight(b, "\x00"))
}
