package runtime

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// workScript says what a repository holds beyond the point $1. It runs in a
// sandbox of its own on the workspace, mounted read-only: whatever configuration,
// hooks and filters the Worker left act on nothing but the answer, and a lie can
// only lose the liar's own work. The index and what git makes go to /tmp. Stat
// checks are strict, since the configuration may ask for lax ones.
const workScript = `set -e
g() { git -c core.checkStat=default -c core.trustctime=true -c core.fsmonitor=false -c core.untrackedCache=false -c core.hooksPath=/dev/null --no-optional-locks "$@"; }
# git would wait for ever to open a pipe in place of a file of its own.
if [ -n "$(find . -name '.git*' ! -type f ! -type d ! -type l -print -quit; find .git ! -type f ! -type d ! -type l -print -quit)" ]; then exit 3; fi
if head=$(g rev-parse --verify -q HEAD); then echo "head $head"; fi
echo "count $(g rev-list --count HEAD --all --reflog --not "$1")"
g rev-list -n 1000 HEAD --all --reflog --not "$1" | sed 's/^/commit /'
mkdir /tmp/objects
export GIT_OBJECT_DIRECTORY=/tmp/objects GIT_ALTERNATE_OBJECT_DIRECTORIES="$PWD/.git/objects" GIT_INDEX_FILE=/tmp/index
if [ -f .git/index ]; then cp -p .git/index /tmp/index; else g read-tree "$1"; fi
g add -A
tree=$(g write-tree)
echo "tree $tree"
echo "changed $(g diff-tree -r -z --name-only "$1" "$tree" | tr -dc '\000' | wc -c)"
echo "diff $(g diff-tree -r -p --binary --full-index --no-renames --no-ext-diff --no-textconv "$1" "$tree" | sha256sum | cut -d' ' -f1)"`

const (
	// workLimit is enough for a cold tree of a million files, and bounds how long a
	// hostile one keeps a removal waiting.
	workLimit = time.Minute
	// maxCapture bounds what the Runtime reads of a command of its own.
	maxCapture = 1 << 20
)

// work looks at every repository of an allocation.
func (r *Runtime) work(ctx context.Context, a registry.Allocation) ([]Work, error) {
	if a.MaterializerKind == policy.StrategyDirect {
		return nil, nil // the work is in the source, which stays
	}
	exists, err := r.root.Exists(a.Root)
	if err != nil || !exists {
		return nil, err
	}
	var out []Work
	for i, m := range a.Mounts {
		w, err := r.workOf(ctx, a, m.RepositoryID, a.RepositoryPoints[i].CommitID)
		if err != nil {
			return nil, err
		}
		out = append(out, w)
	}
	return out, nil
}

// workOf runs workScript on one repository of an allocation.
func (r *Runtime) workOf(ctx context.Context, a registry.Allocation, repo policy.RepositoryID, commit string) (Work, error) {
	const op = "runtime.work"
	a.SandboxPolicy = policy.SandboxPolicy{}.Normalize()
	out, code, err := r.capture(ctx, a, launch{
		id: policy.NewWorkerID(), repo: repo, command: []string{"/bin/sh", "-c", workScript, "work", commit},
		limits: policy.Limits{WallClock: workLimit}, readOnly: true, dieWithParent: true, unrecorded: true,
	})
	if err != nil {
		return Work{}, err
	}
	w, ok := parseWork(out)
	if !ok || code != 0 {
		// A tree that git cannot read may hold anything.
		return Work{}, policy.Errorf(policy.CodeUncollectedWork, op, "git cannot say what %s holds", a.ID).With("repository", string(repo))
	}
	w.RepositoryID = repo
	return w, nil
}

// parseWork reads workScript's output, which a hostile workspace may have made:
// only whole object ids and sane counts are taken.
func parseWork(b []byte) (w Work, ok bool) {
	seen := map[string]bool{}
	s := bufio.NewScanner(bytes.NewReader(b))
	for s.Scan() {
		key, v, _ := strings.Cut(s.Text(), " ")
		if seen[key] && key != "commit" {
			return w, false
		}
		seen[key] = true
		switch key {
		case "head":
			w.Head, ok = v, policy.ValidOID(v)
		case "tree":
			w.Tree, ok = v, policy.ValidOID(v)
		case "commit":
			w.Commits, ok = append(w.Commits, v), policy.ValidOID(v) && len(w.Commits) < 1000
		case "count":
			w.CommitCount, ok = count(v)
		case "changed":
			w.ChangedPaths, ok = count(v)
		case "diff":
			d, err := hex.DecodeString(v)
			w.DiffDigest, ok = "sha256:"+v, err == nil && len(d) == 32
		default:
			ok = false
		}
		if !ok {
			return w, false
		}
	}
	if w.ChangedPaths == 0 {
		w.DiffDigest = ""
	}
	return w, s.Err() == nil && seen["count"] && seen["tree"] && seen["changed"] && seen["diff"]
}

func count(s string) (int, bool) {
	n, err := strconv.Atoi(s)
	return n, err == nil && n >= 0
}

// uncollected returns a diagnostic when an allocation holds commits or changes
// that nobody has collected, nil when it holds none.
func (r *Runtime) uncollected(ctx context.Context, a registry.Allocation) (*policy.Diagnostic, error) {
	work, err := r.work(ctx, a)
	if err != nil {
		return nil, err
	}
	return uncollectedWork(a, work), nil
}

func uncollectedWork(a registry.Allocation, work []Work) *policy.Diagnostic {
	for _, w := range work {
		if (w.CommitCount > 0 || w.ChangedPaths > 0) && !broughtAlong(a, w) {
			return policy.Errorf(policy.CodeUncollectedWork, "runtime.cleanup", "%s holds %d uncollected commits and %d changed paths in %s", a.ID, w.CommitCount, w.ChangedPaths, w.RepositoryID).
				With("repository", string(w.RepositoryID)).With("commits", strconv.Itoa(w.CommitCount)).With("changes", strconv.Itoa(w.ChangedPaths))
		}
	}
	return nil
}

// capture runs an unrecorded command on an allocation and returns its output.
func (r *Runtime) capture(ctx context.Context, a registry.Allocation, l launch) ([]byte, int, error) {
	pr, pw, err := os.Pipe()
	if err != nil {
		return nil, 0, policy.AsDiagnostic(err)
	}
	defer pr.Close()
	l.stdio[1] = pw
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
