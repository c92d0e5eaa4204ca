package rig

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// EnvPrograms names a directory that has the programs: on a machine that cannot build.
const EnvPrograms = "YOI_TEST_PROGRAMS"

// Program builds cmd/<name> with the Makefile's flags, once a test process,
// and returns the binary's path, which every user can reach. Tags are added to
// the Makefile's.
func Program(t testing.TB, name string, tags ...string) string {
	t.Helper()
	if dir := os.Getenv(EnvPrograms); dir != "" && len(tags) == 0 {
		return filepath.Join(dir, name)
	}
	built.Lock()
	defer built.Unlock()
	key := name + "," + strings.Join(tags, ",")
	if built.paths[key] == "" {
		path, err := build(name, tags)
		if err != nil {
			t.Fatal(err)
		}
		if built.paths == nil {
			built.paths = map[string]string{}
		}
		built.paths[key] = path
	}
	return built.paths[key]
}

var built struct {
	sync.Mutex
	paths map[string]string
}

func build(name string, tags []string) (string, error) {
	module, err := ModuleDir()
	if err != nil {
		return "", err
	}
	variable, cgo := "STATIC_CGO", "1"
	if name != "yoi" && name != "yoi-runtimed" { // they must link no C
		variable, cgo = "STATIC", "0"
	}
	flags, err := makeVariable(filepath.Join(module, "Makefile"), variable)
	if err != nil {
		return "", err
	}
	if len(tags) > 0 {
		flags = strings.Replace(flags, "-tags ", "-tags "+strings.Join(tags, ",")+",", 1)
	}
	dir, err := os.MkdirTemp("", "bin") // testenv's supervisor removes it
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	out := filepath.Join(dir, name)
	// The shell takes the flags' quotes apart as make's does.
	cmd := exec.Command("sh", "-c", `exec go build `+flags+` -o "$1" "$2"`, "sh", out, "./cmd/"+name)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo)
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", name, err, text)
	}
	return out, nil
}

// ModuleDir is the directory of go.mod.
func ModuleDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no go.mod above the working directory")
		}
		dir = filepath.Dir(dir)
	}
}

// makeVariable reads a simply expanded variable, so that what is tested is
// built as what is shipped.
func makeVariable(file, name string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, name+" := "); ok {
			return strings.TrimSpace(v), nil
		}
	}
	return "", fmt.Errorf("%s has no %s", file, name)
}
