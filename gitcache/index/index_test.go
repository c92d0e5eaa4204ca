package index

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=n", "-c", "user.email=e"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// made is a repository with nested directories, odd names, a symbolic link, an
// executable and a path longer than an entry's 12-bit length can say.
func made(t testing.TB, format string) string {
	t.Helper()
	dir := t.TempDir()
	git(t, "/", "init", "-q", "--object-format="+format, dir)
	long := strings.Repeat(strings.Repeat("d", 200)+"/", 22) + "file"
	for _, name := range []string{"a", "b/c/d", "b/c.e", "\xff\n", "x y"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	git(t, dir, "add", ".")
	blob := strings.TrimSpace(git(t, dir, "hash-object", "-w", "a"))
	head := strings.TrimSpace(git(t, dir, "commit-tree", "-m", "x", strings.TrimSpace(git(t, dir, "write-tree"))))
	git(t, dir, "update-index", "--add", "--cacheinfo", "100644,"+blob+","+long, "--cacheinfo", "160000,"+head+",sub")
	git(t, dir, "update-index", "--skip-worktree", long)
	return dir
}

func parseFile(t testing.TB, dir string, oidSize int) *Index {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, ".git/index"))
	if err != nil {
		t.Fatal(err)
	}
	x, err := Parse(b, oidSize)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestRoundTrip(t *testing.T) {
	for format, size := range map[string]int{"sha1": 20, "sha256": 32} {
		t.Run(format, func(t *testing.T) {
			dir := made(t, format)
			raw, _ := os.ReadFile(filepath.Join(dir, ".git/index"))
			for _, oidSize := range []int{0, size} {
				x, err := Parse(bytes.Clone(raw), oidSize)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(x.Bytes(), raw) {
					t.Error("an unchanged index does not come out as it went in")
				}
				var paths []string
				for i := range x.Len() {
					paths = append(paths, string(x.Entry(i).Path))
				}
				if want := strings.Split(strings.TrimSuffix(git(t, dir, "ls-files", "-z"), "\x00"), "\x00"); strings.Join(paths, "|") != strings.Join(want, "|") {
					t.Errorf("paths %q, want %q", paths, want)
				}
			}
			if _, err := Parse(bytes.Clone(raw), 52-size); err == nil {
				t.Error("taken with the wrong object format")
			}
		})
	}
}

func TestPatchTree(t *testing.T) {
	for _, format := range []string{"sha1", "sha256"} {
		dir := made(t, format)
		copied := filepath.Join(t.TempDir(), "copy")
		if out, err := exec.Command("cp", "-a", dir, copied).CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		before := parseFile(t, copied, 0)
		x := parseFile(t, copied, 0)
		top, err := os.Open(copied)
		if err != nil {
			t.Fatal(err)
		}
		defer top.Close()
		if err := x.PatchTree(t.Context(), top, uint32(os.Getuid()), uint32(os.Getgid()), nil); err != nil {
			t.Fatal(err)
		}
		for i := range x.Len() {
			e, old := x.Entry(i), before.Entry(i)
			if !bytes.Equal(e.OID, old.OID) || e.Mode != old.Mode || e.Stage != old.Stage || e.SkipWorktree != old.SkipWorktree {
				t.Errorf("%q changed what it says of content", e.Path)
			}
			if (e.SkipWorktree || e.IsGitlink()) != (e.Stat == old.Stat) {
				t.Errorf("%q: stat %+v, was %+v", e.Path, e.Stat, old.Stat)
			}
		}
		if err := os.WriteFile(filepath.Join(copied, ".git/index"), x.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		// git agrees: nothing needs a refresh.
		if out := git(t, copied, "diff-files", "--name-only", "--ignore-submodules=all"); out != "" {
			t.Errorf("git finds stale entries: %q", out)
		}
		if out := git(t, copied, "ls-files", "-s"); !strings.Contains(out, "160000") {
			t.Errorf("ls-files: %s", out)
		}
	}
}

// TestPatchPath: every path that Patch would ask for is found, all at once, and no other.
func TestPatchPath(t *testing.T) {
	for _, format := range []string{"sha1", "sha256"} {
		dir := made(t, format)
		blob := strings.TrimSpace(git(t, dir, "hash-object", "-w", "a"))
		conflict := exec.Command("git", "-C", dir, "update-index", "--index-info")
		conflict.Stdin = strings.NewReader("100644 " + blob + " 1\tboth\n100644 " + blob + " 3\tboth\n")
		if out, err := conflict.CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		want, x := parseFile(t, dir, 0), parseFile(t, dir, 0)
		changed := func(e Entry) (Stat, bool) {
			e.Stat.Ino++
			return e.Stat, string(e.Path) != "x y"
		}
		want.Patch(changed)
		var wg sync.WaitGroup
		for i := range x.Len() {
			e := x.Entry(i)
			wg.Go(func() {
				if got, ok := x.PatchPath(string(e.Path), changed), e.isFile() && string(e.Path) != "x y"; got != ok {
					t.Errorf("%q is stored: %t, want %t", e.Path, got, ok)
				}
			})
		}
		wg.Wait()
		for _, none := range []string{"", "A", "a ", "b", "b/c", "b/c/d/e", "zzz", "\xff\xff"} {
			if x.PatchPath(none, changed) {
				t.Errorf("%q is found", none)
			}
		}
		if !bytes.Equal(x.Bytes(), want.Bytes()) {
			t.Error("the index is not what Patch makes of it")
		}
	}
}

func TestPatchTreeRefuses(t *testing.T) {
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "d"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(dir string) error{
		"missing":      func(dir string) error { return os.Remove(filepath.Join(dir, "a")) },
		"another type": func(dir string) error { return os.Rename(filepath.Join(dir, "link"), filepath.Join(dir, "a")) },
		"symlinked dir": func(dir string) error {
			if err := os.RemoveAll(filepath.Join(dir, "b/c")); err != nil {
				return err
			}
			return os.Symlink(outside, filepath.Join(dir, "b/c"))
		},
	} {
		dir := made(t, "sha1")
		x := parseFile(t, dir, 20)
		if err := spoil(dir); err != nil {
			t.Fatal(err)
		}
		top, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer top.Close()
		if err := x.PatchTree(t.Context(), top, 0, 0, nil); !errors.Is(err, ErrChanged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestHostilePathsStayInside(t *testing.T) {
	dir := t.TempDir()
	for _, p := range []string{"..", "../x", "/etc/passwd", "a/..", "a/../../x", ".", ""} {
		x, err := Parse(build(2, entry(20, 0o100644, p)), 20)
		if err != nil {
			continue
		}
		top, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := x.PatchTree(t.Context(), top, 0, 0, nil); !errors.Is(err, ErrChanged) {
			t.Errorf("%q: %v", p, err)
		}
		top.Close()
	}
}

func TestExtensions(t *testing.T) {
	ext := func(sig string, data string) []byte {
		return append(binary.BigEndian.AppendUint32([]byte(sig), uint32(len(data))), data...)
	}
	body := entry(20, 0o100644, "a")
	x, err := Parse(build(2, body, ext("TREE", "abc"), ext("UNTR", "xyz"), ext("FSMN", ""), ext("EOIE", "12345678"), ext("REUC", "r")), 20)
	if err != nil {
		t.Fatal(err)
	}
	if want := build(2, body, ext("TREE", "abc"), ext("REUC", "r")); !bytes.Equal(x.Bytes(), want) {
		t.Errorf("%q, want %q", x.Bytes(), want)
	}
	for _, sig := range []string{"link", "abcd"} {
		if _, err := Parse(build(2, body, ext(sig, "x")), 20); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v", sig, err)
		}
	}
	if _, err := Parse(build(4, body), 20); !errors.Is(err, ErrUnsupported) {
		t.Errorf("version 4: %v", err)
	}
	if _, err := Parse(build(2, body, []byte("TREE\xff\xff\xff\xffx")), 20); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a long extension: %v", err)
	}
	good := build(2, body)
	good[20]++
	if _, err := Parse(good, 20); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a wrong checksum: %v", err)
	}
}

// entry is an index entry of the given mode and path with no stat data.
func entry(oidSize int, mode uint32, path string) []byte {
	b := make([]byte, statSize+oidSize+2)
	binary.BigEndian.PutUint32(b[24:], mode)
	binary.BigEndian.PutUint16(b[statSize+oidSize:], uint16(min(len(path), flagNameMask)))
	b = append(b, path...)
	return append(b, make([]byte, 8-len(b)%8)...)
}

// build is an index of one entry, with extensions and a right checksum.
func build(version uint32, parts ...[]byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte(signature), version)
	b = binary.BigEndian.AppendUint32(b, 1)
	for _, p := range parts {
		b = append(b, p...)
	}
	h := newHash(20)
	h.Write(b)
	return h.Sum(b)
}

// FuzzParse repairs the checksum, or nothing would get past it.
func FuzzParse(f *testing.F) {
	f.Add(build(2, entry(20, 0o100644, "a")), false)
	f.Fuzz(func(t *testing.T, b []byte, sha256 bool) {
		size := 20
		if sha256 {
			size = 32
		}
		if _, err := Parse(bytes.Clone(b), 0); err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrUnsupported) {
			t.Fatalf("an untyped error: %v", err)
		}
		if len(b) > size {
			h := newHash(size)
			h.Write(b[:len(b)-size])
			b = h.Sum(bytes.Clone(b[:len(b)-size]))
		}
		x, err := Parse(b, size)
		if err != nil {
			return
		}
		n := x.Patch(func(e Entry) (Stat, bool) {
			_ = string(e.Path) + string(e.OID)
			return Stat{Size: uint32(len(e.Path)), Ino: 7}, true
		})
		y, err := Parse(bytes.Clone(x.Bytes()), size)
		if err != nil || y.Len() != x.Len() || n > x.Len() {
			t.Fatalf("what was patched does not parse: %v", err)
		}
		for i := range y.Len() {
			a, c := x.Entry(i), y.Entry(i)
			if !bytes.Equal(a.Path, c.Path) || !bytes.Equal(a.OID, c.OID) || a.Stat != c.Stat || a.Mode != c.Mode {
				t.Fatalf("entry %d: %+v, then %+v", i, a, c)
			}
		}
	})
}
