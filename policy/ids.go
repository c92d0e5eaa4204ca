package policy

import (
	"crypto/rand"
	"encoding/base32"
	"path"
	"strings"
	"unicode/utf8"
)

// Ids name things across processes and become directory names below the
// Runtime root, so their alphabet is closed: what ValidID accepts can never be
// a path, an option, or hidden.
type (
	WorkspaceID  string // the project-level thing a Backend manages
	RepositoryID string // a registered repository
	AllocationID string // an Execution Workspace, "ws-…"
	WorkerID     string // a Worker, "wk-…"
	SessionID    string // a command in a running Worker's sandbox, "se-…"
	RuntimeID    string // one Runtime root, "rt-…"
)

const maxIDLength = 64

// WorkspacesAt is the directory in which a Worker finds its repositories.
const WorkspacesAt = "/workspace"

// WorkspacePath is where a Worker finds a repository. It is part of the product's
// contract: git indexes name it.
func WorkspacePath(id RepositoryID) string { return WorkspacesAt + "/" + string(id) }

// ValidID reports whether s is 1 to 64 characters of [a-z0-9._-], begins with
// a letter or digit, and holds no "..".
func ValidID(s string) bool {
	if s == "" || len(s) > maxIDLength || strings.Contains(s, "..") || strings.HasSuffix(s, ".lock") {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		case i > 0 && (c == '.' || c == '-' || c == '_'):
		default:
			return false
		}
	}
	return s[len(s)-1] != '.'
}

// CheckID returns a CodeIDInvalid diagnostic unless ValidID(s).
func CheckID(kind, s string) error {
	if ValidID(s) {
		return nil
	}
	return Errorf(CodeIDInvalid, "policy.id", "%q is not a valid %s id", Printable(s), kind)
}

var idEncoding = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// NewID returns prefix and 80 random bits in 16 characters.
func NewID(prefix string) string {
	var b [10]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand.Read crashes the program instead
	return prefix + idEncoding.EncodeToString(b[:])
}

// NewAllocationID, NewWorkerID and NewSessionID return fresh random ids.
func NewAllocationID() AllocationID { return AllocationID(NewID("ws-")) }
func NewWorkerID() WorkerID         { return WorkerID(NewID("wk-")) }
func NewSessionID() SessionID       { return SessionID(NewID("se-")) }

// RepositoryIDFor proposes an id for a source: its base name without ".git",
// lowered, other characters turned to "-".
func RepositoryIDFor(source string) RepositoryID {
	s := strings.TrimRight(source, "/")
	s = strings.TrimSuffix(s, "/.git")
	s = strings.TrimSuffix(path.Base(strings.ReplaceAll(s, ":", "/")), ".git")
	id := cleanID(s)
	if !ValidID(id) {
		return "repository"
	}
	return RepositoryID(id)
}

// cleanID lowers s and turns what no id may hold into dashes. The result may
// still be no id.
func cleanID(s string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(s) {
		if r < utf8.RuneSelf && (r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || (b.Len() > 0 && strings.ContainsRune("._-", r))) {
			b.WriteRune(r)
		} else if b.Len() > 0 {
			b.WriteByte('-')
		}
		if b.Len() >= maxIDLength-8 {
			break
		}
	}
	return strings.TrimRight(strings.ReplaceAll(b.String(), "..", "-"), ".-_")
}
