package patch

import (
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

// prefixes are what git diff puts before names: its default, what
// diff.mnemonicPrefix makes of it, and --no-index.
var prefixes = []string{"a/", "b/", "i/", "w/", "c/", "o/", "1/", "2/"}

// name checks one name of a header. prefixed names carry a/ or b/, as git
// apply's -p1 expects; those of renames do not.
func (r *reader) name(s string, prefixed bool) error {
	p, rest, ok := unquote(s)
	if !ok || rest != "" {
		return r.invalid("has a malformed quoted name")
	}
	if prefixed {
		if p, ok = stripPrefix(p); !ok {
			return r.invalid("has names without the prefixes a/ and b/").
				WithHint("Make it with: git diff --binary --src-prefix=a/ --dst-prefix=b/ HEAD.")
		}
	}
	return r.add(p)
}

func stripPrefix(p string) (string, bool) {
	for _, pre := range prefixes {
		if rest, ok := strings.CutPrefix(p, pre); ok {
			return rest, true
		}
	}
	return "", false
}

// bothNames reads the rest of a "diff --git" line, which alone names the file
// when nothing else in the header does. Both names are then the same; that is
// also what tells where the first one ends if it holds blanks.
func (r *reader) bothNames(s string) error {
	if strings.Contains(s, `"`) {
		first, rest, ok := unquote(s)
		if !ok || rest == "" || rest[0] != ' ' { // the first is plain, up to the second's quote
			at := strings.Index(s, ` "`)
			if at < 0 {
				return r.invalid("has a malformed quoted name")
			}
			first, rest = s[:at], s[at:]
		}
		if err := r.plain(first); err != nil {
			return err
		}
		return r.name(rest[1:], true)
	}
	for i := 0; i+1 < len(s); i++ {
		if s[i] != ' ' {
			continue
		}
		first, ok1 := stripPrefix(s[:i])
		second, ok2 := stripPrefix(s[i+1:])
		if ok1 && ok2 && first == second {
			return r.add(first)
		}
	}
	return r.invalid("does not say which file it changes")
}

// plain is name for an unquoted one.
func (r *reader) plain(p string) error {
	p, ok := stripPrefix(p)
	if !ok {
		return r.invalid("has names without the prefixes a/ and b/")
	}
	return r.add(p)
}

// add takes a path, or refuses one that leaves the tree or goes into a git
// directory.
func (r *reader) add(p string) error {
	if why := unsafe(p); why != "" {
		return policy.Errorf(policy.CodePatchEscapes, op, "the patch names a path that %s", why).With("path", p)
	}
	r.paths[p] = true
	return nil
}

// unsafe says why a path is not taken, "" if it is. Names that only a file
// system with other rules would take for .git are left to git, which knows
// them all (core.protectNTFS, core.protectHFS).
func unsafe(p string) string {
	switch {
	case p == "" || strings.HasSuffix(p, "/"):
		return "names no file"
	case p[0] == '/':
		return "is absolute"
	case strings.ContainsRune(p, 0):
		return "holds a NUL"
	case len(p) > 4095:
		return "is longer than 4095 bytes"
	}
	for part := range strings.SplitSeq(p, "/") {
		switch {
		case part == "..":
			return "leaves the tree"
		case part == "" || part == ".":
			return "is not clean"
		case len(part) > 255:
			return "has a component longer than 255 bytes"
		case strings.EqualFold(part, ".git"):
			return "lies in a git directory"
		}
	}
	return ""
}

// unquote reads a name as git writes it (core.quotePath in git-config(1)): as it
// is, or in double quotes with C's escapes. rest is what follows the quotes.
func unquote(s string) (name, rest string, ok bool) {
	if !strings.HasPrefix(s, `"`) {
		return s, "", true
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; c {
		case '"':
			return b.String(), s[i+1:], true
		case '\\':
			v, n, ok := escape(s[i+1:])
			if !ok {
				return "", "", false
			}
			b.WriteByte(v)
			i += n
		default:
			b.WriteByte(c)
		}
	}
	return "", "", false
}

// escape reads what follows a backslash, and how many bytes it takes.
func escape(s string) (v byte, n int, ok bool) {
	if s == "" {
		return 0, 0, false
	}
	if at := strings.IndexByte(`abfnrtv"\`, s[0]); at >= 0 {
		return "\a\b\f\n\r\t\v\"\\"[at], 1, true
	}
	if len(s) < 3 || s[0] < '0' || s[0] > '3' {
		return 0, 0, false
	}
	for _, c := range []byte(s[:3]) {
		if c < '0' || c > '7' {
			return 0, 0, false
		}
		v = v<<3 | (c - '0')
	}
	return v, 3, true
}
