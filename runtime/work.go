package runtime

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"strconv"
	"strings"
	"sync"

	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// maxCapture bounds what the Runtime reads of a command of its own.
const maxCapture = 1 << 20

// work looks at every repository of an allocation, at the end of a Worker or, with "",
// of none.
func (r *Runtime) work(ctx context.Context, a registry.Allocation, ended policy.WorkerID) ([]Work, error) {
	if a.MaterializerKind == policy.StrategyDirect {
		return nil, nil // the work is in the source, which stays
	}
	exists, err := r.root.Exists(a.Root)
	if err != nil || !exists {
		return nil, err
	}
	var out []Work
	for i := range a.Mounts {
		w, err := r.workOf(ctx, a, i, ended)
		if err != nil {
			return nil, err
		}
		out = append(out, w)
	}
	return out, nil
}

// workOf says what one repository of an allocation holds beyond its point.
func (r *Runtime) workOf(ctx context.Context, a registry.Allocation, i int, ended policy.WorkerID) (Work, error) {
	const op = "runtime.work"
	alone := r.alone(a.ID, ended) // a mapping that is dirty already is written to without a new ctime
	c := r.askChanged(ctx, a, i)
	if w, ok := r.untouched.find(a.ID, i, c); ok {
		return w, nil
	}
	var out bytes.Buffer
	err := r.look(ctx, a, look{ask: "work", mount: i, limit: maxCapture, changed: &c}, &out)
	if err != nil && !lookFailed(err) {
		return Work{}, err
	}
	w, ok := parseWork(out.Bytes())
	if !ok || err != nil {
		// A tree that git cannot read may hold anything.
		return Work{}, policy.Errorf(policy.CodeUncollectedWork, op, "git cannot say what %s holds", a.ID).
			With("repository", string(a.Mounts[i].RepositoryID)).Because(err)
	}
	w.RepositoryID = a.Mounts[i].RepositoryID
	if alone {
		r.untouched.remember(a.ID, i, c, w)
	}
	return w, nil
}

// untouched remembers in which workspaces a look has found nothing. As long as they are
// as they were then, no Worker's end needs another: many short ones on one workspace
// would wait for it longer than for their own work.
type untouched struct {
	mu sync.Mutex
	at map[untouchedKey]nothing
}

type untouchedKey struct {
	id    policy.AllocationID
	mount int
}

type nothing struct {
	git  string // what it was then: helper.ChangedResult
	work Work
}

// find returns what the last look said, if nothing has changed since.
func (u *untouched) find(id policy.AllocationID, mount int, c helper.ChangedResult) (Work, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	n, ok := u.at[untouchedKey{id, mount}]
	return n.work, ok && c.Clean() && c.Git != "" && c.Git == n.git
}

// remember keeps what a look said, before which c was found out.
func (u *untouched) remember(id policy.AllocationID, mount int, c helper.ChangedResult, w Work) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !c.Clean() || c.Git == "" || w.CommitCount > 0 || w.ChangedPaths > 0 || w.Partial {
		delete(u.at, untouchedKey{id, mount})
		return
	}
	if u.at == nil {
		u.at = make(map[untouchedKey]nothing)
	}
	u.at[untouchedKey{id, mount}] = nothing{c.Git, w}
}

// forget is for a workspace that is gone.
func (u *untouched) forget(a registry.Allocation) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for mount := range a.Mounts {
		delete(u.at, untouchedKey{a.ID, mount})
	}
}

// parseWork reads a look's answer about work, which a hostile workspace may have
// made: only whole object ids and sane counts are taken.
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
		case "collected":
			w.CollectedAs, ok = v, policy.ValidOID(v)
		case "commit":
			w.Commits, ok = append(w.Commits, v), policy.ValidOID(v) && len(w.Commits) <= 1000
		case "count":
			w.CommitCount, ok = count(v)
		case "changed":
			w.ChangedPaths, ok = count(v)
		case "diff":
			d, err := hex.DecodeString(v)
			w.DiffDigest, ok = "sha256:"+v, err == nil && len(d) == 32
		case "partial":
			w.Partial, ok = true, v == "1"
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
	return w, s.Err() == nil && seen["count"] && seen["tree"] && seen["changed"] && (seen["diff"] || w.ChangedPaths == 0)
}

func count(s string) (int, bool) {
	n, err := strconv.Atoi(s)
	return n, err == nil && n >= 0
}

// uncollected returns a diagnostic when an allocation holds commits or changes
// that nobody has collected, nil when it holds none.
func (r *Runtime) uncollected(ctx context.Context, a registry.Allocation) (*policy.Diagnostic, error) {
	work, err := r.work(ctx, a, "")
	if err != nil {
		return nil, err
	}
	return uncollectedWork(a, work), nil
}

func uncollectedWork(a registry.Allocation, work []Work) *policy.Diagnostic {
	for _, w := range work {
		changed := w.ChangedPaths
		if w.CollectedAs != "" {
			changed = 0
		}
		if (w.CommitCount > 0 || changed > 0 || w.Partial) && !broughtAlong(a, w) {
			return policy.Errorf(policy.CodeUncollectedWork, "runtime.cleanup", "%s holds %d uncollected commits and %d changed paths in %s", a.ID, w.CommitCount, changed, w.RepositoryID).
				With("repository", string(w.RepositoryID)).With("commits", strconv.Itoa(w.CommitCount)).With("changes", strconv.Itoa(changed))
		}
	}
	return nil
}
