package snapshot

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

// inside is an archive's content without its frame.
func inside(t testing.TB, archive []byte) []byte {
	t.Helper()
	d, err := zstd.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	b, err := io.ReadAll(d)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// framed makes an archive of any content, with its true digest.
func framed(t testing.TB, content []byte) (archive []byte, digest string) {
	t.Helper()
	var b bytes.Buffer
	z, err := zstd.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	return b.Bytes(), policy.FormatDigest(sum[:])
}

// entries is an archive of a workspace with the given raw entries.
func entries(t testing.TB, repo testenv.Repo, raw ...string) (archive []byte, digest string) {
	t.Helper()
	var b bytes.Buffer
	finish(t, begin(t, &b, repo.Dir, KindWorkspace))
	content := bytes.TrimSuffix(inside(t, b.Bytes()), []byte{tagEnd})
	return framed(t, append(content, strings.Join(raw, "")+string(tagEnd)...))
}

func text(s string) string { return string(appendText(nil, s)) }

func dir(path string) string { return "d" + text(path) + number(0o755) + "\x00" }
func number(n uint64) string { return string(binary.AppendUvarint(nil, n)) }
func plain(path, content string) string {
	return "f" + text(path) + number(0o644) + "\x00" + text(content)
}
func link(path, target string) string { return "l" + text(path) + text(target) }

// TestHostileEntries is what a tar file could say, with a true digest. Nothing
// of it may reach beyond the directory, and nothing of it may be taken.
func TestHostileEntries(t *testing.T) {
	repo := testenv.RepoSmall(t)
	attr := func(name string) string {
		return "f" + text("f") + number(0o644) + "\x01" + text(name) + text("v") + text("")
	}
	mode := func(m uint64) string { return "f" + text("f") + number(m) + "\x00" + text("") }
	for name, raw := range map[string][]string{
		"parent":                    {plain("../escaped", "x")},
		"absolute":                  {plain("/escaped", "x")},
		"parent inside":             {dir("a"), plain("a/../../escaped", "x")},
		"dot":                       {plain("./f", "x")},
		"empty path":                {plain("", "x")},
		"empty component":           {dir("a"), plain("a//f", "x")},
		"trailing slash":            {dir("a/")},
		"NUL":                       {plain("a\x00b", "x")},
		"long name":                 {plain(strings.Repeat("n", 256), "x")},
		"git directory":             {dir(".git"), plain(".git/config", "[core]\n\tfsmonitor = evil")},
		"git file":                  {plain(".git", "gitdir: /")},
		"git by case":               {dir(".GIT")},
		"twice":                     {plain("f", "x"), plain("f", "y")},
		"unsorted":                  {plain("g", "x"), plain("f", "y")},
		"through a symlink":         {link("a", "/tmp"), plain("a/escaped", "x")},
		"symlink then directory":    {link("a", "/tmp"), dir("a"), plain("a/escaped", "x")},
		"through a file":            {plain("a", "x"), plain("a/f", "x")},
		"without its directory":     {plain("a/f", "x")},
		"in a directory left":       {dir("a"), plain("a/f", "x"), plain("b", "x"), plain("a/g", "x")},
		"hard link outside":         {"h" + text("f") + text("/etc/passwd")},
		"hard link up":              {"h" + text("f") + text("../../etc/passwd")},
		"hard link to later":        {"h" + text("a") + text("b"), "F" + plain("b", "x")[1:]},
		"hard link to a plain file": {plain("a", "x"), "h" + text("b") + text("a")},
		"hard link to a symlink":    {link("a", "/etc/passwd"), "h" + text("b") + text("a")},
		"hard link to itself":       {"h" + text("a") + text("a")},
		"a link that never comes":   {"F" + plain("a", "x")[1:]},
		"device":                    {"c" + text("null") + number(0o666) + number(1) + number(3)},
		"block device":              {"b" + text("sda") + number(0o666)},
		"FIFO":                      {"p" + text("pipe") + number(0o666)},
		"set-user-ID":               {mode(0o4755)},
		"set-group-ID":              {mode(0o2755)},
		"sticky":                    {mode(0o1777)},
		"type bits":                 {mode(0o100644)},
		"capability":                {attr("security.capability")},
		"trusted overlay":           {attr("trusted.overlay.opaque")},
		"user overlay":              {attr("user.overlay.redirect")},
		"ACL":                       {attr("system.posix_acl_access")},
		"nameless attribute":        {attr("user.")},
		"attribute with NUL":        {attr("user.a\x00b")},
		"attributes twice":          {"f" + text("f") + number(0o644) + "\x02" + text("user.a") + text("") + text("user.a") + text("") + text("")},
		"empty symlink":             {link("l", "")},
		"symlink with NUL":          {link("l", "a\x00b")},
		"long number":               {"f" + text("f") + "\xa4\x83\x80\x00" + "\x00" + text("")},
		"endless number":            {"f" + strings.Repeat("\xff", 20)},
	} {
		t.Run(name, func(t *testing.T) {
			archive, digest := entries(t, repo, raw...)
			outer := t.TempDir()
			target := filepath.Join(outer, "t")
			if err := os.Mkdir(target, 0o700); err != nil {
				t.Fatal(err)
			}
			wantCode(t, unpack(t, archive, digest, target), policy.CodeSnapshotInvalid)
			if found, _ := os.ReadDir(outer); len(found) != 1 {
				t.Errorf("outside: %v", found)
			}
			for _, p := range []string{"/escaped", "/tmp/escaped"} {
				if _, err := os.Lstat(p); err == nil {
					t.Fatalf("%s was made", p)
				}
			}
		})
	}
	// What is allowed, so that the cases above fail for their own reason.
	archive, digest := entries(t, repo, dir("a"), plain("a/f", "x"), link("abs", "/etc/passwd"), "F"+plain("g", "x")[1:], "h"+text("h")+text("g"))
	if err := unpack(t, archive, digest, t.TempDir()); err != nil {
		t.Error(err)
	}
}

// TestHostileObjects has objects that are not the commit's.
func TestHostileObjects(t *testing.T) {
	repo := testenv.RepoSmall(t)
	var b bytes.Buffer
	digest := finish(t, begin(t, &b, repo.Dir, KindPoint))
	content := inside(t, b.Bytes())
	line := bytes.IndexByte(content[len(magic):], '\n') + len(magic) + 1
	header, objects := string(content[len(magic):line]), string(content[line:])
	change := func(old, new string) []byte {
		h := strings.Replace(header, old, new, 1)
		if h == header {
			t.Fatalf("%q is not in %s", old, header)
		}
		return []byte(magic + h + objects)
	}
	swapped := bytes.Clone(content)
	swapped[len(swapped)-2] ^= 1 // in the last blob
	for name, bad := range map[string][]byte{
		"a blob's content":   swapped,
		"another commit":     change(`"commit":"`+strings.TrimSpace(testenv.Git(t, repo.Dir, "rev-parse", "HEAD")), `"commit":"`+strings.Repeat("1", 40)),
		"another format":     change(`"sha1"`, `"sha256"`),
		"unknown format":     change(`"sha1"`, `"md5"`),
		"unknown kind":       change(`"point"`, `"whole"`),
		"unknown field":      change(`{"kind"`, `{"more":1,"kind"`),
		"other order":        change(`{"kind":"point","object_format":"sha1"`, `{"object_format":"sha1","kind":"point"`),
		"a space":            change(`{"kind"`, `{ "kind"`),
		"too few objects":    change(`"objects":`, `"objects":1`),
		"scope that escapes": change(`}`, `,"scope":["../x"]}`),
		"scope unsorted":     change(`}`, `,"scope":["b","a"]}`),
		"another magic":      []byte("yoi-snapshot-2\n" + header + objects),
		"more behind":        append(bytes.Clone(content), 'E'),
	} {
		archive, _ := framed(t, bad)
		err := readAll(archive, digest, policy.SnapshotLimits{})
		if d := policy.AsDiagnostic(err); err == nil || (d.Code != policy.CodeSnapshotInvalid && d.Code != policy.CodeSnapshotTruncated) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestBombs unpack to more than they may.
func TestBombs(t *testing.T) {
	repo := testenv.RepoSmall(t)
	zeroes := strings.Repeat("\x00", 100<<20)
	bomb, digest := entries(t, repo, plain("zeroes", zeroes))
	if len(bomb) > 100<<10 {
		t.Fatalf("%d bytes", len(bomb))
	}
	wantCode(t, readAll(bomb, digest, policy.SnapshotLimits{}), policy.CodeSnapshotTooLarge) // its ratio
	if err := readAll(bomb, digest, policy.SnapshotLimits{MaxRatio: 1 << 20}); err != nil {
		t.Error(err)
	}
	wantCode(t, readAll(bomb, digest, policy.SnapshotLimits{MaxRatio: 1 << 20, MaxBytes: 50 << 20}), policy.CodeSnapshotTooLarge)
	many := make([]string, 200)
	for i := range many {
		many[i] = plain("f"+strings.Repeat("a", i), "")
	}
	archive, digest := entries(t, repo, many...)
	wantCode(t, readAll(archive, digest, policy.SnapshotLimits{MaxFiles: 100}), policy.CodeSnapshotTooLarge)
	claim, digest := entries(t, repo, "f"+text("f")+number(0o644)+"\x00"+number(1<<60)) // memory is not given in advance
	wantCode(t, readAll(claim, digest, policy.SnapshotLimits{}), policy.CodeSnapshotTooLarge)
	// A tree of trees names 2^40 files with 40 objects.
	g := Graph{Root: "0", trees: map[string][]TreeEntry{}}
	for i := range 40 {
		next := TreeEntry{Mode: modeDir, OID: string(rune('0' + i + 1))}
		a, b := next, next
		a.Name, b.Name = "a", "b"
		g.trees[string(rune('0'+i))] = []TreeEntry{a, b}
	}
	_, _, err := g.Places(nil, 100_000)
	wantCode(t, err, policy.CodeSnapshotTooLarge)
	// A window of 1 GiB would be memory that the reader has to give.
	var b bytes.Buffer
	z, err := zstd.NewWriter(&b, zstd.WithWindowSize(512<<20))
	if err == nil {
		_, err = z.Write(bytes.Repeat([]byte("0123456789abcdef"), 40<<20/16))
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, readAll(b.Bytes(), digest, policy.SnapshotLimits{}), policy.CodeSnapshotTooLarge)
}

// TestLongPaths are archives of a few bytes whose paths, written out, are more
// memory than a host has.
func TestLongPaths(t *testing.T) {
	name := strings.Repeat("n", maxName)
	g := Graph{Root: "0", trees: map[string][]TreeEntry{}}
	for i := range 200 {
		g.trees[strconv.Itoa(i)] = []TreeEntry{{Mode: modeDir, Name: name, OID: strconv.Itoa(i + 1)}}
	}
	for i := range 50_000 {
		g.trees["200"] = append(g.trees["200"], TreeEntry{Mode: modeRegular | 0o644, Name: fmt.Sprintf("%06d", i), OID: "blob"})
	}
	_, _, err := g.Places(nil, 100_000)
	wantCode(t, err, policy.CodeSnapshotTooLarge)

	repo := testenv.RepoSmall(t)
	var raw []string
	path := ""
	for range 250 {
		path += name
		raw = append(raw, dir(path))
		path += "/"
	}
	for i := range 1_000 {
		raw = append(raw, plain(path+fmt.Sprintf("%06d", i), ""))
	}
	archive, digest := entries(t, repo, raw...)
	wantCode(t, readAll(archive, digest, policy.SnapshotLimits{MaxRatio: 1 << 20, MaxFiles: 100_000}), policy.CodeSnapshotTooLarge)
}

// TestEndlessFrames: what unpacks to nothing is bounded too, for whoever keeps it.
func TestEndlessFrames(t *testing.T) {
	skipped := append([]byte{0x50, 0x2a, 0x4d, 0x18, 0, 0, 1, 0}, make([]byte, 1<<16)...) // RFC 8878, 3.1.2
	from := &endless{part: skipped, left: 1000}
	r, err := NewReader(from, policy.SnapshotLimits{MaxBytes: 1 << 20})
	if err == nil {
		r.Close()
	}
	wantCode(t, err, policy.CodeSnapshotTooLarge)
	if from.left < 900 {
		t.Errorf("only %d parts were left", from.left)
	}
}

// endless gives one part again and again.
type endless struct {
	part []byte
	at   int
	left int
}

func (e *endless) Read(b []byte) (int, error) {
	if e.at == len(e.part) {
		e.at = 0
		e.left--
	}
	if e.left == 0 {
		return 0, io.EOF
	}
	n := copy(b, e.part[e.at:])
	e.at += n
	return n, nil
}

// FuzzReader feeds the reader: it must end, with a diagnostic or the digest.
func FuzzReader(f *testing.F) {
	repo := testenv.RepoSmall(f)
	dirname := f.TempDir()
	write(f, dirname, "a/f", "content\n", 0o755)
	archive, _, _ := pack(f, repo.Dir, open(f, dirname), nil)
	f.Add(inside(f, archive))
	var point bytes.Buffer
	finish(f, begin(f, &point, repo.Dir, KindPoint))
	f.Add(inside(f, point.Bytes()))
	for _, raw := range []string{
		dir("a") + link("a/l", "../..") + plain("b", "x"), plain("../f", "x"), link("a", "/") + plain("a/f", "x"),
		"F" + plain("g", "x")[1:] + "h" + text("h") + text("g"), "d" + text("d") + number(0o755) + "\x01" + text("user.a") + text("v"), "c" + text("null"),
	} {
		archive, _ := entries(f, repo, raw)
		f.Add(inside(f, archive))
	}
	small := policy.SnapshotLimits{MaxBytes: 1 << 20, MaxFiles: 1000}
	f.Fuzz(func(t *testing.T, content []byte) {
		// Without the frame, whose goroutines would hide from the fuzzer what an
		// input reaches.
		r := &Reader{src: &source{}, sum: sha256.New(), limits: small.Normalize()}
		err := r.begin(bytes.NewReader(content))
		sum := sha256.Sum256(content)
		if err == nil {
			err = r.Finish(policy.FormatDigest(sum[:]))
		}
		if err != nil {
			if policy.AsDiagnostic(err).Code == policy.CodeInternal {
				t.Fatalf("not a diagnostic: %v", err)
			}
			return
		}
		archive, digest := framed(t, content)
		if err := unpack(t, archive, digest, t.TempDir()); err != nil && policy.AsDiagnostic(err).Code == policy.CodeInternal {
			t.Fatal(err)
		}
	})
}
