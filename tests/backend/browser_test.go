package backend

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// needs finds a program, which scripts/setup installs.
func needs(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		testenv.Lacking(t, name+" is not installed: scripts/setup")
	}
	return path
}

// web is the directory of the scripts, with what they need.
func web(t *testing.T) string {
	t.Helper()
	module, err := rig.ModuleDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(module, "backend/web")
	if _, err := os.Stat(filepath.Join(dir, "node_modules/playwright-core")); err != nil {
		testenv.Lacking(t, "backend/web/node_modules is missing: scripts/setup")
	}
	return dir
}

// TestBrowser drives the story of web/browser/story.mjs: log in, be refused, create,
// watch, launch, see the log, see the changes, clean up; and once more without
// scripts.
func TestBrowser(t *testing.T) {
	node, chromium, dir := needs(t, "node"), needs(t, "chromium"), web(t)
	w := startWith(t, `networks = ["none", "allowlist"]`+"\n"+`network_rules = ["*.modules.example:443", "modules.test:443"]`, func(d *rig.Daemons) {
		d.HelperEnv = append(d.HelperEnv, "YOI_EGRESS="+rig.Program(t, "yoi-egress"))
	})
	const password = "correct horse battery"
	w.b.Run(t, password+"\n", "user", "add", "ada", "--role", "demo=admin")
	cmd := exec.CommandContext(t.Context(), node, "browser/story.mjs")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "YOI_WEB_URL="+w.b.URL, "YOI_WEB_PASSWORD="+password, "YOI_WEB_BROWSER="+chromium, "HOME="+t.TempDir())
	cmd.WaitDelay = 10 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s\n%s", err, out, w.b.Log())
	}
}

// TestScripts checks, lints and tests the pages' scripts, and that what is served is
// what they compile to.
func TestScripts(t *testing.T) {
	node, dir := needs(t, "node"), web(t)
	for _, args := range [][]string{
		{"node_modules/typescript/bin/tsc", "--noEmit"},
		{"node_modules/@biomejs/biome/bin/biome", "check", "--error-on-warnings", "."},
	} {
		run(t, dir, node, args...)
	}
	out := t.TempDir()
	run(t, dir, node, "node_modules/typescript/bin/tsc", "--outDir", out)
	made, err := filepath.Glob(filepath.Join(out, "*.js"))
	if err != nil || len(made) == 0 {
		t.Fatalf("nothing was compiled: %v", err)
	}
	for _, f := range made {
		want, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(dir, "../assets", filepath.Base(f)))
		if err != nil || string(got) != string(want) {
			t.Errorf("%s is not what the scripts compile to: make web", filepath.Base(f))
		}
	}
	build := filepath.Join(out, "test")
	// Node finds no package.json above the build, and has to be told that it is ES modules.
	if err := os.Mkdir(build, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(build, "package.json"), []byte(`{"type":"module"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, dir, node, "node_modules/typescript/bin/tsc", "-p", "tsconfig.test.json", "--outDir", build)
	tests, err := filepath.Glob(filepath.Join(build, "test/*.test.js"))
	if err != nil || len(tests) == 0 {
		t.Fatalf("no tests: %v", err)
	}
	run(t, build, node, append([]string{"--test"}, tests...)...)
}

func run(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%q: %v\n%s", args, err, out)
	}
}
