package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow"
	"yoi.dev/yoi-runtime/runtime"
)

// npmProject has a number of packages, as tarballs beside it, that make about
// 20,000 entries in node_modules, and is committed.
func (r *room) npmProject(fs string) (dir string, npm []string) {
	const packages, files = 40, 500
	dir = filepath.Join(fs, "web")
	r.must(os.MkdirAll(filepath.Join(dir, "packages"), 0o755))
	npm = append(os.Environ(), "HOME="+r.TempDir(), "npm_config_offline=true", "npm_config_audit=false", "npm_config_fund=false", "npm_config_update_notifier=false")
	var deps []string
	for p := range packages {
		name := "p" + strconv.Itoa(p)
		src := filepath.Join(r.TempDir(), "package")
		for f := range files {
			d := filepath.Join(src, "lib", strconv.Itoa(f/25))
			r.must(os.MkdirAll(d, 0o755))
			r.must(os.WriteFile(filepath.Join(d, fmt.Sprintf("f%d.js", f)), []byte(strings.Repeat(fmt.Sprintf("module.exports = %d // %s\n", f, name), 1+f%60)), 0o644))
		}
		r.must(os.WriteFile(filepath.Join(src, "package.json"), []byte(`{"name":"`+name+`","version":"1.0.0"}`), 0o644))
		r.do("tar", "-czf", filepath.Join(dir, "packages", name+".tgz"), "-C", filepath.Dir(src), "package")
		deps = append(deps, fmt.Sprintf(`"%s":"file:packages/%s.tgz"`, name, name))
	}
	r.must(os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"name":"web","version":"1.0.0","private":true,"dependencies":{`+strings.Join(deps, ",")+`}}`), 0o644))
	r.must(os.WriteFile(filepath.Join(dir, ".gitignore"), []byte("node_modules\n"), 0o644))
	r.in(dir, npm, "npm", "install", "--package-lock-only", "--ignore-scripts")
	r.commit(dir)
	return dir, npm
}

// commit makes a repository of a directory.
func (r *room) commit(dir string) {
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"-c", "core.compression=0", "add", "-A"}, {"-c", "user.name=b", "-c", "user.email=b@example.com", "commit", "-q", "-m", "all"}} {
		r.do("git", append([]string{"-C", dir}, args...)...)
	}
}

// in runs a program in a directory with an environment.
func (r *room) in(dir string, env []string, name string, args ...string) {
	cmd := r.command(name, args...)
	cmd.Dir, cmd.Env = dir, env
	if out, err := cmd.CombinedOutput(); err != nil {
		r.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// warmCache is a whole run whose workspace finds node_modules there, against
// installing and against copying them.
func warmCache(r *room) {
	fs := r.fs("ext4", 4096)
	web, npm := r.npmProject(fs)
	root, plain := filepath.Join(fs, "rt"), filepath.Join(fs, "plain")
	env := []string{"--env", "npm_config_offline=true", "--env", "npm_config_audit=false", "--env", "npm_config_fund=false", "--env", "npm_config_update_notifier=false"}
	run := append([]string{"run", "--repo", web, "--strategy", "overlay", "--cache", "node_modules=package-lock.json"}, env...)
	r.yoi(root, append(run, "--publish-caches", "--", "npm", "ci")...)
	r.do("git", "clone", "-q", web, plain)
	second := func() time.Duration {
		defer r.settle(fs)
		return timed(func() { r.yoi(root, append(run, "--", "test", "-f", "node_modules/p39/lib/19/f499.js")...) })
	}
	modules := filepath.Join(plain, "node_modules")
	own, ci := r.turns(r.runs(7), second, func() time.Duration {
		r.must(os.RemoveAll(modules))
		r.settle(fs)
		defer r.settle(fs)
		return timed(func() { r.in(plain, npm, "npm", "ci") })
	})
	r.times("a run with a warm npm cache, 20,000 entries", "npm ci, offline", 0.05, own, ci)
	own, cp := r.turns(r.runs(9), second, func() time.Duration {
		defer func() {
			r.must(os.RemoveAll(modules + ".copy"))
			r.settle(fs)
		}()
		return timed(func() { r.do("cp", "-a", modules, modules+".copy") })
	})
	r.times("the same", "cp -a node_modules", 0.2, own, cp)
}

// diskOfOneMore is what the twentieth workspace of a tree has to itself.
func diskOfOneMore(r *room) {
	n, nth := 100_000, 20
	if r.quick {
		n, nth = 10_000, 3
	}
	for _, w := range []struct {
		fs, strategy string
		size         int
		target       float64
	}{{"xfs", "reflink", 8192, 0.05}, {"btrfs", "btrfs_snapshot", 4096, 0.001}, {"ext4", "overlay", 4096, 0.001}} {
		fs := r.fs(w.fs, w.size)
		src, root := filepath.Join(fs, "src"), filepath.Join(fs, "rt")
		r.must(os.Mkdir(src, 0o755))
		r.plant(src, n)
		r.commit(src)
		r.yoi(root, "repo", "add", "--id", "bench", src)
		var ws runtime.Workspace
		var ev runtime.Evidence
		var before int64
		for i := range nth {
			r.goOn()
			if i == nth-1 {
				r.settle(fs)
				before = r.used(fs)
			}
			r.must(json.Unmarshal([]byte(r.yoi(root, "ws", "create", "bench", "--json", "--strategy", w.strategy)), &ws))
		}
		r.must(json.Unmarshal([]byte(r.yoi(root, "ws", "evidence", string(ws.ID))), &ev))
		r.settle(fs)
		grown := r.used(fs) - before
		own := float64(r.account(filepath.Join(root, "execution-workspaces"), string(ws.ID)).Exclusive)
		tree := float64(r.account(filepath.Join(root, "repository-cache/git/bench/trees"), ev.Points[0].TreeID).Referenced)
		r.add(row{
			What:    fmt.Sprintf("disk of the %dth workspace, %s files, %s on %s", nth, thousands(n), w.strategy, w.fs),
			Against: "the tree's own bytes, by the same account", Target: w.target, Ratio: own / tree, Met: own/tree <= w.target,
			Own: own / (1 << 20), Peer: tree / (1 << 20), Unit: "MiB", Runs: 1,
		})
		r.fact(fmt.Sprintf("%s on %s: the file system grew by, inodes and all", w.strategy, w.fs), float64(grown)/(1<<20), "MiB")
	}
}

// account is what a directory occupies.
func (r *room) account(parent, name string) cow.Usage {
	m := cow.NewMeter()
	r.must(m.Add(r.ctx, r.open(parent), name))
	return m.Usage()
}

// used is what statfs(2) says is not free.
func (r *room) used(fs string) int64 {
	var st unix.Statfs_t
	r.must(unix.Statfs(fs, &st))
	return int64(st.Blocks-st.Bfree) * st.Bsize
}
