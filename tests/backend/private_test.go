package backend

import (
	"encoding/json"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/backend"
)

// TestNothingPrivateInAnyAnswer asks every route, with success and without, of a Runtime
// that works, that has lost its helper or a source, and that is gone. start looks for
// host paths, internal ids, environment values and secrets in all that was answered:
// status lines, headers, bodies and events.
func TestNothingPrivateInAnyAnswer(t *testing.T) {
	w := start(t, `dirty_state_policies = ["clean_point_only", "current_worktree_snapshot"]`)
	const password = "canary of a person"
	w.b.Run(t, password+"\n", "user", "add", "ada", "--role", "demo=admin", "--role", "away=admin")
	w.secrets = append(w.secrets, password, "canary-of-a-guess", "canary-of-a-worker", "canary-of-a-form")
	admin, away := w.as(t, "demo", "admin"), w.as(t, "away", "admin")
	ids := succeed(t, admin)
	ada := w.login(t, "ada", password)
	ids = append(ids, ada.succeed(t)...)
	for _, want := range []string{w.repo.Commit, "/workspace/app", "/proc", "event: lines", "event: progress", "event: event", "This would be lost", "HTTP/1.1 303 See Other"} {
		if !strings.Contains(w.seen.all.String(), want) {
			t.Errorf("what was answered does not hold %q: this test does not see it", want)
		}
	}

	asks := []*client{admin, {w, ""}, {w, "yoi_canary-of-a-guess"}}
	ids = append(ids, "nope", "ws-0000000000000000", "wk-0000000000000000", "cr-0000000000000000")
	everything := func(ids []string) {
		for _, c := range asks {
			fail(t, c, "demo", ids)
		}
		fail(t, admin, "other", ids[:1])
		fail(t, away, "away", ids[:1])
		ada.fail(t, "demo", ids)
		ada.fail(t, "away", ids[:1])
		ada.fail(t, "other", ids[:1])
	}
	everything(ids)
	asks = asks[:1]
	if err := os.Rename(w.repo.Dir, w.repo.Dir+"-away"); err != nil {
		t.Fatal(err)
	}
	everything(ids)
	w.d.Helper.Stop(t)
	everything(ids)
	w.d.Runtimed.Stop(t)
	everything(ids)

	for name, statuses := range w.operations(t) {
		var good, bad bool
		for _, s := range statuses {
			good, bad = good || s < 400, bad || s >= 400
		}
		if !good || !bad {
			t.Errorf("%s was answered with %d: want success and failure", name, statuses)
		}
	}
}

// operations are the statuses that each operation of the API's document had.
func (w *world) operations(t *testing.T) map[string][]int {
	out := map[string][]int{}
	for _, o := range document(t) {
		is := regexp.MustCompile("^" + o.method + " " + regexp.MustCompile(`\\\{\w+\\\}`).ReplaceAllString(regexp.QuoteMeta(o.path), "[^/]+") + "$")
		out[o.id] = nil
		for at, statuses := range w.seen.statuses {
			if is.MatchString(at) {
				out[o.id] = append(out[o.id], statuses...)
			}
		}
	}
	return out
}

type operation struct{ id, method, path string }

func document(t *testing.T) (out []operation) {
	t.Helper()
	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string `json:"operationId"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(backend.OpenAPI(), &doc); err != nil || len(doc.Paths) == 0 {
		t.Fatalf("the API's document: %v", err)
	}
	for path, methods := range doc.Paths {
		for method, o := range methods {
			out = append(out, operation{o.OperationID, strings.ToUpper(method), path})
		}
	}
	return out
}

// curious prints what a Worker can find out about the host, and leaves work.
const curious = `env; cat /proc/self/mountinfo /proc/self/maps /proc/self/environ /proc/1/environ; ls -la / /run /run/yoi /proc/self/fd /proc/self/cwd
git config --list --show-origin; cat /workspace/app/.git/config /workspace/app/.git/objects/info/alternates
printf '\033[31mred\033[0m\n'; echo more >>/workspace/app/README.md; git commit -qam work; echo x >/workspace/app/new; sleep 1; exit 3`

// succeed asks every operation of the API's, and returns the ids of what it made.
func succeed(t *testing.T, c *client) []string {
	t.Helper()
	get := func(path string, header ...string) { t.Helper(); want(t, c.do(t, "GET", path, nil, header...), 200) }
	events := []string{"Accept", "text/event-stream"}
	for _, path := range []string{"/api/openapi.json", "/api/w", demo, demo + "/repositories", demo + "/repositories/app/refs?prefix=t"} {
		get(path)
	}
	async := ok[backend.Creation](t, c.do(t, "POST", ews, backend.CreateRequest{RepositoryID: "app", Selector: "tag:v1"}, "Prefer", "respond-async"), 202)
	get(demo+"/creations/"+async.ID+"/events", events...)
	get(demo + "/creations/" + async.ID)
	c.create(t, func(r *backend.CreateRequest) {
		r.RepositoryID, r.DirtyState, r.Strategy = "dirty", "current_worktree_snapshot", "copy"
	})
	ws := c.create(t, nil)
	wk := ok[backend.Worker](t, c.do(t, "POST", demo+"/workers", backend.SpawnRequest{
		AllocationID: ws.ID, RelativeCwd: "src", Command: []string{"sh", "-c", curious},
	}), 201)
	get(demo + "/workers/" + wk.ID + "/usage")
	get(demo+"/workers/"+wk.ID+"/logs?follow=true", events...) // until it ends
	c.wait(t, wk.ID)
	quiet := ok[backend.Worker](t, c.do(t, "POST", demo+"/workers", backend.SpawnRequest{
		AllocationID: ws.ID, Command: []string{"sleep", "60"}, Env: map[string]string{"CANARY": "canary-of-a-worker"},
	}), 201)
	want(t, c.do(t, "POST", demo+"/workers/"+quiet.ID+"/stop", backend.StopRequest{Grace: "0s"}), 200)
	for _, path := range []string{"", "/evidence", "/disk", "/work", "/diff", "/directories?path=src", "/events"} {
		get(ews + "/" + ws.ID + path)
	}
	get(ews+"/"+ws.ID+"/events?follow=false", events...)
	for _, path := range []string{"", "/logs", "/logs?stream=stderr&tail=1000", "/usage", "/egress"} {
		get(demo + "/workers/" + wk.ID + path)
	}
	get(ews + "?repository_id=app")
	get(demo + "/workers?allocation_id=" + ws.ID)
	gone := c.create(t, nil)
	want(t, c.do(t, "POST", ews+"/"+gone.ID+"/cleanup", nil), 200)
	get(demo + "/audit")
	return []string{ws.ID, wk.ID, gone.ID, async.ID}
}

func want(t *testing.T, a answer, status int) answer {
	t.Helper()
	if a.Status != status {
		t.Errorf("status %d, want %d: %s", a.Status, status, a.Body)
	}
	return a
}

// fail asks every operation for what there is not, is malformed, or is refused.
func fail(t *testing.T, c *client, workspace string, ids []string) {
	t.Helper()
	for _, o := range document(t) {
		path := strings.ReplaceAll(o.path, "{workspace}", workspace)
		for _, id := range ids {
			at := strings.ReplaceAll(path, "{id}", id)
			if o.method == "GET" {
				c.do(t, "GET", at, nil)
				c.do(t, "GET", at, nil, "Accept", "text/event-stream", "Last-Event-ID", "x")
				c.do(t, "GET", at+"?nope=canary-of-a-guess", nil)
			} else {
				for _, body := range []string{
					"{", `{"canary":"canary-of-a-guess"}`, `{}`, `{"repository_id":"app"}`, `{"repository_id":"missing"}`, `{"repository_id":"remote"}`,
					`{"allocation_id":"` + id + `","command":["true"],"env":{"CANARY":"canary-of-a-worker"}}`,
				} {
					c.do(t, o.method, at, body)
				}
			}
			if at == path {
				break // it names no id
			}
		}
	}
	for _, query := range []string{"limit=x", "status=x", "repository_id=x", "repository_id=missing"} {
		c.do(t, "GET", "/api/w/"+workspace+"/execution-workspaces?"+query, nil)
	}
	for _, repository := range []string{"app", "dirty", "empty", "missing", "remote"} {
		c.do(t, "GET", "/api/w/"+workspace+"/repositories/"+repository+"/refs", nil)
	}
	c.do(t, "DELETE", "/api/w", nil)
	c.do(t, "GET", "/nowhere", nil)
}

// person is somebody with a browser.
type person struct {
	*client
	cookie, csrf string
}

func (w *world) login(t *testing.T, name, password string) *person {
	t.Helper()
	p := &person{client: &client{w, ""}}
	want(t, p.get(t, "/login"), 200)
	want(t, p.post(t, "/login", "name", name, "password", "canary-of-a-guess"), 401)
	a := want(t, p.post(t, "/login", "name", name, "password", password, "next", "/w/demo"), 303)
	p.cookie, _, _ = strings.Cut(a.Header.Get("Set-Cookie"), ";")
	m := regexp.MustCompile(`name="csrf" content="([\w-]+)"`).FindSubmatch(want(t, p.get(t, "/w/demo"), 200).Body)
	if m == nil {
		t.Fatal("a page has no token for forms")
	}
	p.csrf = string(m[1])
	return p
}

func (p *person) get(t *testing.T, path string) answer {
	t.Helper()
	return p.do(t, "GET", path, nil, "Cookie", p.cookie, "Accept", "text/html")
}

func (p *person) post(t *testing.T, path string, fields ...string) answer {
	t.Helper()
	v := url.Values{"csrf": {p.csrf}}
	for i := 0; i+1 < len(fields); i += 2 {
		v.Set(fields[i], fields[i+1])
	}
	return p.do(t, "POST", path, v.Encode(), "Cookie", p.cookie, "Accept", "text/html", "Content-Type", "application/x-www-form-urlencoded")
}

// succeed looks at every page and sends every form but the one that logs out.
func (p *person) succeed(t *testing.T) []string {
	t.Helper()
	const at = "/w/demo"
	id := func(a answer) string {
		t.Helper()
		to := want(t, a, 303).Header.Get("Location")
		return to[strings.LastIndexByte(to, '/')+1:]
	}
	await := func(creation string) {
		t.Helper()
		p.do(t, "GET", demo+"/creations/"+creation+"/events", nil, "Cookie", p.cookie, "Accept", "text/event-stream")
	}
	making := id(p.post(t, at+"/new", "repository_id", "app", "cleanup_policy", "keep_until_asked"))
	await(making)
	ws := id(p.get(t, at+"/creations/"+making))
	refused := id(p.post(t, at+"/new", "repository_id", "missing"))
	await(refused)
	wk := id(p.post(t, at+"/launch", "allocation_id", ws, "command", "sh -c 'echo x >new; sleep 60'", "env", "CANARY=canary-of-a-worker"))
	want(t, p.get(t, at+"/execution-workspaces/"+ws+"/cleanup"), 200) // with a Worker that runs
	want(t, p.get(t, at+"/workers/"+wk), 200)
	id(p.post(t, at+"/workers/"+wk+"/stop"))
	for _, path := range []string{
		"", "?status=active", "/new", "/creations/" + refused, "/execution-workspaces/" + ws, "/execution-workspaces/" + ws + "/diff",
		"/execution-workspaces/" + ws + "/cleanup", "/launch", "/workers", "/workers/" + wk, "/workers/" + wk + "?stream=stderr",
	} {
		want(t, p.get(t, at+path), 200)
	}
	want(t, p.get(t, "/"), 200)
	for _, name := range []string{"main.js", "style.css", "icon.svg"} {
		want(t, p.get(t, "/assets/"+name), 200)
	}
	want(t, p.post(t, at+"/execution-workspaces/"+ws+"/cleanup"), 409)
	id(p.post(t, at+"/execution-workspaces/"+ws+"/cleanup", "discard", "yes"))
	want(t, p.get(t, at+"/execution-workspaces/"+ws), 200)
	want(t, p.get(t, at+"/audit"), 200)
	return []string{ws, wk, making, refused}
}

// fail looks for what there is not, and sends forms that are refused.
func (p *person) fail(t *testing.T, workspace string, ids []string) {
	t.Helper()
	at := "/w/" + workspace
	stranger := &person{client: p.client}
	for _, who := range []*person{p, stranger} {
		for _, path := range []string{"", "?status=x", "?limit=x", "/new", "/new?repository_id=missing", "/launch", "/workers", "/audit", "/nowhere"} {
			who.get(t, at+path)
		}
		for _, id := range ids {
			for _, path := range []string{"/creations/", "/execution-workspaces/", "/workers/"} {
				who.get(t, at+path+id)
			}
			who.get(t, at+"/launch?allocation_id="+id)
			for _, path := range []string{"/diff", "/cleanup"} {
				who.get(t, at+"/execution-workspaces/"+id+path)
			}
			who.post(t, at+"/execution-workspaces/"+id+"/cleanup")
			who.post(t, at+"/workers/"+id+"/stop")
			who.post(t, at+"/launch", "allocation_id", id, "command", "true", "relative_cwd", "../..")
			who.post(t, at+"/launch", "allocation_id", id, "command", "true", "nope", "canary-of-a-form")
		}
		for _, repository := range []string{"missing", "remote", "nope"} {
			who.post(t, at+"/new", "repository_id", repository)
		}
		who.post(t, at+"/launch", "command", "")
	}
	stranger.post(t, "/logout")
	stranger.post(t, "/login", "name", "nobody", "password", "canary-of-a-guess")
	p.get(t, "/assets/nothing.js")
}
