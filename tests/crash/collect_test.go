package crash

import (
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// TestCollect cuts a collection off at every point. Either the name is there
// afterwards, and what it means is whole, or there is nothing of it; the
// workspace still has its commit in any case.
func TestCollect(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "ext4", 0)
	repo := p.Give(t, testenv.RepoSmall(t)).Dir
	y := p.Yoi(t, tag)
	y.OK(t, "repo", "add", "--id", "small", repo)
	var ws runtime.Workspace
	y.Run(t, "ws", "create", "small", "--json").JSON(t, &ws)
	commit := strings.TrimSpace(strings.TrimPrefix(y.Work(t, ws.ID, commits), "committed "))
	y.OK(t, "gc")
	before, err := rig.Leftovers(y.Root)
	if err != nil {
		t.Fatal(err)
	}
	walk(t, func(t *testing.T, n int) bool {
		machine := rig.Before(t)
		_, killed := cut(t, y, n, "ws", "collect", "--as", "fix", string(ws.ID))
		y.OK(t, "gc")
		var list struct{ Items []runtime.Collected }
		y.Run(t, "repo", "collected", "--json", "small").Want(t, 0).JSON(t, &list)
		switch {
		case len(list.Items) > 1, !killed && len(list.Items) != 1:
			t.Errorf("the names are %+v", list.Items)
		case len(list.Items) == 1:
			var res runtime.ResolveResult
			y.Run(t, "repo", "resolve", "--json", "small", "--rev", "collected:fix").Want(t, 0).JSON(t, &res)
			if res.Point.CommitID != commit {
				t.Errorf("resolved as %s, not %s", res.Point.CommitID, commit)
			}
			_, cutOff := cut(t, y, 1+n%3, "repo", "drop", "small", "fix")
			if y.OK(t, "gc"); cutOff {
				y.Run(t, "repo", "drop", "small", "fix") // it may be gone
			}
		}
		after, err := rig.Leftovers(y.Root)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range rig.Difference(before, after) {
			t.Errorf("after point %d: %s", n, d)
		}
		holdsCommit(t, y.Root, ws, "small", commit)
		machine.Unchanged(t)
		return killed
	})
	y.OK(t, "ws", "rm", "--discard", string(ws.ID))
	rig.Clean(t, y.Root)
}
