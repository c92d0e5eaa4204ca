package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	it "yoi.dev/yoi-runtime/cow/layers/imagetest"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// otherStrategies runs true in a workspace made in each way that has no row of its own:
// whole runs, against what somebody would type to have the same. They copy or check out
// every file, or none, so there is no target: what they cost beside the plain commands
// is what counts.
func otherStrategies(r *room) {
	const n = 10_000
	fs := r.fs("ext4", 4096)
	src, root, tree := r.source(fs, n), filepath.Join(fs, "rt"), filepath.Join(fs, "tree")
	patch := filepath.Join(fs, "change.patch")
	r.must(os.WriteFile(patch, []byte("diff --git a/added b/added\nnew file mode 100644\n--- /dev/null\n+++ b/added\n@@ -0,0 +1 @@\n+added\n"), 0o600))
	rig.ConfigureOwn(r, root, "[external]\ncommand = [\"/usr/bin/cp\", \"-a\", \"--reflink=auto\", \"/run/yoi/source\", \"tree\"]\n")

	byHand := func(make func(), remove ...string) side {
		return func() time.Duration {
			defer r.settle(fs)
			return timed(func() {
				make()
				r.bwrapIn(tree)
				r.do(remove[0], remove[1:]...)
			})
		}
	}
	worktree := func() { r.do("git", "-C", src, "worktree", "add", "--quiet", "--detach", tree) }
	copied := func() { r.do("cp", "-a", src, tree) }
	for _, c := range []struct {
		what, against string
		args          []string
		peer          side
	}{
		{"copy", "cp -a + bwrap + rm -rf", []string{"--strategy", "copy"}, byHand(copied, "rm", "-rf", tree)},
		{"external, whose command is cp -a", "the command + bwrap + rm -rf", []string{"--strategy", "external"}, byHand(copied, "rm", "-rf", tree)},
		{"git_worktree", "git worktree add + bwrap + worktree remove", []string{"--strategy", "git_worktree"},
			byHand(worktree, "git", "-C", src, "worktree", "remove", tree)},
		{"patch_artifact", "git worktree add + apply + bwrap + worktree remove", []string{"--patch", patch},
			byHand(func() { worktree(); r.do("git", "-C", tree, "apply", patch) }, "git", "-C", src, "worktree", "remove", "--force", tree)},
		{"direct_legacy_mount", "bwrap on the source", []string{"--dirty", "direct_legacy_mount"}, func() time.Duration {
			return timed(func() { r.bwrapIn(src) })
		}},
	} {
		own, peer := r.turns(r.runs(7), r.wholeRunOf(fs, root, src, c.args...), c.peer)
		r.times(fmt.Sprintf("yoi run -- true, 10,000 files, %s", c.what), c.against, 0, own, peer)
	}
	imageRoot(r, fs, root, src)
	partialClone(r, fs, src)
}

func (r *room) wholeRunOf(fs, root, src string, args ...string) side {
	return func() time.Duration {
		defer r.settle(fs)
		return timed(func() {
			r.yoi(root, append(append([]string{"run", "--repo", src}, args...), "--", "true")...)
		})
	}
}

// bwrapIn runs true in a tree as a Worker does.
func (r *room) bwrapIn(tree string) {
	r.do("bwrap", "--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib",
		"--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--bind", tree, "/workspace", "--chdir", "/workspace", "true")
}

// imageRoot is a run in an image's root, against one in the host's.
func imageRoot(r *room, fs, root, src string) {
	img := it.Image{
		Ref: "bench.example/busybox:1", Env: []string{"PATH=/bin"},
		Layers: [][]byte{it.Layer(r, it.Busybox(r)...), it.Layer(r, it.File("etc/second", "layer\n", 0o644))},
	}
	archive := filepath.Join(fs, "image.tar")
	r.must(os.WriteFile(archive, it.Tar(r, it.OCI(r, img)), 0o600))
	cmd := r.command(rig.Program(r, "yoi"), "--runtime-root", root, "image", "import", archive, "--name", "bench")
	cmd.Env = append(os.Environ(), "YOI_LAYERS="+rig.Program(r, "yoi-layers"))
	if out, err := cmd.CombinedOutput(); err != nil {
		r.Fatalf("yoi image import: %v\n%s", err, out)
	}
	own, peer := r.turns(r.runs(7), r.wholeRunOf(fs, root, src, "--image", "bench"), r.wholeRunOf(fs, root, src))
	r.times("yoi run -- true, 10,000 files, image of two layers (container_layers)", "the same in the host's root", 0, own, peer)
}

// partialClone makes a first workspace of one directory in a hundred, with nothing in
// any cache and nothing fetched that it does not need.
func partialClone(r *room, fs, src string) {
	r.do("git", "-C", src, "config", "uploadpack.allowFilter", "true")
	root, clone, url, scope := filepath.Join(fs, "partial"), filepath.Join(fs, "clone"), "file://"+src, directories(r, src, 1)[0]
	own, peer := r.turns(r.runs(7),
		func() time.Duration {
			defer r.clear(fs, root)
			return timed(func() {
				r.yoi(root, "repo", "add", "--id", "partial", "--filter", "blob:none", url)
				r.yoi(root, "ws", "create", "partial", "--scope", scope)
			})
		},
		func() time.Duration {
			defer r.clear(fs, clone)
			return timed(func() {
				r.do("git", "clone", "--quiet", "--filter=blob:none", "--sparse", url, clone)
				r.do("git", "-C", clone, "sparse-checkout", "set", scope)
			})
		})
	r.times("first ws create of 1% of 10,000 files, partial clone (blob:none)", "git clone --filter --sparse + sparse-checkout set", 0, own, peer)
}
