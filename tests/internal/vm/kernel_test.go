package vm

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestKernel: what scripts/setup has fetched is complete, and each module comes behind
// those that it needs.
func TestKernel(t *testing.T) {
	k, err := findKernel()
	if err != nil {
		t.Fatal(err)
	}
	var loaded []string
	for _, file := range k.modules {
		deps, err := depends(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range deps {
			if !slices.Contains(loaded, d) {
				t.Errorf("%s is loaded before %s", filepath.Base(file), d)
			}
		}
		loaded = append(loaded, strings.ReplaceAll(strings.TrimSuffix(filepath.Base(file), ".ko"), "-", "_"))
	}
	for _, m := range needed {
		if !slices.Contains(loaded, m) {
			t.Errorf("%s is not loaded", m)
		}
	}
}

// TestNoKernel: whoever has not run setup is told to.
func TestNoKernel(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	if _, err := findKernel(); err == nil || !strings.Contains(err.Error(), "make setup") {
		t.Errorf("%v", err)
	}
}

// TestInitrd: the archive's parts stand where the kernel looks for them.
func TestInitrd(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"guest": "program", "one.ko": "first", "two.ko": "second!"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b, err := initrd(filepath.Join(dir, "guest"), []string{filepath.Join(dir, "two.ko"), filepath.Join(dir, "one.ko")})
	if err != nil {
		t.Fatal(err)
	}
	last := -1
	for _, want := range []string{"init\x00", "program", "modules/00-two.ko\x00", "second!", "modules/01-one.ko\x00", "first", "TRAILER!!!\x00"} {
		at := bytes.Index(b, []byte(want))
		if at <= last {
			t.Errorf("%q stands at %d, behind %d", want, at, last)
		}
		if content := !strings.HasSuffix(want, "\x00"); content && at%4 != 0 {
			t.Errorf("%q stands at %d", want, at)
		}
		last = at
	}
	if n := bytes.Count(b, []byte("070701")); n != 11 || len(b)%4 != 0 {
		t.Errorf("%d entries in %d bytes", n, len(b))
	}
}
