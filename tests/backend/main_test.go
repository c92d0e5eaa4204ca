package backend

import (
	"bytes"
	"encoding/json"
	"html"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/backend"
	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// backendUser runs the daemon and the Backend.
const backendUser = 64410

// world is a Runtime with a Backend in front of it.
type world struct {
	d    *rig.Daemons
	b    *rig.Backend
	repo testenv.Repo
	// made is repo as its maker has it: git refuses another user's.
	made testenv.Repo
	// secrets are what no answer may hold: each test ends with looking for them.
	secrets []string
	seen    traffic
}

// start makes a world of two workspaces, demo and other. extra goes into the
// configuration's demo workspace.
func start(t *testing.T, extra string) *world {
	t.Helper()
	return startWith(t, extra, func(*rig.Daemons) {})
}

// startWith prepares the daemons before they start.
func startWith(t *testing.T, extra string, prepare func(*rig.Daemons)) *world {
	t.Helper()
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", backendUser)
	machine := rig.Before(t)
	d := rig.NewDaemons(t, p, 0)
	d.RuntimedEnv, d.HelperEnv = []string{"CANARY=canary-environment"}, []string{"CANARY=canary-environment"}
	prepare(d)
	d.Start(t)
	info, err := d.Client.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{d: d, made: testenv.RepoSmall(t)}
	w.repo = p.Give(t, w.made)
	dirty := p.Give(t, testenv.RepoSmall(t))
	own(t, filepath.Join(dirty.Dir, "README.md"), "changed\n")
	own(t, filepath.Join(dirty.Dir, "canary-untracked"), "x\n")
	empty := p.Give(t, testenv.RepoEmpty(t))
	w.b = rig.StartBackend(t, d, `
[runtimes.local]
socket = "@SOCKET@"
[runtimes.gone]
socket = "`+filepath.Join(p.Dir, "run", "nobody")+`"

[workspaces.demo]
title = "Demo"
runtime = "local"
strategies = ["auto", "overlay", "copy"]
cleanup_policies = ["keep_until_asked", "remove_on_stop", "keep_for:1h"]
max_wall_clock = "10m"
`+extra+`
[workspaces.demo.repositories.app]
source = "`+w.repo.Dir+`"
default_branch = "main"
[workspaces.demo.repositories.dirty]
source = "`+dirty.Dir+`"
[workspaces.demo.repositories.empty]
source = "`+empty.Dir+`"
[workspaces.demo.repositories.missing]
source = "`+filepath.Join(p.Dir, "canary-missing")+`"
[workspaces.demo.repositories.remote]
source = "https://canary-user:canary-password@git.invalid/app.git"
[workspaces.demo.repositories.far]
source = "file://`+w.repo.Dir+`"

[workspaces.wide]
runtime = "local"
allow_remote = true
[workspaces.wide.repositories.far]
source = "file://`+w.repo.Dir+`"

[workspaces.other]
runtime = "local"
[workspaces.other.repositories.app]
source = "`+w.repo.Dir+`"

[workspaces.away]
runtime = "gone"
[workspaces.away.repositories.app]
source = "`+w.repo.Dir+`"

[limits]
requests_per_second = 100000
burst = 100000
`)
	w.secrets = []string{
		d.Root, d.API, d.HelperSoc, w.repo.Dir, dirty.Dir, p.Dir, w.b.Store, filepath.Dir(w.b.Store),
		"canary-password", "canary-user", "canary-missing", "git.invalid",
		// The paths above are cut from what would hold them; these are what would be left.
		"repository-cache", "bare.git", "materialization.json", "runtime.db", filepath.Base(w.b.Store),
		"canary-environment", string(info.RuntimeID), "backend:cr-", "argon2id",
	}
	t.Cleanup(func() {
		w.seen.search(t, w.secrets)
		w.b.Stop(t)
		d.Stop(t)
		machine.Unchanged(t)
	})
	return w
}

func own(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, backendUser, backendUser); err != nil {
		t.Fatal(err)
	}
}

// client asks in one member's name.
type client struct {
	w     *world
	token string
}

func (w *world) as(t *testing.T, workspace, role string) *client {
	token := w.b.Token(t, workspace, role)
	w.secrets = append(w.secrets, token)
	return &client{w, token}
}

// answer is one answer, whole.
type answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// traffic keeps everything that a Backend said.
type traffic struct {
	all      bytes.Buffer
	statuses map[string][]int // by method and path
}

func (s *traffic) keep(resp *http.Response, body []byte) {
	s.all.WriteString("\n" + resp.Request.Method + " was answered with " + resp.Proto + " " + resp.Status + "\n")
	for _, h := range []http.Header{resp.Header, resp.Trailer} {
		_ = h.Write(&s.all) // to memory
	}
	s.all.Write(body)
	if s.statuses == nil {
		s.statuses = make(map[string][]int)
	}
	at := resp.Request.Method + " " + resp.Request.URL.Path
	s.statuses[at] = append(s.statuses[at], resp.StatusCode)
}

// search looks for secrets, also as an address or a page would write them.
func (s *traffic) search(t *testing.T, secrets []string) {
	t.Helper()
	all := s.all.String()
	for _, secret := range secrets {
		for _, form := range []string{secret, url.QueryEscape(secret), url.PathEscape(secret), html.EscapeString(secret)} {
			if i := strings.Index(all, form); i >= 0 {
				t.Errorf("an answer holds %q: %q", secret, all[max(0, i-300):min(len(all), i+len(form)+100)])
				break
			}
		}
	}
}

// direct follows no redirect: it is an answer too.
var direct = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

func (c *client) do(t *testing.T, method, path string, in any, header ...string) answer {
	t.Helper()
	var body io.Reader
	if s, ok := in.(string); ok {
		body = strings.NewReader(s)
	} else if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, c.w.b.URL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := direct.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", method, path, err, c.w.b.Log())
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	c.w.seen.keep(resp, b)
	return answer{resp.StatusCode, resp.Header, b}
}

// ok decodes a successful answer.
func ok[T any](t *testing.T, a answer, status int) T {
	t.Helper()
	var v T
	if a.Status != status {
		t.Fatalf("status %d, want %d: %s", a.Status, status, a.Body)
	}
	if err := json.Unmarshal(a.Body, &v); err != nil {
		t.Fatalf("%v: %s", err, a.Body)
	}
	return v
}

// refused wants a problem document of a code.
func refused(t *testing.T, a answer, code policy.Code) backend.Problem {
	t.Helper()
	var p backend.Problem
	if err := json.Unmarshal(a.Body, &p); err != nil || p.Code != code || p.Status != a.Status || p.Hint == "" || p.Title == "" || p.Detail == "" {
		t.Errorf("got %d %s, want %s", a.Status, a.Body, code)
	}
	if got := a.Header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("%s comes as %s", code, got)
	}
	return p
}

const (
	demo = "/api/w/demo"
	ews  = demo + "/execution-workspaces"
)

func (c *client) create(t *testing.T, change func(*backend.CreateRequest)) backend.ExecutionWorkspace {
	t.Helper()
	req := backend.CreateRequest{RepositoryID: "app"}
	if change != nil {
		change(&req)
	}
	return ok[backend.ExecutionWorkspace](t, c.do(t, "POST", ews, req), 201)
}

func (c *client) spawn(t *testing.T, id, script string) backend.Worker {
	t.Helper()
	return ok[backend.Worker](t, c.do(t, "POST", demo+"/workers", backend.SpawnRequest{AllocationID: id, Command: []string{"sh", "-c", script}}), 201)
}

func (c *client) wait(t *testing.T, id string) backend.Worker {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		w := ok[backend.Worker](t, c.do(t, "GET", demo+"/workers/"+id, nil), 200)
		if !w.Live() {
			return w
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not end", id)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
