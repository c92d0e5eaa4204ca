package backend

import (
	"embed"
	"errors"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// The pages: made here, whole, so that they work without a script. Scripts
// (web/src, compiled to assets) make them live.

//go:embed templates
var templateFiles embed.FS

//go:embed assets
var assetFiles embed.FS

var pages = func() map[string]*template.Template {
	m := make(map[string]*template.Template)
	names, err := fs.Glob(templateFiles, "templates/*.html")
	if err != nil {
		panic(err)
	}
	for _, n := range names {
		name := strings.TrimSuffix(strings.TrimPrefix(n, "templates/"), ".html")
		if name == "layout" || name == "parts" {
			continue
		}
		m[name] = template.Must(template.New("layout.html").Funcs(templateFuncs).
			ParseFS(templateFiles, "templates/layout.html", "templates/parts.html", n))
	}
	return m
}()

func uiRoutes() []route {
	const w = "/w/{w}"
	return []route{
		{method: "GET", path: "/assets/{id}", operation: "asset", open: true, free: true, handle: (*call).asset},
		{method: "GET", path: "/login", operation: "loginPage", ui: true, open: true, handle: (*call).loginPage},
		{method: "POST", path: "/login", operation: "login", ui: true, open: true, handle: (*call).loginForm},
		{method: "POST", path: "/logout", operation: "logout", ui: true, handle: (*call).logoutForm},
		{method: "GET", path: "/", operation: "home", ui: true, handle: (*call).homePage},
		{method: "GET", path: w, operation: "listPage", role: viewer, ui: true, handle: (*call).listPage},
		{method: "GET", path: w + "/new", operation: "newPage", role: operator, ui: true, handle: (*call).newPage},
		{method: "POST", path: w + "/new", operation: "newForm", role: operator, ui: true, handle: (*call).newForm},
		{method: "GET", path: w + "/creations/{id}", operation: "creationPage", role: viewer, ui: true, handle: (*call).creationPage},
		{method: "GET", path: w + "/execution-workspaces/{id}", operation: "detailPage", role: viewer, ui: true, handle: (*call).detailPage},
		{method: "GET", path: w + "/execution-workspaces/{id}/diff", operation: "diffPage", role: viewer, ui: true, handle: (*call).diffPage},
		{method: "GET", path: w + "/execution-workspaces/{id}/cleanup", operation: "cleanupPage", role: operator, ui: true, handle: (*call).cleanupPage},
		{method: "POST", path: w + "/execution-workspaces/{id}/cleanup", operation: "cleanupForm", role: operator, ui: true, handle: (*call).cleanupForm},
		{method: "GET", path: w + "/launch", operation: "launchPage", role: operator, ui: true, handle: (*call).launchPage},
		{method: "POST", path: w + "/launch", operation: "launchForm", role: operator, ui: true, handle: (*call).launchForm},
		{method: "GET", path: w + "/workers", operation: "workersPage", role: viewer, ui: true, handle: (*call).workersPage},
		{method: "GET", path: w + "/workers/{id}", operation: "workerPage", role: viewer, ui: true, handle: (*call).workerPage},
		{method: "POST", path: w + "/workers/{id}/stop", operation: "stopForm", role: operator, ui: true, handle: (*call).stopForm},
		{method: "GET", path: w + "/audit", operation: "auditPage", role: admin, ui: true, handle: (*call).auditPage},
	}
}

// page is what every page's template gets.
type page struct {
	Title     string
	Who       string
	CSRF      string
	Workspace string // the id, "" outside
	Name      string // its title
	Role      string
	Nav       string // which entry is current
	Refresh   int    // seconds, for a page without scripts; 0 for none
	Problem   *Problem
	Data      any
}

// Can says whether a role may do what takes another.
func (p page) Can(what string) bool { return roleOf(p.Role) >= roleOf(what) }

func (c *call) page(title, nav string, data any) page {
	p := page{Title: title, Nav: nav, Data: data}
	if c.who != nil {
		p.Who, p.CSRF = c.who.name, c.who.csrf
		if w, ok := c.s.cfg.Workspaces[c.wsID]; ok && c.who.roles[c.wsID] != 0 {
			p.Workspace, p.Name, p.Role = c.wsID, w.Title, c.who.roles[c.wsID].String()
		}
	}
	return p
}

// render answers with a page.
func (c *call) render(status int, name string, p page) error {
	var b strings.Builder
	if err := pages[name].Execute(&b, p); err != nil {
		return refuse(policy.CodeInternal, "the page cannot be made").Because(err)
	}
	c.write(status, "text/html; charset=utf-8", []byte(b.String()))
	return nil
}

// failPage says what is wrong in words, or leads to the login.
func (c *call) failPage(p Problem) int {
	if p.Code == CodeAuthenticationRequired && c.safe() {
		to := "/login"
		if c.r.URL.Path != "/" {
			to += "?next=" + url.QueryEscape(c.r.URL.RequestURI())
		}
		c.redirect(to)
		return http.StatusSeeOther
	}
	pg := c.page(p.Title, "", nil)
	pg.Problem = &p
	if err := c.render(p.Status, "error", pg); err != nil {
		c.b.log.Error("the error page cannot be made", "error", err)
		c.send(p.Status, problemType, p)
	}
	return p.Status
}

func (c *call) redirect(to string) {
	c.w.Header().Set("Location", to)
	c.write(http.StatusSeeOther, "text/plain; charset=utf-8", nil)
}

// again shows a form once more, with what is wrong with it.
func (c *call) again(err error, name string, p page) error {
	pr := c.b.problemOf(err)
	pr.Instance = c.instance
	if pr.Status >= 500 {
		c.b.log.Warn("a form failed", "operation", c.route.operation, "instance", c.instance, "error", err)
	}
	p.Problem = &pr
	return c.render(pr.Status, name, p)
}

var assetTypes = map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}

func (c *call) asset() error {
	b, err := assetFiles.ReadFile("assets/" + c.id)
	i := strings.LastIndexByte(c.id, '.')
	if err != nil || i < 0 || assetTypes[c.id[i:]] == "" {
		return refuse(policy.CodeNotFound, "there is no such file")
	}
	c.w.Header().Set("Cache-Control", "no-cache") // a new version counts at once
	c.write(http.StatusOK, assetTypes[c.id[i:]], b)
	return nil
}

// form reads a form with known fields only, each once; one that is named with a "*"
// here may be given more often, as check boxes are.
func (c *call) form(fields ...string) (url.Values, error) {
	if !isForm(c.r) {
		return nil, refuse(policy.CodeBadRequest, "the body is not a form")
	}
	if err := c.r.ParseForm(); err != nil {
		var over *http.MaxBytesError
		if errors.As(err, &over) {
			return nil, refuse(policy.CodeRequestTooLarge, "the form is larger than %d bytes", over.Limit)
		}
		return nil, refuse(policy.CodeBadRequest, "the form cannot be read").Because(err)
	}
	return c.r.PostForm, checkForm(c.r.PostForm, fields)
}

func checkForm(v url.Values, fields []string) error {
	for name, values := range v {
		many := slices.Contains(fields, name+"*")
		if name != "csrf" && !many && !slices.Contains(fields, name) {
			return refuse(policy.CodeBadRequest, "there is no field %q", policy.Printable(limitText(name, 64)))
		}
		if len(values) > 1 && !many {
			return refuse(policy.CodeBadRequest, "the field %q is given twice", policy.Printable(limitText(name, 64)))
		}
		if slices.ContainsFunc(values, func(s string) bool { return strings.ContainsRune(s, 0) }) {
			return refuse(policy.CodeBadRequest, "the field %q holds a NUL", policy.Printable(limitText(name, 64)))
		}
	}
	return nil
}

func (c *call) loginPage() error {
	if c.who != nil {
		c.redirect("/")
		return nil
	}
	return c.render(http.StatusOK, "login", c.page("Log in", "", loginData{Next: c.r.URL.Query().Get("next")}))
}

type loginData struct{ Name, Next string }

func (c *call) loginForm() error {
	f, err := c.form("name", "password", "next")
	if err != nil {
		return err
	}
	if err := c.login(f.Get("name"), f.Get("password")); err != nil {
		return c.again(err, "login", c.page("Log in", "", loginData{limitText(f.Get("name"), 64), f.Get("next")}))
	}
	c.redirect(localPath(f.Get("next")))
	return nil
}

// localPath is a path of this server's, "/" for anything else: a login must not lead
// to another site.
func localPath(s string) string {
	u, err := url.Parse(s)
	// Both as it is written and as it reads: %2f is a slash once it has been decoded.
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || !strings.HasPrefix(u.Path, "/") ||
		strings.HasPrefix(s, "//") || strings.HasPrefix(u.Path, "//") || strings.ContainsAny(s+u.Path, "\\\x00\r\n\t") {
		return "/"
	}
	return (&url.URL{Path: u.Path, RawQuery: u.RawQuery}).String()
}

func (c *call) logoutForm() error {
	if err := c.logout(); err != nil {
		return err
	}
	c.redirect("/login")
	return nil
}

func (c *call) homePage() error {
	list := c.memberships()
	if len(list) == 1 {
		c.redirect("/w/" + list[0].ID)
		return nil
	}
	return c.render(http.StatusOK, "home", c.page("Workspaces", "", list))
}

type listData struct {
	List         ExecutionWorkspaceList
	Creations    []Creation
	Filter       workspaceFilter
	Statuses     []string
	Repositories []RepositoryChoice
	Live         map[string]int // running Workers by allocation
	Workers      map[string]int
	Next         string
	Most         int
}

// Filtered says that an empty list may be the filter's doing.
func (d listData) Filtered() bool { return d.Filter.Status != "" || d.Filter.Repository != "" }

func (c *call) listPage() error {
	f, err := c.filter(workspaceStatuses)
	if err != nil {
		return err
	}
	d := listData{Filter: f, Statuses: workspaceStatuses, Repositories: c.repositoryChoices(), Live: map[string]int{}, Workers: map[string]int{}, Most: c.ws.MaxExecutionWorkspaces}
	if d.List, err = c.list(f); err != nil {
		return err
	}
	workers, err := c.rt().ListWorkers(c.ctx, runtime.ListFilter{WorkspaceID: policy.WorkspaceID(c.wsID), Limit: 200})
	if err != nil {
		return err
	}
	for _, w := range workers.Items {
		d.Workers[string(w.AllocationID)]++
		if w.Status == runtime.WorkerRunning || w.Status == runtime.WorkerStarting {
			d.Live[string(w.AllocationID)]++
		}
	}
	d.Creations = c.b.creations.of(c.wsID)
	if d.List.Next != "" {
		q := c.r.URL.Query()
		q.Set("after", d.List.Next)
		d.Next = "?" + q.Encode()
	}
	return c.render(http.StatusOK, "list", c.page("Execution Workspaces", "list", d))
}

type newData struct {
	Repositories []RepositoryChoice
	Choices      *Choices
	Form         CreateRequest
	Scope        string
	Refs         []Ref
	Reason       string // why auto would take which strategy
}

func (c *call) newData(req CreateRequest) newData {
	d := newData{Repositories: c.repositoryChoices(), Choices: c.choices(), Form: req, Scope: strings.Join(req.Scope, "\n")}
	if d.Form.RepositoryID == "" && len(d.Repositories) > 0 {
		d.Form.RepositoryID = d.Repositories[0].ID
		for _, r := range d.Repositories {
			if r.Usable {
				d.Form.RepositoryID = r.ID
				break
			}
		}
	}
	// Both are help for the form, which also works without.
	if list, err := c.refs(d.Form.RepositoryID, "", 50); err == nil {
		d.Refs = list.Items
	}
	if doc, err := c.rt().Doctor(c.ctx); err == nil {
		for _, s := range doc.Strategies {
			if s.Chosen {
				d.Reason = string(s.Name) + " here: " + c.b.scrub(s.Reason)
			}
		}
	}
	return d
}

func (c *call) newPage() error {
	return c.render(http.StatusOK, "new", c.page("New Execution Workspace", "list", c.newData(CreateRequest{RepositoryID: c.r.URL.Query().Get("repository_id")})))
}

func (c *call) newForm() error {
	f, err := c.form("repository_id", "selector", "strategy", "dirty_state_policy", "cleanup_policy", "network", "network_rules*", "scope", "branch")
	if err != nil {
		return err
	}
	req := CreateRequest{
		RepositoryID: f.Get("repository_id"), Selector: strings.TrimSpace(f.Get("selector")), Strategy: f.Get("strategy"), DirtyState: f.Get("dirty_state_policy"),
		Cleanup: f.Get("cleanup_policy"), Network: f.Get("network"), Scope: strings.Fields(f.Get("scope")), Branch: strings.TrimSpace(f.Get("branch")),
	}
	if req.Network == string(policy.NetworkAllowlist) {
		req.NetworkRules = f["network_rules"] // of another mode they are boxes that nobody sees any more
	}
	r, err := c.create(req)
	if err != nil {
		return c.again(err, "new", c.page("New Execution Workspace", "list", c.newData(req)))
	}
	v, _ := c.b.creations.look(r)
	c.redirect("/w/" + c.wsID + "/creations/" + v.ID)
	return nil
}

func (c *call) creationPage() error {
	v, _, err := c.creation(c.id)
	if err != nil {
		return err
	}
	if v.AllocationID != "" {
		c.redirect("/w/" + c.wsID + "/execution-workspaces/" + v.AllocationID)
		return nil
	}
	p := c.page("Creating", "list", v)
	if v.State == "running" {
		p.Refresh = 2
	}
	p.Problem = v.Problem
	return c.render(http.StatusOK, "creation", p)
}

type detailData struct {
	V        ExecutionWorkspace
	Workers  WorkerList
	Work     *Work
	Evidence *Evidence
	Timings  []timing
	Events   []Event
	Notes    []Problem // of parts that could not be had
}

type timing struct {
	Name    string
	Text    string
	Percent int
}

func (c *call) detail(id string) (detailData, error) {
	v, err := c.allocation(id)
	if err != nil {
		return detailData{}, err
	}
	d := detailData{V: c.b.summary(c.ctx, c.wsID, v)}
	note := func(err error) bool {
		if err != nil {
			d.Notes = append(d.Notes, c.b.problemOf(err))
		}
		return err == nil
	}
	if !d.V.Gone() {
		c.b.disks.want(c.b, c.rt(), v.ID)
	}
	d.Workers, err = c.workers(workspaceFilter{Limit: 100}, id)
	note(err)
	if !d.V.Gone() {
		if w, err := c.work(id); note(err) {
			d.Work = &w
		}
	}
	if ev, err := c.rt().WorkspaceEvidence(c.ctx, v.ID); note(err) {
		e := c.b.evidenceOf(c.wsID, ev)
		d.Evidence, d.Timings = &e, timingsOf(e)
	}
	note(c.timeline(c.ctx, v.ID, 0, false, func(e Event) bool {
		d.Events = append(d.Events, e)
		return len(d.Events) < 1000
	}))
	slices.Reverse(d.Events)
	return d, nil
}

// stepOrder is the order of a creation's steps.
var stepOrder = []string{"register", "policy", "resolve", "objects", "tree", "materialize", "git", "clean", "apply", "record"}

func timingsOf(e Evidence) []timing {
	var out []timing
	var sum, most int64
	for _, d := range e.Timings {
		sum, most = sum+int64(d), max(most, int64(d))
	}
	names := make([]string, 0, len(e.Timings))
	for n := range e.Timings {
		names = append(names, n)
	}
	slices.SortFunc(names, func(a, b string) int {
		if d := slices.Index(stepOrder, a) - slices.Index(stepOrder, b); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	for _, n := range names {
		if e.Timings[n] == 0 {
			continue // was not needed
		}
		out = append(out, timing{n, duration(e.Timings[n]), int(100 * int64(e.Timings[n]) / max(most, 1))})
	}
	return out
}

func (c *call) detailPage() error {
	d, err := c.detail(c.id)
	if err != nil {
		return err
	}
	return c.render(http.StatusOK, "detail", c.page("Execution Workspace", "list", d))
}

type diffData struct {
	V ExecutionWorkspace
	D Diff
}

func (c *call) diffPage() error {
	v, err := c.allocation(c.id)
	if err != nil {
		return err
	}
	d := diffData{V: c.b.summary(c.ctx, c.wsID, v)}
	if d.D, err = c.diff(c.id); err != nil {
		return err
	}
	return c.render(http.StatusOK, "diff", c.page("Changes", "list", d))
}

type cleanupData struct {
	V    ExecutionWorkspace
	Work *Work
	Live []Worker
	Note *Problem
}

func (c *call) cleanupData() (d cleanupData, err error) {
	v, err := c.allocation(c.id)
	if err != nil {
		return d, err
	}
	d.V = c.b.summary(c.ctx, c.wsID, v)
	if d.V.Gone() {
		return d, nil
	}
	if w, err := c.work(c.id); err == nil {
		d.Work = &w
	} else {
		p := c.b.problemOf(err)
		d.Note = &p
	}
	list, err := c.workers(workspaceFilter{Status: "running", Limit: 100}, c.id)
	d.Live = list.Items
	return d, err
}

func (c *call) cleanupPage() error {
	d, err := c.cleanupData()
	if err != nil {
		return err
	}
	return c.render(http.StatusOK, "cleanup", c.page("Clean up", "list", d))
}

func (c *call) cleanupForm() error {
	f, err := c.form("discard", "stop")
	if err != nil {
		return err
	}
	c.unhurried()
	if _, err := c.remove(c.id, CleanUpRequest{Discard: f.Get("discard") != "", Stop: f.Get("stop") != ""}); err != nil {
		d, derr := c.cleanupData()
		if derr != nil {
			return derr
		}
		return c.again(err, "cleanup", c.page("Clean up", "list", d))
	}
	c.redirect("/w/" + c.wsID + "/execution-workspaces/" + c.id)
	return nil
}

type launchData struct {
	Workspaces []ExecutionWorkspace
	Form       launchFields
	Evidence   *Evidence // of the chosen one
	Dirs       *DirectoryList
	Choices    *Choices
}

type launchFields struct{ Allocation, Cwd, Command, Env, WallClock, Memory, CPUPercent, Tasks string }

func (c *call) launchData(f launchFields) (d launchData, err error) {
	d.Form, d.Choices = f, c.choices()
	for _, s := range []string{"active", "stopped"} {
		list, err := c.list(workspaceFilter{Status: s, Limit: 100})
		if err != nil {
			return d, err
		}
		d.Workspaces = append(d.Workspaces, list.Items...)
	}
	if d.Form.Allocation == "" && len(d.Workspaces) > 0 {
		d.Form.Allocation = d.Workspaces[0].ID
	}
	if ev, err := c.evidence(d.Form.Allocation); err == nil {
		d.Evidence = &ev
	}
	// Help for the field, which also works without.
	if list, err := c.directories(d.Form.Allocation, ""); err == nil {
		d.Dirs = &list
	}
	return d, nil
}

func (c *call) launchPage() error {
	d, err := c.launchData(launchFields{Allocation: c.r.URL.Query().Get("allocation_id")})
	if err != nil {
		return err
	}
	return c.render(http.StatusOK, "launch", c.page("Launch a Worker", "launch", d))
}

func (c *call) launchForm() error {
	f, err := c.form("allocation_id", "relative_cwd", "command", "env", "wall_clock", "memory", "cpu_percent", "tasks")
	if err != nil {
		return err
	}
	trimmed := func(name string) string { return strings.TrimSpace(f.Get(name)) }
	fields := launchFields{
		Allocation: f.Get("allocation_id"), Cwd: trimmed("relative_cwd"), Command: f.Get("command"), Env: f.Get("env"),
		WallClock: trimmed("wall_clock"), Memory: trimmed("memory"), CPUPercent: trimmed("cpu_percent"), Tasks: trimmed("tasks"),
	}
	w, err := c.launch(fields)
	if err != nil {
		d, derr := c.launchData(fields)
		if derr != nil {
			return derr
		}
		return c.again(err, "launch", c.page("Launch a Worker", "launch", d))
	}
	c.redirect("/w/" + c.wsID + "/workers/" + w.ID)
	return nil
}

func (c *call) launch(f launchFields) (Worker, error) {
	req := SpawnRequest{AllocationID: f.Allocation, RelativeCwd: f.Cwd, Limits: LimitsRequest{WallClock: f.WallClock, Memory: f.Memory}}
	var err error
	for _, l := range []struct {
		name, text string
		to         *uint64
	}{{"cpu_percent", f.CPUPercent, &req.Limits.CPUPercent}, {"tasks", f.Tasks, &req.Limits.Tasks}} {
		if l.text == "" {
			continue
		}
		if *l.to, err = strconv.ParseUint(l.text, 10, 32); err != nil {
			return Worker{}, refuse(policy.CodeLimitsInvalid, "%s is no number", l.name).With("limit", l.name)
		}
	}
	if req.Command, err = splitCommand(f.Command); err != nil {
		return Worker{}, err
	}
	if req.Env, err = parseEnv(f.Env); err != nil {
		return Worker{}, err
	}
	return c.spawn(req)
}

type workersData struct {
	List     WorkerList
	Filter   workspaceFilter
	Statuses []string
	Next     string
}

func (c *call) workersPage() error {
	f, err := c.filter(workerStatuses)
	if err != nil {
		return err
	}
	d := workersData{Filter: f, Statuses: workerStatuses}
	if d.List, err = c.workers(f, ""); err != nil {
		return err
	}
	if d.List.Next != "" {
		q := c.r.URL.Query()
		q.Set("after", d.List.Next)
		d.Next = "?" + q.Encode()
	}
	return c.render(http.StatusOK, "workers", c.page("Workers", "workers", d))
}

type workerData struct {
	V      Worker
	Stream string
	Log    [][]Span
	From   int64 // where the shown part of the log begins
	Usage  Usage
	Egress Egress
	Note   *Problem
}

// shownLog is how much of a log's end a page shows.
const shownLog = 256 << 10

func (c *call) workerPage() error {
	w, err := c.worker(c.id)
	if err != nil {
		return err
	}
	d := workerData{V: w, Stream: "stdout", Usage: c.usageOf(w)}
	if c.r.URL.Query().Get("stream") == "stderr" {
		d.Stream = "stderr"
	}
	var t Terminal
	from, _, err := c.logs(policy.WorkerID(w.ID), logRequest{Stream: d.Stream, Tail: shownLog, Limit: shownLog}, writerFunc(func(p []byte) (int, error) {
		t.Write(p)
		return len(p), nil
	}))
	if err != nil {
		p := c.b.problemOf(err)
		d.Note = &p
	}
	d.From, d.Log = from, t.Take()
	if d.Egress, err = c.egress(w.ID); err != nil && d.Note == nil {
		p := c.b.problemOf(err)
		d.Note = &p
	}
	p := c.page("Worker", "workers", d)
	if w.Live() {
		p.Refresh = 5
	}
	return c.render(http.StatusOK, "worker", p)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func (c *call) stopForm() error {
	if _, err := c.form(); err != nil {
		return err
	}
	c.unhurried()
	if _, err := c.stop(c.id, StopRequest{Grace: "5s"}); err != nil && !errors.Is(err, policy.CodeWorkerNotRunning) {
		return err
	}
	c.redirect("/w/" + c.wsID + "/workers/" + c.id)
	return nil
}

type auditData struct {
	Items []Act
	Next  string
}

func (c *call) auditPage() error {
	list, err := c.audit()
	if err != nil {
		return err
	}
	d := auditData{Items: list}
	if n := len(list); n == shownAudit {
		d.Next = "?before=" + strconv.FormatInt(list[n-1].Seq, 10)
	}
	return c.render(http.StatusOK, "audit", c.page("Audit", "audit", d))
}
