package backend

import (
	"bytes"
	"errors"
	"io"
	"math"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"yoi.dev/yoi-runtime/api"
	"yoi.dev/yoi-runtime/backend/store"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

func (c *call) getOpenAPI() error {
	c.write(http.StatusOK, "application/json", OpenAPI())
	return nil
}

// body decodes the request's JSON document, strictly. An optional one may be absent.
func (c *call) body(dst any, optional bool) ([]byte, error) {
	if optional && c.r.ContentLength == 0 {
		return nil, nil
	}
	media, _, err := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	if err != nil || media != "application/json" {
		return nil, refuse(policy.CodeBadRequest, "the Content-Type is not application/json")
	}
	b, err := c.read()
	if err != nil {
		return nil, err
	}
	if len(b) == 0 && optional {
		return nil, nil
	}
	return b, api.DecodeStrict(b, dst)
}

func (c *call) read() ([]byte, error) {
	b, err := io.ReadAll(c.r.Body)
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return nil, refuse(policy.CodeRequestTooLarge, "the body is larger than %d bytes", over.Limit)
	case err != nil:
		return nil, refuse(policy.CodeBadRequest, "the body did not come whole").Because(err)
	}
	return b, nil
}

// once runs do once for a key: a repeated request gets the first one's answer.
func (c *call) once(body []byte, do func() (int, any, error)) error {
	if c.key == "" {
		status, v, err := do()
		if err != nil {
			return err
		}
		return c.reply(status, v)
	}
	scope := c.wsID + " " + c.who.name + " " + c.route.operation + " " + c.id
	digest := store.Hash(string(body))
	a, err := c.b.store.ClaimKey(c.ctx, scope, c.key, digest)
	switch {
	case errors.Is(err, store.ErrConflict):
		return refuse(CodeIdempotencyConflict, "the idempotency key was used for another request")
	case errors.Is(err, store.ErrPending):
		return refuse(CodeRequestPending, "the first request with this key is still under way")
	case err != nil:
		return storeFailed(err)
	case a != nil:
		c.w.Header().Set("Idempotency-Replayed", "true")
		c.write(a.Status, "application/json", a.Body)
		return nil
	}
	// What the key names is done to its end although the client is gone: it asks again
	// because it did not hear the answer, and must not have it done twice.
	c.ctx = c.after()
	status, v, err := do()
	if err != nil {
		return errors.Join(err, c.b.store.ForgetKey(c.ctx, scope, c.key))
	}
	doc, err := api.Marshal(v)
	if err != nil {
		return err
	}
	if err := c.b.store.AnswerKey(c.ctx, scope, c.key, store.Answer{Status: status, Body: doc}); err != nil {
		c.b.log.Error("an answer is not kept for its key", "error", err)
	}
	c.write(status, "application/json", doc)
	return nil
}

// number reads a parameter between 0 and most; 0 without it.
func (c *call) number(name string, most int64) (int64, error) {
	s := c.r.URL.Query().Get(name)
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > most {
		return 0, refuse(policy.CodeBadRequest, "%s is not a number from 0 to %d", name, most).With("parameter", name)
	}
	return n, nil
}

func (c *call) flag(name string) bool { return c.r.URL.Query().Get(name) == "true" }

// filter reads the parameters of a listing.
func (c *call) filter(statuses []string) (f workspaceFilter, err error) {
	q := c.r.URL.Query()
	f = workspaceFilter{Status: q.Get("status"), Repository: q.Get("repository_id"), After: q.Get("after")}
	if f.Status != "" && !slices.Contains(statuses, f.Status) {
		return f, refuse(policy.CodeBadRequest, "status is none of %s", strings.Join(statuses, ", ")).With("parameter", "status")
	}
	n, err := c.number("limit", 200)
	if f.Limit = int(n); f.Limit == 0 {
		f.Limit = 50
	}
	return f, err
}

var (
	workspaceStatuses = []string{"active", "stopped", "cleanup_pending", "removed", "failed"}
	workerStatuses    = []string{"starting", "running", "exited", "failed", "lost"}
)

// Membership is a workspace that who asks may enter.
type Membership struct {
	ID           string             `json:"id"`
	Title        string             `json:"title"`
	Role         string             `json:"role"`
	Repositories []RepositoryChoice `json:"repositories,omitempty"`
	Choices      *Choices           `json:"choices,omitempty"`
}

// Choices are what a workspace allows; the first of each is the default.
type Choices struct {
	Strategies      []string `json:"strategies"`
	DirtyStates     []string `json:"dirty_state_policies"`
	CleanupPolicies []string `json:"cleanup_policies"`
	Networks        []string `json:"networks"`
	NetworkRules    []string `json:"network_rules,omitempty"` // for the mode allowlist
	MaxWallClock    string   `json:"max_wall_clock,omitempty"`
	MaxMemory       string   `json:"max_memory,omitempty"`
	MaxCPUPercent   uint64   `json:"max_cpu_percent,omitempty"`
	Most            int      `json:"max_execution_workspaces"`
}

// RepositoryChoice is a configured repository. Where it lies is not told.
type RepositoryChoice struct {
	ID            string   `json:"id"`
	Title         string   `json:"title"`
	DefaultBranch string   `json:"default_branch,omitempty"`
	Strategies    []string `json:"strategies"`
	// Usable is false for a remote source in a workspace that allows none.
	Usable bool `json:"usable"`
}

func (c *call) repositoryChoices() []RepositoryChoice {
	var out []RepositoryChoice
	for id, r := range c.ws.Repositories {
		v := RepositoryChoice{ID: id, Title: r.Title, DefaultBranch: r.DefaultBranch, Strategies: r.Strategies, Usable: !r.remote() || c.ws.AllowRemote}
		if v.Title == "" {
			v.Title = id
		}
		if len(v.Strategies) == 0 {
			v.Strategies = c.ws.Strategies
		}
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b RepositoryChoice) int { return strings.Compare(a.ID, b.ID) })
	return out
}

func (c *call) choices() *Choices {
	w := c.ws
	return &Choices{
		Strategies: w.Strategies, DirtyStates: w.DirtyStates, CleanupPolicies: w.CleanupPolicies, Networks: w.Networks, NetworkRules: w.NetworkRules,
		MaxWallClock: w.MaxWallClock, MaxMemory: w.MaxMemory, MaxCPUPercent: w.MaxCPUPercent, Most: w.MaxExecutionWorkspaces,
	}
}

func (c *call) memberships() []Membership {
	out := []Membership{}
	for id, r := range c.who.roles {
		if w, ok := c.s.cfg.Workspaces[id]; ok {
			out = append(out, Membership{ID: id, Title: w.Title, Role: r.String()})
		}
	}
	slices.SortFunc(out, func(a, b Membership) int { return strings.Compare(a.ID, b.ID) })
	return out
}

type list[T any] struct {
	Items []T `json:"items"`
}

func (c *call) listMemberships() error {
	return c.reply(http.StatusOK, list[Membership]{c.memberships()})
}

func (c *call) getWorkspace() error {
	return c.reply(http.StatusOK, Membership{
		ID: c.wsID, Title: c.ws.Title, Role: c.who.roles[c.wsID].String(), Repositories: c.repositoryChoices(), Choices: c.choices(),
	})
}

func (c *call) listRepositories() error {
	return c.reply(http.StatusOK, list[RepositoryChoice]{c.repositoryChoices()})
}

// Ref is what a selector can name.
type Ref struct {
	Selector string `json:"selector"` // "branch:main", "tag:v1"
	CommitID string `json:"commit_id"`
}

// RefList holds branches, then tags.
type RefList struct {
	Items []Ref `json:"items"`
	More  bool  `json:"more,omitempty"`
}

func (c *call) refs(repo, part string, limit int) (RefList, error) {
	out := RefList{Items: []Ref{}}
	if _, err := c.repository(repo); err != nil {
		return out, err
	}
	id, err := c.s.register(c.ctx, c.wsID, repo)
	if err != nil {
		return out, err
	}
	got, err := c.rt().ListRefs(c.ctx, id, runtime.RefsRequest{Part: part, Limit: limit})
	if err != nil {
		return out, err
	}
	out.More = got.More
	for _, r := range got.Items {
		if name, ok := strings.CutPrefix(r.Name, "refs/heads/"); ok {
			out.Items = append(out.Items, Ref{"branch:" + name, r.CommitID})
		} else if name, ok := strings.CutPrefix(r.Name, "refs/tags/"); ok {
			out.Items = append(out.Items, Ref{"tag:" + name, r.CommitID})
		}
	}
	return out, nil
}

func (c *call) listRefs() error {
	limit, err := c.number("limit", 200)
	if err != nil {
		return err
	}
	part := c.r.URL.Query().Get("prefix")
	if len(part) > 200 {
		return refuse(policy.CodeBadRequest, "prefix is longer than 200 bytes")
	}
	v, err := c.refs(c.id, part, int(limit))
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, v)
}

func (c *call) listExecutionWorkspaces() error {
	f, err := c.filter(workspaceStatuses)
	if err != nil {
		return err
	}
	v, err := c.list(f)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, v)
}

// createExecutionWorkspace answers when it is made, or with Prefer: respond-async at
// once with what can be watched.
func (c *call) createExecutionWorkspace() error {
	var req CreateRequest
	b, err := c.body(&req, false)
	if err != nil {
		return err
	}
	c.unhurried()
	return c.once(b, func() (int, any, error) {
		r, err := c.create(req)
		if err != nil {
			return 0, nil, err
		}
		at := "/api/w/" + c.wsID
		if strings.Contains(c.r.Header.Get("Prefer"), "respond-async") {
			c.w.Header().Set("Preference-Applied", "respond-async")
			v, _ := c.b.creations.look(r)
			c.w.Header().Set("Location", at+"/creations/"+v.ID)
			return http.StatusAccepted, v, nil
		}
		v, err := c.await(r)
		if err != nil {
			return 0, nil, err
		}
		if v.Problem != nil {
			d := refuse(v.Problem.Code, "%s", v.Problem.Detail)
			d.Fields, d.Items = v.Problem.Fields, v.Problem.Items
			return 0, nil, d
		}
		e, err := c.allocation(v.AllocationID)
		if err != nil {
			return 0, nil, err
		}
		c.w.Header().Set("Location", at+"/execution-workspaces/"+v.AllocationID)
		return http.StatusCreated, c.b.summary(c.ctx, c.wsID, e), nil
	})
}

func (c *call) getExecutionWorkspace() error {
	v, err := c.allocation(c.id)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, c.b.summary(c.ctx, c.wsID, v))
}

func (c *call) evidence(id string) (Evidence, error) {
	v, err := c.allocation(id)
	if err != nil {
		return Evidence{}, err
	}
	ev, err := c.rt().WorkspaceEvidence(c.ctx, v.ID)
	return c.b.evidenceOf(c.wsID, ev), err
}

func (c *call) getEvidence() error {
	v, err := c.evidence(c.id)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, v)
}

func (c *call) getDisk() error {
	v, err := c.present(c.id)
	if err != nil {
		return err
	}
	d, err := c.rt().WorkspaceDisk(c.ctx, v.ID)
	if err != nil {
		return err
	}
	c.b.disks.put(v.ID, diskOf(d))
	return c.reply(http.StatusOK, diskOf(d))
}

func (c *call) getWork() error {
	v, err := c.work(c.id)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, v)
}

func (c *call) getDiff() error {
	v, err := c.diff(c.id)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, v)
}

// DirectoryList holds the names of the directories in Path.
type DirectoryList struct {
	Path  string   `json:"path"` // "." is the root
	Names []string `json:"names"`
	More  bool     `json:"more,omitempty"`
}

func (c *call) directories(id, path string) (DirectoryList, error) {
	if _, err := policy.CheckRelativeCwd(path); err != nil {
		return DirectoryList{}, err
	}
	v, err := c.present(id)
	if err != nil {
		return DirectoryList{}, err
	}
	got, err := c.rt().ListDirectories(c.ctx, v.ID, runtime.DirectoriesRequest{Path: path})
	return DirectoryList{Path: got.Path, Names: got.Names, More: got.More}, err
}

func (c *call) listDirectories() error {
	v, err := c.directories(c.id, c.r.URL.Query().Get("path"))
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, v)
}

func (c *call) cleanUp() error {
	var req CleanUpRequest
	b, err := c.body(&req, true)
	if err != nil {
		return err
	}
	c.unhurried()
	return c.once(b, func() (int, any, error) {
		v, err := c.remove(c.id, req)
		return http.StatusOK, v, err
	})
}

func (c *call) getCreation() error {
	v, _, err := c.creation(c.id)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, v)
}

func (c *call) listWorkers() error {
	f, err := c.filter(workerStatuses)
	if err != nil {
		return err
	}
	v, err := c.workers(f, c.r.URL.Query().Get("allocation_id"))
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, v)
}

func (c *call) spawnWorker() error {
	var req SpawnRequest
	b, err := c.body(&req, false)
	if err != nil {
		return err
	}
	c.unhurried()
	return c.once(b, func() (int, any, error) {
		v, err := c.spawn(req)
		if err == nil {
			c.w.Header().Set("Location", "/api/w/"+c.wsID+"/workers/"+v.ID)
		}
		return http.StatusCreated, v, err
	})
}

func (c *call) getWorker() error {
	v, err := c.worker(c.id)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, v)
}

func (c *call) stopWorker() error {
	var req StopRequest
	b, err := c.body(&req, true)
	if err != nil {
		return err
	}
	c.unhurried()
	return c.once(b, func() (int, any, error) {
		v, err := c.stop(c.id, req)
		return http.StatusOK, v, err
	})
}

func (c *call) logRequest() (r logRequest, err error) {
	q := c.r.URL.Query()
	r.Stream, r.Follow = q.Get("stream"), c.flag("follow")
	if r.Stream == "" {
		r.Stream = "stdout"
	}
	if r.Stream != "stdout" && r.Stream != "stderr" {
		return r, refuse(policy.CodeBadRequest, "stream is not stdout or stderr").With("parameter", "stream")
	}
	if r.Offset, err = c.number("offset", math.MaxInt64); err != nil {
		return r, err
	}
	if r.Tail, err = c.number("tail", maxLogPart); err != nil {
		return r, err
	}
	r.Limit, err = c.number("limit", maxLogPart)
	return r, err
}

// getLogs answers with a part of a log as it is, or with server-sent events of its
// lines, taken apart for a page.
func (c *call) getLogs() error {
	req, err := c.logRequest()
	if err != nil {
		return err
	}
	w, err := c.worker(c.id)
	if err != nil {
		return err
	}
	if api.WantsEvents(c.r.Header) {
		return c.streamLogs(policy.WorkerID(w.ID), req)
	}
	req.Follow = false
	if req.Limit == 0 {
		req.Limit = maxLogPart
	}
	var b bytes.Buffer
	from, next, err := c.logs(policy.WorkerID(w.ID), req, &b)
	if err != nil {
		return err
	}
	c.w.Header().Set("Yoi-Log-Offset", strconv.FormatInt(from, 10))
	c.w.Header().Set("Yoi-Log-Next", strconv.FormatInt(next, 10))
	// A Worker's bytes: never a page.
	c.w.Header().Set("Content-Disposition", `attachment; filename="`+url.PathEscape(w.ID+"-"+req.Stream)+`.log"`)
	c.write(http.StatusOK, "application/octet-stream", b.Bytes())
	return nil
}

func (c *call) usageOf(w Worker) Usage {
	u := Usage{WorkerID: w.ID, Samples: c.b.usage.want(c.b, c.rt(), policy.WorkerID(w.ID), w.Live())}
	if u.Samples == nil {
		u.Samples = []Sample{}
	}
	return u
}

func (c *call) getUsage() error {
	w, err := c.worker(c.id)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, c.usageOf(w))
}

func (c *call) getEgress() error {
	v, err := c.egress(c.id)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, v)
}

// Act is a line of the audit.
type Act struct {
	Seq     int64     `json:"seq"`
	At      time.Time `json:"at"`
	Actor   string    `json:"actor"`
	Action  string    `json:"action"`
	Target  string    `json:"target"`
	Outcome string    `json:"outcome"` // "ok" or a code
}

const shownAudit = 100 // lines, unless a request says otherwise

func (c *call) audit() ([]Act, error) {
	before, err := c.number("before", math.MaxInt64)
	if err != nil {
		return nil, err
	}
	limit, err := c.number("limit", 500)
	if err != nil {
		return nil, err
	}
	if limit == 0 {
		limit = shownAudit
	}
	got, err := c.b.store.Audit(c.ctx, c.wsID, before, int(limit))
	if err != nil {
		return nil, storeFailed(err)
	}
	out := []Act{}
	for _, a := range got {
		out = append(out, Act{a.Seq, a.At, a.Actor, a.Action, a.Target, a.Outcome})
	}
	return out, nil
}

func (c *call) listAudit() error {
	v, err := c.audit()
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, list[Act]{v})
}
