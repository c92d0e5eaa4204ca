package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// source is a checked-out repository of n files on fs.
func (r *room) source(fs string, n int) string {
	made := testenv.RepoFilesCheckedOut(r, n)
	dir := filepath.Join(fs, "bench")
	r.do("cp", "-a", made.Dir, dir)
	// A copy's inodes are new to its index; in a checkout that somebody works in
	// they are not.
	r.do("git", "-C", dir, "update-index", "-q", "--refresh")
	return dir
}

// yoi runs the command line of the built program to its end and returns what
// it printed.
func (r *room) yoi(root string, args ...string) string {
	name := 1
	if args[0] == "repo" || args[0] == "ws" {
		name = 2
	}
	cmd := r.command(rig.Program(r, "yoi"), slices.Concat(args[:name], []string{"--runtime-root", root}, args[name:])...)
	cmd.Dir = filepath.Dir(root)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		r.Fatalf("yoi %s: %v\n%s", args[0], err, stderr.String())
	}
	return stdout.String()
}

var wholeRuns = []struct {
	fs, strategy string
	target       float64
}{
	{"ext4", "overlay", 0.05}, {"btrfs", "btrfs_snapshot", 0.05}, {"xfs", "reflink", 0.4},
}

func wholeRun(r *room) {
	const n = 10_000
	for _, w := range wholeRuns {
		fs := r.fs(w.fs, 2048)
		src := r.source(fs, n)
		root := filepath.Join(fs, "rt")
		tree := filepath.Join(fs, "worktree")
		own, peer := r.turns(r.runs(15),
			func() time.Duration {
				defer r.settle(fs)
				return timed(func() { r.yoi(root, "run", "--repo", src, "--strategy", w.strategy, "--", "true") })
			},
			func() time.Duration {
				defer r.settle(fs)
				return timed(func() {
					r.do("git", "-C", src, "worktree", "add", "--quiet", "--detach", tree)
					r.bwrapIn(tree)
					r.do("git", "-C", src, "worktree", "remove", tree)
				})
			})
		r.times(fmt.Sprintf("yoi run -- true, 10,000 files, %s on %s", w.strategy, w.fs), "git worktree add + bwrap + worktree remove", w.target, own, peer)
	}
}

// settle lets what one side left come to its end, so that the other does not pay for
// it: removals that go on behind, and what is dirty.
func (r *room) settle(fs string) {
	for {
		trash, err := filepath.Glob(filepath.Join(fs, "*", rootdir.Trash, "*"))
		r.must(err)
		if len(trash) == 0 {
			break
		}
		r.goOn()
		time.Sleep(time.Millisecond)
	}
	d, err := os.Open(fs)
	r.must(err)
	defer d.Close()
	r.must(unix.Syncfs(int(d.Fd())))
}

// statusScript times two runs of git status by the shell's own clock.
const statusScript = `a=$EPOCHREALTIME; git status --porcelain; b=$EPOCHREALTIME; git status --porcelain; c=$EPOCHREALTIME; echo $a $b $c`

func firstStatus(r *room) {
	for _, w := range []struct{ fs, strategy string }{
		{"btrfs", "btrfs_snapshot"}, {"ext4", "overlay"}, {"xfs", "reflink"}, {"btrfs", "reflink"}, {"ext4", "copy"}, {"ext4", "git_worktree"},
	} {
		fs := r.fs(w.fs, 2048)
		src := r.source(fs, 10_000)
		root := filepath.Join(fs, "rt")
		var first, second []time.Duration
		for i := range r.runs(9) + 1 {
			r.goOn()
			out := r.yoi(root, "run", "--repo", src, "--strategy", w.strategy, "--", "bash", "-c", statusScript)
			a, b := statusTimes(r, out)
			if i > 0 {
				first, second = append(first, a), append(second, b)
			}
		}
		r.times(fmt.Sprintf("first git status, 10,000 files, %s on %s", w.strategy, w.fs), "a second one", 2.5, first, second)
	}
}

func statusTimes(r *room, out string) (first, second time.Duration) {
	f := strings.Fields(out)
	if len(f) != 3 {
		r.Fatalf("the tree is not clean, or the script failed: %.300s", out)
	}
	var at [3]time.Duration
	for i, s := range f {
		µs, err := strconv.ParseInt(strings.ReplaceAll(s, ".", ""), 10, 64)
		r.must(err)
		at[i] = time.Duration(µs) * time.Microsecond
	}
	return at[1] - at[0], at[2] - at[1]
}
