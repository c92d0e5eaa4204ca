package cow

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// dirent encodes one struct linux_dirent64.
func dirent(name string, typ byte) []byte {
	b := make([]byte, (direntHeader+len(name)+1+7)&^7)
	binary.NativeEndian.PutUint16(b[16:], uint16(len(b)))
	b[18] = typ
	copy(b[direntHeader:], name)
	return b
}

// FuzzDirents: whatever a getdents64 buffer holds, a name that comes out is one
// path component inside the buffer, and reading ends.
func FuzzDirents(f *testing.F) {
	f.Add([]byte{})
	f.Add(dirent(".", 4))
	f.Add(append(dirent("..", 4), dirent("a\nb", 8)...))
	f.Add(dirent(strings.Repeat("\xff", 255), 10))
	f.Add(append(dirent("a/b", 8), dirent("c", 8)...))
	f.Add(dirent("", 8))
	f.Add(dirent("cut", 8)[:20])
	f.Fuzz(func(t *testing.T, b []byte) {
		for steps := 0; ; steps++ {
			name, _, rest, ok := nextDirent(b)
			if !ok {
				return
			}
			if n := len(name); n < 2 || name[n-1] != 0 || bytes.IndexByte(name[:n-1], 0) >= 0 || bytes.IndexByte(name, '/') >= 0 {
				t.Fatalf("name %q", name)
			}
			if len(rest) >= len(b) || cap(name) != len(name) {
				t.Fatalf("%d bytes left of %d, name's capacity %d", len(rest), len(b), cap(name))
			}
			b = rest
		}
	})
}

// FuzzNames: any name that the file system takes is copied and removed, and
// nothing beside it is touched.
func FuzzNames(f *testing.F) {
	for _, name := range []string{"plain", "-rf", "new\nline", "\xff\xfe", "...", " ", "*", "a\\b", "\x1b[31m", strings.Repeat("x", 255)} {
		f.Add(name, "target of "+name)
	}
	f.Fuzz(func(t *testing.T, name, link string) {
		dir := t.TempDir()
		plant(t, dir, "canary", "source/")
		in := func(tree string, more ...string) string {
			return filepath.Join(dir, tree) + "/" + strings.Join(more, "/")
		}
		if name == "" || name == "." || name == ".." || strings.Contains(name, "/") || os.Mkdir(in("source", name), 0o755) != nil {
			return
		}
		must(t, os.WriteFile(in("source", name, name), []byte(name), 0o644))
		hasLink := os.Symlink(link, in("source", name, "link"+name)) == nil
		_, err := treeCopy{clone: true}.Materialize(t.Context(), job(t, dir))
		must(t, err)
		if b, err := os.ReadFile(in("target", name, name)); err != nil || string(b) != name {
			t.Errorf("%q: %q %v", name, b, err)
		}
		if got, err := os.Readlink(in("target", name, "link"+name)); hasLink && (err != nil || got != link) {
			t.Errorf("link of %q: %q %v, want %q", name, got, err, link)
		}
		for _, tree := range []string{"source", "target"} {
			must(t, RemoveTree(t.Context(), openForTest(t, dir), tree, RemoveOptions{}))
		}
		left, err := os.ReadDir(dir)
		if err != nil || len(left) != 1 || left[0].Name() != "canary" {
			t.Errorf("left: %v %v", left, err)
		}
	})
}
