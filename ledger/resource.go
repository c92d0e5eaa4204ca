package ledger

import (
	"path"
	"strings"
	"unicode/utf8"

	"yoi.dev/yoi-runtime/policy"
)

// Kind says what a resource is, and so how recovery identifies and removes it.
type Kind string

const (
	KindDirectory      Kind = "directory"
	KindSubvolume      Kind = "subvolume"
	KindTemporaryFile  Kind = "temporary_file"
	KindProcess        Kind = "process"
	KindUIDRange       Kind = "uid_range"
	KindCacheReference Kind = "cache_reference"
	KindWorktreeAdmin  Kind = "worktree_admin"
	KindPristineTree   Kind = "pristine_tree"
	KindNamespace      Kind = "namespace"
	KindCgroup         Kind = "cgroup"
	KindMount          Kind = "mount"
	// KindProject is a project id of the Runtime root's file system, and its limit.
	KindProject Kind = "project"
	// KindImage is an imported image: its record's directory is the path, its driver
	// and layers are attributes. KindImageReference is an allocation that stands on it.
	KindImage          Kind = "image"
	KindImageReference Kind = "image_reference"
)

// Kinds lists them.
func Kinds() []Kind {
	return []Kind{KindDirectory, KindSubvolume, KindTemporaryFile, KindProcess, KindUIDRange, KindCacheReference, KindWorktreeAdmin,
		KindPristineTree, KindNamespace, KindCgroup, KindMount, KindProject, KindImage, KindImageReference}
}

// Identity is what the kernel calls a resource: recovery compares it before it
// removes anything, so that a name used again by somebody else is left alone.
// Zero fields are not compared.
type Identity struct {
	Dev           uint64 `json:"dev,omitempty"`
	Ino           uint64 `json:"ino,omitempty"`
	SubvolumeUUID string `json:"subvolume_uuid,omitempty"`
	PID           int    `json:"pid,omitempty"`
	// StartTime is field 22 of /proc/PID/stat: clock ticks after boot.
	StartTime uint64 `json:"start_time,omitempty"`
	BootID    string `json:"boot_id,omitempty"`
	CgroupID  uint64 `json:"cgroup_id,omitempty"`
}

// Resource is one thing that must not outlive its owner unnoticed.
type Resource struct {
	// ID is unique for ever: NewResourceID.
	ID   string `json:"id"`
	Kind Kind   `json:"kind"`
	// Owner is an allocation's, Worker's or repository's id.
	Owner string `json:"owner,omitempty"`
	// Path is relative to the Runtime root. It need not be UTF-8.
	Path string `json:"path,omitempty"`
	// Attrs are further details. They must be UTF-8 and name no host path.
	Attrs    map[string]string `json:"attrs,omitempty"`
	Identity Identity          `json:"identity,omitzero"`
}

// NewResourceID returns a fresh random id.
func NewResourceID() string { return policy.NewID("r-") }

// maxID bounds ids and owners; maxLine bounds a whole record.
const (
	maxID   = 128
	maxLine = 64 << 10
)

func checkResource(r *Resource) error {
	const op = "ledger.intend"
	bad := func(why string) error {
		return policy.Errorf(policy.CodeBadRequest, op, "a resource %s", why).With("resource", r.ID)
	}
	switch {
	case !validToken(r.ID):
		return bad("has no valid id")
	case !validToken(string(r.Kind)):
		return bad("has no valid kind")
	case r.Owner != "" && !validToken(r.Owner):
		return bad("has no valid owner")
	case !relative(r.Path):
		return bad("has a path that is not below the Runtime root")
	case !utf8.ValidString(r.Identity.SubvolumeUUID) || !utf8.ValidString(r.Identity.BootID):
		return bad("has an identity that is not UTF-8")
	}
	for k, v := range r.Attrs {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return bad("has an attribute that is not UTF-8")
		}
	}
	return nil
}

// relative accepts "" (no path) and a clean relative path.
func relative(p string) bool {
	if p == "" {
		return true
	}
	return !path.IsAbs(p) && path.Clean(p) == p && p != ".." && !strings.HasPrefix(p, "../") &&
		!strings.ContainsRune(p, 0) && len(p) <= 4096
}

// validToken accepts 1 to maxID printable ASCII characters without quotes,
// backslashes and spaces: what needs no escape in a record or a terminal.
func validToken(s string) bool {
	if s == "" || len(s) > maxID {
		return false
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; c <= ' ' || c >= 0x7f || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}
