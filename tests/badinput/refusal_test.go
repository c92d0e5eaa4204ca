package badinput

import (
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// refused runs a command that must be refused, and holds the Runtime root and
// the machine before against after.
func refused(t *testing.T, y rig.Yoi, exit int, code policy.Code, args ...string) rig.Result {
	t.Helper()
	machine := rig.Before(t)
	before := rig.Names(t, y.Root)
	r := y.Run(t, args...).Refused(t, exit, code)
	for _, d := range rig.Difference(before, rig.Names(t, y.Root)) {
		t.Errorf("left a trace: %s", d)
	}
	rig.Clean(t, y.Root)
	machine.Unchanged(t)
	if r.Stdout != "" {
		t.Errorf("standard output is the command's, but holds %q", r.Stdout)
	}
	if !strings.Contains(r.Stderr, "hint: ") {
		t.Errorf("no hint:\n%s", r.Stderr)
	}
	return r
}

// warmed is a Runtime root that has run on repo, so that a refused run is not
// the one that fills the cache.
func warmed(t *testing.T, p rig.Place, repo string) rig.Yoi {
	t.Helper()
	y := p.Yoi(t)
	y.OK(t, "run", "--repo", repo, "--", "true")
	return y
}
