package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	it "yoi.dev/yoi-runtime/cow/layers/imagetest"
	"yoi.dev/yoi-runtime/policy"
)

// filtered copies layers and lists what comes out of the last one, without its
// top directory.
func filtered(t testing.TB, f *Filter, layers ...[]byte) ([]string, error) {
	t.Helper()
	var out bytes.Buffer
	for _, l := range layers {
		out.Reset()
		if err := f.Layer(bytes.NewReader(l), &out); err != nil {
			return nil, err
		}
	}
	var list []string
	tr := tar.NewReader(&out)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return list[1:], nil
		}
		if err != nil {
			t.Fatalf("what comes out is no tar stream: %v", err)
		}
		line := fmt.Sprintf("%c %s %o", h.Typeflag, h.Name, h.Mode)
		if h.Uid != 0 || h.Gid != 0 {
			line += fmt.Sprintf(" %d:%d", h.Uid, h.Gid)
		}
		if h.Linkname != "" {
			line += " -> " + h.Linkname
		}
		for _, k := range slices.Sorted(maps.Keys(h.PAXRecords)) {
			if n, ok := strings.CutPrefix(k, xattrRecord); ok {
				line += " " + n
			}
		}
		list = append(list, line)
	}
}

func TestFilterNeutralises(t *testing.T) {
	for _, c := range []struct {
		name   string
		layers [][]byte
		want   []string
		counts Counts
	}{
		{"plain", [][]byte{it.Layer(t, it.Dir("./", 0o700), it.Dir("etc/", 0o750).Owned(3, 4), it.File("/etc/a", "x", 0o640).Owned(33, 0), it.Symlink("etc/l", "../../../../etc/shadow"), it.HardLink("etc/h", "./etc/a"))},
			[]string{"5 etc/ 750 3:4", "0 etc/a 640 33:0", "2 etc/l 777 -> ../../../../etc/shadow", "1 etc/h 644 -> etc/a"}, Counts{}},
		{"setuid and setgid", [][]byte{it.Layer(t, it.File("su", "x", 0o6755), it.Dir("d/", 0o2775), it.Dir("tmp/", 0o1777))},
			[]string{"0 su 755", "5 d/ 775", "5 tmp/ 1777"}, Counts{Setuid: 2}},
		{"file capabilities and overlay's attributes", [][]byte{it.Layer(t,
			it.File("ping", "x", 0o755).WithXattr("security.capability", "\x01\x00\x00\x02").WithXattr("user.mime", "ok"),
			it.Dir("d/", 0o755).WithXattr("trusted.overlay.opaque", "y").WithXattr("user.overlay.opaque", "y").WithXattr("user.overlay.redirect", "/etc"),
			it.File("f", "", 0o644).WithXattr("user.overlay.metacopy", "").WithXattr("user.containers.override_stat", "0:0:04755").WithXattr("system.posix_acl_access", "x"))},
			[]string{"0 ping 755 user.mime", "5 d/ 755", "0 f 644"}, Counts{Xattrs: 7}},
		{"devices", [][]byte{it.Layer(t, it.Device("sda", tar.TypeBlock, 8, 0), it.Device("kmem", tar.TypeChar, 1, 2), it.Device("whiteout", tar.TypeChar, 0, 0), it.Device("pipe", tar.TypeFifo, 0, 0), it.File("a", "", 0o644))},
			[]string{"0 a 644"}, Counts{Specials: 4}},
		{"owners beyond the range", [][]byte{it.Layer(t, it.File("a", "", 0o644).Owned(65536, 5), it.File("b", "", 0o644).Owned(1000620000, 1<<30))},
			[]string{"0 a 644 65534:5", "0 b 644 65534:65534"}, Counts{Owners: 2}},
		{"parents keep their attributes", [][]byte{it.Layer(t, it.Dir("a/", 0o711).Owned(5, 6)), it.Layer(t, it.File("a/b/c", "", 0o644))},
			[]string{"5 a/ 711 5:6", "5 a/b/ 755", "0 a/b/c 644"}, Counts{}},
		{"a directory where a lower layer has a link", [][]byte{it.Layer(t, it.Symlink("lib", "/etc")), it.Layer(t, it.File("lib/passwd", "x", 0o644))},
			[]string{"0 .wh.lib 0", "5 lib/ 755", "0 lib/passwd 644"}, Counts{}},
		{"a whiteout", [][]byte{it.Layer(t, it.File("a/b", "x", 0o644)), it.Layer(t, it.File("a/.wh.b", "ignored", 0o644), it.File(".wh..wh.plnk", "", 0o644), it.File("a/.wh..wh..opq", "", 0o644))},
			[]string{"5 a/ 755", "0 a/.wh.b 0", "0 a/.wh..wh..opq 0"}, Counts{}},
		{"a whiteout before what takes its place", [][]byte{it.Layer(t, it.File("a/b", "x", 0o644)), it.Layer(t, it.File(".wh.a", "", 0), it.Dir("a/", 0o755), it.File("a/c", "", 0o644))},
			[]string{"0 .wh.a 0", "5 a/ 755", "0 a/.wh..wh..opq 0", "0 a/c 644"}, Counts{}},
		{"a whiteout behind what takes its place", [][]byte{it.Layer(t, it.Dir("a/", 0o755), it.File(".wh.a", "", 0), it.File("f", "", 0o644), it.File(".wh.f", "", 0))},
			[]string{"5 a/ 755", "0 a/.wh..wh..opq 0", "0 f 644"}, Counts{}},
	} {
		f := &Filter{Limits: roomy}
		got, err := filtered(t, f, c.layers...)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s:\n got %q\nwant %q", c.name, got, c.want)
		}
		f.Counts.Entries, f.Counts.Bytes = 0, 0
		if f.Counts != c.counts {
			t.Errorf("%s: counted %+v, want %+v", c.name, f.Counts, c.counts)
		}
	}
}

// refusedLayers are what no layer may hold.
func refusedLayers(t testing.TB) map[string][]byte {
	long := it.File("x", "", 0o644)
	long.Name = strings.Repeat("n", 256)
	unknown := it.File("x", "", 0o644)
	unknown.Typeflag = 'Z'
	return map[string][]byte{
		"..":                              it.Layer(t, it.File("../x", "", 0o644)),
		".. in the middle":                it.Layer(t, it.File("a/../../x", "", 0o644)),
		".. behind a slash":               it.Layer(t, it.File("/../x", "", 0o644)),
		"a name too long":                 it.Layer(t, long),
		"through a link":                  it.Layer(t, it.Symlink("a", "/etc"), it.File("a/passwd", "x", 0o644)),
		"through a link to itself":        it.Layer(t, it.Symlink("a", "."), it.File("a/b/c", "x", 0o644)),
		"below a file":                    it.Layer(t, it.File("a", "x", 0o644), it.File("a/b", "x", 0o644)),
		"through a hard link to a link":   it.Layer(t, it.Symlink("a", "/"), it.HardLink("b", "a"), it.File("b/c", "", 0o644)),
		"a hard link out":                 it.Layer(t, it.HardLink("h", "../../etc/shadow")),
		"a hard link to nothing":          it.Layer(t, it.HardLink("h", "etc/shadow")),
		"a hard link to itself":           it.Layer(t, it.File("h", "x", 0o644), it.HardLink("h", "h")),
		"a hard link to a directory":      it.Layer(t, it.Dir("d/", 0o755), it.HardLink("h", "d")),
		"an empty symbolic link":          it.Layer(t, it.Symlink("s", "")),
		"a whiteout of the parent":        it.Layer(t, it.File("a/.wh...", "", 0o644)),
		"a whiteout of the directory":     it.Layer(t, it.File("a/.wh..", "", 0o644)),
		"a whiteout of nothing":           it.Layer(t, it.File("a/.wh.", "", 0o644)),
		"a whiteout that is a link":       it.Layer(t, it.Symlink(".wh.a", "/etc")),
		"a whiteout that is a directory":  it.Layer(t, it.Dir(".wh.a/", 0o755)),
		"a whiteout with something below": it.Layer(t, it.File(".wh.a/b", "", 0o644)),
		"an unknown type":                 it.Layer(t, unknown),
	}
}

func TestFilterRefuses(t *testing.T) {
	for name, l := range refusedLayers(t) {
		if got, err := filtered(t, &Filter{Limits: roomy}, l); !errors.Is(err, policy.CodeImageLayerRefused) {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
}

// A hard link in a lower layer's file cannot be made by overlay, whose layers are
// directories of their own.
func TestHardLinkToALowerLayer(t *testing.T) {
	_, err := filtered(t, &Filter{Limits: roomy}, it.Layer(t, it.File("a", "x", 0o644)), it.Layer(t, it.HardLink("b", "a")))
	if !errors.Is(err, policy.CodeImageLayerRefused) {
		t.Error(err)
	}
}

func TestFilterCutOff(t *testing.T) {
	l := it.Layer(t, it.File("a", strings.Repeat("x", 2000), 0o644))
	for _, n := range []int{100, 600, 1500} {
		if _, err := filtered(t, &Filter{Limits: roomy}, l[:n]); !errors.Is(err, policy.CodeImageInvalid) {
			t.Errorf("cut off at %d: %v", n, err)
		}
	}
}

func TestFilterSingleOwner(t *testing.T) {
	got, err := filtered(t, &Filter{Limits: roomy, Single: true}, it.Layer(t, it.File("a", "", 0o600).Owned(33, 1<<20)))
	if err != nil || !slices.Equal(got, []string{"0 a 600"}) {
		t.Errorf("%q %v", got, err)
	}
}

func TestPlausibleTimes(t *testing.T) {
	for _, c := range []struct{ in, want time.Time }{
		{time.Unix(-5, 0), time.Unix(0, 0)}, {time.Unix(1e9, 7), time.Unix(1e9, 7)}, {time.Unix(1<<62, 0), time.Unix(1<<33, 0)},
	} {
		if got := plausible(c.in); !got.Equal(c.want) {
			t.Errorf("%v becomes %v", c.in, got)
		}
	}
}

// FuzzFilter: whatever comes in, what comes out leads nowhere and is nothing but
// files, directories and links, each below directories that were made before.
func FuzzFilter(f *testing.F) {
	f.Add(it.Layer(f, it.Dir("etc/", 0o755), it.File("etc/a", "x", 0o4755).WithXattr("security.capability", "x"), it.Symlink("l", "/"), it.HardLink("h", "etc/a"), it.File(".wh.b", "", 0), it.Device("d", tar.TypeChar, 0, 0)))
	for _, l := range refusedLayers(f) {
		f.Add(l)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var out bytes.Buffer
		fl := &Filter{Limits: policy.ImageLimits{Bytes: 1 << 20, Entries: 1000}}
		if err := fl.Layer(bytes.NewReader(b), &out); err != nil {
			var d *policy.Diagnostic
			if !errors.As(err, &d) {
				t.Errorf("an error without a code: %v", err)
			}
			return
		}
		dirs := map[string]bool{".": true}
		files := map[string]bool{}
		tr := tar.NewReader(&out)
		for {
			h, err := tr.Next()
			if err == io.EOF {
				return
			}
			if err != nil {
				t.Fatalf("what comes out is no tar stream: %v", err)
			}
			name := strings.TrimSuffix(h.Name, "/")
			if path.Clean(name) != name && h.Name != "./" || path.IsAbs(name) || name == ".." || strings.HasPrefix(name, "../") || h.Mode&^0o1777 != 0 {
				t.Fatalf("%q with mode %o comes out", h.Name, h.Mode)
			}
			if !dirs[path.Dir(name)] {
				t.Fatalf("%q comes out before its directory", h.Name)
			}
			delete(dirs, name)
			switch h.Typeflag {
			case tar.TypeDir:
				dirs[name] = true
			case tar.TypeReg, tar.TypeSymlink:
				files[name] = true
			case tar.TypeLink:
				if !files[h.Linkname] {
					t.Fatalf("%q is linked to %q", h.Name, h.Linkname)
				}
				files[name] = true
			default:
				t.Fatalf("%q has type %q", h.Name, h.Typeflag)
			}
			for k := range h.PAXRecords {
				if n, ok := strings.CutPrefix(k, xattrRecord); ok && (!strings.HasPrefix(n, "user.") || strings.HasPrefix(n, "user.overlay.")) {
					t.Fatalf("%q has %s", h.Name, n)
				}
			}
		}
	})
}
