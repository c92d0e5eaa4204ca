package snapshot

import (
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/cow/cowtest"
	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

// TestTheCommonTree sends the tree that every strategy is held to through an
// archive and to other file systems: every name, content, mode, hard link and
// user attribute arrives, and the digest of what arrived is the first one's. What
// is left out is warned of. As an overlay's merged layers it is the same again.
func TestTheCommonTree(t *testing.T) {
	testenv.Root(t)
	repo := testenv.RepoSmall(t)
	from := testenv.FS(t, "ext4", 128)
	cowtest.PlantTree(t, from)
	cowtest.PlantSpecial(t, from)
	archive, digest, w := pack(t, repo.Dir, open(t, from), nil)
	codes := map[policy.Code]int{}
	for _, d := range w.Warnings() {
		codes[d.Code]++
	}
	if codes[policy.CodeFileSkipped] != 1 || codes[policy.CodeAttributesDropped] != 2 {
		t.Errorf("%v", w.Warnings())
	}
	for _, kind := range []string{"xfs", "btrfs"} {
		to := testenv.FS(t, kind, 320)
		if err := unpack(t, archive, digest, to); err != nil {
			t.Fatal(err)
		}
		if _, again, _ := pack(t, repo.Dir, open(t, to), nil); again != digest {
			t.Errorf("%s: what arrived has another digest", kind)
		}
	}
	overlay(t, from, func(upper, lower string) {
		// The lower tree is the planted one, and everything is changed and changed back.
		if _, again, _ := pack(t, repo.Dir, open(t, upper), open(t, lower)); again != digest {
			t.Error("an overlay's layers make another tree")
		}
	})
}

// overlay copies the tree to a lower directory, changes it through a mounted
// overlay so that whiteouts, opaque directories and copied files are there, and
// changes it back.
func overlay(t *testing.T, from string, look func(upper, lower string)) {
	t.Helper()
	dir := testenv.FS(t, "ext4", 256)
	top := open(t, dir)
	if _, err := cow.ByName(policy.StrategyCopy).Materialize(t.Context(), cow.Request{Source: open(t, from), TargetParent: top, TargetName: "lower"}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"upper", "work", "merged"} {
		if err := unix.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	merged := filepath.Join(dir, "merged")
	opts := "userxattr,lowerdir=" + filepath.Join(dir, "lower") + ",upperdir=" + filepath.Join(dir, "upper") + ",workdir=" + filepath.Join(dir, "work")
	if err := unix.Mount("overlay", merged, "overlay", 0, opts); err != nil {
		t.Fatal(err)
	}
	sh(t, merged, `rm -rf empty && mkdir empty && mkdir -p new/deep && rm -r new
		cp -a dirs dirs2 && rm -r dirs && mv dirs2 dirs && touch gone && rm gone`)
	if err := unix.Unmount(merged, 0); err != nil {
		t.Fatal(err)
	}
	look(filepath.Join(dir, "upper"), filepath.Join(dir, "lower"))
}

// An overlay's view is what the mount shows, not what either layer has.
func TestOverlayView(t *testing.T) {
	testenv.Root(t)
	dir := testenv.FS(t, "ext4", 64)
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := unix.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sh(t, filepath.Join(dir, "lower"), `mkdir a b c d; touch a/f b/f c/f d/f file same; ln -s x link; mkdir dir2file; touch dir2file/f`)
	merged := filepath.Join(dir, "merged")
	if err := unix.Mount("overlay", merged, "overlay", 0, "userxattr,lowerdir="+dir+"/lower,upperdir="+dir+"/upper,workdir="+dir+"/work"); err != nil {
		t.Fatal(err)
	}
	sh(t, merged, `rm -r a; rm -r b; mkdir b; touch b/g; rm c/f; rm file; mkdir file; touch file/f; rm link; ln -s y link; rm -r dir2file; touch dir2file; touch d/g; chmod 700 d`)
	want := cowtest.List(t, merged)
	if err := unix.Unmount(merged, 0); err != nil {
		t.Fatal(err)
	}
	archive, digest, w := pack(t, testenv.RepoSmall(t).Dir, open(t, dir+"/upper"), open(t, dir+"/lower"))
	if len(w.Warnings()) != 0 {
		t.Errorf("a whiteout is no device node that is left out: %v", w.Warnings())
	}
	out := t.TempDir()
	if err := unpack(t, archive, digest, out); err != nil {
		t.Fatal(err)
	}
	got := cowtest.List(t, out)
	if a, b := slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got)); !slices.Equal(a, b) {
		t.Errorf("got %q, the mount shows %q", b, a)
	}
}
