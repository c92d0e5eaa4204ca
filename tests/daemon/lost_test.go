package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// What a client of the helper's made and did not have kept goes with it: nobody else
// knows of it. Whoever recovers next finds that done.
func TestHelperOutlivesItsClient(t *testing.T) {
	testenv.Root(t)
	d := rig.StartDaemons(t, rig.NewPlace(t, "disk", yoiUser), 0)
	d.Runtimed.Stop(t)
	ctx := t.Context()
	there := func(id policy.AllocationID) bool {
		_, err := os.Lstat(filepath.Join(d.Root, rootdir.Workspace(id)))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return err == nil
	}
	first := helper.Dial(d.HelperSoc)
	kept, lost := policy.NewAllocationID(), policy.NewAllocationID()
	for _, id := range []policy.AllocationID{kept, lost} {
		if _, err := first.Materialize(ctx, helper.MaterializeRequest{
			AllocationID: id, Repositories: []helper.RepositoryTree{{RepositoryID: "small", TreeKey: strings.Repeat("0", 40), Strategy: policy.StrategyGitWorktree}},
		}); err != nil || !there(id) {
			t.Fatalf("%s: %t, %v", id, there(id), err)
		}
	}
	if err := first.Keep(ctx, kept); err != nil {
		t.Fatal(err)
	}
	first.Close()
	second := helper.Dial(d.HelperSoc)
	defer second.Close()
	if _, err := second.Recover(ctx); err != nil {
		t.Fatal(err)
	}
	if !there(kept) || there(lost) {
		t.Errorf("what was kept is there: %t; what was not: %t\n%s", there(kept), there(lost), d.Helper.Log())
	}
	for _, id := range []policy.AllocationID{lost, policy.NewAllocationID()} {
		wantCode(t, second.Keep(ctx, id), policy.CodeAllocationUnknown)
	}
	if err := second.Remove(context.WithoutCancel(ctx), helper.RemoveRequest{AllocationID: kept}); err != nil {
		t.Error(err)
	}
	d.StartRuntimed(t)
	d.Stop(t)
	rig.Clean(t, d.Root)
}
