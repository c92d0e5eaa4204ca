package image

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/cow/layers/imagetest"
	"yoi.dev/yoi-runtime/policy"
)

var roomy = policy.ImageLimits{}.Normalize()

func small(t testing.TB) imagetest.Image {
	return imagetest.Image{
		Ref: "registry.example.org/team/tools:1.2", Env: []string{"PATH=/bin", "broken", "ESC=\x1b[31m"},
		Layers: [][]byte{imagetest.Layer(t, imagetest.File("a", "one", 0o644)), imagetest.Layer(t, imagetest.File("b", "two", 0o644))},
	}
}

// read opens an archive and reads all of its layers to the end.
func read(b []byte, want string, limits policy.ImageLimits) (*Image, error) {
	img, err := Open(bytes.NewReader(b), int64(len(b)), want, limits)
	if err != nil {
		return nil, err
	}
	f := &Filter{Limits: limits}
	for _, l := range img.Layers {
		r, err := l.Read(limits)
		if err != nil {
			return img, err
		}
		if err := f.Layer(r, io.Discard); err != nil {
			return img, err
		}
		if err := r.Finish(); err != nil {
			return img, err
		}
	}
	return img, nil
}

func TestEveryFormatOpens(t *testing.T) {
	gz, zst := small(t), small(t)
	gz.Compress, zst.Compress = "gzip", "zstd"
	root := imagetest.Layer(t, imagetest.File("./etc/motd", "hi", 0o644))
	var plain *Image
	for _, c := range []struct {
		name, format string
		archive      []byte
	}{
		{"oci", FormatOCI, imagetest.Tar(t, imagetest.OCI(t, small(t)))},
		{"oci gzip", FormatOCI, imagetest.Tar(t, imagetest.OCI(t, gz))},
		{"oci zstd", FormatOCI, imagetest.Tar(t, imagetest.OCI(t, zst))},
		{"docker", FormatDocker, imagetest.Tar(t, imagetest.Docker(t, small(t)))},
		{"docker gzip", FormatDocker, imagetest.Tar(t, imagetest.Docker(t, gz))},
		{"rootfs", FormatRootFS, root},
	} {
		img, err := read(c.archive, "", roomy)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if img.Format != c.format {
			t.Errorf("%s: format %s", c.name, img.Format)
		}
		if c.format == FormatRootFS {
			if len(img.Layers) != 1 || string(img.Digest) != imagetest.Digest(root) {
				t.Errorf("%s: %+v", c.name, img)
			}
			continue
		}
		if img.Ref != "registry.example.org/team/tools:1.2" || len(img.Layers) != 2 || strings.Join(img.Env, " ") != "PATH=/bin" {
			t.Errorf("%s: %+v", c.name, img)
		}
		if plain == nil {
			plain = img
		}
		for i, l := range img.Layers {
			if l.Chain != plain.Layers[i].Chain {
				t.Errorf("%s: layer %d is stored as %s, uncompressed as %s", c.name, i, l.Chain, plain.Layers[i].Chain)
			}
		}
	}
}

func TestChoosing(t *testing.T) {
	amd, arm := small(t), small(t)
	amd.Arch, arm.Arch, amd.Ref, arm.Ref = "amd64", "arm64", "both", "both"
	other := small(t)
	other.Ref, other.Layers = "other:3", other.Layers[:1]
	for _, c := range []struct {
		name   string
		images []imagetest.Image
		want   string
		code   error
		layers int
	}{
		{"the platform's", []imagetest.Image{arm, amd}, "", nil, 2},
		{"another platform's only", []imagetest.Image{arm}, "", policy.CodeImagePlatform, 0},
		{"two", []imagetest.Image{small(t), other}, "", policy.CodeImageAmbiguous, 0},
		{"the named one", []imagetest.Image{small(t), other}, "other:3", nil, 1},
		{"none of that name", []imagetest.Image{small(t), other}, "x", policy.CodeImageInvalid, 0},
		{"none", nil, "", policy.CodeImageInvalid, 0},
	} {
		for kind, make := range map[string]func(testing.TB, ...imagetest.Image) map[string][]byte{"oci": imagetest.OCI, "docker": imagetest.Docker} {
			if kind == "docker" && c.images != nil && c.images[0].Arch != "" && len(c.images) > 1 {
				continue // a docker archive knows no platforms
			}
			img, err := read(imagetest.Tar(t, make(t, c.images...)), c.want, roomy)
			if c.code == nil && err != nil || c.code != nil && !errors.Is(err, c.code) {
				t.Errorf("%s, %s: %v, want %v", kind, c.name, err, c.code)
			}
			if err == nil && len(img.Layers) != c.layers {
				t.Errorf("%s, %s: %d layers", kind, c.name, len(img.Layers))
			}
		}
	}
}

// Names as docker writes them since it keeps images in containerd: an index of
// platforms inside the index, with the whole reference beside the bare tag, and
// an attestation that is no image.
func TestDockersOwnLayout(t *testing.T) {
	amd, arm := small(t), small(t)
	amd.Arch, arm.Arch, amd.Ref, arm.Ref = "amd64", "arm64", "", ""
	files := imagetest.OCI(t, arm, amd)
	inner := bytes.Replace(files["index.json"], []byte(`"manifests":[`), []byte(`"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:`+strings.Repeat("0", 64)+`","size":1,"platform":{"os":"unknown","architecture":"unknown"}},`), 1)
	digest := imagetest.Digest(inner)
	files["blobs/sha256/"+digest[7:]] = inner
	files["index.json"] = imagetest.JSON(t, map[string]any{"schemaVersion": 2, "manifests": []any{map[string]any{
		"mediaType": "application/vnd.oci.image.index.v1+json", "digest": digest, "size": len(inner),
		"annotations": map[string]string{"io.containerd.image.name": "docker.io/library/debian:12", "org.opencontainers.image.ref.name": "12"},
	}}})
	files["manifest.json"] = []byte("[]") // for docker of old
	for _, want := range []string{"", "docker.io/library/debian:12", "12", digest} {
		img, err := read(imagetest.Tar(t, files), want, roomy)
		if err != nil || img.Ref != "docker.io/library/debian:12" || policy.ImageNameFor(img.Ref) != "debian-12" {
			t.Errorf("%q: %+v %v", want, img, err)
		}
	}
}

func TestBadArchives(t *testing.T) {
	oci, docker := imagetest.OCI(t, small(t)), imagetest.Docker(t, small(t))
	layer := "blobs/sha256/" + imagetest.Digest(small(t).Layers[1])[7:]
	changed := func(files map[string][]byte, name string, f func([]byte) []byte) []byte {
		files = maps.Clone(files)
		for n := range files {
			if strings.Contains(n, name) {
				files[n] = f(bytes.Clone(files[n]))
			}
		}
		return imagetest.Tar(t, files)
	}
	flip := func(b []byte) []byte { b[len(b)-1400] ^= 1; return b }
	without := func(files map[string][]byte, name string) []byte {
		files = maps.Clone(files)
		for n := range files {
			if strings.Contains(n, name) {
				delete(files, n)
			}
		}
		return imagetest.Tar(t, files)
	}
	with := func(doc string) []byte {
		return imagetest.Tar(t, map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`), "index.json": []byte(doc)})
	}
	whole := imagetest.Tar(t, oci)
	root := imagetest.Layer(t, imagetest.File("etc/a", strings.Repeat("x", 5000), 0o644), imagetest.File("etc/b", "y", 0o644))
	for name, c := range map[string]struct {
		archive []byte
		code    error
	}{
		"empty":                        {nil, policy.CodeImageInvalid},
		"text":                         {[]byte(strings.Repeat("no tar at all\n", 100)), policy.CodeImageInvalid},
		"cut off in a blob":            {whole[:len(whole)/2+100], policy.CodeImageInvalid},
		"no layout version":            {changed(oci, "oci-layout", func([]byte) []byte { return []byte(`{}`) }), policy.CodeImageInvalid},
		"a newer layout":               {changed(oci, "oci-layout", func([]byte) []byte { return []byte(`{"imageLayoutVersion":"2.0"}`) }), policy.CodeImageInvalid},
		"no index":                     {without(oci, "index.json"), policy.CodeImageInvalid},
		"an index that is no JSON":     {with("{"), policy.CodeImageInvalid},
		"two documents":                {with(`{"manifests":[]}{}`), policy.CodeImageInvalid},
		"a digest that is a path":      {with(`{"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:../../../etc/passwd","size":1}]}`), policy.CodeImageInvalid},
		"an md5 digest":                {with(`{"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"md5:d41d8cd98f00b204e9800998ecf8427e","size":1}]}`), policy.CodeImageInvalid},
		"no blobs":                     {without(oci, "blobs/"), policy.CodeImageInvalid},
		"a layer is missing":           {without(oci, layer), policy.CodeImageInvalid},
		"a layer's byte":               {changed(oci, layer, flip), policy.CodeImageDigest},
		"a layer is shorter":           {changed(oci, layer, func(b []byte) []byte { return b[:len(b)-512] }), policy.CodeImageDigest},
		"a docker layer's byte":        {changed(docker, imagetest.Digest(small(t).Layers[1])[7:], flip), policy.CodeImageDigest},
		"a docker layer is missing":    {without(docker, imagetest.Digest(small(t).Layers[1])[7:]), policy.CodeImageInvalid},
		"a docker configuration":       {changed(docker, ".json", func(b []byte) []byte { return bytes.Replace(b, []byte("PATH=/bin"), []byte("PATH=/xin"), 1) }), policy.CodeImageDigest},
		"a rootfs cut off in a file":   {root[:1024], policy.CodeImageInvalid},
		"a rootfs cut between files":   {root[:512+5120], policy.CodeImageInvalid},
		"a file system of no system":   {imagetest.Layer(t, imagetest.File("README", "x", 0o644)), policy.CodeImageInvalid},
		"a name twice":                 {imagetest.Layer(t, imagetest.File("index.json", "{}", 0o644), imagetest.File("./index.json", "{}", 0o644)), policy.CodeImageInvalid},
		"other layers than configured": {imagetest.Tar(t, mixed(t)), policy.CodeImageInvalid},
	} {
		if _, err := read(c.archive, "", roomy); !errors.Is(err, c.code) {
			t.Errorf("%s: %v, want %v", name, err, c.code)
		}
	}
}

// mixed is a docker archive whose configuration names one layer of two.
func mixed(t testing.TB) map[string][]byte {
	one := small(t)
	one.Layers = one.Layers[:1]
	files := imagetest.Docker(t, one)
	for n, b := range files {
		if n == "manifest.json" {
			files[n] = bytes.Replace(b, []byte(`"Layers":[`), []byte(`"Layers":["x",`), 1)
		}
	}
	files["x"] = small(t).Layers[1]
	return files
}

// A compressed archive of a whole image is told from one of a root file system.
func TestCompressedArchives(t *testing.T) {
	gz := func(b []byte) []byte {
		img := imagetest.Image{Compress: "gzip", Layers: [][]byte{b}}
		for n, c := range imagetest.Docker(t, img) {
			if strings.HasSuffix(n, "layer.tar") {
				return c
			}
		}
		return nil
	}
	if _, err := read(gz(imagetest.Layer(t, imagetest.File("usr/bin/x", "", 0o755))), "", roomy); err != nil {
		t.Errorf("a compressed root file system: %v", err)
	}
	if _, err := read(gz(imagetest.Tar(t, imagetest.OCI(t, small(t)))), "", roomy); !errors.Is(err, policy.CodeImageInvalid) {
		t.Errorf("a compressed OCI archive: %v", err)
	}
}

// TestBombs: a few kilobytes that expand to gigabytes end at the limit.
func TestBombs(t *testing.T) {
	bomb := imagetest.Image{Compress: "gzip", Layers: [][]byte{imagetest.Layer(t, imagetest.File("etc/zeros", strings.Repeat("\x00", 8<<20), 0o644))}}
	many := imagetest.Image{}
	var es []imagetest.Entry
	for range 300 {
		es = append(es, imagetest.Dir("etc/d/", 0o755))
	}
	many.Layers = [][]byte{imagetest.Layer(t, es...)}
	nested := imagetest.File("etc/f", "x", 0o644)
	nested.Name = strings.Repeat("d/", 400) + "f"
	deep := imagetest.Image{Layers: [][]byte{imagetest.Layer(t, nested)}}
	tight := policy.ImageLimits{Bytes: 1 << 20, Entries: 200}
	for name, archive := range map[string][]byte{
		"bytes": imagetest.Tar(t, imagetest.OCI(t, bomb)), "entries": imagetest.Tar(t, imagetest.OCI(t, many)),
		"parents that no entry names": imagetest.Tar(t, imagetest.OCI(t, deep)),
		"a root file system":          bomb.Layers[0],
	} {
		if _, err := read(archive, "", tight); !errors.Is(err, policy.CodeImageLimit) {
			t.Errorf("%s: %v", name, err)
		}
	}
	layers := imagetest.Image{}
	for range policy.MaxImageLayers + 1 {
		layers.Layers = append(layers.Layers, imagetest.Layer(t, imagetest.File("a", "", 0o644)))
	}
	if _, err := read(imagetest.Tar(t, imagetest.OCI(t, layers)), "", roomy); !errors.Is(err, policy.CodeImageLimit) {
		t.Errorf("layers: %v", err)
	}
}

func FuzzOpen(f *testing.F) {
	for _, files := range []map[string][]byte{imagetest.OCI(f, small(f)), imagetest.Docker(f, small(f))} {
		f.Add(imagetest.Tar(f, files), "")
	}
	f.Add(imagetest.Layer(f, imagetest.File("etc/motd", "hi", 0o644)), "x")
	f.Fuzz(func(t *testing.T, b []byte, want string) {
		img, err := read(b, want, policy.ImageLimits{Bytes: 1 << 20, Entries: 1000})
		var d *policy.Diagnostic
		if err != nil && !errors.As(err, &d) {
			t.Errorf("an error without a code: %v", err)
		}
		if err == nil && len(img.Layers) == 0 {
			t.Error("an image without layers")
		}
	})
}
