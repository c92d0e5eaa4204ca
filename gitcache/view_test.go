package gitcache

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// A look for changes goes on beside the resolving of a selector, and both open
// the source's view.
func TestLinksOfConcurrentCallers(t *testing.T) {
	dir := t.TempDir()
	for _, old := range []string{"", "elsewhere"} {
		for range 500 {
			path := filepath.Join(dir, "link")
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			if old != "" {
				if err := os.Symlink(old, path); err != nil {
					t.Fatal(err)
				}
			}
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					if err := ensureLink(path, "target"); err != nil {
						t.Error(err)
					}
					if have, err := os.Readlink(path); err != nil || have != "target" {
						t.Errorf("a caller returned and found %q, %v", have, err)
					}
				})
			}
			wg.Wait()
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}
