package crash

import (
	"fmt"
	"os/exec"
	"syscall"
	"testing"

	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// tag is the build tag of package ledger's crash points.
const tag = "crashtest"

// mostPoints is far above the number of points of any work here: a walk that
// gets there is one that does not end.
const mostPoints = 600

// walk calls cut with 1, 2, 3, … until it reports that nothing was cut off,
// and checks that there was something to walk through.
func walk(t *testing.T, cut func(t *testing.T, n int) (killed bool)) {
	t.Helper()
	every.walk(t, cut)
}

// stride is a walk that takes one point of each `of`, beginning with `from`. Walks
// whose records are the same in the same order, on two file systems or by two
// strategies, share the points: each is cut off somewhere, at half the price.
type stride struct{ from, of int }

var every = stride{1, 1}

func (s stride) walk(t *testing.T, cut func(t *testing.T, n int) (killed bool)) {
	t.Helper()
	for n := s.from; ; n += s.of {
		if n > mostPoints {
			t.Fatalf("no end after %d points", n)
		}
		if !cut(t, n) {
			if n < 10 {
				t.Errorf("only %d crash points: are the programs built with the tag %s?", n-1, tag)
			}
			t.Logf("%d crash points", n-1)
			return
		}
		if t.Failed() {
			t.Fatalf("after a crash at point %d", n)
		}
	}
}

// otherwise is true at every second point, in a walk over all as in one over every
// second: for what is done in two ways after a cut.
func otherwise(n int) bool { return n/2%2 == 0 }

func crashAt(n int) string { return fmt.Sprintf("YOI_CRASH_AT=%d", n) }

// runUntil runs cmd in a process group of its own and reports whether its
// crash point killed it.
func runUntil(t *testing.T, cmd *exec.Cmd) (r rig.Result, killed bool) {
	t.Helper()
	cmd.SysProcAttr.Setpgid = true
	r = rig.Finish(t, cmd)
	ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
	killed = ws.Signaled() && ws.Signal() == syscall.SIGKILL
	if !killed && r.Code != 0 {
		t.Fatalf("%q ended with %d\n%s", r.Args, r.Code, r.Stderr)
	}
	return r, killed
}
