package snapshot

import (
	"bytes"
	"encoding/json"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

// Kind says what an archive holds.
type Kind string

const (
	KindPoint     Kind = "point"     // a commit's tree
	KindWorkspace Kind = "workspace" // the same, and a working tree made from it
)

// Header is an archive's first record.
type Header struct {
	Kind Kind `json:"kind"`
	// ObjectFormat is git's: "sha1" or "sha256".
	ObjectFormat string `json:"object_format"`
	Commit       string `json:"commit"`
	// Objects counts the commit, its trees and its blobs.
	Objects int64 `json:"objects"`
	// Scope is what a workspace gets to see of the tree; empty means everything.
	// All objects are there whatever it is, so that git is whole.
	Scope policy.Scope `json:"scope,omitempty"`
}

const (
	magic     = "yoi-snapshot-1\n"
	maxHeader = 1 << 20
)

const (
	tagCommit   = 'C'
	tagTree     = 'T'
	tagBlob     = 'B'
	tagDir      = 'd'
	tagFile     = 'f'
	tagLinked   = 'F'
	tagSymlink  = 'l'
	tagHardLink = 'h'
	tagEnd      = 'E'
)

const opRead = "snapshot.read"

func invalid(format string, args ...any) *policy.Diagnostic {
	return policy.Errorf(policy.CodeSnapshotInvalid, opRead, "the snapshot "+format, args...)
}

func encodeHeader(h Header) ([]byte, error) {
	b, err := json.Marshal(h)
	return append(b, '\n'), err
}

// parseHeader takes a header only in the form that encodeHeader gives it.
func parseHeader(line []byte) (Header, error) {
	var h Header
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&h); err != nil {
		return h, invalid("has a malformed header").Because(err)
	}
	if again, err := encodeHeader(h); err != nil || !bytes.Equal(again, line) {
		return h, invalid("has a header in another form than the one it is written in")
	}
	if h.Kind != KindPoint && h.Kind != KindWorkspace {
		return h, invalid("is of an unknown kind").With("kind", policy.Printable(string(h.Kind)))
	}
	if size := oidSize(h.ObjectFormat); size == 0 || !policy.ValidOID(h.Commit) || len(h.Commit) != 2*size {
		return h, invalid("has no valid object format and commit")
	}
	scope, err := policy.ParseScope(h.Scope)
	if err != nil || strings.Join(scope, "\x00") != strings.Join(h.Scope, "\x00") || len(scope) != len(h.Scope) {
		return h, invalid("has a malformed scope")
	}
	if h.Objects < 2 {
		return h, invalid("has too few objects for a commit and its tree")
	}
	return h, nil
}

func oidSize(format string) int {
	switch format {
	case "sha1":
		return 20
	case "sha256":
		return 32
	}
	return 0
}

// EntryType is what an entry makes.
type EntryType byte

const (
	Dir      EntryType = tagDir
	File     EntryType = tagFile
	Symlink  EntryType = tagSymlink
	HardLink EntryType = tagHardLink
)

// Xattr is one extended attribute.
type Xattr struct {
	Name  string
	Value []byte
}

// Entry is one name of a working tree.
type Entry struct {
	Type EntryType
	// Path is relative and slash-separated. It need not be UTF-8.
	Path string
	Mode uint32 // permission bits of a directory or file
	Size int64
	// Linked says that HardLinks to this file follow.
	Linked bool
	Target string // of a symbolic link, or the path of the file that a hard link names
	Xattrs []Xattr
}

const (
	maxName   = 255      // NAME_MAX
	maxPath   = 64 << 10 // deeper than open(2) reaches at once, in steps it does
	maxTarget = 4095     // PATH_MAX and its NUL
	maxXattrs = 256
	maxValue  = 64 << 10 // XATTR_SIZE_MAX
)

// checkPath refuses what is not a plain path below the top, and git's own
// directory there. Nested repositories are their owner's files.
func checkPath(p string) error {
	if p == "" || len(p) > maxPath {
		return invalid("has an entry whose path is empty or longer than %d bytes", maxPath)
	}
	for c := range strings.SplitSeq(p, "/") {
		if c == "" || c == "." || c == ".." || len(c) > maxName || strings.IndexByte(c, 0) >= 0 {
			return invalid("has a path that is not a plain one below the top").With("path", policy.Printable(p))
		}
	}
	if top, _, _ := strings.Cut(p, "/"); strings.EqualFold(top, ".git") {
		return invalid("has an entry in git's own directory").With("path", policy.Printable(p))
	}
	return nil
}

// checkEntry applies the rules that need no other entry.
func checkEntry(e *Entry) error {
	if err := checkPath(e.Path); err != nil {
		return err
	}
	bad := func(what string) error { return invalid("has an entry "+what).With("path", policy.Printable(e.Path)) }
	switch e.Type {
	case Dir, File:
		if e.Mode&^0o777 != 0 {
			return bad("with more than permission bits in its mode: set-user-ID and the like are never unpacked")
		}
	case Symlink:
		if e.Target == "" || len(e.Target) > maxTarget || strings.IndexByte(e.Target, 0) >= 0 {
			return bad("with a malformed link target")
		}
	case HardLink:
		return checkPath(e.Target)
	default:
		return bad("of a type that is never unpacked")
	}
	for i, x := range e.Xattrs {
		if !carried(x.Name) || len(x.Value) > maxValue {
			return bad("with an extended attribute that is never unpacked")
		}
		if i > 0 && e.Xattrs[i-1].Name >= x.Name {
			return bad("whose extended attributes are not sorted")
		}
	}
	if len(e.Xattrs) > maxXattrs {
		return bad("with too many extended attributes")
	}
	return nil
}

// carried: user.overlay.* would redirect lookups once the tree is a layer of an
// overlay, security.* and trusted.* are the host's to give.
func carried(name string) bool {
	return strings.HasPrefix(name, "user.") && len(name) > len("user.") && len(name) <= 255 &&
		!strings.HasPrefix(name, "user.overlay.") && strings.IndexByte(name, 0) < 0
}

// after reports whether path comes after last: in the order of a walk that
// sorts each directory by name.
func after(last, path string) bool {
	n := min(len(last), len(path))
	for i := range n {
		a, b := last[i], path[i]
		if a == b {
			continue
		}
		if a == '/' {
			return true
		}
		return b != '/' && a < b
	}
	return len(last) < len(path)
}

// order checks that entries come sorted, each below a directory that came before.
type order struct {
	last   string
	dirs   []string        // the open directories, outermost first
	linked map[string]bool // files with further names → whether one has come
}

func (o *order) check(e *Entry) error {
	bad := func(what string) error { return invalid("has an entry "+what).With("path", policy.Printable(e.Path)) }
	if o.last != "" && !after(o.last, e.Path) {
		return bad("twice, or out of order")
	}
	parent := ""
	if i := strings.LastIndexByte(e.Path, '/'); i >= 0 {
		parent = e.Path[:i]
	}
	for len(o.dirs) > 0 && o.dirs[len(o.dirs)-1] != parent {
		o.dirs = o.dirs[:len(o.dirs)-1]
	}
	if parent != "" && len(o.dirs) == 0 {
		return bad("below something that is not a directory of it")
	}
	switch {
	case e.Type == Dir:
		o.dirs = append(o.dirs, e.Path)
	case e.Linked:
		if o.linked == nil {
			o.linked = make(map[string]bool)
		}
		o.linked[e.Path] = false
	case e.Type == HardLink:
		if _, ok := o.linked[e.Target]; !ok {
			return bad("that is a hard link to no file of it")
		}
		o.linked[e.Target] = true
	}
	o.last = e.Path
	return nil
}

func (o *order) finish() error {
	for path, used := range o.linked {
		if !used {
			return invalid("promises a hard link that does not come").With("path", policy.Printable(path))
		}
	}
	return nil
}
