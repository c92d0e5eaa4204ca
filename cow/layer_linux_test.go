package cow_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

// A copy of an overlay's upper directory is one too: whiteouts with their owner,
// opaque directories, a Worker's own attributes of that name, and nothing that
// would lead a lookup elsewhere. An ordinary copy has none of it.
func TestLayer(t *testing.T) {
	dir := testenv.FS(t, "ext4", 64)
	src := filepath.Join(dir, "upper")
	if err := os.MkdirAll(filepath.Join(src, "opaque"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		unix.Mknod(filepath.Join(src, "gone"), unix.S_IFCHR, 0), os.Lchown(filepath.Join(src, "gone"), 1234, 1234),
		unix.Mknod(filepath.Join(src, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
		unix.Setxattr(filepath.Join(src, "opaque"), "user.overlay.opaque", []byte("y"), 0),
		unix.Setxattr(filepath.Join(src, "opaque"), "user.overlay.redirect", []byte("/etc"), 0),
		unix.Setxattr(filepath.Join(src, "opaque"), "user.overlay.overlay.opaque", []byte("w"), 0),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	from, err := os.Open(src)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	parent, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer parent.Close()
	for name, layer := range map[string]bool{"layer": true, "tree": false} {
		if _, err := cow.ByName(policy.StrategyReflink).Materialize(t.Context(), cow.Request{Source: from, TargetParent: parent, TargetName: name, Layer: layer}); err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		err := unix.Lstat(filepath.Join(dir, name, "gone"), &st)
		if whiteout := err == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 && st.Uid == 1234; whiteout != layer {
			t.Errorf("%s: the whiteout is %+v, %v", name, st, err)
		}
		if _, err := os.Lstat(filepath.Join(dir, name, "null")); err == nil {
			t.Errorf("%s: a device was made", name)
		}
		for attr, want := range map[string]bool{"user.overlay.opaque": layer, "user.overlay.overlay.opaque": layer, "user.overlay.redirect": false} {
			_, err := unix.Getxattr(filepath.Join(dir, name, "opaque"), attr, make([]byte, 16))
			if (err == nil) != want {
				t.Errorf("%s: %s: %v", name, attr, err)
			}
		}
	}
}
