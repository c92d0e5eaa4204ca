package backend

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Span is text in one style. C names classes of the style sheet, parted by blanks:
// b (bold), d (dim), i, u, r (reverse), f0 to f15 and g0 to g15 (the sixteen colours
// before and behind).
type Span struct {
	T string `json:"t"`
	C string `json:"c,omitempty"`
}

// Terminal takes a program's output apart into lines of spans. Colours of ECMA-48's
// SGR are kept, 256 and true colours as the nearest of sixteen, a carriage return
// begins the line anew, and everything else that acts on a terminal is dropped: no
// link, title, cursor movement or clipboard of a Worker's reaches a browser.
type Terminal struct {
	pending []byte // an escape sequence or a character that has not come whole
	style   style
	line    []Span
	ended   [][]Span
	count   int // lines that have ended
	dirty   bool
	dropped bool // the line is longer than a line may be
	size    int
	cr      bool // a carriage return came, and not yet what follows it
}

type style struct {
	bold, dim, italic, underline, reverse bool
	fore, back                            int8 // 0 for none, or 1 + colour
}

const (
	maxLogLine  = 16 << 10
	maxSequence = 256
)

// Ended is how many lines have ended so far.
func (t *Terminal) Ended() int { return t.count }

// Take returns the lines that ended since the last call, and the one that has not
// ended yet, if it has changed.
func (t *Terminal) Take() [][]Span {
	out := t.ended
	t.ended = nil
	if t.dirty && len(t.line) > 0 {
		out = append(out, append([]Span(nil), t.line...))
	}
	t.dirty = false
	return out
}

// Write takes more output.
func (t *Terminal) Write(p []byte) {
	if len(t.pending) > 0 {
		p = append(t.pending, p...)
		t.pending = nil
	}
	for len(p) > 0 {
		n := t.step(p)
		if n == 0 {
			if len(p) > maxSequence {
				n = 1 // no sequence of that length means anything
			} else {
				t.pending = append([]byte(nil), p...)
				return
			}
		}
		p = p[n:]
	}
}

// step consumes one character or sequence; 0 if it has not come whole.
func (t *Terminal) step(p []byte) int {
	switch c := p[0]; {
	case c == 0x1b:
		return t.escape(p)
	case c == '\n':
		t.endLine()
		return 1
	case c == '\r':
		t.cr = true
		return 1
	case c == '\t':
		t.put("\t")
		return 1
	case c < 0x20 || c == 0x7f:
		if c == '\b' && len(t.line) > 0 { // a spinner's
			last := &t.line[len(t.line)-1]
			_, n := utf8.DecodeLastRuneInString(last.T)
			last.T = last.T[:len(last.T)-n]
			if last.T == "" {
				t.line = t.line[:len(t.line)-1]
			}
			t.dirty = true
		}
		return 1
	case c < utf8.RuneSelf:
		n := 1
		for n < len(p) && p[n] >= 0x20 && p[n] < 0x7f {
			n++
		}
		t.put(string(p[:n]))
		return n
	}
	if !utf8.FullRune(p) {
		return 0
	}
	r, n := utf8.DecodeRune(p)
	switch {
	case r >= 0x80 && r < 0xa0: // C1 controls
	case r == utf8.RuneError, unicode.Is(unicode.Bidi_Control, r), !unicode.IsPrint(r) && !unicode.Is(unicode.M, r):
		t.put("\uFFFD")
	default:
		t.put(string(r))
	}
	return n
}

func (t *Terminal) endLine() {
	t.ended = append(t.ended, t.line)
	t.count++
	t.line, t.size, t.cr, t.dropped, t.dirty = nil, 0, false, false, false
}

func (t *Terminal) put(s string) {
	if t.cr { // a progress bar: the line is written anew
		t.line, t.size, t.cr, t.dropped = nil, 0, false, false
	}
	t.dirty = true
	if t.size+len(s) > maxLogLine {
		if !t.dropped {
			t.dropped = true
			t.line = append(t.line, Span{T: " … (the rest of the line is left out)", C: "d"})
		}
		return
	}
	t.size += len(s)
	class := t.style.class()
	if n := len(t.line); n > 0 && t.line[n-1].C == class {
		t.line[n-1].T += s
		return
	}
	t.line = append(t.line, Span{T: s, C: class})
}

// escape consumes a sequence that begins with ESC: ECMA-48 section 5, and the
// strings (OSC, DCS, SOS, PM, APC) that xterm ends with BEL as well.
func (t *Terminal) escape(p []byte) int {
	if len(p) < 2 {
		return 0
	}
	switch p[1] {
	case '[':
		for i := 2; i < len(p) && i < maxSequence; i++ {
			if p[i] >= 0x40 && p[i] <= 0x7e {
				if p[i] == 'm' {
					t.sgr(string(p[2:i]))
				}
				return i + 1
			}
			if p[i] < 0x20 || p[i] > 0x7e {
				return i // broken off
			}
		}
	case ']', 'P', 'X', '^', '_':
		for i := 2; i < len(p); i++ {
			if p[i] == 0x07 {
				return i + 1
			}
			if p[i] == 0x1b && i+1 < len(p) {
				if p[i+1] == '\\' {
					return i + 2
				}
				return i
			}
			if p[i] == '\n' || i >= 4096 {
				return i // never closed: it does not swallow the log
			}
		}
		if len(p) > maxSequence { // longer than Write waits for: drop what there is
			return len(p)
		}
	default:
		n := 1
		for n < len(p) && p[n] >= 0x20 && p[n] <= 0x2f {
			n++
		}
		if n < len(p) {
			return n + 1
		}
	}
	return 0
}

func (t *Terminal) sgr(params string) {
	if strings.Trim(params, "0123456789;:") != "" {
		return
	}
	var n []int
	for _, f := range strings.FieldsFunc(params+";", func(r rune) bool { return r == ';' || r == ':' }) {
		v, err := strconv.Atoi(f)
		if err != nil {
			v = -1
		}
		n = append(n, v)
	}
	if len(n) == 0 {
		n = []int{0}
	}
	for i := 0; i < len(n); i++ {
		switch v := n[i]; {
		case v == 0:
			t.style = style{}
		case v == 1:
			t.style.bold = true
		case v == 2:
			t.style.dim = true
		case v == 3:
			t.style.italic = true
		case v == 4:
			t.style.underline = true
		case v == 7:
			t.style.reverse = true
		case v == 22:
			t.style.bold, t.style.dim = false, false
		case v == 23:
			t.style.italic = false
		case v == 24:
			t.style.underline = false
		case v == 27:
			t.style.reverse = false
		case v >= 30 && v <= 37:
			t.style.fore = int8(v - 30 + 1)
		case v == 39:
			t.style.fore = 0
		case v >= 40 && v <= 47:
			t.style.back = int8(v - 40 + 1)
		case v == 49:
			t.style.back = 0
		case v >= 90 && v <= 97:
			t.style.fore = int8(v - 90 + 9)
		case v >= 100 && v <= 107:
			t.style.back = int8(v - 100 + 9)
		case v == 38 || v == 48:
			c, used := extended(n[i+1:])
			if v == 38 {
				t.style.fore = c
			} else {
				t.style.back = c
			}
			i += used
		}
	}
}

// extended reads 5;N or 2;R;G;B.
func extended(n []int) (colour int8, used int) {
	switch {
	case len(n) >= 2 && n[0] == 5:
		return palette(n[1]), 2
	case len(n) >= 4 && n[0] == 2:
		return nearest(n[1], n[2], n[3]), 4
	}
	return 0, len(n)
}

// palette is xterm's 256 colours: sixteen, a cube of six, and greys.
func palette(v int) int8 {
	switch {
	case v < 0 || v > 255:
		return 0
	case v < 16:
		return int8(v + 1)
	case v < 232:
		level := func(x int) int {
			if x == 0 {
				return 0
			}
			return 55 + 40*x
		}
		v -= 16
		return nearest(level(v/36), level(v/6%6), level(v%6))
	}
	g := 8 + 10*(v-232)
	return nearest(g, g, g)
}

// nearest is one of the sixteen by hue and brightness.
func nearest(r, g, b int) int8 {
	top, low := max(r, g, b), min(r, g, b)
	if top-low < 40 { // grey
		switch {
		case top < 64:
			return 1
		case top < 144:
			return 9
		case top < 208:
			return 8
		}
		return 16
	}
	bit := 0
	half := (top + low) / 2
	if r > half {
		bit |= 1
	}
	if g > half {
		bit |= 2
	}
	if b > half {
		bit |= 4
	}
	if top > 200 {
		bit += 8
	}
	return int8(bit + 1)
}

func (s style) class() string {
	var c []string
	for _, v := range []struct {
		on   bool
		name string
	}{{s.bold, "b"}, {s.dim, "d"}, {s.italic, "i"}, {s.underline, "u"}, {s.reverse, "r"}} {
		if v.on {
			c = append(c, v.name)
		}
	}
	if s.fore > 0 {
		c = append(c, "f"+strconv.Itoa(int(s.fore)-1))
	}
	if s.back > 0 {
		c = append(c, "g"+strconv.Itoa(int(s.back)-1))
	}
	return strings.Join(c, " ")
}
