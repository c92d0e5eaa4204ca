package image

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

// The formats of an archive.
const (
	FormatOCI    = "oci"
	FormatDocker = "docker"
	FormatRootFS = "rootfs"
)

// Image is one image of an archive, its documents checked, its layers not yet
// read.
type Image struct {
	Format string `json:"format"`
	// Digest is the manifest's; a docker archive has none, so its configuration's,
	// and a root file system's is of its uncompressed tar stream.
	Digest Digest `json:"digest"`
	// Ref is the name that the archive gives the image, "" for none.
	Ref string `json:"ref,omitempty"`
	// Env is the configuration's environment, as NAME=VALUE.
	Env    []string `json:"env,omitempty"`
	Layers []*Layer `json:"layers"`
}

// Layer is one layer, lowest first in Image.Layers.
type Layer struct {
	// Diff is the digest of the uncompressed tar stream.
	Diff Digest `json:"diff"`
	// Chain is 64 hexadecimal characters that stand for this layer and all below.
	Chain string `json:"chain"`
	// blob is the digest of the stored bytes, "" where the format has none.
	blob Digest
	data *io.SectionReader
}

// Open reads the archive's documents and chooses its image: the only one for
// linux/amd64, or the one that want names by reference or digest.
func Open(r io.ReaderAt, size int64, want string, limits policy.ImageLimits) (*Image, error) {
	compressed, err := isCompressed(r)
	if err != nil {
		return nil, err
	}
	if compressed {
		return openRootFS(r, size, limits)
	}
	a, err := index(r, size)
	if err != nil {
		return nil, err
	}
	var img *Image
	switch {
	case a.has("oci-layout"), a.has("index.json"):
		img, err = openOCI(a, want)
	case a.has("manifest.json"):
		img, err = openDocker(a, want)
	default:
		return openRootFS(r, size, limits)
	}
	if err != nil {
		return nil, err
	}
	return img, img.finish()
}

// finish checks what all formats have in common and names the layers.
func (img *Image) finish() error {
	if len(img.Layers) == 0 {
		return invalid("the image has no layers")
	}
	if len(img.Layers) > policy.MaxImageLayers {
		return policy.Errorf(policy.CodeImageLimit, opOpen, "the image has %d layers, more than %d", len(img.Layers), policy.MaxImageLayers).
			WithHint("Flatten the image: podman export, or docker export, makes a tar file that can be imported.")
	}
	parent := ""
	for _, l := range img.Layers {
		if err := l.Diff.check("a layer"); err != nil {
			return err
		}
		l.Chain = chain(parent, l.Diff)
		parent = l.Chain
	}
	return nil
}

// config is the part of an image configuration that is used.
type config struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Config       struct {
		Env []string `json:"Env"`
	} `json:"config"`
	RootFS struct {
		DiffIDs []Digest `json:"diff_ids"`
	} `json:"rootfs"`
}

const (
	platformOS   = "linux"
	platformArch = "amd64"
)

// configure takes over an image configuration.
func (img *Image) configure(b []byte, layers int) (*config, error) {
	var c config
	if err := decode(b, &c, "the image's configuration"); err != nil {
		return nil, err
	}
	if c.OS != platformOS || c.Architecture != platformArch {
		return nil, policy.Errorf(policy.CodeImagePlatform, opOpen, "the image is for %q", policy.Printable(c.OS+"/"+c.Architecture))
	}
	if len(c.RootFS.DiffIDs) != layers {
		return nil, invalid("the image has %d layers, but its configuration names %d", layers, len(c.RootFS.DiffIDs))
	}
	img.Env = usableEnv(c.Config.Env)
	return &c, nil
}

// maxEnv bounds what an image may bring into every Worker's environment.
const maxEnv = 32 << 10

// usableEnv keeps well-formed variables. They are defaults, so one that cannot
// be used is no reason to refuse the image.
func usableEnv(env []string) (out []string) {
	total := 0
	for _, kv := range env {
		k, _, ok := strings.Cut(kv, "=")
		total += len(kv) + 1
		if total > maxEnv {
			return out
		}
		if ok && k != "" && policy.Printable(kv) == kv {
			out = append(out, kv)
		}
	}
	return out
}

// decode reads one JSON document. Unknown fields are the specification's way to
// grow; anything behind the document is not.
func decode(b []byte, v any, what string) error {
	d := json.NewDecoder(bytes.NewReader(b))
	err := d.Decode(v)
	if err == nil && len(bytes.TrimSpace(b[d.InputOffset():])) > 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return invalid("%s is not a JSON document of the expected form", what).Because(err)
	}
	return nil
}
