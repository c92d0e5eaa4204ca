package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// sharedFlags are about the disk that workspaces share, and the part of it that
// one of them may have.
type sharedFlags struct {
	caches              []string
	buildCache, publish bool
	disk                string
	inodes              int64
	hard                bool
}

func (f *sharedFlags) register(c *cobra.Command) {
	fl := c.Flags()
	fl.StringArrayVar(&f.caches, "cache", nil, "share a directory by the digest of its key files: `PATH=KEY[,KEY...]` (repeatable)")
	fl.BoolVar(&f.buildCache, "build-cache", false, "give it its project's build cache, at /cache and in XDG_CACHE_HOME")
	fl.BoolVar(&f.publish, "publish-caches", false, "trust the command: what it leaves in caches, if it succeeds, is the base of later workspaces")
	fl.StringVar(&f.disk, "disk", "", "at most this `SIZE` of its own, such as 2G")
	fl.Int64Var(&f.inodes, "inodes", 0, "at most `N` files, directories and links beyond its trees'")
	fl.BoolVar(&f.hard, "hard-quota", false, "refuse to start unless the file system itself enforces --disk and --inodes")
}

// apply puts what concerns the sandbox into its policy, and returns the caches.
func (f *sharedFlags) apply(p *policy.SandboxPolicy) ([]policy.DependencyCache, error) {
	p.BuildCache, p.PublishCaches = f.buildCache, f.publish
	p.Quota = policy.Quota{Inodes: f.inodes, Hard: f.hard}
	if f.disk != "" {
		n, err := policy.ParseSize(f.disk)
		if err != nil || int64(n) < 0 {
			return nil, usageError{fmt.Errorf("--disk %q is not a size such as 500M or 2G", f.disk)}
		}
		p.Quota.Bytes = int64(n)
	}
	return parseCaches(f.caches)
}

func parseCaches(list []string) ([]policy.DependencyCache, error) {
	var out []policy.DependencyCache
	for _, s := range list {
		c, err := policy.ParseDependencyCache(s)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// showItems lists what gc would remove.
func (a *app) showItems(items []runtime.GCItem) error {
	if len(items) == 0 {
		return nil
	}
	rows := make([][]string, 0, len(items))
	for _, i := range items {
		rows = append(rows, []string{i.Kind, size(i.Bytes), i.Name})
	}
	return a.table([]string{"KIND", "SIZE", "NAME"}, rows)
}

// itemsOf counts what a report has of one kind.
func itemsOf(rep runtime.GCReport, kind string) int {
	n := 0
	for _, i := range rep.Items {
		if i.Kind == kind {
			n++
		}
	}
	return n
}
