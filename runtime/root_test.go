package runtime

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"yoi.dev/yoi-runtime/policy"
)

func TestCheckOverlap(t *testing.T) {
	dir := t.TempDir()
	mkdir := func(p string) string {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, p), 0o755); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, p)
	}
	repo, other := mkdir("repo"), mkdir("other")
	link := filepath.Join(dir, "link")
	if err := os.Symlink(repo, link); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		root, tree string
		refused    bool
	}{
		"apart":                {other, repo, false},
		"same prefix":          {repo + "2", repo, false},
		"same":                 {repo, repo, true},
		"root inside":          {repo + "/sub/root", repo, true},
		"repository inside":    {other, other + "/repo", true},
		"through a link":       {link + "/root", repo, true},
		"not yet made, inside": {repo + "/a/b/c", repo, true},
	} {
		if err := checkOverlap(c.root, c.tree, "it"); errors.Is(err, policy.CodeRuntimeRootOverlap) != c.refused {
			t.Errorf("%s: err = %v", name, err)
		}
	}
}

func TestOpenRootRefusals(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	full := filepath.Join(dir, "full")
	if err := os.MkdirAll(full+"/thesis", 0o700); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(dir, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	work := filepath.Join(dir, "work")
	if err := os.MkdirAll(work+"/.git", 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		path string
		code policy.Code
	}{
		"somebody's directory": {full, policy.CodeRuntimeRootInvalid},
		"world-writable":       {open, policy.CodeRuntimeRootUnsafe},
		"in a working tree":    {work + "/x/root", policy.CodeRuntimeRootOverlap},
		"a file":               {"/etc/passwd", policy.CodeRuntimeRootInvalid},
	} {
		if _, _, err := openRoot(ctx, c.path, false); !errors.Is(err, c.code) {
			t.Errorf("%s: err = %v, want %s", name, err, c.code)
		}
	}
	if _, err := os.Stat(work + "/x"); err == nil {
		t.Error("a refused root left a directory behind")
	}
}

func TestRootLock(t *testing.T) {
	ctx := context.Background()
	p := filepath.Join(t.TempDir(), "root")
	a, la, err := openRoot(ctx, p, false)
	if err != nil {
		t.Fatal(err)
	}
	b, lb, err := openRoot(ctx, p, false)
	if err != nil {
		t.Fatalf("two embedded runs on one root: %v", err)
	}
	if _, _, err := openRoot(ctx, p, true); !errors.Is(err, policy.CodeRuntimeRootBusy) {
		t.Errorf("a daemon beside embedded runs: %v", err)
	}
	la.Close()
	lb.Close()
	_, ld, err := openRoot(ctx, p, true)
	if err != nil {
		t.Fatal(err)
	}
	defer ld.Close()
	for _, exclusive := range []bool{false, true} {
		if _, _, err := openRoot(ctx, p, exclusive); !errors.Is(err, policy.CodeRuntimeRootBusy) {
			t.Errorf("beside a daemon, exclusive=%v: %v", exclusive, err)
		}
	}
	a.Close()
	b.Close()
}
