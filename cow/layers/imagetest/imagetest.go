// Package imagetest makes container images for tests, honest and hostile ones,
// without a registry and without the code under test.
package imagetest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// Entry is one entry of a layer: a header, whose size is set, and content.
type Entry struct {
	tar.Header
	Content string
}

// File, Dir, Link and the others are entries of root's.
func File(name, content string, mode int64) Entry {
	return Entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode}, content}
}

func Dir(name string, mode int64) Entry {
	return Entry{tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode}, ""}
}

func Symlink(name, to string) Entry {
	return Entry{tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777}, ""}
}

func HardLink(name, to string) Entry {
	return Entry{tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to, Mode: 0o644}, ""}
}

func Device(name string, kind byte, major, minor int64) Entry {
	return Entry{tar.Header{Typeflag: kind, Name: name, Mode: 0o666, Devmajor: major, Devminor: minor}, ""}
}

// Owned and WithXattr change an entry.
func (e Entry) Owned(uid, gid int) Entry {
	e.Uid, e.Gid = uid, gid
	return e
}

func (e Entry) WithXattr(name, value string) Entry {
	e.PAXRecords = maps.Clone(e.PAXRecords)
	if e.PAXRecords == nil {
		e.PAXRecords = map[string]string{}
	}
	e.PAXRecords["SCHILY.xattr."+name] = value
	return e
}

// Busybox is a layer with the machine's static busybox as a shell and its tools.
func Busybox(t testing.TB) []Entry {
	t.Helper()
	b, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatalf("busybox-static is needed: make setup: %v", err)
	}
	es := []Entry{Dir("bin/", 0o755), File("bin/busybox", string(b), 0o755)}
	for _, tool := range []string{"sh", "ls", "cat", "id", "stat", "test", "touch", "mkdir", "env", "readlink", "find", "grep", "sleep", "mount", "su", "rm", "echo", "true"} {
		es = append(es, Symlink("bin/"+tool, "busybox"))
	}
	return append(es, Dir("etc/", 0o755), File("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nimage:x:7:7::/:/bin/sh\n", 0o644), Dir("tmp/", 0o1777))
}

// Layer is the tar stream of entries.
func Layer(t testing.TB, entries ...Entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := e.Header
		h.Size = int64(len(e.Content))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.Content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Image is an image to be made. The zero values are linux/amd64, uncompressed.
type Image struct {
	Layers [][]byte // tar streams, lowest first
	Env    []string
	Arch   string
	// Compress is "", "gzip" or "zstd".
	Compress string
	Ref      string
}

// Digest is the sha256 digest of b.
func Digest(b []byte) string {
	h := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(h[:])
}

func (i Image) config(t testing.TB) []byte {
	arch := i.Arch
	if arch == "" {
		arch = "amd64"
	}
	var diffs []string
	for _, l := range i.Layers {
		diffs = append(diffs, Digest(l))
	}
	return JSON(t, map[string]any{
		"architecture": arch, "os": "linux", "config": map[string]any{"Env": i.Env},
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffs},
	})
}

// JSON encodes v.
func JSON(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (i Image) compress(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	switch i.Compress {
	case "gzip":
		w := gzip.NewWriter(&out)
		_, err := w.Write(b)
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	case "zstd":
		w, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		return w.EncodeAll(b, nil)
	}
	return b
}

func blob(b []byte) string { return "blobs/sha256/" + Digest(b)[len("sha256:"):] }

func descriptor(media string, b []byte) map[string]any {
	return map[string]any{"mediaType": media, "digest": Digest(b), "size": len(b)}
}

// OCI is the OCI layout of images: file names and contents.
func OCI(t testing.TB, images ...Image) map[string][]byte {
	t.Helper()
	files := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)}
	var index []any
	for _, i := range images {
		config := i.config(t)
		files[blob(config)] = config
		var layers []any
		for _, l := range i.Layers {
			b := i.compress(t, l)
			files[blob(b)] = b
			layers = append(layers, descriptor("application/vnd.oci.image.layer.v1.tar", b))
		}
		manifest := JSON(t, map[string]any{"schemaVersion": 2, "config": descriptor("application/vnd.oci.image.config.v1+json", config), "layers": layers})
		files[blob(manifest)] = manifest
		d := descriptor("application/vnd.oci.image.manifest.v1+json", manifest)
		if i.Ref != "" {
			d["annotations"] = map[string]string{"org.opencontainers.image.ref.name": i.Ref}
		}
		if i.Arch != "" {
			d["platform"] = map[string]string{"os": "linux", "architecture": i.Arch}
		}
		index = append(index, d)
	}
	files["index.json"] = JSON(t, map[string]any{"schemaVersion": 2, "manifests": index})
	return files
}

// Docker is a docker archive of images.
func Docker(t testing.TB, images ...Image) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	var list []any
	for _, i := range images {
		config := i.config(t)
		name := Digest(config)[len("sha256:"):] + ".json"
		files[name] = config
		var layers []string
		for _, l := range i.Layers {
			n := Digest(l)[len("sha256:"):] + "/layer.tar"
			files[n] = i.compress(t, l)
			layers = append(layers, n)
		}
		list = append(list, map[string]any{"Config": name, "RepoTags": []string{i.Ref}, "Layers": layers})
	}
	files["manifest.json"] = JSON(t, list)
	return files
}

// Tar packs files in the order of their names.
func Tar(t testing.TB, files map[string][]byte) []byte {
	t.Helper()
	var es []Entry
	for _, n := range slices.Sorted(maps.Keys(files)) {
		es = append(es, File(n, string(files[n]), 0o644))
	}
	return Layer(t, es...)
}
