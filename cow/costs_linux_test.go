package cow

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

func TestCostsAreKept(t *testing.T) {
	dir := t.TempDir()
	root, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if c := ReadCosts(root); len(c) != 0 {
		t.Errorf("of nothing: %v", c)
	}
	// Many writers at once, over the size at which the file is written anew.
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 150 {
				Record(root, Sample{Strategy: policy.StrategyOverlay, Removal: w%2 == 1, Files: int64(1 + i%3*1000), Took: time.Millisecond})
			}
		})
	}
	wg.Wait()
	b, err := os.ReadFile(filepath.Join(dir, "costs"))
	if err != nil || len(b) > costsMost+costsMost/2 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if lines := strings.Count(string(b), "\n"); len(parseSamples(string(b))) != lines {
		t.Errorf("%d of %d lines are whole", len(parseSamples(string(b))), lines)
	}
	costs := ReadCosts(root)[policy.StrategyOverlay]
	if len(costs) != 2 || costs[0].Class != 1 || costs[1].Class != 1000 || costs[1].Create != time.Millisecond || costs[1].Remove != time.Millisecond || costs[1].Runs != keptSamples {
		t.Errorf("%+v", costs)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".costs-*")); len(left) != 0 {
		t.Errorf("left %v", left)
	}
}

// What lies in the file's place is neither followed, nor waited for, nor believed.
func TestCostsInTheWay(t *testing.T) {
	for name, plant := range map[string]func(path, outside string) error{
		"a link":          func(p, outside string) error { return os.Symlink(outside, p) },
		"a hard link":     func(p, outside string) error { return os.Link(outside, p) },
		"a FIFO":          func(p, _ string) error { return unix.Mkfifo(p, 0o600) },
		"a directory":     func(p, _ string) error { return os.Mkdir(p, 0o700) },
		"more than ours":  func(p, _ string) error { return os.WriteFile(p, make([]byte, 2*costsLimit), 0o600) },
		"something else":  func(p, _ string) error { return os.WriteFile(p, []byte("{\"version\":1}\n\n\x00"), 0o600) },
		"an endless line": func(p, _ string) error { return os.WriteFile(p, []byte("c1 "+strings.Repeat("x", costsMost)), 0o600) },
	} {
		dir := t.TempDir()
		outside := filepath.Join(t.TempDir(), "outside")
		if err := os.WriteFile(outside, []byte("outside\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := plant(filepath.Join(dir, "costs"), outside); err != nil {
			t.Fatal(err)
		}
		root, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			Record(root, Sample{Strategy: policy.StrategyCopy, Files: 5, Took: time.Second})
		}
		if c := ReadCosts(root); len(c) > 1 {
			t.Errorf("%s: %v", name, c)
		}
		root.Close()
		if b, err := os.ReadFile(outside); err != nil || string(b) != "outside\n" {
			t.Errorf("%s: outside holds %q, %v", name, b, err)
		}
	}
}
