package gitcache

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/gitcache/index"
	"yoi.dev/yoi-runtime/policy"
)

// taken walks names as CopyLive does, and returns those that come along.
func taken(f *artifactFilter, names []string) []string {
	dirs := map[string]bool{}
	var out []string
	for _, name := range names {
		ok := true
		for dir, rest := "", name; ok; {
			first, more, isDir := strings.Cut(rest, "/")
			ok = f.directory(dir)(first, isDir)
			if !isDir {
				break
			}
			dir, rest = strings.TrimPrefix(dir+"/"+first, "/"), more
			dirs[dir] = true
		}
		if ok {
			out = append(out, name)
		}
	}
	return out
}

func filterOf(t testing.TB, top string, p policy.ArtifactPolicy, tracked ...string) *artifactFilter {
	t.Helper()
	empty, err := index.Parse(append([]byte("DIRC\x00\x00\x00\x02\x00\x00\x00\x00"), make([]byte, 20)...), 20)
	if err != nil {
		t.Fatal(err)
	}
	return newArtifactFilter(&sourceDir{top: top}, nil, p.Compile(), tracked, empty)
}

func TestArtifactFilter(t *testing.T) {
	f := filterOf(t, t.TempDir(), policy.ArtifactPolicy{}, "build/a/tracked", "dist", "node_modules/p/index.js")
	got := taken(f, []string{
		".git/config", "src/.git/HEAD", "src/main.go", "build/a/tracked", "build/a/other", "build/other", "build/package.json", "dist",
		"node_modules/p/index.js", "node_modules/q/package.json", "web/dist/x", "package.json", "x.pyc",
	})
	want := []string{"src/main.go", "build/a/tracked", "dist", "node_modules/p/index.js", "package.json"}
	if !slices.Equal(got, want) {
		t.Errorf("come along %q, want %q", got, want)
	}
	if !slices.Contains(f.excluded, "web/dist/") || f.count != 2 {
		t.Errorf("left out %q, %d", f.excluded, f.count)
	}
}

// A nested repository whose index cannot be read comes along whole.
func TestArtifactsOfANestedRepository(t *testing.T) {
	top := t.TempDir()
	for name, text := range map[string]string{"n/.git/HEAD": "ref: refs/heads/main\n", "n/.git/index": "no index"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(top, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(top, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f := filterOf(t, top, policy.ArtifactPolicy{})
	if got := taken(f, []string{"n/target/x", "n/deep/build/x", "n/.git/HEAD", "target/x"}); !slices.Equal(got, []string{"n/target/x", "n/deep/build/x"}) {
		t.Errorf("come along %q", got)
	}
	if len(f.warnings) != 1 || f.warnings[0].Code != policy.CodeNestedRepository || f.warnings[0].Fields["path"] != "n" {
		t.Errorf("warnings %v", f.warnings)
	}
}

// FuzzArtifactFilter wants a tracked file along, and a git directory left,
// whatever the patterns are.
func FuzzArtifactFilter(f *testing.F) {
	f.Add("build/", "build/a/b", "build/c")
	f.Add("*", "a", "a/b")
	f.Add("a/*/", "a/b/c", "a/.git/x")
	f.Fuzz(func(t *testing.T, pattern, tracked, other string) {
		p := policy.ArtifactPolicy{Exclude: []string{pattern}}
		for _, name := range []string{tracked, other} {
			if name == "" || filepath.Clean("/"+name) != "/"+name || strings.ContainsRune(name, 0) || len(name) > 4000 {
				return
			}
		}
		if p.Validate() != nil || slices.Contains(strings.Split(tracked, "/"), ".git") {
			return
		}
		x := filterOf(t, "/nonexistent", p, tracked)
		got := taken(x, []string{tracked, other})
		if !slices.Contains(got, tracked) {
			t.Errorf("tracked %q is left out by %q", tracked, pattern)
		}
		if slices.Contains(strings.Split(other, "/"), ".git") && slices.Contains(got, other) {
			t.Errorf("%q comes along", other)
		}
	})
}
