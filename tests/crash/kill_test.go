package crash

import (
	"bufio"
	"strings"
	"syscall"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// TestKilledAfterACommit kills yoi in the moment in which its command has
// committed, and asked for nothing to be kept. The commit is kept all the same,
// with a diagnostic; an uncommitted file alone is not.
func TestKilledAfterACommit(t *testing.T) {
	testenv.Root(t)
	small := testenv.RepoSmall(t)
	rig.EachPlace(t, func(t *testing.T, p rig.Place) {
		repo := p.Give(t, small)
		y := p.Yoi(t)
		for _, w := range p.Ways(t, y, repo) {
			t.Run(w.String(), func(t *testing.T) {
				oid := killedAt(t, y, "committed ", w.Run("--", "sh", "-c", commits+"; sleep 60")...)
				y.OK(t, "gc")
				kept := workspaces(t, y)
				if len(kept) != 1 || !warnedOfWork(kept[0]) {
					t.Fatalf("kept are %+v", kept)
				}
				holdsCommit(t, y.Root, kept[0], w.ID, oid)
				y.OK(t, "gc") // and again: it is not forgotten either
				if again := workspaces(t, y); len(again) != 1 {
					t.Errorf("after a second gc %d are kept", len(again))
				}
				y.Run(t, "ws", "rm", string(kept[0].ID)).Refused(t, 1, policy.CodeUncollectedWork)
				y.OK(t, "ws", "rm", "--discard", string(kept[0].ID))
				rig.Clean(t, y.Root)

				killedAt(t, y, "ready", w.Run("--", "sh", "-c", "echo x >new; echo ready; sleep 60")...)
				y.OK(t, "gc")
				rig.Clean(t, y.Root)
			})
		}
	})
}

// killedAt kills yoi's process group when its command prints a line that
// begins with prefix, and returns the rest of the line.
func killedAt(t *testing.T, y rig.Yoi, prefix string, args ...string) string {
	t.Helper()
	machine := rig.Before(t)
	cmd := y.Cmd(args...)
	cmd.SysProcAttr.Setpgid = true
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	rest, ok := strings.CutPrefix(strings.TrimSpace(line), prefix)
	if err != nil || !ok {
		t.Errorf("the command says %q, %v", line, err)
	}
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	machine.Unchanged(t)
	return rest
}
