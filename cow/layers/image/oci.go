package image

import (
	"encoding/json"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

// descriptor points to a blob (OCI image-spec, "Content Descriptors").
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      Digest            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations"`
	Platform    *struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
	} `json:"platform"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
	Manifests     []descriptor `json:"manifests"`
}

// maxIndexes bounds the nested indexes that are looked at: image, its platforms,
// and nothing else.
const maxIndexes = 16

// The annotations that name an image in an index. docker and containerd write the
// whole reference into theirs, and the tag alone into the specification's.
const (
	refAnnotation  = "org.opencontainers.image.ref.name"
	nameAnnotation = "io.containerd.image.name"
)

// ref is the fullest name of the image that d points to, "" for none.
func (d descriptor) ref() string {
	if n := d.Annotations[nameAnnotation]; n != "" {
		return n
	}
	return d.Annotations[refAnnotation]
}

// is reports whether want names what d points to.
func (d descriptor) is(want string) bool {
	return want == d.Annotations[refAnnotation] || want == d.Annotations[nameAnnotation] || want == string(d.Digest)
}

func openOCI(a *archive, want string) (*Image, error) {
	if b, err := a.document("oci-layout"); err != nil {
		return nil, err
	} else if v := layoutVersion(b); !strings.HasPrefix(v, "1.") {
		return nil, invalid("the OCI layout has version %q, not 1.x", policy.Printable(v))
	}
	b, err := a.document("index.json")
	if err != nil {
		return nil, err
	}
	var top manifest
	if err := decode(b, &top, "index.json"); err != nil {
		return nil, err
	}
	found, err := (&selection{archive: a, want: want}).choose(top.Manifests)
	if err != nil {
		return nil, err
	}
	return a.manifest(found)
}

// selection looks for one manifest in an index and the indexes in it.
type selection struct {
	archive *archive
	want    string
	indexes int
	found   []descriptor
	// others counts manifests for other platforms.
	others int
}

// isIndex and the other media types have an OCI and a docker name.
func isIndex(t string) bool {
	return t == "application/vnd.oci.image.index.v1+json" || t == "application/vnd.docker.distribution.manifest.list.v2+json"
}

func isManifest(t string) bool {
	return t == "application/vnd.oci.image.manifest.v1+json" || t == "application/vnd.docker.distribution.manifest.v2+json"
}

func (s *selection) choose(list []descriptor) (descriptor, error) {
	if err := s.look(list, s.want == "", ""); err != nil {
		return descriptor{}, err
	}
	switch {
	case len(s.found) == 1:
		return s.found[0], nil
	case len(s.found) > 1:
		return descriptor{}, ambiguous(refs(s.found))
	case s.others > 0:
		return descriptor{}, policy.Errorf(policy.CodeImagePlatform, opOpen, "the archive holds no image for %s/%s", platformOS, platformArch)
	case s.want != "":
		return descriptor{}, invalid("the archive holds no image %q", policy.Printable(s.want)).WithHint("Leave --select out to see what there is.")
	}
	return descriptor{}, invalid("the archive's index names no image")
}

func refs(list []descriptor) (out []string) {
	for _, d := range list {
		name := d.ref()
		if name == "" {
			name = string(d.Digest)
		}
		out = append(out, name)
	}
	return out
}

func ambiguous(names []string) error {
	if len(names) > 8 {
		names = append(names[:8], "…")
	}
	return policy.Errorf(policy.CodeImageAmbiguous, opOpen, "the archive holds more than one image: %s", policy.Printable(strings.Join(names, " ")))
}

// look collects the manifests of a list. wanted says that the list as a whole
// was asked for; ref is the name of the index around it.
func (s *selection) look(list []descriptor, wanted bool, ref string) error {
	for _, d := range list {
		if d.ref() == "" && ref != "" {
			d.Annotations = map[string]string{refAnnotation: ref}
		}
		hit := wanted || d.is(s.want)
		switch {
		case isIndex(d.MediaType):
			if s.indexes++; s.indexes > maxIndexes {
				return invalid("the archive nests more than %d indexes", maxIndexes)
			}
			b, err := s.archive.blob(d, "an index")
			if err != nil {
				return err
			}
			var nested manifest
			if err := decode(b, &nested, "an index"); err != nil {
				return err
			}
			if err := s.look(nested.Manifests, hit, d.ref()); err != nil {
				return err
			}
		case !hit || !isManifest(d.MediaType):
		case d.Platform != nil && (d.Platform.OS != platformOS || d.Platform.Architecture != platformArch):
			s.others++
		default:
			s.found = append(s.found, d)
		}
	}
	return nil
}

// blob reads a small blob and compares it with its descriptor.
func (a *archive) blob(d descriptor, what string) ([]byte, error) {
	if err := d.Digest.check(what); err != nil {
		return nil, err
	}
	b, err := a.document(d.Digest.blob())
	if err != nil {
		return nil, err
	}
	h := d.Digest.hash()
	h.Write(b)
	if int64(len(b)) != d.Size || !d.Digest.matches(h) {
		return nil, mismatch(what, d.Digest)
	}
	return b, nil
}

func (a *archive) manifest(d descriptor) (*Image, error) {
	b, err := a.blob(d, "the manifest")
	if err != nil {
		return nil, err
	}
	var m manifest
	if err := decode(b, &m, "the manifest"); err != nil {
		return nil, err
	}
	if m.SchemaVersion != 2 {
		return nil, invalid("the manifest has schema version %d, not 2", m.SchemaVersion)
	}
	if c, err := a.blob(m.Config, "the image's configuration"); err != nil {
		return nil, err
	} else {
		b = c
	}
	img := &Image{Format: FormatOCI, Digest: d.Digest, Ref: d.ref()}
	c, err := img.configure(b, len(m.Layers))
	if err != nil {
		return nil, err
	}
	for i, l := range m.Layers {
		if err := l.Digest.check("a layer"); err != nil {
			return nil, err
		}
		data, ok := a.open(l.Digest.blob())
		if !ok {
			return nil, invalid("the archive lacks layer %d", i+1).With("digest", string(l.Digest))
		}
		if data.Size() != l.Size {
			return nil, mismatch("a layer", l.Digest)
		}
		img.Layers = append(img.Layers, &Layer{Diff: c.RootFS.DiffIDs[i], blob: l.Digest, data: data})
	}
	return img, nil
}

func layoutVersion(b []byte) string {
	var v struct {
		Version string `json:"imageLayoutVersion"`
	}
	_ = json.Unmarshal(b, &v) // no version is what the caller refuses
	return v.Version
}
