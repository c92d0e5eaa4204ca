package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"slices"
	"strings"
	"time"
)

// SelectorKind says how a Selector's value is read.
type SelectorKind string

const (
	SelectRevision SelectorKind = "revision" // whatever git rev-parse takes, without side effects
	SelectBranch   SelectorKind = "branch"   // a name under refs/heads/
	SelectTag      SelectorKind = "tag"      // a name under refs/tags/
	SelectCommit   SelectorKind = "commit"   // a full or abbreviated object id
	SelectRef      SelectorKind = "ref"      // a full ref name, refs/…
	// SelectCollected is a name that commits of a workspace were collected under.
	SelectCollected SelectorKind = "collected"
)

// Selector is what a caller asks for of a repository. The zero value selects
// the source's HEAD.
type Selector struct {
	Kind  SelectorKind `json:"kind,omitempty"`
	Value string       `json:"value,omitempty"`
}

// ParseSelector reads the command-line form: "branch:NAME", "tag:NAME",
// "commit:OID", "ref:refs/…", "collected:NAME", "snapshot:sha256:…", or a bare revision.
func ParseSelector(s string) (Selector, error) {
	sel := Selector{Kind: SelectRevision, Value: s}
	if kind, value, ok := strings.Cut(s, ":"); ok {
		switch k := SelectorKind(kind); k {
		case SelectBranch, SelectTag, SelectCommit, SelectRef, SelectCollected, SelectSnapshot:
			sel = Selector{Kind: k, Value: value}
		}
	}
	return sel, sel.Validate()
}

// Normalize returns s with the defaults filled in: HEAD as a revision.
func (s Selector) Normalize() Selector {
	if s.Kind == "" {
		s.Kind = SelectRevision
	}
	if s.Value == "" && s.Kind == SelectRevision {
		s.Value = "HEAD"
	}
	return s
}

// Validate refuses what could be read as an option, a range, a path in a tree,
// or as more than one argument. It follows git-check-ref-format(1) in spirit;
// git itself decides the rest.
func (s Selector) Validate() error {
	const op = "policy.selector"
	s = s.Normalize()
	bad := func(why string) error {
		return Errorf(CodeSelectorInvalid, op, "the selector %q %s", Printable(s.Value), why)
	}
	switch s.Kind {
	case SelectRevision, SelectBranch, SelectTag, SelectCommit, SelectRef, SelectCollected:
	case SelectSnapshot:
		if !ValidDigest(s.Value) {
			return bad("is not sha256: and 64 hexadecimal digits")
		}
		return nil
	default:
		return Errorf(CodeSelectorInvalid, op, "%q is no kind of selector", Printable(string(s.Kind)))
	}
	switch {
	case s.Value == "":
		return bad("is empty")
	case len(s.Value) > 1024:
		return bad("is longer than 1024 bytes")
	case s.Value[0] == '-':
		return bad("begins with a dash")
	case strings.ContainsAny(s.Value, "\x00\n\r\t \\*?["):
		return bad("holds a space, a control character or a pattern")
	case strings.Contains(s.Value, ".."):
		return bad("holds ..")
	case s.Kind != SelectRevision && strings.ContainsAny(s.Value, "~^:@{}"):
		return bad("holds a character that a name cannot have")
	case s.Kind == SelectRevision && strings.Contains(s.Value, ":"):
		return bad("names a path in a tree or a message")
	case s.Kind == SelectRef && !strings.HasPrefix(s.Value, "refs/"):
		return bad("is not a full ref name")
	case s.Kind == SelectCommit && !isHex(s.Value, 4, 64):
		return bad("is not a commit id")
	}
	for i := 0; i < len(s.Value); i++ {
		if s.Value[i] < 0x20 || s.Value[i] == 0x7f {
			return bad("holds a control character")
		}
	}
	return nil
}

// String is the form that ParseSelector reads.
func (s Selector) String() string {
	s = s.Normalize()
	if s.Kind == SelectRevision {
		return s.Value
	}
	return string(s.Kind) + ":" + s.Value
}

func isHex(s string, least, most int) bool {
	if len(s) < least || len(s) > most {
		return false
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// ValidOID reports whether s is a whole object id: 40 (SHA-1) or 64 (SHA-256)
// lower-case hexadecimal digits.
func ValidOID(s string) bool { return isHex(s, 40, 40) || isHex(s, 64, 64) }

// RepositoryPoint is what a selector resolved to: the evidence of what a
// Worker ran on.
type RepositoryPoint struct {
	RepositoryID RepositoryID `json:"repository_id"`
	CommitID     string       `json:"commit_id"`
	TreeID       string       `json:"tree_id"`
	Selector     Selector     `json:"selector"`
	ResolvedAt   time.Time    `json:"resolved_at"`
	// CommittedAt is the commit's committer time and Subject the first line of
	// its message: untrusted text, for people.
	CommittedAt time.Time `json:"committed_at,omitzero"`
	Subject     string    `json:"subject,omitempty"`
	// Scope is empty for the whole tree.
	Scope Scope `json:"scope,omitempty"`
	// Snapshot is the digest of a workspace's archive, whose files stand in the
	// tree's place; the point is then what they were made from.
	Snapshot string `json:"snapshot,omitempty"`
}

// Scope is a set of directories of a repository (cone mode): relative, clean,
// sorted, none inside another. Empty means everything.
type Scope []string

// ParseScope cleans and sorts dirs and drops those inside another.
func ParseScope(dirs []string) (Scope, error) {
	var s Scope
	for _, d := range dirs {
		d = strings.TrimSuffix(d, "/")
		if d == "." || d == "" {
			continue
		}
		if strings.ContainsAny(d, "\x00\n") || path.IsAbs(d) || path.Clean(d) != d || d == ".." || strings.HasPrefix(d, "../") || d[0] == '-' || len(d) > 4096 {
			return nil, Errorf(CodeScopeInvalid, "policy.scope", "%q is not a directory inside the repository", Printable(d))
		}
		for _, c := range strings.Split(d, "/") {
			if strings.EqualFold(c, ".git") {
				return nil, Errorf(CodeScopeInvalid, "policy.scope", "%q lies in git's own directory", Printable(d))
			}
		}
		s = append(s, d)
	}
	slices.Sort(s)
	s = slices.CompactFunc(s, func(a, b string) bool { return b == a || strings.HasPrefix(b, a+"/") })
	return s, nil
}

// Key is "" for the whole tree, else a short digest that names the scope in
// the cache.
func (s Scope) Key() string {
	if len(s) == 0 {
		return ""
	}
	h := sha256.Sum256([]byte(strings.Join(s, "\x00")))
	return hex.EncodeToString(h[:8])
}
