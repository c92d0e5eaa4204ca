package policy

import (
	"regexp"
)

// RepositoryOptions are the settings of a registered repository. The zero value
// is a whole mirror.
type RepositoryOptions struct {
	// Filter makes the cache's mirror a partial clone.
	Filter ObjectFilter `json:"filter,omitempty"`
	// Cache are the directories that workspaces share by the digest of their key
	// files, where a request names none.
	Cache []DependencyCache `json:"cache,omitempty"`
	// Artifacts says what a snapshot of the working tree leaves out.
	Artifacts ArtifactPolicy `json:"artifacts,omitzero"`
}

// Validate checks every setting.
func (o RepositoryOptions) Validate() error {
	if err := o.Filter.Validate(); err != nil {
		return err
	}
	if err := ValidateCaches(o.Cache); err != nil {
		return err
	}
	return o.Artifacts.Validate()
}

// ObjectFilter says which objects a fetch leaves out, in git's words
// (git-rev-list(1), --filter): "blob:none", "tree:0" or "blob:limit=" with a
// size in bytes, k, m or g. "" leaves out nothing.
type ObjectFilter string

// blobLimit has at most 15 digits: git reads the number as an unsigned long.
var blobLimit = regexp.MustCompile(`^blob:limit=[0-9]{1,15}[kmg]?$`)

// Validate refuses other filters, above all combined and sparse:oid ones, which
// would have the server choose by a file that the repository's writers control.
func (f ObjectFilter) Validate() error {
	switch {
	case f == "", f == "blob:none", f == "tree:0", blobLimit.MatchString(string(f)):
		return nil
	}
	return Errorf(CodeFilterInvalid, "policy.filter", "%q is no object filter", Printable(string(f)))
}
