package backend

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"yoi.dev/yoi-runtime/api"
	"yoi.dev/yoi-runtime/backend/store"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// Creation is how far the making of an Execution Workspace is.
type Creation struct {
	ID    string `json:"id"`
	State string `json:"state"` // running, done or failed
	// Steps are what is done and, last, what is being done.
	Steps   []Step `json:"steps"`
	Percent int    `json:"percent"`
	// AllocationID is of a done one, Problem of a failed one.
	AllocationID string        `json:"allocation_id,omitempty"`
	Problem      *Problem      `json:"problem,omitempty"`
	Request      CreateRequest `json:"request"`
	CreatedAt    time.Time     `json:"created_at"`
	CreatedBy    string        `json:"created_by"`
}

// Step is a part of a creation.
type Step struct {
	Name    string    `json:"name"`
	BeganAt time.Time `json:"began_at"`
}

// creationHub holds the creations of this process that are under way or ended of
// late, for who watches.
type creationHub struct {
	mu  sync.Mutex
	all map[string]*running
}

type running struct {
	ws      string
	changed chan struct{} // closed and replaced at every change
	v       Creation
}

func (h *creationHub) begin(ws string, v Creation) *running {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all == nil {
		h.all = make(map[string]*running)
	}
	r := &running{ws: ws, changed: make(chan struct{}), v: v}
	h.all[v.ID] = r
	return r
}

// count is how many of a workspace's are under way.
func (h *creationHub) count(ws string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.all {
		if r.ws == ws && r.v.State == string(store.CreationRunning) {
			n++
		}
	}
	return n
}

// underWay is how many are.
func (h *creationHub) underWay() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.all {
		if r.v.State == string(store.CreationRunning) {
			n++
		}
	}
	return n
}

// of are a workspace's that are under way, or failed of late.
func (h *creationHub) of(ws string) []Creation {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []Creation
	for _, r := range h.all {
		if r.ws == ws && r.v.State != string(store.CreationDone) {
			v := r.v
			v.Steps = append([]Step(nil), v.Steps...)
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b Creation) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return out
}

func (h *creationHub) get(ws, id string) (*running, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, ok := h.all[id]
	return r, ok && r.ws == ws
}

func (h *creationHub) change(r *running, f func(*Creation)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f(&r.v)
	close(r.changed)
	r.changed = make(chan struct{})
}

func (h *creationHub) look(r *running) (Creation, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := r.v
	v.Steps = append([]Step(nil), v.Steps...)
	return v, r.changed
}

// rememberFor is how long an ended creation's steps are kept; then the store's
// record is what there is.
const rememberFor = 10 * time.Minute

func (h *creationHub) forget(id string) {
	time.AfterFunc(rememberFor, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.all, id)
	})
}

// order is a creation as the store keeps it: what was asked for, and what of a
// Runtime it means.
type order struct {
	Request CreateRequest
	Runtime runtime.CreateWorkspaceRequest
}

// create begins the making of an Execution Workspace.
func (c *call) create(req CreateRequest) (*running, error) {
	r, err := c.begin(req)
	target := limitText(req.RepositoryID, 64)
	if err == nil {
		target = r.v.ID
	}
	c.audited("create", target, err)
	return r, err
}

func (c *call) begin(req CreateRequest) (*running, error) {
	rt, err := c.resolve(req)
	if err != nil {
		return nil, err
	}
	if err := c.room(); err != nil {
		return nil, err
	}
	id := policy.NewID("cr-")
	rt.IdempotencyKey = "backend:" + id
	doc, err := json.Marshal(order{req, rt})
	if err != nil {
		return nil, err
	}
	rec := store.Creation{ID: id, Workspace: c.wsID, Actor: c.who.name, Request: string(doc), CreatedAt: time.Now()}
	// Before the Runtime is asked: after a crash the answer is asked for again.
	if err := c.b.store.AddCreation(c.ctx, rec); err != nil {
		return nil, storeFailed(err)
	}
	return c.b.start(c.s, rec), nil
}

// resume goes on with the creations that an earlier process left.
func (b *Backend) resume(ctx context.Context) error {
	left, err := b.store.Creations(ctx, "", store.CreationRunning, 1000)
	if err != nil {
		return storeFailed(err)
	}
	s := b.settings()
	for _, rec := range left {
		if _, ok := s.cfg.Workspaces[rec.Workspace]; ok {
			b.start(s, rec)
		}
	}
	return nil
}

func (b *Backend) start(s *settings, rec store.Creation) *running {
	r := b.creations.begin(rec.Workspace, creationOf(rec))
	b.behind.Go(func() {
		v, err := b.make(b.running, s, rec, r)
		if b.running.Err() != nil && err != nil {
			return // the next process goes on
		}
		var p *Problem
		var problem string
		if err != nil {
			of := b.problemOf(err)
			p = &of
			p.Instance = "urn:yoi:creation:" + rec.ID // how the log names it
			b.log.Info("creation failed", "creation", rec.ID, "workspace", rec.Workspace, "error", err)
			doc, merr := api.Marshal(p)
			if merr != nil {
				b.log.Error("a creation's problem cannot be encoded", "creation", rec.ID, "error", merr)
			}
			problem = string(doc)
		}
		if serr := b.store.EndCreation(context.WithoutCancel(b.running), rec.ID, string(v.ID), problem); serr != nil {
			b.log.Error("a creation's end is not recorded", "creation", rec.ID, "error", serr)
		}
		b.creations.change(r, func(c *Creation) {
			c.AllocationID, c.State, c.Percent = string(v.ID), string(store.CreationDone), 100
			if p != nil {
				c.State, c.Problem, c.AllocationID = string(store.CreationFailed), p, ""
			}
		})
		b.creations.forget(rec.ID)
	})
	return r
}

// progressEvery is how often a Runtime is asked how far it is.
const progressEvery = 100 * time.Millisecond

// make has the workspace's Runtime make what the creation asks for.
func (b *Backend) make(ctx context.Context, s *settings, rec store.Creation, r *running) (runtime.Workspace, error) {
	var o order
	if err := json.Unmarshal([]byte(rec.Request), &o); err != nil {
		return runtime.Workspace{}, storeFailed(err)
	}
	b.step(r, "register", 2)
	id, err := s.register(ctx, rec.Workspace, string(o.Runtime.Repositories[0].RepositoryID))
	if err != nil {
		return runtime.Workspace{}, err
	}
	o.Runtime.Repositories[0].RepositoryID = id
	rt := s.runtimes[s.cfg.Workspaces[rec.Workspace].Runtime]
	done := make(chan struct{})
	defer close(done)
	b.behind.Go(func() { b.watch(ctx, rt, o.Runtime.IdempotencyKey, r, done) })
	deadline := time.Now().Add(12 * time.Minute) // longer than a Runtime keeps a dead request's key
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		v, err := rt.CreateWorkspace(ctx, o.Runtime)
		// Of a creation that an earlier process left, the Runtime may still be at work.
		if !errors.Is(err, policy.CodeConflict) || time.Now().After(deadline) {
			return v, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return v, ctx.Err()
		}
	}
}

// stepPercent is roughly how much of a creation is behind when a step begins: the
// tree is what takes time, the first time.
var stepPercent = map[string]int{"policy": 5, "resolve": 10, "objects": 35, "tree": 45, "materialize": 80, "git": 88, "clean": 92, "apply": 95, "record": 98}

// watch asks the Runtime how far a creation is until done is closed.
func (b *Backend) watch(ctx context.Context, rt runtime.Service, key string, r *running, done <-chan struct{}) {
	t := time.NewTicker(progressEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-done:
			return
		case <-ctx.Done():
			return
		}
		p, err := rt.CreationProgress(ctx, key)
		percent, known := stepPercent[p.Name]
		select {
		case <-done: // the answer has come meanwhile
			return
		default:
		}
		if err == nil && known {
			b.step(r, p.Name, percent)
		}
	}
}

func (b *Backend) step(r *running, name string, percent int) {
	b.creations.change(r, func(c *Creation) {
		if n := len(c.Steps); n == 0 || c.Steps[n-1].Name != name {
			c.Steps = append(c.Steps, Step{Name: name, BeganAt: time.Now().UTC()})
		}
		c.Percent = max(c.Percent, percent)
	})
}

// creationOf is a creation as the store has it.
func creationOf(rec store.Creation) Creation {
	c := Creation{ID: rec.ID, State: string(rec.State), AllocationID: rec.Allocation, CreatedAt: rec.CreatedAt, CreatedBy: rec.Actor}
	if c.State == "" {
		c.State = string(store.CreationRunning)
	}
	var o order
	if json.Unmarshal([]byte(rec.Request), &o) == nil {
		c.Request = o.Request
	}
	if rec.Problem != "" {
		c.Problem = &Problem{}
		if json.Unmarshal([]byte(rec.Problem), c.Problem) != nil {
			c.Problem = nil
		}
	}
	if c.State == string(store.CreationDone) {
		c.Percent = 100
	}
	return c
}

// creation returns one of the workspace's creations, live or from the store.
func (c *call) creation(id string) (Creation, *running, error) {
	if r, ok := c.b.creations.get(c.wsID, id); ok {
		v, _ := c.b.creations.look(r)
		return v, r, nil
	}
	rec, err := c.b.store.GetCreation(c.ctx, c.wsID, id)
	if errors.Is(err, store.ErrNotFound) {
		return Creation{}, nil, refuse(CodeCreationUnknown, "there is no creation %q in this workspace", id)
	}
	if err != nil {
		return Creation{}, nil, storeFailed(err)
	}
	return creationOf(rec), nil, nil
}

// await waits for a creation's end.
func (c *call) await(r *running) (Creation, error) {
	for {
		v, changed := c.b.creations.look(r)
		if v.State != string(store.CreationRunning) {
			return v, nil
		}
		select {
		case <-changed:
		case <-c.ctx.Done():
			return v, c.ctx.Err()
		case <-c.b.running.Done():
			return v, refuse(CodeRuntimeUnreachable, "the Backend is stopping; the creation goes on at its next start")
		}
	}
}
