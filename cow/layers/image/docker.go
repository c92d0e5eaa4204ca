package image

import (
	"path"
	"slices"
	"strings"
)

// dockerImage is an element of a docker archive's manifest.json.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func openDocker(a *archive, want string) (*Image, error) {
	b, err := a.document("manifest.json")
	if err != nil {
		return nil, err
	}
	var list []dockerImage
	if err := decode(b, &list, "manifest.json"); err != nil {
		return nil, err
	}
	found, err := chooseDocker(list, want)
	if err != nil {
		return nil, err
	}
	b, err = a.document(found.Config)
	if err != nil {
		return nil, err
	}
	img := &Image{Format: FormatDocker, Digest: digestOf(b)}
	// The file's name is its digest; one under another name is not compared.
	if name := Digest("sha256:" + strings.TrimSuffix(path.Base(found.Config), ".json")); name.check("") == nil && name != img.Digest {
		return nil, mismatch("the image's configuration", name)
	}
	if len(found.RepoTags) > 0 {
		img.Ref = found.RepoTags[0]
	}
	if slices.Contains(found.RepoTags, want) {
		img.Ref = want
	}
	c, err := img.configure(b, len(found.Layers))
	if err != nil {
		return nil, err
	}
	for i, name := range found.Layers {
		data, ok := a.open(name)
		if !ok {
			return nil, invalid("the archive lacks layer %d", i+1)
		}
		img.Layers = append(img.Layers, &Layer{Diff: c.RootFS.DiffIDs[i], data: data})
	}
	return img, nil
}

func chooseDocker(list []dockerImage, want string) (dockerImage, error) {
	if want != "" {
		for _, d := range list {
			if slices.Contains(d.RepoTags, want) {
				return d, nil
			}
		}
		return dockerImage{}, invalid("the archive holds no image of that name").WithHint("Leave --select out to see what there is.")
	}
	switch len(list) {
	case 1:
		return list[0], nil
	case 0:
		return dockerImage{}, invalid("manifest.json names no image")
	}
	var names []string
	for _, d := range list {
		names = append(names, append(d.RepoTags, "(unnamed)")[0])
	}
	return dockerImage{}, ambiguous(names)
}
