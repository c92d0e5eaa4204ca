package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/policy"
)

// plant fills dir with n files as source repositories have them: sizes
// log-normal around 3 KiB, twelve to a directory, every tenth executable, every
// fiftieth with an extended attribute.
func (r *room) plant(dir string, n int) {
	rnd := rand.New(rand.NewPCG(1, uint64(n)))
	noise := make([]byte, 2<<20)
	for i := range noise {
		noise[i] = byte(rnd.Uint32())
	}
	dirs := []string{dir}
	for i := range n / 12 {
		d := filepath.Join(dirs[rnd.IntN(len(dirs))], "d"+strconv.Itoa(i))
		r.must(os.Mkdir(d, 0o755))
		dirs = append(dirs, d)
	}
	old := time.Unix(1_600_000_000, 123456789)
	for i := range n {
		size := min(1<<20, int(3072*math.Exp(rnd.NormFloat64()*1.2)))
		off := rnd.IntN(len(noise) - size)
		mode := os.FileMode(0o644)
		if i%10 == 0 {
			mode = 0o755
		}
		name := filepath.Join(dirs[rnd.IntN(len(dirs))], fmt.Sprintf("f%d.go", i))
		r.must(os.WriteFile(name, noise[off:off+size], mode))
		if i%50 == 0 {
			r.must(unix.Setxattr(name, "user.origin", []byte("bench"), 0))
		}
		r.must(os.Chtimes(name, old, old))
	}
}

// pristine plants a sealed tree of n files the way the cache has them.
func (r *room) pristine(fs string, n int) *os.File {
	parent := r.open(fs)
	name := "pristine" + strconv.Itoa(n)
	r.must(cow.MakeTop(parent, name))
	r.plant(filepath.Join(fs, name), n)
	r.must(cow.SealTop(parent, name))
	r.settle(fs)
	return r.open(filepath.Join(fs, name))
}

func (r *room) open(dir string) *os.File {
	f, err := os.Open(dir)
	r.must(err)
	r.Cleanup(func() { f.Close() })
	return f
}

// clone is one materialization of src by a strategy; its removal is not timed.
func (r *room) clone(fs string, src *os.File, name policy.StrategyName) side {
	parent := r.open(fs)
	return func() time.Duration {
		req := cow.Request{Source: src, TargetParent: parent, TargetName: "clone"}
		if name == policy.StrategyOverlay {
			r.must(os.Mkdir(filepath.Join(fs, "layers"), 0o700))
			req.Layers = r.open(filepath.Join(fs, "layers"))
		}
		took := timed(func() {
			_, err := cow.ByName(name).Materialize(r.ctx, req)
			r.must(err)
		})
		for _, n := range []string{"clone", "layers"} {
			r.must(cow.RemoveTree(r.ctx, parent, n, cow.RemoveOptions{}))
		}
		r.settle(fs)
		return took
	}
}

func snapshotBySize(r *room) {
	fs := r.fs("btrfs", 4096)
	own, peer := r.turns(r.runs(31),
		r.clone(fs, r.pristine(fs, 100_000), policy.StrategyBtrfsSnapshot),
		r.clone(fs, r.pristine(fs, 1_000), policy.StrategyBtrfsSnapshot))
	r.times("btrfs_snapshot, 100,000 files", "1,000 files", 1.5, own, peer)
}

func overlayBySize(r *room) {
	fs := r.fs("ext4", 4096)
	own, peer := r.turns(r.runs(31),
		r.clone(fs, r.pristine(fs, 100_000), policy.StrategyOverlay),
		r.clone(fs, r.pristine(fs, 1_000), policy.StrategyOverlay))
	r.times("overlay, 100,000 files", "1,000 files", 1.5, own, peer)
}

func reflinkAgainstCp(r *room) {
	for _, c := range []struct {
		n, runs int
		target  float64
	}{{10_000, 9, 0.9}, {100_000, 5, 0.6}} {
		fs := r.fs("xfs", 6144)
		src := r.pristine(fs, c.n)
		parent := r.open(fs)
		own, peer := r.turns(r.runs(c.runs), r.clone(fs, src, policy.StrategyReflink), func() time.Duration {
			took := timed(func() { r.do("cp", "-a", "--reflink=always", src.Name(), filepath.Join(fs, "copy")) })
			r.must(cow.RemoveTree(r.ctx, parent, "copy", cow.RemoveOptions{}))
			r.settle(fs)
			return took
		})
		r.times(fmt.Sprintf("reflink on xfs, %s files", thousands(c.n)), "cp -a --reflink=always", c.target, own, peer)
	}
}

func thousands(n int) string { return fmt.Sprintf("%d,%03d", n/1000, n%1000) }
