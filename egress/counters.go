package egress

import (
	"encoding/binary"
	"io"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// CountersSize is the size of a counters file: a shared mapping, so that what was
// counted is in the file whatever ends the program.
const CountersSize = 8192

const (
	countersMagic = 0x3153455247455946 // "FYEGRES1"
	headWords     = 16
	ruleWords     = 3
)

// Counters is the program's mapping of its counters file.
type Counters struct{ words []uint64 }

// The words of the head.
const (
	wordMagic = iota
	wordAllowed
	wordRefused
	wordUp
	wordDown
	wordDropped
	wordOpen
)

// MapCounters maps a file of CountersSize bytes.
func MapCounters(fd int) (*Counters, error) {
	b, err := unix.Mmap(fd, 0, CountersSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	c := &Counters{words: unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), CountersSize/8)}
	atomic.StoreUint64(&c.words[wordMagic], countersMagic)
	return c, nil
}

func (c *Counters) add(word int, n uint64) uint64 { return atomic.AddUint64(&c.words[word], n) }

// rule counts for a rule, NoRule for what goes under none of them.
func (c *Counters) rule(rule, word int, n uint64) {
	if rule >= 0 {
		c.add(headWords+ruleWords*rule+word, n)
	}
}

// NoRule is the rule of what a secret's own host permits.
const NoRule = -1

// Allowed counts a connection or request under a rule, Refused one under none.
func (c *Counters) Allowed(rule int) {
	c.add(wordAllowed, 1)
	c.rule(rule, 0, 1)
}

// Refused counts a decision against a connection or request.
func (c *Counters) Refused() { c.add(wordRefused, 1) }

// Dropped counts a decision that the log had no room for.
func (c *Counters) Dropped() { c.add(wordDropped, 1) }

// Open counts the connections that are open now.
func (c *Counters) Open(delta int) { c.add(wordOpen, uint64(delta)) }

// Up and Down count bytes from and to the Worker, and return all that went through.
func (c *Counters) Up(rule int, n int64) uint64 {
	c.rule(rule, 1, uint64(n))
	return c.add(wordUp, uint64(n)) + atomic.LoadUint64(&c.words[wordDown])
}

// Down is Up for the other direction.
func (c *Counters) Down(rule int, n int64) uint64 {
	c.rule(rule, 2, uint64(n))
	return c.add(wordDown, uint64(n)) + atomic.LoadUint64(&c.words[wordUp])
}

// Total is the bytes in both directions.
func (c *Counters) Total() uint64 {
	return atomic.LoadUint64(&c.words[wordUp]) + atomic.LoadUint64(&c.words[wordDown])
}

// ReadUsage reads a counters file. An empty one is no usage.
func ReadUsage(r io.ReaderAt, rules []string) (policy.NetworkUsage, error) {
	var u policy.NetworkUsage
	b := make([]byte, CountersSize)
	if _, err := r.ReadAt(b, 0); err != nil && err != io.EOF {
		return u, err
	}
	word := func(i int) uint64 { return binary.NativeEndian.Uint64(b[8*i:]) }
	if word(wordMagic) != countersMagic {
		b = make([]byte, CountersSize)
	}
	u.Allowed, u.Refused, u.BytesOut, u.BytesIn, u.Unlogged = word(wordAllowed), word(wordRefused), word(wordUp), word(wordDown), word(wordDropped)
	for i, r := range rules {
		at := headWords + ruleWords*i
		if at+ruleWords > CountersSize/8 {
			break
		}
		u.Rules = append(u.Rules, policy.NetworkRuleUsage{Rule: r, Allowed: word(at), BytesOut: word(at + 1), BytesIn: word(at + 2)})
	}
	return u, nil
}
