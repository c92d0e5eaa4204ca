package cow

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
)

// stepContext calls step whenever the walk looks whether it is canceled, which
// is before each of its steps.
type stepContext struct {
	context.Context
	step func()
}

func (c stepContext) Err() error { c.step(); return nil }

// When the walk is deep down, the directories in the middle are closed, and it
// comes back through "..". A directory moved out of the tree meanwhile has
// another parent: taking that for the old one would empty it.
func TestRemoveComesBackToItsOwnParent(t *testing.T) {
	noLeaks(t)
	dir := testenv.TmpFS(t, 8)
	const levels = 3 * maxOpenFrames
	plant(t, dir, "outside/canary", "outside/x/canary", "tree/"+strings.Repeat("x/", levels)+"bottom")
	r := &remover{op: "test", dir: newDirReader()}
	top, err := openBeneath(fd(openForTest(t, dir)), newCname("."), openDir)
	must(t, err)
	r.stack = []*frame{{fd: top, names: newCname("tree")}}
	defer r.closeAll()
	moved := false
	ctx := stepContext{t.Context(), func() {
		if moved || len(r.stack) < levels {
			return
		}
		moved = true
		middle := filepath.Join(dir, "tree", strings.Repeat("x/", maxOpenFrames))
		must(t, os.Rename(middle, filepath.Join(dir, "outside", "moved")))
	}}
	must(t, r.run(ctx))
	if !moved || r.restarts != 1 || r.failed != 0 {
		t.Errorf("moved %v, %d restarts, %d failures", moved, r.restarts, r.failed)
	}
	for _, n := range []string{"outside/canary", "outside/x/canary"} {
		if !exists(filepath.Join(dir, n)) {
			t.Errorf("%s is gone", n)
		}
	}
	if exists(filepath.Join(dir, "tree")) {
		t.Error("the tree is still there")
	}
}

// Entries that come behind the reader's position, as ext4's hashed order has
// them, are found by reading again.
func TestRemoveReadsAgain(t *testing.T) {
	for _, keep := range []bool{false, true} {
		dir := testenv.FS(t, "ext4", 16)
		many := func(prefix string) {
			for i := range 200 {
				plant(t, dir, "tree/"+prefix+strconv.Itoa(i))
			}
		}
		many("first")
		r := &remover{op: "test", keepTop: keep, dir: newDirReader()}
		top, err := openBeneath(fd(openForTest(t, dir)), newCname("."), openDir)
		must(t, err)
		r.stack = []*frame{{fd: top, names: newCname("tree")}}
		late := false
		must(t, r.run(stepContext{t.Context(), func() {
			if !late && len(r.stack) == 2 && r.last().gone == 200 {
				late = true
				many("late")
			}
		}}))
		r.closeAll()
		left, err := os.ReadDir(filepath.Join(dir, "tree"))
		if !late || r.failed != 0 || len(left) > 0 || keep != (err == nil) {
			t.Errorf("keep %v: late %v, %d failures, left %d %v", keep, late, r.failed, len(left), err)
		}
	}
}
