package scope

import (
	"path/filepath"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// layered is a repository whose directories, names and kinds of file would show
// a scope that is cut wrongly.
func layered(t *testing.T) testenv.Repo {
	t.Helper()
	return testenv.Commit(t, testenv.RepoSmall(t), "layers", map[string]*testenv.Entry{
		"a/x": {Data: "a/x\n"}, "a/b/x": {Data: "a/b/x\n"}, "a/b/c/x": {Data: "a/b/c/x\n"}, "a/b/c/run": {Mode: "100755", Data: "#!/bin/sh\n"},
		"a/b/c/link": {Mode: "120000", Data: "../../x"}, "a/b/c/d/e": {Data: "deep\n"}, "a/bc/x": {Data: "beside\n"}, "a/b2/c/x": {Data: "beside\n"},
		"odd [x]*/f": {Data: "odd\n"}, "odd [x]*/g/h": {Data: "odd\n"}, "odd x/f": {Data: "glob would match\n"},
		"docs/one": {Data: "one\n"}, "docs/two": {Data: "two\n"},
	})
}

// look prints everything about a tree but its .git: kinds, modes, times,
// content, and what git says of it.
const look = `find . -path ./.git -prune -o ! -type d -printf '%y %m %s %T@ %P -> %l\n' -o -type d -printf '%y %m %P\n' | LC_ALL=C sort
find . -path ./.git -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
git status --porcelain; git write-tree; git sparse-checkout list; git ls-files -t | LC_ALL=C sort`

func scopes() map[string][]string {
	return map[string][]string{
		"deep": {"a/b/c", "docs"},
		"odd":  {"odd [x]*", "src"},
	}
}

// TestScopeIsTheSameWhateverMadeIt compares every strategy's files for a scope.
func TestScopeIsTheSameWhateverMadeIt(t *testing.T) {
	testenv.Root(t)
	source := layered(t)
	rig.EachPlace(t, func(t *testing.T, p rig.Place) {
		repo := p.Give(t, source)
		y := p.Yoi(t)
		for name, dirs := range scopes() {
			if (name == "odd") == (p.UID == 0) {
				continue // each scope has its half of the places
			}
			want := ""
			for _, s := range append(rig.Strategies(p.FS), policy.StrategyGitSparse) {
				args := []string{"run", "--repo", repo.Dir, "--strategy", string(s)}
				for _, d := range dirs {
					args = append(args, "--scope", d)
				}
				got := y.OK(t, append(args, "--", "sh", "-c", look)...)
				if want == "" {
					want = got
					if !strings.Contains(got, "README.md") || strings.Contains(got, "glob would match") || strings.Count(got, "\nS ") == 0 {
						t.Errorf("%s: %s shows\n%s", name, s, got)
					}
				}
				if got != want {
					t.Errorf("%s: %s differs: %s", name, s, firstDifference(want, got))
				}
			}
		}
		rig.Clean(t, y.Root)
	})
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range w {
		if i >= len(g) || w[i] != g[i] {
			return "want " + w[i] + "\n got " + strings.Join(g[min(i, len(g)):min(i+1, len(g))], "")
		}
	}
	return "more lines"
}

// TestWorkerWidensItsScope: with git's own command, without a network.
func TestWorkerWidensItsScope(t *testing.T) {
	testenv.Root(t)
	source := layered(t)
	for _, uid := range []int{0, rig.Ordinary} {
		p := rig.NewPlace(t, "disk", uid)
		y, repo := p.Yoi(t), p.Give(t, source)
		for _, s := range append(rig.Strategies("disk"), policy.StrategyGitSparse) {
			out := y.OK(t, "run", "--repo", repo.Dir, "--strategy", string(s), "--scope", "a/b", "--", "sh", "-c", `
				set -e; test ! -e docs; git sparse-checkout add docs; cat docs/one; git status --porcelain
				git sparse-checkout set src; test ! -e docs; test -e src/main.c; git status --porcelain
				git sparse-checkout disable; test -e 'odd x/f'; git status --porcelain; git fsck`)
			if out != "one\n" {
				t.Errorf("%s: %q", s, out)
			}
		}
		rig.Clean(t, y.Root)
	}
}

func TestScopesThatAreRefused(t *testing.T) {
	testenv.Root(t)
	source := layered(t)
	p := rig.NewPlace(t, "disk", rig.Ordinary)
	y, repo := p.Yoi(t), p.Give(t, source)
	for _, s := range append(rig.Strategies("disk"), policy.StrategyGitSparse) {
		for dir, code := range map[string]policy.Code{
			"nowhere": policy.CodeScopeEmpty, "README.md": policy.CodeScopeEmpty, "link": policy.CodeScopeEmpty, "a/b/c/x": policy.CodeScopeEmpty, "A": policy.CodeScopeEmpty,
			"../x": policy.CodeScopeInvalid, "/etc": policy.CodeScopeInvalid, ".git": policy.CodeScopeInvalid, "a/../docs": policy.CodeScopeInvalid,
		} {
			y.Run(t, "run", "--repo", repo.Dir, "--strategy", string(s), "--scope", "docs", "--scope", dir, "--", "true").Refused(t, 125, code)
		}
	}
	y.Run(t, "run", "--repo", repo.Dir, "--strategy", "git_sparse", "--", "true").Refused(t, 125, policy.CodeScopeInvalid)
	rig.Clean(t, y.Root)
}

// TestSparseWorkspaceLives: what is asked of any workspace, of one made by git.
func TestSparseWorkspaceLives(t *testing.T) {
	testenv.Root(t)
	source := layered(t)
	for _, uid := range []int{0, rig.Ordinary} {
		p := rig.NewPlace(t, "disk", uid)
		y, repo := p.Yoi(t), p.Give(t, source)
		y.OK(t, "repo", "add", "--id", "app", repo.Dir)
		var ws runtime.Workspace
		y.Run(t, "ws", "create", "--json", "--strategy", "git_sparse", "--scope", "docs", "app").Want(t, 0).JSON(t, &ws)
		if ws.Strategy != policy.StrategyGitSparse || len(ws.Points[0].Scope) != 1 {
			t.Fatalf("%+v", ws)
		}
		if trees, _ := filepath.Glob(filepath.Join(y.Root, "repository-cache/git/app/trees/*")); len(trees) != 0 {
			t.Errorf("a tree was built: %v", trees)
		}
		y.Work(t, ws.ID, "echo x >docs/new && git add docs/new && git commit -qm work")
		y.Run(t, "ws", "rm", string(ws.ID)).Refused(t, 1, policy.CodeUncollectedWork)
		y.OK(t, "ws", "rm", "--discard", string(ws.ID))
		y.OK(t, "ws", "rm", "--discard", string(ws.ID))
		rig.Clean(t, y.Root)
	}
}
