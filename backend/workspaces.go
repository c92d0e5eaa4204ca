package backend

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// repositoryNames knows which of a Runtime's repositories a configured one is. Two
// workspaces may use one id for two sources, which a Runtime cannot.
type repositoryNames struct {
	mu   sync.Mutex
	to   map[[2]string]policy.RepositoryID // workspace and configured id
	from map[string]map[policy.RepositoryID]string
}

func (n *repositoryNames) learn(ws, id string, rt policy.RepositoryID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.to == nil {
		n.to, n.from = make(map[[2]string]policy.RepositoryID), make(map[string]map[policy.RepositoryID]string)
	}
	if n.from[ws] == nil {
		n.from[ws] = make(map[policy.RepositoryID]string)
	}
	n.to[[2]string{ws, id}], n.from[ws][rt] = rt, id
}

func (n *repositoryNames) known(ws, id string) (policy.RepositoryID, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	rt, ok := n.to[[2]string{ws, id}]
	return rt, ok
}

// configured is the way back. Before the repository is first used in this process
// the prefix says it.
func (n *repositoryNames) configured(ws string, rt policy.RepositoryID) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if id, ok := n.from[ws][rt]; ok {
		return id
	}
	return strings.TrimPrefix(string(rt), ws+"-")
}

// repository returns a configured repository of the call's workspace.
func (c *call) repository(id string) (RepositoryConfig, error) {
	r, ok := c.ws.Repositories[id]
	if !ok {
		return r, refuse(policy.CodeRepositoryUnknown, "the workspace has no repository %q", policy.Printable(limitText(id, 64)))
	}
	if r.remote() && !c.ws.AllowRemote {
		return r, refuse(CodeRemoteSource, "the source of %q is not on the Runtime's host", id)
	}
	return r, nil
}

// register sees that the workspace's Runtime has a repository, and returns its id
// there. A changed source under an id that is taken goes under the workspace's name.
func (s *settings) register(ctx context.Context, ws, id string) (policy.RepositoryID, error) {
	if rt, ok := s.names.known(ws, id); ok {
		return rt, nil
	}
	w := s.cfg.Workspaces[ws]
	r := w.Repositories[id]
	req := runtime.AddRepositoryRequest{ID: policy.RepositoryID(id), Source: r.Source, Options: policy.RepositoryOptions{Filter: policy.ObjectFilter(r.Filter)}}
	got, err := s.runtimes[w.Runtime].AddRepository(ctx, req)
	if errors.Is(err, policy.CodeRepositoryExists) {
		req.ID = policy.RepositoryID(ws + "-" + id)
		got, err = s.runtimes[w.Runtime].AddRepository(ctx, req)
	}
	if err != nil {
		return "", err
	}
	s.names.learn(ws, id, got.ID)
	return got.ID, nil
}

// allocation returns an allocation of the call's workspace. Another workspace's is
// as unknown as one that never was.
func (c *call) allocation(id string) (runtime.Workspace, error) {
	unknown := refuse(policy.CodeAllocationUnknown, "there is no Execution Workspace %q in this workspace", policy.Printable(limitText(id, 64)))
	if !policy.ValidID(id) {
		return runtime.Workspace{}, unknown
	}
	v, err := c.rt().GetWorkspace(c.ctx, policy.AllocationID(id))
	if errors.Is(err, policy.CodeAllocationUnknown) || (err == nil && string(v.WorkspaceID) != c.wsID) {
		return runtime.Workspace{}, unknown
	}
	return v, err
}

// present is allocation, of one that is not removed.
func (c *call) present(id string) (runtime.Workspace, error) {
	v, err := c.allocation(id)
	if err == nil && (v.Status == runtime.WorkspaceRemoved || v.Status == runtime.WorkspaceCleanupPending) {
		err = refuse(policy.CodeAllocationNotActive, "the Execution Workspace %s is %s", v.ID, v.Status)
	}
	return v, err
}

// workspaceFilter is what narrows a listing.
type workspaceFilter struct {
	Status, Repository, After string
	Limit                     int
}

// list returns a page of the workspace's allocations.
func (c *call) list(f workspaceFilter) (ExecutionWorkspaceList, error) {
	req := runtime.ListFilter{WorkspaceID: policy.WorkspaceID(c.wsID), Status: f.Status, Limit: f.Limit, After: f.After}
	if f.Repository != "" {
		if _, ok := c.ws.Repositories[f.Repository]; !ok {
			return ExecutionWorkspaceList{}, refuse(policy.CodeRepositoryUnknown, "the workspace has no repository %q", policy.Printable(limitText(f.Repository, 64)))
		}
		rt, err := c.s.register(c.ctx, c.wsID, f.Repository)
		if err != nil {
			return ExecutionWorkspaceList{}, err
		}
		req.RepositoryID = rt
	}
	got, err := c.rt().ListWorkspaces(c.ctx, req)
	if err != nil {
		return ExecutionWorkspaceList{}, err
	}
	out := ExecutionWorkspaceList{Items: make([]ExecutionWorkspace, 0, len(got.Items)), Next: got.Next}
	for _, v := range got.Items {
		if string(v.WorkspaceID) != c.wsID {
			continue
		}
		if v.Status != runtime.WorkspaceRemoved {
			c.b.disks.want(c.b, c.rt(), v.ID)
		}
		out.Items = append(out.Items, c.b.summary(c.ctx, c.wsID, v))
	}
	return out, nil
}

// diskCache remembers measurements: each looks at every file, so a listing shows
// the last one and has the next made behind it.
type diskCache struct {
	mu    sync.Mutex
	known map[policy.AllocationID]Disk
	busy  map[policy.AllocationID]bool
	slot  chan struct{}
}

const (
	diskFresh = 30 * time.Second
	maxDisks  = 5000
)

func (d *diskCache) last(id policy.AllocationID) *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	if v, ok := d.known[id]; ok {
		return &v
	}
	return nil
}

func (d *diskCache) put(id policy.AllocationID, v Disk) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known == nil || len(d.known) > maxDisks {
		d.known = make(map[policy.AllocationID]Disk)
	}
	d.known[id] = v
}

// want has a measurement made unless there is a fresh one.
func (d *diskCache) want(b *Backend, rt runtime.Service, id policy.AllocationID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.busy == nil {
		d.busy, d.slot = make(map[policy.AllocationID]bool), make(chan struct{}, 1)
	}
	if d.busy[id] || len(d.busy) > 200 || time.Since(d.known[id].MeasuredAt) < diskFresh {
		return
	}
	d.busy[id] = true
	b.behind.Go(func() {
		defer func() {
			d.mu.Lock()
			delete(d.busy, id)
			d.mu.Unlock()
		}()
		select {
		case d.slot <- struct{}{}:
			defer func() { <-d.slot }()
		case <-b.running.Done():
			return
		}
		if v, err := rt.WorkspaceDisk(b.running, id); err == nil {
			d.put(id, diskOf(v))
		}
	})
}

func diskOf(v runtime.DiskUsage) Disk {
	return Disk{ExclusiveBytes: v.ExclusiveBytes, ReferencedBytes: v.ReferencedBytes, Partial: v.Partial, MeasuredAt: v.MeasuredAt}
}

// CreateRequest asks for an Execution Workspace. "" takes the workspace's default.
type CreateRequest struct {
	RepositoryID string   `json:"repository_id"`
	Selector     string   `json:"selector,omitempty"` // "branch:main", "tag:v1", "commit:…", a revision
	Strategy     string   `json:"strategy,omitempty"`
	DirtyState   string   `json:"dirty_state_policy,omitempty"`
	Cleanup      string   `json:"cleanup_policy,omitempty"` // "keep_for:2h"
	Network      string   `json:"network,omitempty"`
	NetworkRules []string `json:"network_rules,omitempty"` // of the workspace's, for allowlist
	Scope        []string `json:"scope,omitempty"`         // directories; none is everything
	Branch       string   `json:"branch,omitempty"`        // makes HEAD a branch of that name
}

// resolve checks a request against the configuration and makes it a Runtime's. The
// repository's id is the configured one until it is registered.
func (c *call) resolve(req CreateRequest) (out runtime.CreateWorkspaceRequest, err error) {
	repo, err := c.repository(req.RepositoryID)
	if err != nil {
		return out, err
	}
	choose := func(code policy.Code, what, asked string, allowed []string) (string, error) {
		switch {
		case asked == "":
			return allowed[0], nil
		case slices.Contains(allowed, asked):
			return asked, nil
		}
		return "", refuse(code, "the %s %q is not one of this workspace's", what, policy.Printable(limitText(asked, 64)))
	}
	strategies := c.ws.Strategies
	if len(repo.Strategies) > 0 {
		strategies = repo.Strategies
	}
	strategy, err := choose(CodeStrategyNotAllowed, "strategy", req.Strategy, strategies)
	if err != nil {
		return out, err
	}
	dirty, err := choose(CodeDirtyNotAllowed, "dirty-state policy", req.DirtyState, c.ws.DirtyStates)
	if err != nil {
		return out, err
	}
	cleanup, err := choose(CodeCleanupNotAllowed, "cleanup policy", req.Cleanup, c.ws.CleanupPolicies)
	if err != nil {
		return out, err
	}
	network, err := choose(CodeNetworkNotAllowed, "network mode", req.Network, c.ws.Networks)
	if err != nil {
		return out, err
	}
	rules, err := c.ws.allowlist(policy.NetworkMode(network), req.NetworkRules)
	if err != nil {
		return out, err
	}
	if req.Selector == "" && repo.DefaultBranch != "" {
		req.Selector = "branch:" + repo.DefaultBranch
	}
	sel, err := policy.ParseSelector(strings.TrimSpace(req.Selector))
	if err != nil {
		return out, err
	}
	if sel = sel.Normalize(); sel.Kind == policy.SelectSnapshot {
		return out, refuse(policy.CodeSelectorInvalid, "snapshots of a store are not for a browser")
	}
	scope, err := policy.ParseScope(req.Scope)
	if err != nil {
		return out, err
	}
	cp, err := policy.ParseCleanupPolicy(cleanup)
	if err != nil {
		return out, err
	}
	if len(req.Branch) > 200 {
		return out, refuse(policy.CodeSelectorInvalid, "the branch's name is longer than 200 bytes")
	}
	out = runtime.CreateWorkspaceRequest{
		WorkspaceID:  policy.WorkspaceID(c.wsID),
		Repositories: []runtime.RepositoryRequest{{RepositoryID: policy.RepositoryID(req.RepositoryID), Selector: sel, Scope: scope, Branch: req.Branch}},
		Strategy:     policy.StrategyName(strategy), DirtyState: policy.DirtyStatePolicy(dirty), Cleanup: cp,
		Sandbox: policy.SandboxPolicy{Network: policy.NetworkPolicy{Mode: policy.NetworkMode(network), Rules: rules}},
	}
	return out, nil
}

// allowlist checks the destinations that a request names. An allowlist of none is a
// mistake: it would be the mode none under another name.
func (w WorkspaceConfig) allowlist(mode policy.NetworkMode, asked []string) ([]string, error) {
	switch {
	case mode != policy.NetworkAllowlist && len(asked) > 0:
		return nil, refuse(policy.CodePolicyInvalid, "network rules go with the network mode allowlist, and it is %s", mode)
	case mode == policy.NetworkAllowlist && len(asked) == 0:
		return nil, refuse(CodeNetworkRulesRequired, "an allowlist names what it lets through")
	}
	rules := normalRules(asked)
	for _, r := range rules {
		if !slices.Contains(w.NetworkRules, r) {
			return nil, refuse(CodeNetworkRuleNotAllowed, "the network rule %q is not one of this workspace's", policy.Printable(limitText(r, 300)))
		}
	}
	return rules, nil
}

// room refuses more than the workspace may have.
func (c *call) room() error {
	most := c.ws.MaxExecutionWorkspaces
	n := c.b.creations.count(c.wsID)
	for _, s := range []runtime.WorkspaceStatus{runtime.WorkspaceActive, runtime.WorkspaceStopped, runtime.WorkspaceFailed} {
		if n >= most {
			break
		}
		got, err := c.rt().ListWorkspaces(c.ctx, runtime.ListFilter{WorkspaceID: policy.WorkspaceID(c.wsID), Status: string(s), Limit: min(most-n, 1000)})
		if err != nil {
			return err
		}
		n += len(got.Items)
	}
	if n >= most {
		return refuse(CodeWorkspaceQuota, "there are %d Execution Workspaces, and the workspace may have no more", most)
	}
	return nil
}

// CleanUpRequest removes an Execution Workspace. Without Discard work that would
// be lost is refused; without Stop a running Worker is.
type CleanUpRequest struct {
	Discard bool `json:"discard,omitempty"`
	Stop    bool `json:"stop,omitempty"`
}

func (c *call) remove(id string, req CleanUpRequest) (ExecutionWorkspace, error) {
	v, err := c.allocation(id)
	if err == nil {
		v, err = c.rt().RemoveWorkspace(c.ctx, v.ID, runtime.RemoveWorkspaceRequest{Discard: req.Discard, Stop: req.Stop})
	}
	c.audited("clean_up", limitText(id, 64), err)
	if err != nil {
		return ExecutionWorkspace{}, err
	}
	return c.b.summary(c.ctx, c.wsID, v), nil
}
