package policy

import (
	"errors"
	"strings"
	"testing"
)

func TestArtifacts(t *testing.T) {
	for _, c := range []struct {
		name   string
		policy ArtifactPolicy
		path   string
		isDir  bool
		want   bool
	}{
		{"default directory", ArtifactPolicy{}, "web/node_modules", true, true},
		{"a file of that name", ArtifactPolicy{}, "build", false, false},
		{"default file", ArtifactPolicy{}, "a/b.pyc", false, true},
		{"source", ArtifactPolicy{}, "src/main.go", false, false},
		{"whole path", ArtifactPolicy{}, ".nx/cache", true, true},
		{"whole path elsewhere", ArtifactPolicy{}, "a/.nx/cache", true, false},
		{"nothing", ArtifactPolicy{Exclude: []string{"none"}}, "node_modules", true, false},
		{"own instead", ArtifactPolicy{Exclude: []string{"*.log"}}, "node_modules", true, false},
		{"own beside", ArtifactPolicy{Exclude: []string{"default", "*.log"}}, "x/y.log", false, true},
		{"default beside own", ArtifactPolicy{Exclude: []string{"default", "*.log"}}, "node_modules", true, true},
		{"kept", ArtifactPolicy{Keep: []string{"build/"}}, "build", true, false},
		{"kept only there", ArtifactPolicy{Keep: []string{"web/dist"}}, "dist", true, true},
		{"lockfile", ArtifactPolicy{Exclude: []string{"*.json", "*.lock", "go.*"}}, "a/package-lock.json", false, false},
		{"manifest", ArtifactPolicy{Exclude: []string{"*"}}, "go.mod", false, false},
		{"other", ArtifactPolicy{Exclude: []string{"*"}}, "main.go", false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.policy.Validate(); err != nil {
				t.Fatal(err)
			}
			if got := c.policy.Compile().Excludes(c.path, c.isDir); got != c.want {
				t.Errorf("%s is left out: %v", c.path, got)
			}
		})
	}
	if err := (ArtifactPolicy{Exclude: DefaultArtifacts(), Keep: manifests}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestArtifactPatternsRefused(t *testing.T) {
	for _, p := range []string{"", "/", "/etc", "..", "../x", "a/../b", "a//b", "./a", "[", "a\x00", strings.Repeat("x", 5000)} {
		if err := (ArtifactPolicy{Keep: []string{p}}).Validate(); !errors.Is(err, CodePolicyInvalid) {
			t.Errorf("%q: %v", p, err)
		}
	}
	if err := (ArtifactPolicy{Exclude: make([]string, 2000)}).Validate(); !errors.Is(err, CodePolicyInvalid) {
		t.Errorf("two thousand patterns: %v", err)
	}
}

// FuzzArtifacts wants no pattern that is taken to fail later.
func FuzzArtifacts(f *testing.F) {
	f.Add("build/", "a/build", true)
	f.Add("*.py[cod]", "x.pyc", false)
	f.Add("a/[^b]*/", "a/c", true)
	f.Fuzz(func(t *testing.T, pattern, path string, isDir bool) {
		p := ArtifactPolicy{Exclude: []string{pattern}}
		if p.Validate() == nil {
			p.Compile().Excludes(path, isDir)
		}
	})
}
