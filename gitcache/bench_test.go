package gitcache

import (
	"os"
	"sync"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

// The warm path of one workspace of 10,000 files, step by step and as the
// runtime runs it: resolve beside the clean check, then no git at all.
func BenchmarkWarm(b *testing.B) {
	root := b.TempDir()
	c, err := Open(Options{Root: root})
	if err != nil {
		b.Fatal(err)
	}
	src, err := ParseSource(testenv.RepoFilesCheckedOut(b, 10_000).Dir, "/")
	if err != nil {
		b.Fatal(err)
	}
	ctx := b.Context()
	resolve := func() policy.RepositoryPoint {
		p, _, err := c.Resolve(ctx, src, policy.Selector{}, ResolveOptions{})
		if err != nil {
			b.Fatal(err)
		}
		return p
	}
	clean := func() {
		if err := c.CheckClean(ctx, src); err != nil {
			b.Fatal(err)
		}
	}
	p := resolve()
	tree, _, err := c.Pristine(ctx, p)
	if err != nil {
		b.Fatal(err)
	}
	top, err := os.Open(root + "/" + tree.RelPath)
	if err != nil {
		b.Fatal(err)
	}
	defer top.Close()
	tree.Close()
	for _, s := range []struct {
		name string
		do   func() error
	}{
		{"resolve", func() error { resolve(); return nil }},
		{"clean", func() error { clean(); return nil }},
		{"resolve beside clean", func() error {
			var wg sync.WaitGroup
			wg.Go(clean)
			resolve()
			wg.Wait()
			return nil
		}},
		{"pin and unpin", func() error {
			if err := c.Pin(ctx, p, "ws-1"); err != nil {
				return err
			}
			return c.Unpin(ctx, p.RepositoryID, p.CommitID, "ws-1")
		}},
		{"pristine", func() error {
			t, _, err := c.Pristine(ctx, p)
			if err != nil {
				return err
			}
			return t.Close()
		}},
		{"write git dir", func() error { return c.WriteGitDir(ctx, top, p, GitDirOptions{Branch: "work"}) }},
		{"patch index", func() error { return c.PatchIndex(ctx, top, nil) }},
	} {
		b.Run(s.name, func(b *testing.B) {
			before := c.spawns.Load()
			for b.Loop() {
				if err := s.do(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(c.spawns.Load()-before)/float64(b.N), "gits/op")
		})
	}
}
