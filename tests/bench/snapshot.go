package main

import (
	"os"
	"path/filepath"
	"time"

	"yoi.dev/yoi-runtime/cow"
)

// liveAgainstCp copies a working tree that stands still, as a snapshot does: two
// walks, the second of which proves the first. cp proves nothing.
func liveAgainstCp(r *room) {
	const n = 10_000
	fs := r.fs("xfs", 4096)
	src := filepath.Join(fs, "source")
	r.must(os.Mkdir(src, 0o755))
	r.plant(src, n)
	r.settle(fs)
	parent := r.open(fs)
	remove := func(name string) {
		r.must(cow.RemoveTree(r.ctx, parent, name, cow.RemoveOptions{}))
		r.settle(fs)
	}
	own, peer := r.turns(r.runs(9),
		func() time.Duration {
			dst := filepath.Join(fs, "copy")
			r.must(os.Mkdir(dst, 0o755))
			source, target := r.open(src), r.open(dst)
			defer remove("copy")
			return timed(func() {
				_, err := cow.Live(r.ctx, cow.LiveRequest{Source: source, Target: target})
				r.must(err)
			})
		},
		func() time.Duration {
			defer remove("cp")
			return timed(func() { r.do("cp", "-a", "--reflink=always", src, filepath.Join(fs, "cp")) })
		})
	r.times("working tree at one moment, "+thousands(n)+" files, xfs", "cp -a --reflink=always", 1.2, own, peer)
}

// snapshotRun is a whole command on the working tree as it is now, against one on
// its last commit.
func snapshotRun(r *room) {
	fs := r.fs("xfs", 2048)
	src := r.source(fs, 10_000)
	root := filepath.Join(fs, "rt")
	run := func(args ...string) side {
		return func() time.Duration {
			defer r.settle(fs)
			return timed(func() { r.yoi(root, append([]string{"run", "--repo", src}, args...)...) })
		}
	}
	own, peer := r.turns(r.runs(9), run("--dirty", "current_worktree_snapshot", "--", "true"), func() time.Duration {
		defer r.settle(fs)
		return timed(func() {
			r.do("cp", "-a", "--reflink=always", src, filepath.Join(fs, "cp"))
			r.do("rm", "-rf", filepath.Join(fs, "cp"))
		})
	})
	r.times("yoi run --dirty current_worktree_snapshot -- true, 10,000 files, xfs", "cp -a --reflink=always; rm -rf", 2, own, peer)
}
