package runtime

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"yoi.dev/yoi-runtime/gitcache"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// CollectRequest takes commits of a workspace into the repository cache, where
// they outlive it under a name.
type CollectRequest struct {
	// RepositoryID may be left out where there is one.
	RepositoryID policy.RepositoryID `json:"repository_id,omitempty"`
	// As is the name, like a branch's. A workspace can be made of it by the
	// selector collected:NAME.
	As string `json:"as"`
	// Revision is which commit, as git in the workspace names it; "" is HEAD.
	Revision string `json:"revision,omitempty"`
	// Uncommitted makes a commit of what is not committed first, behind Revision.
	Uncommitted bool `json:"uncommitted,omitempty"`
	// Force lets the name leave commits behind that it meant before.
	Force bool `json:"force,omitempty"`
	// MaxBytes bounds the pack; 0 is 1 GiB.
	MaxBytes int64 `json:"max_bytes,omitempty"`
}

// Collected is a name for commits that a workspace made.
type Collected struct {
	RepositoryID policy.RepositoryID `json:"repository_id"`
	Name         string              `json:"name"`
	Selector     policy.Selector     `json:"selector"`
	CommitID     string              `json:"commit_id"`
	TreeID       string              `json:"tree_id"`
	BaseID       string              `json:"base_id"` // the commit that the workspace was made of
	AllocationID policy.AllocationID `json:"allocation_id"`
	Commits      int                 `json:"commits"` // that the cache did not have
	Bytes        int64               `json:"bytes"`   // of the pack
	CollectedAt  time.Time           `json:"collected_at"`
}

// CollectedRequest names what was collected.
type CollectedRequest struct {
	Name string `json:"name"`
}

func collectedView(repo policy.RepositoryID, c gitcache.Collected) Collected {
	return Collected{
		RepositoryID: repo, Name: c.Name, Selector: policy.Selector{Kind: policy.SelectCollected, Value: c.Name},
		CommitID: c.CommitID, TreeID: c.TreeID, BaseID: c.BaseID, AllocationID: c.Holder, Commits: c.Commits, Bytes: c.Bytes, CollectedAt: c.At,
	}
}

// CollectWorkspace takes commits out of a workspace: git in a sandbox packs them,
// git of the cache's, which has nothing of the workspace's but that pack, checks
// and keeps them.
func (r *Runtime) CollectWorkspace(ctx context.Context, id policy.AllocationID, req CollectRequest) (Collected, error) {
	if err := req.fill(); err != nil {
		return Collected{}, err
	}
	a, i, err := r.lookedAtOne(ctx, id, req.RepositoryID)
	if err != nil {
		return Collected{}, err
	}
	message := ""
	if req.Uncommitted {
		message = fmt.Sprintf("Uncommitted changes of %s", id)
	}
	pr, pw := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := r.look(ctx, a, look{ask: "pack", mount: i, args: []string{req.Revision, message}, limit: req.MaxBytes + tipLine, within: exportLimit}, pw)
		pw.CloseWithError(err) // nil is io.EOF
		packed <- err
	}()
	c, err := r.takeIn(ctx, a, i, req, pr)
	pr.CloseWithError(errStopped)
	// What git in the workspace says comes first: it is the cause of the rest.
	if perr := <-packed; perr != nil && !errors.Is(perr, errStopped) {
		return Collected{}, perr
	}
	if err != nil {
		return Collected{}, err
	}
	repo := a.Mounts[i].RepositoryID
	r.workspaceEvent(policy.EventWorkspaceCollected, a, map[string]string{"repository": string(repo), "name": c.Name, "commit": c.CommitID})
	return collectedView(repo, c), nil
}

// errStopped ends a look whose reader needs no more.
var errStopped = errors.New("the reader has ended")

// tipLine is more than the line before the pack: "tip OID COUNT".
const tipLine = 128

func (req *CollectRequest) fill() error {
	const op = "runtime.collect"
	if req.Revision == "" {
		req.Revision = "HEAD"
	}
	if err := (policy.Selector{Kind: policy.SelectRevision, Value: req.Revision}).Validate(); err != nil {
		return err
	}
	if !gitcache.ValidCollectedName(req.As) {
		return policy.Errorf(policy.CodeSelectorInvalid, op, "%q is not a name for collected commits", policy.Printable(req.As)).
			WithHint("Give a name that a branch could have.")
	}
	if req.MaxBytes == 0 {
		req.MaxBytes = defaultExport
	}
	if req.MaxBytes < 0 || req.MaxBytes > mostExport {
		return policy.Errorf(policy.CodeBadRequest, op, "the limit is not between 1 byte and 1 TiB")
	}
	return nil
}

// takeIn reads the tip's line and gives the pack to the cache.
func (r *Runtime) takeIn(ctx context.Context, a registry.Allocation, i int, req CollectRequest, in io.Reader) (gitcache.Collected, error) {
	const op = "runtime.collect"
	b := bufio.NewReaderSize(in, 32<<10)
	tip, n, ok := parseTip(b)
	if !ok {
		return gitcache.Collected{}, policy.Errorf(policy.CodeWorkspaceUnreadable, op, "git's answer about %s makes no sense", a.ID)
	}
	if n == 0 {
		if same, err := r.alreadyCollected(a.Mounts[i].RepositoryID, req.As, tip); err != nil || same.CommitID != "" {
			return same, err
		}
		return gitcache.Collected{}, policy.Errorf(policy.CodeNothingToCollect, op, "%s has no commit that the cache has not", a.ID)
	}
	return r.cache.Collect(ctx, a.Mounts[i].RepositoryID, gitcache.CollectOptions{
		Name: req.As, CommitID: tip, BaseID: a.RepositoryPoints[i].CommitID, Holder: a.ID, Commits: n, MaxBytes: req.MaxBytes, Force: req.Force,
	}, b)
}

// alreadyCollected is the record of a name that means the commit already.
func (r *Runtime) alreadyCollected(id policy.RepositoryID, name, commit string) (gitcache.Collected, error) {
	list, err := r.cache.Collected(id)
	for _, c := range list {
		if c.Name == name && c.CommitID == commit {
			return c, err
		}
	}
	return gitcache.Collected{}, err
}

// parseTip reads "tip OID COUNT" and the newline.
func parseTip(b *bufio.Reader) (oid string, n int, ok bool) {
	var line strings.Builder
	for line.Len() < tipLine {
		c, err := b.ReadByte()
		if err != nil {
			return "", 0, false
		}
		if c == '\n' {
			f := strings.Split(line.String(), " ")
			if len(f) != 3 || f[0] != "tip" || !policy.ValidOID(f[1]) {
				return "", 0, false
			}
			n, ok = count(f[2])
			return f[1], n, ok
		}
		line.WriteByte(c)
	}
	return "", 0, false
}

// ListCollected lists a repository's names for collected commits.
func (r *Runtime) ListCollected(ctx context.Context, id policy.RepositoryID) ([]Collected, error) {
	if _, err := r.repository(ctx, id); err != nil {
		return nil, err
	}
	list, err := r.cache.Collected(id)
	if err != nil {
		return nil, err
	}
	out := make([]Collected, 0, len(list))
	for _, c := range list {
		out = append(out, collectedView(id, c))
	}
	return out, nil
}

// ExportCollected writes a name's commits as a git bundle.
func (r *Runtime) ExportCollected(ctx context.Context, id policy.RepositoryID, req CollectedRequest, w io.Writer) (int64, error) {
	if _, err := r.repository(ctx, id); err != nil {
		return 0, err
	}
	out := &counting{w: w}
	err := r.cache.ExportCollected(ctx, id, req.Name, out)
	return out.n, err
}

// DropCollected forgets a name.
func (r *Runtime) DropCollected(ctx context.Context, id policy.RepositoryID, req CollectedRequest) error {
	if _, err := r.repository(ctx, id); err != nil {
		return err
	}
	if err := r.cache.DropCollected(ctx, id, req.Name); err != nil {
		return err
	}
	r.event(policy.EventRepositoryCollectedDropped, string(id), map[string]string{"name": req.Name})
	return nil
}
