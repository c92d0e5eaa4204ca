package results

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// yoiUser is the uid of the unprivileged daemon.
const yoiUser = 64400

// caller is the command line on one Runtime root, embedded or through the daemons.
type caller struct {
	rig.Yoi
	source, repo testenv.Repo // the caller's own is a copy
	place        rig.Place
}

// callerKind is one of the ways to be a caller.
type callerKind struct {
	fs         string
	uid        int
	daemons    bool
	strategies []policy.StrategyName
}

// callers are the ways to be one, with a strategy of each kind.
var callers = []callerKind{
	{"ext4", 0, false, []policy.StrategyName{policy.StrategyOverlay, policy.StrategyCopy, policy.StrategyGitWorktree}},
	{"ext4", rig.Ordinary, false, []policy.StrategyName{policy.StrategyOverlay, policy.StrategyCopy}},
	{"xfs", 0, false, []policy.StrategyName{policy.StrategyReflink}},
	{"btrfs", 0, false, []policy.StrategyName{policy.StrategyBtrfsSnapshot}},
	{"btrfs", rig.Ordinary, false, []policy.StrategyName{policy.StrategyBtrfsSnapshot}},
	{"ext4", yoiUser, true, []policy.StrategyName{policy.StrategyOverlay, policy.StrategyGitWorktree}},
	{"btrfs", yoiUser, true, []policy.StrategyName{policy.StrategyBtrfsSnapshot, policy.StrategyReflink}},
}

// eachCaller runs body for each of them, and wants nothing to be left.
func eachCaller(t *testing.T, body func(t *testing.T, c caller, s policy.StrategyName)) {
	t.Helper()
	runCallers(t, callers, body)
}

// kindsOfCallers is for what does not depend on the strategy: root, an ordinary
// user and the daemons, with one strategy each.
func kindsOfCallers(t *testing.T, body func(t *testing.T, c caller, s policy.StrategyName)) {
	t.Helper()
	runCallers(t, []callerKind{
		{"ext4", 0, false, []policy.StrategyName{policy.StrategyOverlay}},
		{"btrfs", rig.Ordinary, false, []policy.StrategyName{policy.StrategyBtrfsSnapshot}},
		{"ext4", yoiUser, true, []policy.StrategyName{policy.StrategyGitWorktree}},
	}, body)
}

func runCallers(t *testing.T, kinds []callerKind, body func(t *testing.T, c caller, s policy.StrategyName)) {
	t.Helper()
	testenv.Root(t)
	small := repository(t)
	for _, c := range kinds {
		p := rig.Place{FS: c.fs, UID: c.uid}
		name := p.String()
		if c.daemons {
			name = c.fs + "/daemons"
		}
		t.Run(name, func(t *testing.T) {
			p := rig.NewPlace(t, c.fs, c.uid)
			machine := rig.Before(t)
			who := caller{Yoi: p.Yoi(t), source: small, repo: p.Give(t, small), place: p}
			var d *rig.Daemons
			if c.daemons {
				d = rig.StartDaemons(t, p, 0)
				who.Yoi = d.Yoi(t, c.uid)
			}
			who.OK(t, "repo", "add", "--id", "small", who.repo.Dir)
			for _, s := range c.strategies {
				t.Run(string(s), func(t *testing.T) { body(t, who, s) })
			}
			if d != nil {
				d.Stop(t)
			}
			rig.Clean(t, filepath.Join(p.Dir, "rt"))
			machine.Unchanged(t)
		})
	}
}

// repository is RepoSmall with a branch that is no ancestor of main, whose
// commits are nobody's work.
func repository(t *testing.T) testenv.Repo {
	t.Helper()
	r := testenv.RepoSmall(t)
	aside := r.Git(t, "-c", "user.name=X", "-c", "user.email=x@example.com", "commit-tree", "-p", "topic", "-m", "aside", "HEAD^{tree}")
	r.Git(t, "branch", "aside", aside)
	return r
}

// create makes a workspace of the caller's repository.
func (c caller) create(t *testing.T, s policy.StrategyName, args ...string) policy.AllocationID {
	t.Helper()
	var ws runtime.Workspace
	c.json(t, &ws, append([]string{"ws", "create", "small", "--branch", "work", "--strategy", string(s)}, args...)...)
	if ws.Strategy != s {
		t.Fatalf("made by %s: %s", ws.Strategy, ws.StrategyReason)
	}
	return ws.ID
}

func (c caller) json(t *testing.T, v any, args ...string) {
	t.Helper()
	n := len(args)
	for i, a := range args {
		if a == "--" {
			n = i
			break
		}
	}
	args = append(append(append([]string{}, args[:n]...), "--json"), args[n:]...)
	if err := json.Unmarshal([]byte(c.OK(t, args...)), v); err != nil {
		t.Fatal(err)
	}
}

// start runs a script on a workspace.
func (c caller) start(t *testing.T, id policy.AllocationID, script string) policy.WorkerID {
	t.Helper()
	var w runtime.Worker
	c.json(t, &w, "worker", "spawn", string(id), "--", "sh", "-ec", script)
	return w.ID
}

// work runs a script on a workspace to its end, which must be good.
func (c caller) work(t *testing.T, id policy.AllocationID, script string) string {
	t.Helper()
	w := c.start(t, id, script)
	var ended runtime.Worker
	c.json(t, &ended, "worker", "wait", string(w))
	if ended.Outcome == nil || ended.Outcome.ExitCode != 0 {
		t.Fatalf("%s ended as %+v\n%s", script, ended.Outcome, c.OK(t, "worker", "logs", "--stderr", string(w)))
	}
	return c.OK(t, "worker", "logs", string(w))
}

func (c caller) discard(t *testing.T, ids ...policy.AllocationID) {
	t.Helper()
	for _, id := range ids {
		c.OK(t, "ws", "rm", "--discard", "--stop", string(id))
	}
}

// clone is a plain clone of the caller's repository at its commit.
func (c caller) clone(t *testing.T) testenv.Repo {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "clone")
	rig.Command(t, "git", "clone", "-q", c.source.Dir, dir)
	return testenv.Repo{Dir: dir}
}

// file writes what a command printed.
func file(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func lines(s string) []string { return strings.Split(strings.TrimSpace(s), "\n") }
