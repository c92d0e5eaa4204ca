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
	ConfigureOwn(t, root, text)
	for _, n := range []string{root, filepath.Join(root, "config.toml")} {
		if err := os.Chown(n, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
}

// ConfigureOwn is Configure for this process' own user.
func ConfigureOwn(t testing.TB, root, text string) {
	t.Helper()
	err := os.MkdirAll(root, 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(root, "config.toml"), []byte(text), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
