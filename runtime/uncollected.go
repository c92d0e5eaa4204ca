package runtime

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// lookScript counts, in one repository, the commits that are not the point's
// ancestors and the paths that differ. It runs in a sandbox of its own on the
// workspace, mounted read-only: whatever configuration, hooks and filters the
// Worker left act on nothing but the answer, and a lie can only lose the liar's
// own work. Strict stat checks, since the index may ask for lax ones.
const lookScript = `set -e
g() { git -c core.checkStat=default -c core.trustctime=true -c core.fsmonitor=false -c core.untrackedCache=false --no-optional-locks "$@"; }
if [ ! -d .git ]; then echo 0 1; exit; fi
commits=$(g rev-list --count HEAD --all --reflog --not "$1" 2>/dev/null) || commits=1
changes=$(g status --porcelain=v1 -z --untracked-files=all --ignore-submodules=none | tr -dc '\000' | wc -c) || changes=1
echo "$commits" "$changes"`

const lookLimit = 5 * time.Minute

// uncollected returns a diagnostic when an allocation holds commits or changes
// that nobody has collected, nil when it holds none.
func (r *Runtime) uncollected(ctx context.Context, a registry.Allocation) (*policy.Diagnostic, error) {
	if a.MaterializerKind == policy.StrategyDirect {
		return nil, nil // the work is in the source, which stays
	}
	for i, m := range a.Mounts {
		exists, err := r.root.Exists(a.Root)
		if err != nil || !exists {
			return nil, err
		}
		commits, changes, err := r.look(ctx, a, m.RepositoryID, a.RepositoryPoints[i].CommitID)
		if err != nil {
			return nil, err
		}
		if commits == 0 && changes == 0 {
			continue
		}
		return policy.Errorf(policy.CodeUncollectedWork, "runtime.cleanup", "%s holds %d uncollected commits and %d changed paths in %s", a.ID, commits, changes, m.RepositoryID).
			With("repository", string(m.RepositoryID)).With("commits", strconv.Itoa(commits)).With("changes", strconv.Itoa(changes)), nil
	}
	return nil, nil
}

// look runs lookScript on one repository of an allocation.
func (r *Runtime) look(ctx context.Context, a registry.Allocation, repo policy.RepositoryID, commit string) (commits, changes int, err error) {
	const op = "runtime.look"
	a.SandboxPolicy = policy.SandboxPolicy{}.Normalize()
	out, code, err := r.capture(ctx, a, launch{
		id: policy.NewWorkerID(), repo: repo, command: []string{"/bin/sh", "-c", lookScript, "look", commit},
		limits: policy.Limits{WallClock: lookLimit}, readOnly: true, dieWithParent: true, unrecorded: true,
	})
	if err != nil {
		return 0, 0, err
	}
	if n, _ := fmt.Sscanf(strings.TrimSpace(string(out)), "%d %d", &commits, &changes); n != 2 || code != 0 || commits < 0 || changes < 0 {
		// A tree that git cannot read may hold anything.
		return 0, 0, policy.Errorf(policy.CodeUncollectedWork, op, "git cannot say whether %s holds uncollected work", a.ID).With("repository", string(repo))
	}
	return commits, changes, nil
}

// maxCapture bounds what the Runtime reads of a command of its own.
const maxCapture = 1 << 20

// capture runs an unrecorded command on an allocation and returns its output.
func (r *Runtime) capture(ctx context.Context, a registry.Allocation, l launch) ([]byte, int, error) {
	pr, pw, err := os.Pipe()
	if err != nil {
		return nil, 0, policy.AsDiagnostic(err)
	}
	defer pr.Close()
	l.stdio = [3]*os.File{nil, pw, nil}
	_, launched, err := r.start(ctx, a, l)
	pw.Close()
	if err != nil {
		return nil, 0, err
	}
	launched.Pidfd.Close()
	var buf bytes.Buffer
	_, rerr := io.Copy(&buf, io.LimitReader(pr, maxCapture))
	_, _ = io.Copy(io.Discard, pr) // let the command end
	o, err := r.helper.Wait(ctx, l.id)
	if err == nil {
		err = rerr
	}
	return buf.Bytes(), o.ExitCode, err
}
