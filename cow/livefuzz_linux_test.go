package cow_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/cow/cowtest"
	"yoi.dev/yoi-runtime/policy"
)

// FuzzLive has a tree made and then changed by a script of bytes while it is
// walked. The copy is always what the tree was when the last walk began.
func FuzzLive(f *testing.F) {
	f.Add([]byte("a0b1c2d3e4f5"))
	f.Add([]byte("\x00\x01\x02\x03\x10\x11\x12\x20\x21\x30\x41\x52\x63\x74\x85\x96"))
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 64 {
			return
		}
		src, dst, r := liveDirs(t, t.TempDir())
		half := len(script) / 2
		for _, b := range script[:half] {
			mutate(src, b)
		}
		rest := script[half:]
		asked := 0
		var want cowtest.Listing
		r.Filter = func(dir string) func(string, bool) bool {
			if dir == "" { // a walk begins
				want = cowtest.List(t, src)
			}
			if asked++; len(rest) > 0 && asked%2 == 0 { // few enough for the walks there are
				n := min(len(rest), 1+len(rest)/4)
				for _, b := range rest[:n] {
					mutate(src, b)
				}
				rest = rest[n:]
			}
			return nil
		}
		_, err := cow.Live(t.Context(), r)
		switch {
		case err == nil:
			cowtest.Compare(t, want, cowtest.List(t, dst))
		case !errors.Is(err, policy.CodeSourceChanged):
			t.Fatal(err)
		}
	})
}

// mutate does one thing to a small tree; what cannot be done is not.
func mutate(dir string, b byte) {
	names := []string{"a", "b", "d/x", "d/y", "d", "e", "d/z/q", "d/z"}
	name := filepath.Join(dir, names[b&7])
	other := filepath.Join(dir, names[(b>>1)&7])
	switch b >> 4 {
	case 0, 1, 2:
		_ = os.MkdirAll(filepath.Dir(name), 0o755)
		_ = os.WriteFile(name, []byte{b}, 0o644)
	case 3:
		_ = os.MkdirAll(name, 0o755)
	case 4:
		_ = os.RemoveAll(name)
	case 5, 6:
		_ = os.Rename(name, other)
	case 7:
		_ = os.Symlink(other, name)
	case 8, 9:
		_ = os.Link(name, other)
	case 10:
		_ = os.Chmod(name, 0o700|os.FileMode(b&7))
	case 11:
		_ = os.Truncate(name, int64(b))
	default:
		_ = os.WriteFile(name, []byte("more"), 0o600)
	}
}
