package gitwork

import (
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// TestForkReadsNoContent: what git takes for unchanged in a workspace it takes for
// unchanged in its fork, of a live one too, and nothing else: of the files that were
// written to since, once in the moment of the last git add, it sees each change.
func TestForkReadsNoContent(t *testing.T) {
	testenv.Root(t)
	rig.EachPlace(t, func(t *testing.T, p rig.Place) {
		repo := p.Give(t, testenv.RepoFiles(t, 400))
		y := p.Yoi(t)
		y.OK(t, "repo", "add", "--id", "files", repo.Dir)
		for _, s := range rig.Strategies(p.FS) {
			t.Run(string(s), func(t *testing.T) {
				var ws runtime.Workspace
				y.Run(t, "ws", "create", "files", "--seccomp", "debug", "--strategy", string(s), "--json").Want(t, 0).JSON(t, &ws)
				y.Work(t, ws.ID, `
					git status >/dev/null; echo staged >d000/s00/file-000005.txt; git add -A; printf STAGED | dd of=d000/s00/file-000005.txt conv=notrunc status=none
					printf X | dd of=d000/s00/file-000007.txt conv=notrunc status=none`)
				const changed = "MM d000/s00/file-000005.txt\n M d000/s00/file-000007.txt\n"
				var live struct{ ID string }
				y.Run(t, "worker", "spawn", "--json", string(ws.ID), "--", "sh", "-c", "echo ready; sleep 60").Want(t, 0).JSON(t, &live)
				rig.Eventually(t, "the Worker", func() bool { return y.OK(t, "worker", "logs", live.ID) != "" })
				var beside, fork runtime.Workspace
				y.Run(t, "ws", "fork", "--json", string(ws.ID)).Want(t, 0).JSON(t, &beside)
				y.OK(t, "worker", "stop", "--grace", "100ms", live.ID)
				y.Run(t, "ws", "fork", "--json", string(ws.ID)).Want(t, 0).JSON(t, &fork)
				for name, id := range map[string]policy.AllocationID{"beside a Worker": beside.ID, "at rest": fork.ID} {
					out := y.Work(t, id, "git --no-optional-locks status --porcelain; "+statusScript)
					trace, ok := strings.CutPrefix(out, changed)
					if !ok {
						t.Errorf("%s: git status says\n%.300s\nwant\n%s", name, out, changed)
						continue
					}
					// The two that have changed are read, some times each, as in the original.
					if reads := contentReads(traceSections(t, trace)["first"]); len(reads) > 10 {
						t.Errorf("%s: the first status read %d files, among them %s", name, len(reads), reads[0])
					}
				}
				y.OK(t, "ws", "rm", "--discard", "--stop", string(beside.ID))
				y.OK(t, "ws", "rm", "--discard", "--stop", string(fork.ID))
				y.OK(t, "ws", "rm", "--discard", "--stop", string(ws.ID))
			})
		}
		rig.Clean(t, y.Root)
	})
}
