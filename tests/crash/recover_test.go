package crash

import (
	"slices"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// TestNextCommandRecovers: without a daemon, whoever makes, lists or removes
// something next finds nothing of a killed run; who only looks at the host or the ledger changes nothing.
func TestNextCommandRecovers(t *testing.T) {
	testenv.Root(t)
	small := testenv.RepoSmall(t)
	for _, uid := range []int{0, rig.Ordinary} {
		p := rig.NewPlace(t, "disk", uid)
		repo, y := p.Give(t, small).Dir, p.Yoi(t)
		y.OK(t, "repo", "add", "--id", "small", repo)
		y.OK(t, "repo", "add", "--id", "other", p.Give(t, small).Dir)
		leave := func() (left []string, id string) {
			t.Helper()
			killedAt(t, y, "ready", "run", "--repo", repo, "--", "sh", "-c", "echo x >new; echo ready; sleep 60")
			left, err := rig.Leftovers(y.Root)
			if err != nil || len(left) == 0 {
				t.Fatalf("a killed run leaves %q, %v", left, err)
			}
			held, err := rig.Held(y.Root)
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range held {
				if h.Resource.Kind == "directory" && h.Resource.Path == "execution-workspaces/"+h.Resource.Owner {
					id = h.Resource.Owner
				}
			}
			return left, id
		}
		left, id := leave()
		for _, args := range [][]string{{"ledger", "show", "--held"}, {"ledger", "verify"}, {"doctor"}, {"repo", "list"}, {"events"}} {
			y.Run(t, args...)
			if now, _ := rig.Leftovers(y.Root); !slices.Equal(now, left) {
				t.Errorf("%q changed\n%q to\n%q", args, left, now)
			}
		}
		for i, args := range [][]string{{"ws", "rm", ""}, {"ws", "list"}, {"worker", "list"}, {"image", "list"}, {"ws", "create", "other"}, {"repo", "rm", "other"}} {
			if i > 0 {
				_, id = leave()
			}
			if args[len(args)-1] == "" {
				args[len(args)-1] = id
			}
			y.OK(t, args...)
			if args[1] == "create" {
				for _, ws := range workspaces(t, y) {
					y.OK(t, "ws", "rm", string(ws.ID))
				}
			}
			rig.Clean(t, y.Root)
		}
	}
}
