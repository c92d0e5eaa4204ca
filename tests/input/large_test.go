package input

import (
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// TestFiftyThousandFiles is the size of a large monorepo, once with the
// strategy that auto chooses here and once copied.
func TestFiftyThousandFiles(t *testing.T) {
	testenv.Root(t)
	const n = 50_000
	repo := testenv.RepoFiles(t, n)
	p := rig.NewPlace(t, "disk", 0)
	y := p.Yoi(t)
	for _, strategy := range []string{"auto", "copy"} {
		out := y.OK(t, "run", "--repo", repo.Dir, "--strategy", strategy, "--", "sh", "-c",
			"git status --porcelain; git ls-files | wc -l; find . -path ./.git -prune -o -type f -print | wc -l; cat d004/s99/file-049999.txt")
		want := "50000\n50000\n" + strings.Repeat("line of file 049999\n", 5+49999%25)
		if out != want {
			t.Errorf("%s: the Worker sees\n%.300s", strategy, out)
		}
	}
	rig.Clean(t, y.Root)
}

// TestRealRepository builds a public project, golang.org/x/sys, in the sandbox
// with the machine's Go, and reads its history.
func TestRealRepository(t *testing.T) {
	testenv.Root(t)
	repo := testenv.RepoReal(t)
	p := rig.NewPlace(t, "disk", 0)
	arrived(t, p, repo)
	y := p.Yoi(t)
	out := y.OK(t, "run", "--repo", repo.Dir, "--rev", "v0.2.0", "--", "sh", "-ec",
		"git describe --tags; git log --oneline --follow README.md | wc -l; export GOFLAGS=-mod=mod GOCACHE=/tmp/c GOTOOLCHAIN=local CGO_ENABLED=0; go build ./unix ./cpu; go vet ./cpu; git status --porcelain; echo built")
	if want := "v0.2.0\n1\nbuilt\n"; out != want {
		t.Errorf("the Worker says\n%s\nwant\n%s", out, want)
	}
	rig.Clean(t, y.Root)
}
