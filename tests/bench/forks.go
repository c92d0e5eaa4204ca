package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// worked is a workspace of 100,000 files in which a Worker has changed ten.
type worked struct {
	*runtime.Runtime
	id   policy.AllocationID
	dir  string // the Runtime root
	src  string // a plain clone with the same changes
	repo policy.RepositoryID
}

const tenEdits = `for i in 0 1 2 3 4 5 6 7 8 9; do echo changed >>d00$i/s00/file-0${i}0000.txt; done; git status >/dev/null`

func (r *room) worked(fs string, s policy.StrategyName) worked {
	w := worked{dir: filepath.Join(fs, "rt"), src: r.source(fs, 100_000)}
	rt, err := runtime.Open(r.ctx, runtime.Options{Root: w.dir})
	r.must(err)
	r.Cleanup(func() { r.must(rt.Close()) })
	w.Runtime = rt
	repo, err := rt.AddRepository(r.ctx, runtime.AddRepositoryRequest{Source: w.src})
	r.must(err)
	w.repo = repo.ID
	ws, err := rt.CreateWorkspace(r.ctx, runtime.CreateWorkspaceRequest{Repositories: []runtime.RepositoryRequest{{RepositoryID: repo.ID}}, Strategy: s})
	r.must(err)
	w.id = ws.ID
	wk, err := rt.SpawnWorker(r.ctx, runtime.SpawnWorkerRequest{AllocationID: ws.ID, Command: []string{"sh", "-ec", tenEdits}})
	r.must(err)
	if wk, err = rt.WaitWorker(r.ctx, wk.ID); err != nil || wk.Outcome.ExitCode != 0 {
		r.Fatalf("the edits: %+v, %v", wk.Outcome, err)
	}
	r.do("sh", "-ec", "cd "+w.src+"; "+tenEdits)
	r.settle(fs)
	return w
}

// fork is one fork; its removal is not timed.
func (r *room) fork(fs string, w worked) side {
	return func() time.Duration {
		var made runtime.Workspace
		took := timed(func() {
			var err error
			made, err = w.ForkWorkspace(r.ctx, w.id, runtime.ForkRequest{})
			r.must(err)
		})
		_, err := w.RemoveWorkspace(r.ctx, made.ID, runtime.RemoveWorkspaceRequest{Discard: true})
		r.must(err)
		r.settle(fs)
		return took
	}
}

// forks compares a whole fork, durable and recorded, with what makes the files
// alone. The snapshot ioctl is a transaction, so durable too, but nobody could find
// what it made after a crash; an overlay mount and cp leave nothing to the disk at
// all. Each of our further waits for the disk costs about what the ioctl costs.
func forks(r *room) {
	fs := r.fs("btrfs", 6144)
	w := r.worked(fs, policy.StrategyBtrfsSnapshot)
	tree := filepath.Join(w.dir, "execution-workspaces", string(w.id), "root", string(w.repo))
	own, peer := r.turns(r.runs(15), r.fork(fs, w), r.clone(fs, r.open(tree), policy.StrategyBtrfsSnapshot))
	r.times("ws fork, 100,000 files, btrfs_snapshot", "snapshot ioctl", 1.5, own, peer)

	fs = r.fs("ext4", 6144)
	w = r.worked(fs, policy.StrategyOverlay)
	own, peer = r.turns(r.runs(15), r.fork(fs, w), r.overlayMount(fs, w))
	r.times("ws fork, 100,000 files, overlay on ext4", "overlay mount", 3, own, peer)

	fs = r.fs("xfs", 6144)
	w = r.worked(fs, policy.StrategyReflink)
	tree = filepath.Join(w.dir, "execution-workspaces", string(w.id), "root", string(w.repo))
	parent := r.open(fs)
	own, peer = r.turns(r.runs(5), r.fork(fs, w), func() time.Duration {
		took := timed(func() { r.do("cp", "-a", "--reflink=always", tree, filepath.Join(fs, "copy")) })
		r.must(cow.RemoveTree(r.ctx, parent, "copy", cow.RemoveOptions{}))
		r.settle(fs)
		return took
	})
	r.times("ws fork, 100,000 files, reflink on xfs", "cp -a --reflink=always", 0.7, own, peer)
}

// overlayMount is mkdir and mount(8) on the workspace's pristine tree.
func (r *room) overlayMount(fs string, w worked) side {
	trees, err := filepath.Glob(filepath.Join(w.dir, "repository-cache/git", string(w.repo), "trees", "*", ".git"))
	if err != nil || len(trees) != 1 {
		r.Fatalf("trees %v, %v", trees, err)
	}
	top := filepath.Join(fs, "peer")
	return func() time.Duration {
		took := timed(func() {
			for _, d := range []string{"", "upper", "work", "merged"} {
				r.must(os.Mkdir(filepath.Join(top, d), 0o755))
			}
			r.do("mount", "-t", "overlay", "overlay", "-o",
				fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%[2]s/work", filepath.Dir(trees[0]), top), filepath.Join(top, "merged"))
		})
		r.must(unix.Unmount(filepath.Join(top, "merged"), 0))
		r.must(os.RemoveAll(top))
		r.settle(fs)
		return took
	}
}

func diffs(r *room) {
	for _, c := range []struct {
		fs string
		s  policy.StrategyName
	}{{"ext4", policy.StrategyOverlay}, {"btrfs", policy.StrategyBtrfsSnapshot}} {
		fs := r.fs(c.fs, 6144)
		w := r.worked(fs, c.s)
		own, peer := r.turns(r.runs(9), func() time.Duration {
			return timed(func() {
				n, err := w.ExportWorkspace(r.ctx, w.id, runtime.ExportRequest{Format: runtime.ExportPatch}, io.Discard)
				if err != nil || n == 0 {
					r.Fatalf("a patch of %d bytes: %v", n, err)
				}
			})
		}, func() time.Duration {
			return timed(func() { r.do("git", "-C", w.src, "status", "--porcelain") })
		})
		r.times(fmt.Sprintf("ws diff after 10 edits in 100,000 files, %s on %s", c.s, c.fs), "git status in a plain clone, warm", 1.5, own, peer)
	}
}
