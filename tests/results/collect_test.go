package results

import (
	"path/filepath"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// TestCollect: what is collected outlives its workspace, which may then go.
func TestCollect(t *testing.T) {
	kindsOfCallers(t, func(t *testing.T, c caller, s policy.StrategyName) {
		name := "from/" + string(s)
		id := c.create(t, s)
		c.Run(t, "ws", "collect", "--as", name, string(id)).Refused(t, 1, policy.CodeNothingToCollect)
		said := c.work(t, id, `echo 1 >one; git add one; git commit -q -m one; git checkout -q -b side; git commit -q --allow-empty -m side; git checkout -q work
			git replace HEAD HEAD~1; git config core.hooksPath /workspace/small/hooks; git rev-parse work side`)
		head, side := lines(said)[0], lines(said)[1]
		var got runtime.Collected
		c.json(t, &got, "ws", "collect", "--as", name, string(id))
		if got.CommitID != head || got.Commits != 1 || got.BaseID != c.source.Commit || got.AllocationID != id {
			t.Errorf("collected %+v", got)
		}
		c.Run(t, "ws", "rm", string(id)).Refused(t, 1, policy.CodeUncollectedWork) // side
		c.Run(t, "ws", "collect", "--as", name, "--rev", "no-such", string(id)).Refused(t, 1, policy.CodeSelectorMissing)
		c.json(t, &got, "ws", "collect", "--as", name+"-side", "--rev", "side", string(id))
		if got.CommitID != side {
			t.Errorf("side is %s, collected as %s", side, got.CommitID)
		}
		c.work(t, id, "echo 2 >two; echo changed >>README.md")
		c.Run(t, "ws", "rm", string(id)).Refused(t, 1, policy.CodeUncollectedWork)
		c.Run(t, "ws", "collect", "--as", name, "--uncommitted", "--max-bytes", "20", string(id)).Refused(t, 1, policy.CodeResultTooLarge)
		c.Run(t, "ws", "collect", "--as", name+"-side", "--uncommitted", string(id)).Refused(t, 1, policy.CodeCollectedExists) // HEAD does not follow side
		var last runtime.Collected
		c.json(t, &last, "ws", "collect", "--as", name, "--uncommitted", string(id))
		c.OK(t, "ws", "rm", string(id))
		c.OK(t, "gc")
		if s != policy.StrategyReflink {
			next := c.createFrom(t, "small@collected:"+name, s)
			if got := c.work(t, next, "cat one two; git log --format=%s -2; git status --porcelain"); got != "1\n2\nUncommitted changes of "+string(id)+"\none\n" {
				t.Errorf("made of what was collected:\n%s", got)
			}
			c.OK(t, "ws", "rm", string(next))
		}
		bundle := filepath.Join(t.TempDir(), "bundle")
		rig.Command(t, "sh", "-c", `cat >"$1" <"$2"`, "sh", bundle, file(t, c.OK(t, "repo", "export", "small", name)))
		clone := c.clone(t)
		clone.Git(t, "fetch", "-q", bundle, name)
		if head := clone.Git(t, "rev-parse", "FETCH_HEAD"); head != last.CommitID {
			t.Errorf("the bundle has %s, not %s", head, last.CommitID)
		}
		c.Run(t, "repo", "rm", "small").Refused(t, 1, policy.CodeRepositoryInUse)
		if out := c.OK(t, "repo", "collected", "small"); !strings.Contains(out, name+" ") {
			t.Errorf("the list is\n%s", out)
		}
		c.OK(t, "repo", "drop", "small", name)
		c.OK(t, "repo", "drop", "small", name+"-side")
	})
}

func (c caller) createFrom(t *testing.T, what string, s policy.StrategyName) policy.AllocationID {
	t.Helper()
	var ws runtime.Workspace
	c.json(t, &ws, "ws", "create", what, "--branch", "work", "--strategy", string(s))
	return ws.ID
}

// TestAttackCollect gives the collector objects that git itself would not make,
// and an object store that leads elsewhere. Nothing of it gets into the cache.
func TestAttackCollect(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", 0)
	c := caller{Yoi: p.Yoi(t), source: repository(t), place: p}
	c.repo = p.Give(t, c.source)
	c.OK(t, "repo", "add", "--id", "small", c.repo.Dir)
	for name, try := range map[string]struct {
		script string
		code   policy.Code
	}{
		"a .gitmodules with an option": {`printf '[submodule "x"]\n\tpath = x\n\turl = -uevil\n' >.gitmodules; git add .gitmodules; git commit -qm x`, policy.CodeObjectsInvalid},
		"a tree with .git": {`blob=$(echo evil | git hash-object -w --stdin)
			printf '100644 blob %s\tdotgit' "$blob" | git mktree >/scratch/t; git cat-file tree "$(cat /scratch/t)" | sed 's/dotgit/.git/' >/scratch/raw
			t=$(git hash-object -t tree -w --literally --stdin </scratch/raw); git update-ref HEAD "$(git commit-tree -p HEAD -m x "$t")"`, policy.CodeObjectsInvalid},
		"a commit that is none":   {`git update-ref HEAD "$(printf 'tree %s\nparent %s\nauthor broken\ncommitter broken\n\nx\n' "$(git rev-parse HEAD^{tree})" "$(git rev-parse HEAD)" | git hash-object -t commit -w --literally --stdin)"`, policy.CodeObjectsInvalid},
		"a missing object":        {`echo missing >x; git add x; git commit -qm x; o=$(git rev-parse HEAD:x); rm -f .git/objects/$(echo $o | cut -c1-2)/$(echo $o | cut -c3-)`, policy.CodeWorkspaceUnreadable},
		"an object that lies":     {`echo lies >x; git add x; git commit -qm x; o=$(git rev-parse HEAD:x); f=.git/objects/$(echo $o | cut -c1-2)/$(echo $o | cut -c3-); chmod u+w $f; cp .git/objects/$(git rev-parse HEAD | cut -c1-2)/$(git rev-parse HEAD | cut -c3-) $f`, ""},
		"alternates to the cache": {`echo /run/yoi/objects/small/../small >>.git/objects/info/alternates; echo x >x; git add x; git commit -qm x`, "ok"},
		"a pipe as a pack":        {`echo x >x; git add x; git commit -qm x; mkdir -p .git/objects/pack; mkfifo .git/objects/pack/pack-1.pack`, policy.CodeWorkspaceUnreadable},
		"a pipe as a ref":         {`echo x >x; git add x; git commit -qm x; mkfifo .git/refs/heads/pipe`, policy.CodeWorkspaceUnreadable},
	} {
		t.Run(name, func(t *testing.T) {
			id := c.create(t, policy.StrategyOverlay)
			c.work(t, id, "git config user.name w; git config user.email w@example.com\n"+try.script)
			before := rig.Contents(t, filepath.Join(c.Root, "repository-cache/git/small/bare.git"))
			r := c.Run(t, "ws", "collect", "--as", "evil", string(id))
			switch {
			case try.code == "ok":
				r.Want(t, 0)
				c.OK(t, "repo", "drop", "small", "evil")
			case r.Code == 0:
				t.Errorf("it is collected: %s", r.Stdout)
			case try.code != "":
				r.Refused(t, 1, try.code)
			}
			if try.code != "ok" {
				for _, d := range rig.Difference(before, rig.Contents(t, filepath.Join(c.Root, "repository-cache/git/small/bare.git"))) {
					t.Errorf("the cache changed: %s", d)
				}
			}
			c.discard(t, id)
		})
	}
	rig.Clean(t, c.Root)
}
