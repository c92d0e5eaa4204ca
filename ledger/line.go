package ledger

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"time"
)

// A line is
//
//	{"seq":N,"t":"TIME","d":N,"k":"KIND"[,BODY…],"h":"HEX64"}\n
//
// in exactly this layout, so that a reader checks the chain without a JSON
// parser, and any JSON tool can still read the file.

const (
	linePrefix = `{"seq":`
	hashKey    = `,"h":"`
	lineEnd    = `"}`
	// suffixLen is what stands behind the hashed bytes, without the newline.
	suffixLen = len(hashKey) + 2*sha256.Size + len(lineEnd)
)

// hash is a chained hash: SHA-256 over the hash of the line before and this
// line's bytes up to hashKey.
type hash [sha256.Size]byte

func (h hash) String() string { return hex.EncodeToString(h[:]) }

func (h hash) next(covered []byte) hash {
	var fits [1024]byte // most lines: one call without an allocation
	return sha256.Sum256(append(append(fits[:0], h[:]...), covered...))
}

// chain is the writing end of a stream: the last sequence number and hash, and
// the last sequence number known to be on disk.
type chain struct {
	seq     uint64
	hash    hash
	durable uint64
}

// append writes one line to buf and advances the chain. body is the record's
// encoded Body, braces included.
func (c *chain) append(buf []byte, kind RecordKind, t time.Time, body []byte) []byte {
	start := len(buf)
	c.seq++
	buf = append(buf, linePrefix...)
	buf = strconv.AppendUint(buf, c.seq, 10)
	buf = append(buf, `,"t":"`...)
	buf = t.UTC().AppendFormat(buf, time.RFC3339Nano)
	buf = append(buf, `","d":`...)
	buf = strconv.AppendUint(buf, c.durable, 10)
	buf = append(buf, `,"k":"`...)
	buf = append(buf, kind...)
	buf = append(buf, '"')
	if len(body) > 2 {
		buf = append(buf, ',')
		buf = append(buf, body[1:len(body)-1]...)
	}
	c.hash = c.hash.next(buf[start:])
	buf = append(buf, hashKey...)
	buf = hex.AppendEncode(buf, c.hash[:])
	return append(buf, lineEnd+"\n"...)
}

// line is a decoded frame: the fixed fields, with the body still encoded.
type line struct {
	seq, durable uint64
	time         []byte
	kind         RecordKind
	body         []byte // "" or BODY without braces
	covered      []byte
	sum          []byte // 64 hexadecimal digits
}

// frame checks b's layout and cuts it up. It does not check the hash. b has no
// newline.
func frame(b []byte) (line, bool) {
	var l line
	if len(b) > maxLine || len(b) < len(linePrefix)+suffixLen || !bytes.HasPrefix(b, []byte(linePrefix)) ||
		!bytes.HasSuffix(b, []byte(lineEnd)) {
		return l, false
	}
	n := len(b) - suffixLen
	tail := b[n:]
	if !bytes.HasPrefix(tail, []byte(hashKey)) {
		return l, false
	}
	l.covered, l.sum = b[:n], tail[len(hashKey):len(hashKey)+2*sha256.Size]
	if bytes.IndexByte(b, 0) >= 0 { // a torn sector
		return l, false
	}
	p := l.covered[len(linePrefix):]
	var ok bool
	if l.seq, p, ok = cutNumber(p, `,"t":"`); !ok {
		return l, false
	}
	var t, k []byte
	if t, p, ok = bytes.Cut(p, []byte(`","d":`)); !ok || len(t) > 40 {
		return l, false
	}
	if l.durable, p, ok = cutNumber(p, `,"k":"`); !ok {
		return l, false
	}
	if k, p, ok = bytes.Cut(p, []byte{'"'}); !ok || len(k) > 16 {
		return l, false
	}
	if len(p) > 0 && p[0] != ',' {
		return l, false
	}
	l.time, l.kind = t, kindOf(k)
	if len(p) > 0 {
		l.body = p[1:]
	}
	return l, true
}

func cutNumber(p []byte, sep string) (uint64, []byte, bool) {
	d, rest, ok := bytes.Cut(p, []byte(sep))
	if !ok || len(d) == 0 || len(d) > 20 || (d[0] == '0' && len(d) > 1) {
		return 0, nil, false
	}
	n, err := strconv.ParseUint(string(d), 10, 64)
	return n, rest, err == nil
}

// matches compares the digits themselves: a decoder that took upper case too
// would let a flipped bit pass.
func (l *line) matches(h hash) bool {
	var digits [2 * sha256.Size]byte
	hex.Encode(digits[:], h[:])
	return string(l.sum) == string(digits[:])
}

// record decodes the body.
func (l *line) record() (*Record, error) {
	r := &Record{Seq: l.seq, Durable: l.durable, Kind: l.kind}
	var err error
	if r.Time, err = time.Parse(time.RFC3339Nano, string(l.time)); err != nil {
		return nil, err
	}
	if len(l.body) > 0 {
		b := make([]byte, 0, len(l.body)+2)
		b = append(append(append(b, '{'), l.body...), '}')
		// Body with the resource as it is on disk: one pass instead of two.
		w := struct {
			*Body
			R *wireResource `json:"r"`
		}{Body: &r.Body}
		if err := json.Unmarshal(b, &w); err != nil {
			return nil, err
		}
		if w.R != nil {
			r.Resource = &Resource{}
			err = w.R.into(r.Resource)
		}
	}
	return r, err
}

var kinds = []RecordKind{RecordIntent, RecordReleased, RecordDone, RecordEvent, RecordCarry, RecordHead,
	RecordClaim, RecordClose, RecordKeep, RecordUnkeep, RecordSeal}

// kindOf spares an allocation for each line.
func kindOf(b []byte) RecordKind {
	for _, k := range kinds {
		if string(b) == string(k) {
			return k
		}
	}
	return RecordKind(b)
}
