package bundle

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// tree makes a directory of "name" → content; "name/" is a directory, "name->to" a
// link, "name*" executable.
func tree(t testing.TB, entries map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range entries {
		var err error
		link, to, isLink := strings.Cut(name, "->")
		p := filepath.Join(dir, strings.TrimSuffix(link, "*"))
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		switch {
		case isLink:
			err = os.Symlink(to, p)
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(p, 0o700)
		case strings.HasSuffix(name, "*"):
			err = os.WriteFile(p, []byte(content), 0o700)
		default:
			err = os.WriteFile(p, []byte(content), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func open(t testing.TB, dir string) *os.File {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// through packs a directory, unpacks it elsewhere and returns both digests.
func through(t testing.TB, dir string) (before, after policy.BundleDigest, s Stats) {
	t.Helper()
	var b bytes.Buffer
	if err := Pack(dir, &b); err != nil {
		t.Fatal(err)
	}
	into := open(t, t.TempDir())
	if _, err := Unpack(&b, into); err != nil {
		t.Fatal(err)
	}
	before, _, err := Sum(open(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	after, s, err = Sum(into)
	if err != nil {
		t.Fatal(err)
	}
	return before, after, s
}

var sample = map[string]string{"a": "1", "sub/b*": "22", "sub/deep/c": "", "empty/": "", "sub/l->../a": "", "odd\n\xffname": "3", "dangling->none": ""}

func TestDigestIsOfTheContent(t *testing.T) {
	one, unpacked, s := through(t, tree(t, sample))
	if one != unpacked {
		t.Errorf("%s became %s on the way", one, unpacked)
	}
	if s.Files != 6 || s.Bytes != 4 {
		t.Errorf("%+v", s)
	}
	same := tree(t, sample)
	past := time.Unix(1, 0)
	if err := errors.Join(os.Chtimes(same+"/a", past, past), os.Chmod(same+"/a", 0o444)); err != nil {
		t.Fatal(err)
	}
	if d, _, _ := through(t, same); d != one {
		t.Error("times or modes change the digest")
	}
	for name, change := range map[string]func(dir string) error{
		"content":     func(d string) error { return os.WriteFile(d+"/a", []byte("2"), 0o600) },
		"name":        func(d string) error { return os.Rename(d+"/a", d+"/z") },
		"place":       func(d string) error { return os.Rename(d+"/a", d+"/empty/a") },
		"executable":  func(d string) error { return os.Chmod(d+"/a", 0o755) },
		"target":      func(d string) error { return errors.Join(os.Remove(d+"/sub/l"), os.Symlink("../b", d+"/sub/l")) },
		"a directory": func(d string) error { return os.Mkdir(d+"/more", 0o755) },
		"a file less": func(d string) error { return os.Remove(d + "/sub/deep/c") },
		"a file for a link": func(d string) error {
			return errors.Join(os.Remove(d+"/sub/l"), os.WriteFile(d+"/sub/l", []byte("../a"), 0o600))
		},
	} {
		dir := tree(t, sample)
		if err := change(dir); err != nil {
			t.Fatal(err)
		}
		if d, _, err := Sum(open(t, dir)); err != nil || d == one {
			t.Errorf("%s does not change the digest (%v)", name, err)
		}
	}
	// The digest is a promise to whoever has written one down.
	d, _, err := Sum(open(t, tree(t, map[string]string{"a": "1"})))
	if err != nil || d != "sha256:b893aaaab147414e2fc3c4984088633a95b67050adcaa455c01e6c3bc7cb12f9" {
		t.Errorf("%s, %v", d, err)
	}
}

func TestPackRefuses(t *testing.T) {
	dir := tree(t, sample)
	if err := unix.Mkfifo(dir+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, dir + "/a", dir + "/none"} {
		if err := Pack(d, io.Discard); !errors.Is(err, policy.CodeBundleInvalid) {
			t.Errorf("%s: %v", d, err)
		}
	}
	many := t.TempDir()
	for i := range MaxEntries + 1 {
		if err := os.WriteFile(filepath.Join(many, strconv.Itoa(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Pack(many, io.Discard); !errors.Is(err, policy.CodeBundleInvalid) {
		t.Errorf("too many: %v", err)
	}
}

// archive makes an archive of headers; content is as long as each says.
func archive(t testing.TB, hs ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range hs {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.CopyN(w, zeros{}, h.Size); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestHostileArchives(t *testing.T) {
	file := func(name string) tar.Header {
		return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: 1}
	}
	link := func(name, to string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
	}
	many := make([]tar.Header, MaxEntries+1)
	for i := range many {
		many[i] = tar.Header{Typeflag: tar.TypeDir, Name: "d/"}
	}
	deep := strings.Repeat("d/", maxDepth+1) + "f"
	for name, hs := range map[string][]tar.Header{
		"an absolute name":     {file("/etc/x")},
		"dots":                 {file("../x")},
		"dots inside":          {file("a/../../x")},
		"dots at the end":      {file("a/..")},
		"an empty component":   {file("a//b")},
		"no name":              {file(".")},
		"a file twice":         {file("a"), file("a")},
		"a file as directory":  {file("a"), file("a/b")},
		"a link twice":         {link("a", "b"), link("a", "b")},
		"behind a link":        {link("a", "b"), file("a/x")},
		"a link as directory":  {link("a", "b"), {Typeflag: tar.TypeDir, Name: "a/"}},
		"a link out":           {link("a", "../x")},
		"a link far out":       {link("s/a", "b/../../../x")},
		"an absolute link":     {link("a", "/etc/passwd")},
		"an empty link":        {link("a", "")},
		"a hard link":          {file("a"), {Typeflag: tar.TypeLink, Name: "b", Linkname: "a"}},
		"a FIFO":               {{Typeflag: tar.TypeFifo, Name: "a"}},
		"a device":             {{Typeflag: tar.TypeChar, Name: "a", Devmajor: 1, Devminor: 3}},
		"too many":             many,
		"too deep":             {file(deep)},
		"too large":            {{Typeflag: tar.TypeReg, Name: "a", Size: MaxBytes}, file("b")},
		"a component too long": {file(strings.Repeat("n", 256))},
	} {
		dir := t.TempDir()
		top := filepath.Join(dir, "top")
		if err := os.Mkdir(top, 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := Unpack(archive(t, hs...), open(t, top)); !errors.Is(err, policy.CodeBundleInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if entries, _ := os.ReadDir(dir); len(entries) != 1 {
			t.Errorf("%s: beside the bundle are %v", name, entries)
		}
	}
	whole := archive(t, file("a"), file("b")).Bytes()
	for n := range len(whole) - 512 { // the second block of the mark is not needed to know the end
		if n%128 != 0 {
			continue
		}
		for _, r := range []io.Reader{bytes.NewReader(whole[:n]), iotest.DataErrReader(bytes.NewReader(whole[:n]))} {
			if _, err := Unpack(r, open(t, t.TempDir())); !errors.Is(err, policy.CodeBundleInvalid) {
				t.Errorf("%d of %d bytes: %v", n, len(whole), err)
			}
		}
	}
	setuid := open(t, t.TempDir())
	if _, err := Unpack(archive(t, tar.Header{Typeflag: tar.TypeReg, Name: "a", Mode: 0o6777, Size: 1}), setuid); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(setuid.Name() + "/a"); err != nil || st.Mode() != 0o755 {
		t.Errorf("a setuid file became %v, %v", st.Mode(), err)
	}
}

// Whatever an archive is, nothing is made beside the directory, and what is accepted
// has a digest.
func FuzzUnpack(f *testing.F) {
	f.Add(archive(f, tar.Header{Typeflag: tar.TypeReg, Name: "a/b", Size: 3}, tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "a"}).Bytes())
	f.Add([]byte("not an archive"))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		top := filepath.Join(dir, "top")
		if err := os.Mkdir(top, 0o755); err != nil {
			t.Fatal(err)
		}
		into := open(t, top)
		_, err := Unpack(bytes.NewReader(b), into)
		if entries, _ := os.ReadDir(dir); len(entries) != 1 {
			t.Fatalf("beside the bundle are %v", entries)
		}
		if err != nil {
			return
		}
		if _, _, err := Sum(into); err != nil {
			t.Fatal(err)
		}
	})
}
