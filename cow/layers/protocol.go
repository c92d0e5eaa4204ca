package layers

import (
	"regexp"

	"yoi.dev/yoi-runtime/policy"
)

// The program's descriptors, beside its standard ones.
const (
	ArchiveFD = 3
	// LockFD is the store's lock: whoever has it open is at work in the store.
	LockFD = 4
	// StoreFD is the store as a detached mount, if Request.StorePath is "".
	StoreFD = 5
)

// What a Request asks for.
const (
	OpImport = "import"
	OpRemove = "remove"
)

// Request is the first line of the program's standard input.
type Request struct {
	Op     string             `json:"op"`
	Driver policy.ImageDriver `json:"driver"`
	// StorePath and StoreBeneath name the store where it cannot be passed as a mount.
	StorePath    string `json:"store_path,omitempty"`
	StoreBeneath string `json:"store_beneath,omitempty"`

	// Select, Limits and Single are OpImport's: which image of the archive, how much
	// of it, and whether all its files get one owner.
	Select string             `json:"select,omitempty"`
	Limits policy.ImageLimits `json:"limits,omitzero"`
	Single bool               `json:"single,omitempty"`
	// Layers are OpRemove's, uppermost first.
	Layers []string `json:"layers,omitempty"`
}

// Go is the second line for OpImport, once the plan has been written down. Layers
// that are in Reuse are known to be whole; others of the plan are made anew.
type Go struct {
	Reuse []string `json:"reuse"`
}

// Answer is a line of the program's standard output: a Plan, then any number of
// Progress, then Done or Error.
type Answer struct {
	Plan     *Plan              `json:"plan,omitempty"`
	Progress *Progress          `json:"progress,omitempty"`
	Done     *Done              `json:"done,omitempty"`
	Error    *policy.Diagnostic `json:"error,omitempty"`
}

// Plan is what an archive holds, before anything is unpacked.
type Plan struct {
	Format string   `json:"format"`
	Digest string   `json:"digest"`
	Ref    string   `json:"ref,omitempty"`
	Env    []string `json:"env,omitempty"`
	// Layers are the names of its layers in the store, lowest first.
	Layers []string `json:"layers"`
}

// Progress says which layer is being unpacked, from 1 on.
type Progress struct {
	Layer  int `json:"layer"`
	Layers int `json:"layers"`
}

// Done is the end of the work.
type Done struct {
	Bytes    int64               `json:"bytes"`
	Entries  int64               `json:"entries"`
	Warnings []policy.Diagnostic `json:"warnings,omitempty"`
}

var layerPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// CheckLayers refuses a list that is not of layers' names.
func CheckLayers(list []string) error {
	if len(list) == 0 || len(list) > policy.MaxImageLayers {
		return policy.Errorf(policy.CodeBadRequest, "layers.names", "an image has 1 to %d layers, not %d", policy.MaxImageLayers, len(list))
	}
	for _, l := range list {
		if !layerPattern.MatchString(l) {
			return policy.Errorf(policy.CodeBadRequest, "layers.names", "%q is no layer", policy.Printable(l))
		}
	}
	return nil
}

// Dirs are the directories that make up an image below its store, uppermost
// first, as overlayfs wants them.
func Dirs(driver policy.ImageDriver, list []string) []string {
	if driver == policy.ImageVFS {
		return []string{Dir(driver, list[len(list)-1])}
	}
	dirs := make([]string, len(list))
	for i, l := range list {
		dirs[len(list)-1-i] = Dir(driver, l)
	}
	return dirs
}

// Dir is where a driver has a layer's files.
func Dir(driver policy.ImageDriver, layer string) string {
	if driver == policy.ImageVFS {
		return "vfs/dir/" + layer
	}
	return "overlay/" + layer + "/diff"
}
