package scope

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// facts is look without the times, which a snapshot takes from the working tree.
var facts = strings.ReplaceAll(look, "%T@ ", "")

// TestScopeOfAWorkingTree: a snapshot of the working tree with a scope has the
// files that every strategy has for it, and of the uncommitted changes those that
// lie in it, as git's cone mode says.
func TestScopeOfAWorkingTree(t *testing.T) {
	testenv.Root(t)
	source := layered(t)
	rig.EachPlace(t, func(t *testing.T, p rig.Place) {
		repo, y := p.Give(t, source), p.Yoi(t)
		for name, dirs := range scopes() {
			if (name == "odd") == (p.UID == 0) {
				continue // each scope has its half of the places
			}
			var flags []string
			for _, d := range dirs {
				flags = append(flags, "--scope", d)
			}
			of := func(script string, more ...string) string {
				args := append(append([]string{"run", "--repo", repo.Dir}, flags...), more...)
				return y.OK(t, append(args, "--", "sh", "-c", script)...)
			}
			want := of(facts, "--strategy", "copy")
			for _, s := range rig.Strategies(p.FS) {
				if s == "git_worktree" {
					continue // it checks a commit out
				}
				if got := of(facts, "--strategy", string(s), "--dirty", "current_worktree_snapshot"); got != want {
					t.Errorf("%s, clean: %s", s, firstDifference(want, got))
				}
			}
		}
		rig.Clean(t, y.Root)
	})
}

func TestScopeOfChanges(t *testing.T) {
	testenv.Root(t)
	for _, uid := range []int{0, rig.Ordinary} {
		p := rig.NewPlace(t, "btrfs", uid)
		repo, y := p.Give(t, layered(t)), p.Yoi(t)
		for name, data := range map[string]string{
			"README.md": "edited\n", "a/x": "edited beside\n", "a/b/c/x": "edited inside\n", "a/b/c/new/deep": "new\n", "a/new": "new beside\n", "new": "new at the top\n",
			"a/b2/c/x": "edited outside\n", "src/new": "new outside\n", "out/of/scope": "new outside\n",
		} {
			name = filepath.Join(repo.Dir, name)
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte(data), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Remove(filepath.Join(repo.Dir, "a/b/c/d/e")); err != nil {
			t.Fatal(err)
		}
		rig.Command(t, "chown", "-hR", rig.Owner(uid), repo.Dir)
		args := []string{"--repo", repo.Dir, "--scope", "a/b/c", "--dirty", "current_worktree_snapshot"}
		out := y.OK(t, append(append([]string{"run"}, args...), "--", "sh", "-ec", `git status --porcelain -uall; cat a/b/c/new/deep; ls -d src out a/b2 2>/dev/null || :
			git sparse-checkout list; git fsck --no-progress; git sparse-checkout add docs; cat docs/one; git add -A; git -c user.name=a -c user.email=a@b commit -qm all; git diff --name-only HEAD~1 | wc -l`)...)
		want := " M README.md\n M a/b/c/x\n D a/b/c/d/e\n M a/x\n?? a/b/c/new/deep\n?? a/new\n?? new\nnew\na/b/c\none\n7\n"
		if sorted(out) != sorted(want) {
			t.Errorf("the Worker says\n%s\nwant\n%s", out, want)
		}
		// What was brought along is no work of a Worker's: the workspace goes as it came.
		var ev runtime.Evidence
		y.Run(t, append(append([]string{"run", "--keep", "--json"}, args...), "--", "true")...).Want(t, 0).JSON(t, &ev)
		if len(ev.Points[0].Scope) != 1 || len(ev.Changes) != 1 || ev.Changes[0].Files == 0 || !strings.HasPrefix(ev.Changes[0].Digest, "sha256:") {
			t.Errorf("the evidence has %+v", ev.Changes)
		}
		y.OK(t, "ws", "rm", string(ev.AllocationID))
		rig.Clean(t, y.Root)
	}
}

func sorted(s string) string {
	lines := strings.Split(s, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
