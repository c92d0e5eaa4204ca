package main

import (
	"os"
	"path/filepath"
	"time"

	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/policy"
)

// removal is the helper's Remove as a daemon calls it: the answer comes when
// nothing is reachable any more, the space follows. The peer's turn waits until
// it has.
func removal(r *room) {
	fs := r.fs("xfs", 6144)
	s := r.station(fs)
	// A tree by hand: what it is a commit of does not matter for its removal.
	const key = "0123456789012345678901234567890123456789"
	tree := s.root.Abs(rootdir.Tree(repoID, key))
	r.must(os.MkdirAll(tree, 0o700))
	r.plant(tree, 100_000)
	s.tree = helper.RepositoryTree{RepositoryID: repoID, TreeKey: key, Strategy: policy.StrategyReflink}
	own, peer := r.turns(r.runs(5),
		func() time.Duration {
			id := s.workspace()
			r.settle(fs)
			took := timed(func() { r.must(s.remote.Remove(r.ctx, helper.RemoveRequest{AllocationID: id, Background: true})) })
			s.awaitReclaimed()
			r.settle(fs)
			return took
		},
		func() time.Duration {
			r.do("cp", "-a", "--reflink=always", tree, filepath.Join(fs, "copy"))
			r.settle(fs)
			took := timed(func() { r.do("rm", "-rf", filepath.Join(fs, "copy")) })
			r.settle(fs)
			return took
		})
	r.times("removal as the caller sees it, 100,000 files", "rm -rf", 0.02, own, peer)
}

func (s *station) awaitReclaimed() {
	for {
		s.r.goOn()
		names, err := os.ReadDir(s.root.Abs(rootdir.Trash))
		s.r.must(err)
		if len(names) == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}
