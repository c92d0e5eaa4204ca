package policy

import "strings"

// ImageName names an imported base image. It is an id, so that it can be a path
// component of the API: "debian:12" is imported as "debian-12".
type ImageName string

// imageRoot is what a root profile that names an image begins with.
const imageRoot = "image:"

// RootImage is the root profile of an image.
func RootImage(name ImageName) RootProfile { return RootProfile(imageRoot + string(name)) }

// Image is the image that a root profile names, and whether it names one.
func (p RootProfile) Image() (ImageName, bool) {
	name, ok := strings.CutPrefix(string(p), imageRoot)
	return ImageName(name), ok
}

// validate refuses what is neither a built-in profile nor a well-formed image's.
func (p RootProfile) validate(op string) error {
	if name, ok := p.Image(); ok {
		return CheckID("image", string(name))
	}
	switch p {
	case RootSystem, RootMinimal:
		return nil
	}
	return Errorf(CodePolicyInvalid, op, "%q is no root profile", Printable(string(p))).
		WithHint("Use system, minimal or image:NAME.")
}

// ImageNameFor proposes a name for an image by a reference as registries write
// it: the last component, with its tag behind a dash unless that is "latest".
// It is "" where nothing usable is left.
func ImageNameFor(ref string) ImageName {
	ref, _, _ = strings.Cut(ref, "@")
	base := ref[strings.LastIndexByte(ref, '/')+1:]
	name, tag, _ := strings.Cut(base, ":")
	if tag != "" && tag != "latest" {
		name += "-" + tag
	}
	if name = cleanID(name); !ValidID(name) {
		return ""
	}
	return ImageName(name)
}

// ImageDriver is the driver of containers/storage that keeps an image's layers.
type ImageDriver string

const (
	// ImageOverlay keeps each layer once and stacks them at launch; the default.
	ImageOverlay ImageDriver = "overlay"
	// ImageVFS keeps each layer with all below it as one plain directory.
	ImageVFS ImageDriver = "vfs"
)

// ParseImageDriver reads a driver's name; "" is overlay.
func ParseImageDriver(s string) (ImageDriver, error) {
	switch d := ImageDriver(s); d {
	case "":
		return ImageOverlay, nil
	case ImageOverlay, ImageVFS:
		return d, nil
	}
	return "", Errorf(CodePolicyInvalid, "policy.image", "%q is no image driver", Printable(s)).WithHint("Use overlay or vfs.")
}

// MaxImageLayers is how many layers an image may have. The kernel stacks more,
// but each is a mount of every launch.
const MaxImageLayers = 60

// ImageLimits bound what an import may make of an archive. Zero fields take the
// defaults.
type ImageLimits struct {
	Bytes   int64 `json:"bytes,omitempty"`   // of all files, uncompressed
	Entries int64 `json:"entries,omitempty"` // files, directories and links
}

// Normalize fills in the defaults.
func (l ImageLimits) Normalize() ImageLimits {
	if l.Bytes == 0 {
		l.Bytes = 16 << 30
	}
	if l.Entries == 0 {
		l.Entries = 1 << 20
	}
	return l
}

// Validate refuses limits that make no sense.
func (l ImageLimits) Validate() error {
	if l.Bytes < 0 || l.Entries < 0 || l.Bytes > 1<<50 || l.Entries > 1<<24 {
		return Errorf(CodeLimitsInvalid, "policy.image", "an image's limits are negative or too large")
	}
	return nil
}
