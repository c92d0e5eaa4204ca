package testenv

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Entry is one file of a made commit.
type Entry struct {
	// Mode is git's: 100644 when empty, 100755, 120000 (Data is the target) or
	// 160000 (Data is the commit id of a submodule).
	Mode string
	Data string
}

// stream writes git-fast-import(1)'s input: two orders of magnitude faster
// than `git add` for many files, and able to hold names that no checkout of
// this file system could.
type stream struct {
	buf  bytes.Buffer
	mark int
	when int64
	// parent is the id of the commit that the first one stands on, if any.
	parent string
}

// commit adds a commit on ref, on top of the previous one of ref in this
// stream. A nil file is a deletion. Files go in sorted order.
func (s *stream) commit(ref, message string, files map[string]*Entry) int {
	if s.when == 0 {
		s.when = 1_700_000_000
	}
	s.when += 60
	s.mark++
	fmt.Fprintf(&s.buf, "commit %s\nmark :%d\n", ref, s.mark)
	fmt.Fprintf(&s.buf, "author A U Thor <author@example.com> %d +0000\n", s.when)
	fmt.Fprintf(&s.buf, "committer C O Mitter <committer@example.com> %d +0000\n", s.when)
	s.data(message)
	if s.parent != "" {
		fmt.Fprintf(&s.buf, "from %s\n", s.parent)
		s.parent = ""
	}
	names := make([]string, 0, len(files))
	for n := range files {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		s.file(n, files[n])
	}
	s.buf.WriteByte('\n')
	return s.mark
}

func (s *stream) file(name string, e *Entry) {
	switch {
	case e == nil:
		fmt.Fprintf(&s.buf, "D %s\n", cQuote(name))
	case e.Mode == "160000":
		fmt.Fprintf(&s.buf, "M 160000 %s %s\n", e.Data, cQuote(name))
	default:
		mode := e.Mode
		if mode == "" {
			mode = "100644"
		}
		fmt.Fprintf(&s.buf, "M %s inline %s\n", mode, cQuote(name))
		s.data(e.Data)
	}
}

func (s *stream) data(d string) {
	fmt.Fprintf(&s.buf, "data %d\n%s\n", len(d), d)
}

// cQuote writes a path byte by byte as fast-import reads it back.
func cQuote(name string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := 0; i < len(name); i++ {
		switch c := name[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < 0x20 || c > 0x7e:
			o := strconv.FormatUint(uint64(c), 8)
			b.WriteString("\\" + strings.Repeat("0", 3-len(o)) + o)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}
