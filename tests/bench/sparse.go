package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/runtime"
)

// sparseScope creates workspaces of ten directories of a thousand, by the whole
// command line, where git's own way is a worktree of everything. The repository
// is bare: neither side looks for uncommitted changes.
func sparseScope(r *room) {
	const n = 100_000
	repo := testenv.RepoFiles(r, n)
	var scope []string
	for _, dir := range directories(r, repo.Dir, n/100/100) {
		scope = append(scope, "--scope", dir)
	}
	for _, c := range []struct{ fs, strategy, name string }{
		{"ext4", "git_sparse", "checked out by git each time"}, {"ext4", "overlay", "from the cache"},
	} {
		fs := r.fs(c.fs, 4096)
		src, root, tree := filepath.Join(fs, "repo"), filepath.Join(fs, "rt"), filepath.Join(fs, "worktree")
		r.do("cp", "-a", repo.Dir, src)
		r.yoi(root, "repo", "add", "--id", "repo", src)
		own, peer := r.turns(r.runs(9),
			func() time.Duration {
				defer r.settle(fs)
				var ws runtime.Workspace
				took := timed(func() {
					out := r.yoi(root, append([]string{"ws", "create", "--json", "--strategy", c.strategy, "repo"}, scope...)...)
					r.must(json.Unmarshal([]byte(out), &ws))
				})
				r.yoi(root, "ws", "rm", "--discard", string(ws.ID))
				return took
			},
			func() time.Duration {
				defer r.settle(fs)
				took := timed(func() { r.do("git", "-C", src, "worktree", "add", "--quiet", "--detach", tree) })
				r.do("git", "-C", src, "worktree", "remove", "--force", tree)
				return took
			})
		r.times(fmt.Sprintf("sparse scope of 1%% of 100,000 files, %s, %s", c.strategy, c.name), "git worktree add of everything", 0.05, own, peer)
	}
}

// directories are the first n directories of a repository that hold files.
func directories(r *room, repo string, n int) []string {
	var out []string
	seen := map[string]bool{}
	for _, name := range strings.Fields(r.do("git", "-C", repo, "ls-tree", "-r", "--name-only", "HEAD")) {
		if d := filepath.Dir(name); d != "." && !seen[d] && len(out) < n {
			seen[d] = true
			out = append(out, d)
		}
	}
	return out
}
