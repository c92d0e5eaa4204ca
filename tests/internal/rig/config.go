package rig

import (
	"os"
	"path/filepath"
	"testing"
)

// Configure writes uid's config.toml into a Runtime root, making the root if it is
// not there.
func Configure(t testing.TB, root string, uid int, text string) {
	t.Helper()
	name := filepath.Join(root, "config.toml")
	err := os.MkdirAll(root, 0o700)
	if err == nil {
		err = os.WriteFile(name, []byte(text), 0o600)
	}
	for _, n := range []string{root, name} {
		if err == nil {
			err = os.Chown(n, uid, uid)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}
