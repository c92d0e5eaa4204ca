package results

import (
	"testing"
	"time"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// TestWorkAfterNothing has a Worker do one thing on a workspace in which the Worker
// before did nothing, and wants its record to say so: what was found then must not be
// taken for what there is now.
func TestWorkAfterNothing(t *testing.T) {
	eachCaller(t, func(t *testing.T, c caller, s policy.StrategyName) {
		for _, k := range []struct {
			name, script     string
			commits, changed int
		}{
			{"nothing", "git status >/dev/null; cat README.md >/dev/null; touch -a README.md", 0, 0},
			{"a commit", "git commit -q --allow-empty -m empty", 1, 0},
			{"a commit that only a reflog has", "git commit -q --allow-empty -m empty; git reset -q --hard HEAD~1", 1, 0},
			{"a ref written in place, its time restored", `
				new=$(git commit-tree -p HEAD -m aside HEAD^{tree}); ref=.git/refs/heads/work; touch -r $ref /tmp/then
				printf '%s\n' $new | dd of=$ref conv=notrunc status=none; touch -r /tmp/then $ref`, 1, 0},
			{"a tag in packed-refs", "git tag t $(git commit-tree -m root HEAD^{tree}); git pack-refs --all", 1, 0},
			{"a stash", "echo x >>README.md; git stash -q", 2, 0},
			{"an edit of the same size, its time restored", `
				touch -r README.md /tmp/then; printf X | dd of=README.md conv=notrunc status=none; touch -r /tmp/then README.md`, 0, 1},
			{"the same beside a pipe", `
				mkfifo pipe; touch -r README.md /tmp/then; printf X | dd of=README.md conv=notrunc status=none; touch -r /tmp/then README.md`, 0, 1},
			{"a new file", "echo new >new", 0, 1},
			{"a file that is gone", "rm README.md", 0, 1},
			{"a file and a commit", "echo new >new; git add new; git commit -qm new", 1, 1},
		} {
			t.Run(k.name, func(t *testing.T) {
				id := c.create(t, s)
				time.Sleep(50 * time.Millisecond) // or what was found is too young to be remembered
				for range 2 {
					if w := c.workOf(t, id, "true"); w.CommitCount != 0 || w.ChangedPaths != 0 || w.Tree != c.source.Tree || w.Head != c.source.Commit {
						t.Fatalf("a Worker that does nothing leaves %+v", w)
					}
				}
				// Old enough to be told from a change that comes after it.
				if w := c.workOf(t, id, k.script+"\nsleep 0.1"); w.CommitCount != k.commits || w.ChangedPaths != k.changed {
					t.Errorf("it leaves %d commits and %d changed paths, and %d and %d are recorded", k.commits, k.changed, w.CommitCount, w.ChangedPaths)
				}
				c.discard(t, id)
			})
		}
	})
}

// workOf runs a script to its end and returns what it left, by its record.
func (c caller) workOf(t *testing.T, id policy.AllocationID, script string) runtime.Work {
	t.Helper()
	var w runtime.Worker
	c.json(t, &w, "worker", "wait", string(c.start(t, id, script)))
	if w.Outcome == nil || w.Outcome.ExitCode != 0 || len(w.Outcome.Work) != 1 {
		t.Fatalf("it ended so: %+v\n%s", w.Outcome, c.OK(t, "worker", "logs", "--stderr", string(w.ID)))
	}
	return w.Outcome.Work[0]
}
