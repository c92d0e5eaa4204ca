package rig_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// What every test of ours trusts to find what was left must find it.
func TestLeftovers(t *testing.T) {
	const trees = "repository-cache/git/small/trees/"
	for name, test := range map[string]struct{ have, want []string }{
		"nothing":                {},
		"a tree with no holder":  {have: []string{trees + "k/", trees + "k.use/"}},
		"a tree with a holder":   {have: []string{trees + "k/", trees + "k.use/ws-1/"}, want: []string{trees + "k.use/ws-1"}},
		"holders without a tree": {have: []string{trees + "k.use/"}, want: []string{trees + "k.use"}},
		"a half-made tree":       {have: []string{trees + ".new-k/"}, want: []string{trees + ".new-k"}},
		"a half-made repository": {have: []string{"repository-cache/git/.new/"}, want: []string{"repository-cache/git/.new"}},
		"a pin":                  {have: []string{"repository-cache/git/small/bare.git/refs/yoi/pins/ws-1/"}, want: []string{"repository-cache/git/small/bare.git/refs/yoi/pins/ws-1"}},
		"a workspace":            {have: []string{"execution-workspaces/ws-1/"}, want: []string{"execution-workspaces/ws-1"}},
		"trash":                  {have: []string{"tmp/trash/x/", "tmp/y/"}, want: []string{"tmp/trash/x", "tmp/y"}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for _, p := range test.have {
				if err := os.MkdirAll(filepath.Join(root, p), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			got, err := rig.Leftovers(root)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("found %q, want %q", got, test.want)
			}
		})
	}
}
