package caches

import (
	"archive/zip"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, dir string, env []string, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

// commit makes a repository of a directory.
func commit(t *testing.T, dir string) testenv.Repo {
	t.Helper()
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"add", "-A"}, {"commit", "-q", "-m", "project"}} {
		testenv.Git(t, dir, args...)
	}
	return testenv.Repo{Dir: dir}
}

// npmProject depends on two packages, one with a program and one that depends on
// the other, which lie beside it as tarballs.
func npmProject(t *testing.T) testenv.Repo {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "web")
	npm := []string{"HOME=" + t.TempDir(), "npm_config_update_notifier=false", "npm_config_offline=true", "npm_config_audit=false", "npm_config_fund=false"}
	for name, manifest := range map[string]string{
		"left":  `{"name":"left","version":"1.0.0","main":"index.js","bin":{"left":"cli.js"}}`,
		"right": `{"name":"right","version":"2.0.0","main":"index.js"}`,
	} {
		src := filepath.Join(t.TempDir(), name)
		write(t, filepath.Join(src, "package.json"), manifest)
		write(t, filepath.Join(src, "index.js"), "module.exports = () => '"+name+" works'\n")
		write(t, filepath.Join(src, "cli.js"), "#!/usr/bin/env node\nconsole.log(require('./index.js')())\n")
		if err := os.MkdirAll(filepath.Join(dir, "packages"), 0o755); err != nil {
			t.Fatal(err)
		}
		run(t, filepath.Join(dir, "packages"), npm, "npm", "pack", "--silent", src)
	}
	write(t, filepath.Join(dir, "package.json"), `{"name":"web","version":"0.0.1","private":true,"dependencies":{"left":"file:packages/left-1.0.0.tgz","right":"file:packages/right-2.0.0.tgz"}}`)
	write(t, filepath.Join(dir, ".gitignore"), "node_modules\n")
	run(t, dir, npm, "npm", "install", "--package-lock-only", "--ignore-scripts")
	return commit(t, dir)
}

// goProject depends on a module that lies beside it as a proxy's files.
func goProject(t *testing.T) testenv.Repo {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "svc")
	versions := filepath.Join(dir, "proxy/example.com/dep/@v")
	write(t, filepath.Join(versions, "list"), "v1.0.0\n")
	write(t, filepath.Join(versions, "v1.0.0.info"), `{"Version":"v1.0.0"}`)
	write(t, filepath.Join(versions, "v1.0.0.mod"), "module example.com/dep\n\ngo 1.20\n")
	var z bytes.Buffer
	w := zip.NewWriter(&z)
	for name, content := range map[string]string{"go.mod": "module example.com/dep\n\ngo 1.20\n", "dep.go": "package dep\n\nfunc Works() string { return \"dep works\" }\n"} {
		f, err := w.Create("example.com/dep@v1.0.0/" + name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(f, content)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(versions, "v1.0.0.zip"), z.String())
	write(t, filepath.Join(dir, "go.mod"), "module example.com/svc\n\ngo 1.20\n\nrequire example.com/dep v1.0.0\n")
	// No main program: that would have the whole runtime compiled.
	write(t, filepath.Join(dir, "svc.go"), "package svc\n\nimport \"example.com/dep\"\n\nfunc F() string { return dep.Works() }\n")
	write(t, filepath.Join(dir, ".gitignore"), ".modules\n")
	mods := t.TempDir()
	run(t, dir, []string{"GOPROXY=file://" + dir + "/proxy", "GOSUMDB=off", "GOFLAGS=-modcacherw", "GOMODCACHE=" + mods, "GOTOOLCHAIN=local"}, "go", "mod", "tidy")
	return commit(t, dir)
}

// goEnv has modules come from where, into a directory of the workspace.
func goEnv(proxy string) []string {
	return []string{"--env", "GOPROXY=" + proxy, "--env", "GOSUMDB=off", "--env", "GOFLAGS=-mod=readonly",
		"--env", "GOMODCACHE=/workspace/svc/.modules", "--env", "GOTOOLCHAIN=local", "--env", "CGO_ENABLED=0"}
}

// places are where the two projects are tried: each way of making a tree, root
// and an ordinary user.
var places = []struct {
	fs       string
	uid      int
	strategy policy.StrategyName
}{
	{"ext4", 0, policy.StrategyOverlay},
	{"ext4", rig.Ordinary, policy.StrategyOverlay},
	{"xfs", 0, policy.StrategyReflink},
	{"btrfs", rig.Ordinary, policy.StrategyBtrfsSnapshot},
}

func eachPlace(t *testing.T, project testenv.Repo, body func(t *testing.T, y rig.Yoi, run []string)) {
	for _, c := range places {
		t.Run(rig.Place{FS: c.fs, UID: c.uid}.String()+"/"+string(c.strategy), func(t *testing.T) {
			p := rig.NewPlaceOf(t, c.fs, c.uid, 800)
			repo := p.Give(t, project)
			machine := rig.Before(t)
			y := p.Yoi(t)
			body(t, y, []string{"run", "--json", "--repo", repo.Dir, "--strategy", string(c.strategy)})
			rig.Clean(t, y.Root)
			machine.Unchanged(t)
		})
	}
}

func warm(t *testing.T, r rig.Result) (out []bool) {
	t.Helper()
	var ev runtime.Evidence
	r.JSON(t, &ev)
	for _, c := range ev.Caches {
		out = append(out, c.Warm)
	}
	return out
}

// TestNPM: the second workspace requires what the first installed, without npm;
// npm itself finds nothing to mend; and what it does to its tree stays its own.
func TestNPM(t *testing.T) {
	testenv.Root(t)
	eachPlace(t, npmProject(t), func(t *testing.T, y rig.Yoi, run []string) {
		run = append(run, "--cache", "node_modules=package-lock.json", "--env", "npm_config_offline=true", "--env", "npm_config_audit=false",
			"--env", "npm_config_fund=false", "--env", "npm_config_update_notifier=false")
		with := func(more ...string) []string { return append(append([]string{}, run...), more...) }
		r := y.Run(t, with("--publish-caches", "--", "npm", "ci")...).Want(t, 0)
		if w := warm(t, r); len(w) != 1 || w[0] {
			t.Errorf("the first workspace's caches: %v", w)
		}
		use := `node -e "console.error(require('left')(), require('right')())" && node_modules/.bin/left >&2 && git status --porcelain >&2`
		for _, more := range []string{" && npm ls >&2 && rm -rf node_modules", ""} {
			r = y.Run(t, with("--", "sh", "-c", use+more)...).Want(t, 0)
			if w := warm(t, r); len(w) != 1 || !w[0] || !strings.Contains(r.Stderr, "left works right works\nleft works\n") || strings.Contains(r.Stderr, "?? ") {
				t.Errorf("a later workspace: warm %v\n%s", w, r.Stderr)
			}
		}
		// npm ci empties the directory and fills it again: on the private layer.
		y.Run(t, with("--", "sh", "-c", "npm ci >&2 && node_modules/.bin/left")...).Want(t, 0)
	})
}

// TestGo: modules, which the Go command makes read-only, from the dependency cache,
// and packages from the build cache: the second workspace compiles nothing.
func TestGo(t *testing.T) {
	testenv.Root(t)
	eachPlace(t, goProject(t), func(t *testing.T, y rig.Yoi, run []string) {
		run = append(run, "--cache", ".modules=go.sum,go.mod", "--build-cache")
		with := func(proxy string, more ...string) []string {
			return append(append(append([]string{}, run...), goEnv(proxy)...), more...)
		}
		y.Run(t, with("file:///workspace/svc/proxy", "--publish-caches", "--", "sh", "-c", "go build -x . 2>&1 | grep -c /compile >&2")...).Want(t, 0)
		r := y.Run(t, with("off", "--", "sh", "-c", "go build -x . && go list -deps -f '{{.Module.Path}} stale={{.Stale}}' . >&2; git status --porcelain >&2")...).Want(t, 0)
		if w := warm(t, r); len(w) != 2 || !w[0] || !w[1] {
			t.Errorf("the second workspace's caches: %v", w)
		}
		if !strings.Contains(r.Stderr, "example.com/dep stale=false") || strings.Contains(r.Stderr, "/compile ") || strings.Contains(r.Stderr, "?? ") {
			t.Errorf("the second workspace compiled something:\n%s", r.Stderr)
		}
	})
}
