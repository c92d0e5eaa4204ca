package results

import (
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// mess is a state with something of each kind: commits, a stash, staged, changed,
// deleted and replaced files and directories, links.
const mess = `
	echo 1 >one; git add one; git commit -q -m one; git branch keep HEAD~1
	echo s >s; git add s; git stash -q; echo st >staged; git add staged; echo c >>README.md
	rm run.sh; rm -r src; mkdir src; echo n >src/new; mkdir empty "odd
name"; ln one hard; ln -s nowhere broken; chmod 640 Makefile; truncate -s 1M sparse
	echo l >readme.md; echo c >"$(printf '\303\251')"; echo d >"$(printf 'e\314\201')"; printf x >"$(printf '\033]0;x\007')"
`

// state tells everything that a fork must have of it.
const state = `
	git fsck --no-dangling 2>&1; git log --format=%H --all; git stash list; git branch -v; git status --porcelain=v2 --branch; git diff; git diff --cached
	find . -path ./.git -prune -o -printf '%P %y %m %l %n\n' | sort; cat one src/new sparse README.md readme.md é* e* | sha256sum
`

func TestFork(t *testing.T) {
	eachCaller(t, func(t *testing.T, c caller, s policy.StrategyName) {
		id := c.create(t, s)
		c.work(t, id, mess)
		want, patch := c.work(t, id, state), c.OK(t, "ws", "diff", string(id))
		live := c.start(t, id, "touch .git/index.lock; echo l >alive; echo ready; sleep 30")
		rig.Eventually(t, "the Worker's file", func() bool { return c.OK(t, "worker", "logs", string(live)) != "" })
		var beside runtime.Workspace
		c.json(t, &beside, "ws", "fork", string(id))
		c.OK(t, "worker", "stop", "--grace", "100ms", string(live))
		if got := c.work(t, beside.ID, "cat alive; rm alive; git add -A --dry-run >/dev/null && git status >/dev/null;"+state); got != "l\n"+want {
			t.Errorf("the fork of a live workspace has\n%s\nwant\n%s", got, want)
		}
		c.work(t, id, "rm .git/index.lock alive")
		var fork runtime.Workspace
		c.json(t, &fork, "ws", "fork", "--cleanup", "keep_until_asked", string(id))
		if fork.Ancestor != id || fork.Points[0].CommitID != c.source.Commit || fork.Cleanup.Mode != policy.KeepUntil {
			t.Errorf("the fork is %+v", fork)
		}
		// Each goes its own way, and the fork needs nothing of the original.
		c.work(t, id, "echo original >>one; rm -rf src; git commit -qam gone")
		c.discard(t, id)
		c.OK(t, "gc")
		if got := c.OK(t, "ws", "diff", string(fork.ID)); got != patch {
			t.Errorf("the fork differs by\n%s\nwant\n%s", got, patch)
		}
		if got := c.work(t, fork.ID, state); got != want {
			t.Errorf("the fork has\n%s\nwant\n%s", got, want)
		}
		c.work(t, fork.ID, "git rebase -q --autostash keep && git gc -q && git fsck && echo more >>one")
		var ev runtime.Evidence
		c.json(t, &ev, "ws", "evidence", string(fork.ID))
		if ev.Ancestor != id || ev.Points[0].TreeID != c.source.Tree || ev.StrategyReason == "" {
			t.Errorf("the fork's evidence is %+v", ev)
		}
		c.Run(t, "ws", "rm", string(fork.ID)).Refused(t, 1, policy.CodeUncollectedWork)
		c.discard(t, fork.ID, beside.ID)
	})
}

func TestSnapshotAndRollback(t *testing.T) {
	kindsOfCallers(t, func(t *testing.T, c caller, s policy.StrategyName) {
		id := c.create(t, s)
		c.work(t, id, mess)
		want := c.work(t, id, state)
		var first, before runtime.Snapshot
		c.json(t, &first, "ws", "snapshot", "--label", "first", string(id))
		c.work(t, id, "git reset -q --hard HEAD~1; git clean -qfdx; echo later >later; rm README.md")
		later := c.work(t, id, state)
		live := c.start(t, id, "sleep 30")
		c.Run(t, "ws", "rollback", string(id), string(first.ID)).Refused(t, 1, policy.CodeAllocationInUse)
		c.OK(t, "worker", "stop", string(live))
		c.json(t, &before, "ws", "rollback", string(id), string(first.ID))
		if got := c.work(t, id, state); got != want {
			t.Errorf("rolled back it is\n%s\nwant\n%s", got, want)
		}
		c.OK(t, "ws", "diff", string(id))
		c.json(t, &runtime.Snapshot{}, "ws", "rollback", string(id), string(before.ID))
		if got := c.work(t, id, state); got != later {
			t.Errorf("rolled forward it is\n%s\nwant\n%s", got, later)
		}
		var list struct{ Items []runtime.Snapshot }
		c.json(t, &list, "ws", "snapshots", string(id))
		if len(list.Items) != 3 || list.Items[0].ID != first.ID || list.Items[0].Label != "first" {
			t.Errorf("the snapshots are %+v", list)
		}
		c.Run(t, "worker", "spawn", string(first.ID), "--", "true").Refused(t, 1, policy.CodeAllocationNotActive)
		c.OK(t, "ws", "rm-snapshot", string(id), string(first.ID))
		c.Run(t, "ws", "rollback", string(id), string(first.ID)).Refused(t, 1, policy.CodeSnapshotUnknown)
		var all runtime.WorkspaceList
		c.json(t, &all, "ws", "list")
		if len(all.Items) != 1 || all.Items[0].ID != id {
			t.Errorf("the workspaces are %+v", all.Items)
		}
		c.discard(t, id)
	})
}

// TestSeveralRepositories: reports tell of each, what is about one names it, and a
// fork has them all.
func TestSeveralRepositories(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", rig.Ordinary)
	c := caller{Yoi: p.Yoi(t), source: repository(t), place: p}
	c.OK(t, "repo", "add", "--id", "small", p.Give(t, c.source).Dir)
	c.OK(t, "repo", "add", "--id", "other", p.Give(t, c.source).Dir)
	var ws, fork runtime.Workspace
	c.json(t, &ws, "ws", "create", "small", "other@tag:v1")
	c.work(t, ws.ID, "echo x >>README.md; cd ../other; echo y >y; git add y; git commit -q -m y")
	c.json(t, &fork, "ws", "fork", string(ws.ID))
	c.discard(t, ws.ID)
	var rep runtime.DiffReport
	c.json(t, &rep, "ws", "diff", string(fork.ID))
	if len(rep.Repositories) != 2 || rep.Repositories[0].Files[0].Path != "README.md" || rep.Repositories[1].Files[0].Path != "y" {
		t.Errorf("the fork differs by %+v", rep)
	}
	c.Run(t, "ws", "collect", "--as", "y", string(fork.ID)).Refused(t, 1, policy.CodeBadRequest)
	c.OK(t, "ws", "collect", "--as", "y", "--repository", "other", string(fork.ID))
	c.OK(t, "repo", "drop", "other", "y")
	c.discard(t, fork.ID)
	rig.Clean(t, c.Root)
}
