package gitcache

import (
	"os"
	"path/filepath"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
)

// Git is not asked for refs where there can be none, and is where there may be one.
func TestHasNoRefs(t *testing.T) {
	commit := testenv.RepoSmall(t).Commit
	for name, want := range map[string]bool{"": true, "refs/heads/a": false, "refs/heads/a/b": false, "refs/tags/a": false, "packed-refs": false, "refs/yoi/points/a": true} {
		dir := filepath.Join(t.TempDir(), "bare.git")
		if err := makeBare(dir, "sha1"); err != nil {
			t.Fatal(err)
		}
		if name != "" {
			p := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p, []byte(commit+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := hasNoRefs(dir); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
	for _, missing := range []string{"refs/heads", "refs/tags"} {
		dir := filepath.Join(t.TempDir(), "bare.git")
		if err := makeBare(dir, "sha1"); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(dir, missing)); err != nil {
			t.Fatal(err)
		}
		if hasNoRefs(dir) {
			t.Errorf("without %s nothing is certain", missing)
		}
	}
}
