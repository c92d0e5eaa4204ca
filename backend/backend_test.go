package backend

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"yoi.dev/yoi-runtime/backend/store"
	"yoi.dev/yoi-runtime/internal/servicetest"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// bench is a Backend in front of a Runtime that answers from a list.
type bench struct {
	*Backend
	svc   *servicetest.Service
	token map[string]string // by role, in workspace default
}

func newBench(t testing.TB, change func(*Config)) *bench {
	t.Helper()
	dir := t.TempDir()
	cfg, err := ParseConfig(fmt.Appendf(nil, `
store = %q
[runtimes.local]
socket = "/run/canary/socket"
[workspaces.default]
runtime = "local"
[workspaces.default.repositories.hello]
source = "/srv/canary/hello"
[workspaces.other]
runtime = "local"
[workspaces.other.repositories.hello]
source = "/srv/canary/hello"
`, filepath.Join(dir, "b.db")))
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&cfg)
	}
	b := &bench{svc: &servicetest.Service{Logs: []byte("log\n")}, token: map[string]string{}}
	if b.Backend, err = newBackend(t.Context(), cfg, slog.New(slog.DiscardHandler), func(string) runtime.Service { return b.svc }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for _, r := range []string{"viewer", "operator", "admin"} {
		if b.token[r], err = b.store.AddToken(t.Context(), store.Token{ID: policy.NewID("tk-"), Label: r, Workspace: "default", Role: r}); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func (b *bench) do(method, target, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://127.0.0.1:8420"+target, strings.NewReader(body))
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	b.ServeHTTP(w, r)
	return w
}

func (b *bench) as(role, method, target, body string, header ...string) *httptest.ResponseRecorder {
	return b.do(method, target, body, append([]string{"Authorization", "Bearer " + b.token[role], "Content-Type", "application/json"}, header...)...)
}

func wantProblem(t *testing.T, w *httptest.ResponseRecorder, code policy.Code) Problem {
	t.Helper()
	var p Problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.Code != code || w.Code != p.Status {
		t.Errorf("got %d %s, want %s", w.Code, w.Body, code)
	}
	return p
}

func TestOpenAPIDescribesEveryRoute(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromData(OpenAPI())
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	served := map[string]bool{}
	for _, r := range apiRoutes() {
		served[r.operation] = true
		if operations[r.operation].summary == "" {
			t.Errorf("%s has no summary", r.operation)
		}
	}
	for name := range operations {
		if !served[name] {
			t.Errorf("%s is described, not served", name)
		}
	}
	// An answer has no field that is not described, and all that are required.
	b := newBench(t, nil)
	w := b.as("viewer", "GET", "/api/w/default/workers", "")
	var v any
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil || w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	no := false
	for _, s := range doc.Components.Schemas {
		if len(s.Value.Properties) > 0 {
			s.Value.AdditionalProperties.Has = &no
		}
	}
	if err := doc.Components.Schemas["WorkerList"].Value.VisitJSON(v); err != nil {
		t.Error(err)
	}
	if got := b.do("GET", "/api/openapi.json", ""); !bytes.Equal(got.Body.Bytes(), OpenAPI()) {
		t.Error("another document is served")
	}
}

// TestCodesAreDocumented holds docs/backend.md's table to the catalog.
func TestCodesAreDocumented(t *testing.T) {
	b, err := os.ReadFile("../docs/backend.md")
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for _, i := range Catalog() {
		fmt.Fprintf(&want, "| `%s` | %d | %s | %s |\n", i.Code, i.Status, i.Title, i.Hint)
	}
	if !strings.Contains(string(b), want.String()) {
		t.Errorf("docs/backend.md does not hold this table:\n%s", want.String())
	}
}

func TestRoles(t *testing.T) {
	b := newBench(t, nil)
	for _, r := range apiRoutes() {
		if r.role == 0 {
			continue
		}
		target := strings.NewReplacer("{w}", "default", "{id}", "ws-0123456789abcdef").Replace(r.path)
		for _, name := range []string{"viewer", "operator", "admin"} {
			w := b.as(name, r.method, target, `{`)
			if denied := strings.Contains(w.Body.String(), string(CodeForbidden)); denied != (roleOf(name) < r.role) {
				t.Errorf("%s as %s: %d %s", r.operation, name, w.Code, w.Body)
			}
			// Whatever the role: another workspace's is as unknown as one that is not.
			other := b.as(name, r.method, strings.Replace(target, "default", "other", 1), `{`)
			never := b.as(name, r.method, strings.Replace(target, "default", "never", 1), `{`)
			p, q := wantProblem(t, other, CodeWorkspaceUnknown), wantProblem(t, never, CodeWorkspaceUnknown)
			if p.Detail != q.Detail {
				t.Errorf("%s tells an existing workspace from one that is not", r.operation)
			}
		}
		wantProblem(t, b.do(r.method, target, `{`), CodeAuthenticationRequired)
		wantProblem(t, b.do(r.method, target, `{`, "Authorization", "Bearer yoi_nobody"), CodeAuthenticationRequired)
		wantProblem(t, b.do(r.method, target, `{`, "Authorization", "Basic YTpi"), CodeAuthenticationRequired)
	}
}

// login returns a session's cookie and its form token.
func (b *bench) login(t testing.TB, name string) (cookie, csrf string) {
	t.Helper()
	w := b.do("POST", "/login", url.Values{"name": {name}, "password": {"long enough"}}.Encode(), "Content-Type", "application/x-www-form-urlencoded")
	if w.Code != http.StatusSeeOther || len(w.Result().Cookies()) != 1 {
		t.Fatalf("login: %d %s", w.Code, w.Body)
	}
	c := w.Result().Cookies()[0]
	if !c.HttpOnly || c.SameSite != http.SameSiteLaxMode {
		t.Errorf("the cookie is %v", c)
	}
	s, err := b.store.GetSession(t.Context(), c.Value)
	if err != nil {
		t.Fatal(err)
	}
	return c.Name + "=" + c.Value, s.CSRF
}

func (b *bench) person(t testing.TB, name, role string) {
	t.Helper()
	hash, err := HashPassword("long enough")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.store.PutActor(t.Context(), store.Actor{Name: name, Password: hash, Roles: map[string]string{"default": role}}); err != nil {
		t.Fatal(err)
	}
}

func TestSessionsAndForgery(t *testing.T) {
	b := newBench(t, nil)
	b.person(t, "ada", "operator")
	cookie, csrf := b.login(t, "ada")
	body := `{"repository_id":"hello"}`
	const target = "/api/w/default/execution-workspaces"
	post := func(header ...string) *httptest.ResponseRecorder {
		return b.do("POST", target, body, append([]string{"Cookie", cookie, "Content-Type", "application/json"}, header...)...)
	}
	wantProblem(t, post(), CodeCSRFRefused)
	wantProblem(t, post("X-CSRF-Token", csrf[1:]), CodeCSRFRefused)
	wantProblem(t, post("X-CSRF-Token", csrf, "Origin", "https://evil.example"), CodeOriginRefused)
	wantProblem(t, post("X-CSRF-Token", csrf, "Sec-Fetch-Site", "cross-site"), CodeOriginRefused)
	wantProblem(t, post("X-CSRF-Token", csrf, "Host", "evil.example"), CodeHostRefused)
	if w := post("X-CSRF-Token", csrf, "Origin", "http://127.0.0.1:8420", "Sec-Fetch-Site", "same-origin"); w.Code != 201 {
		t.Errorf("a page's own request: %d %s", w.Code, w.Body)
	}
	if n := len(slices.DeleteFunc(b.svc.Calls(), func(c servicetest.Call) bool { return c.Method != "CreateWorkspace" })); n != 1 {
		t.Errorf("%d workspaces were created", n)
	}
	// A form of another session's, and the end of one.
	b.person(t, "eve", "operator")
	_, theirs := b.login(t, "eve")
	form := func(csrf string) *httptest.ResponseRecorder {
		return b.do("POST", "/logout", url.Values{"csrf": {csrf}}.Encode(), "Cookie", cookie, "Content-Type", "application/x-www-form-urlencoded")
	}
	if w := form(theirs); w.Code != 403 {
		t.Errorf("another session's form: %d", w.Code)
	}
	if w := form(csrf); w.Code != http.StatusSeeOther {
		t.Errorf("logout: %d %s", w.Code, w.Body)
	}
	wantProblem(t, b.do("GET", target, "", "Cookie", cookie), CodeAuthenticationRequired)
	// A changed password ends every session.
	cookie, _ = b.login(t, "ada")
	b.person(t, "ada", "operator")
	wantProblem(t, b.do("GET", target, "", "Cookie", cookie), CodeAuthenticationRequired)
	// Sessions and tokens end.
	cookie, _ = b.login(t, "ada")
	w := b.do("GET", "/w/default", "", "Cookie", cookie, "Accept", "text/html")
	if w.Code != 200 {
		t.Errorf("a page: %d %s", w.Code, w.Body)
	}
	for name, want := range map[string]string{"Content-Security-Policy": contentPolicy, "X-Frame-Options": "DENY", "Referrer-Policy": "same-origin", "Cache-Control": "no-store"} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestLoginsAreLimited(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Limits.LoginsPerMinute = 3 })
	b.person(t, "ada", "viewer")
	try := func() int {
		return b.do("POST", "/login", "name=ada&password=wrong+password", "Content-Type", "application/x-www-form-urlencoded").Code
	}
	for i, want := range []int{401, 401, 401, 429} {
		if got := try(); got != want {
			t.Errorf("login %d: %d, want %d", i, got, want)
		}
	}
}

func TestRequestsAreLimited(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Limits.RequestsPerSecond, c.Limits.Burst = 0.001, 3 })
	for range 3 {
		if w := b.as("viewer", "GET", "/api/w", ""); w.Code != 200 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
	w := b.as("viewer", "GET", "/api/w", "")
	wantProblem(t, w, CodeRateLimited)
	if w.Header().Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	if w := b.as("admin", "GET", "/api/w", ""); w.Code != 200 {
		t.Errorf("another is limited too: %d", w.Code)
	}
	wantProblem(t, b.as("admin", "POST", "/api/w/default/execution-workspaces", `{"selector":"`+strings.Repeat("x", 300<<10)+`"}`), policy.CodeRequestTooLarge)
}

// gone is a client that does not take what is written.
type gone struct{ *httptest.ResponseRecorder }

func (gone) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestAStreamThatDoesNotBeginTakesNoPlace(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Limits.Streams = 1 })
	ask := func(w http.ResponseWriter) {
		r := httptest.NewRequest("GET", "http://127.0.0.1:8420/api/w/default/workers/"+string(servicetest.Worker)+"/logs", nil)
		r.Header.Set("Authorization", "Bearer "+b.token["viewer"])
		r.Header.Set("Accept", "text/event-stream")
		b.ServeHTTP(w, r)
	}
	ask(gone{httptest.NewRecorder()})
	w := httptest.NewRecorder()
	ask(w)
	if w.Code != 200 || !strings.Contains(w.Body.String(), "event: end") {
		t.Errorf("the next stream: %d %s", w.Code, w.Body)
	}
}

func TestLimiterFillsUp(t *testing.T) {
	now := time.Unix(0, 0)
	l := newLimiter(2, 1)
	l.now = func() time.Time { return now }
	if _, ok := l.take("a"); !ok {
		t.Error("the first is refused")
	}
	if wait, ok := l.take("a"); ok || wait != 500*time.Millisecond {
		t.Errorf("the second: %v, %t", wait, ok)
	}
	now = now.Add(500 * time.Millisecond)
	if _, ok := l.take("a"); !ok {
		t.Error("refused after the wait")
	}
}

func TestPasswords(t *testing.T) {
	h, err := HashPassword("correct horse")
	if err != nil {
		t.Fatal(err)
	}
	for password, want := range map[string]bool{"correct horse": true, "correct hors": false, "": false, strings.Repeat("x", 5000): false} {
		if got, err := checkPassword(h, password); got != want || err != nil {
			t.Errorf("%.20q: %t, %v", password, got, err)
		}
	}
	if _, err := HashPassword("short"); err == nil {
		t.Error("a short password is taken")
	}
	for _, bad := range []string{"", "$argon2i$v=19$m=1,t=1,p=1$AA$AA", "$argon2id$v=19$m=99999999,t=1,p=1$AA$AA", "$argon2id$v=19$m=8,t=1,p=0$AA$AA"} {
		if _, err := checkPassword(bad, "x"); err == nil {
			t.Errorf("%q is taken for a hash", bad)
		}
	}
}

func TestLocalPath(t *testing.T) {
	for in, want := range map[string]string{
		"/w/demo?status=active": "/w/demo?status=active", "": "/", "//evil.example": "/", "https://evil.example/": "/", `/\evil.example`: "/",
		"/\t/evil.example": "/", "/%2f/evil.example": "/", "/%2Fevil.example": "/", "/%5cevil.example": "/", "/w/a%2fb": "/w/a/b", "javascript:alert(1)": "/", "/w/a\r\nSet-Cookie: x": "/",
	} {
		if got := localPath(in); got != want {
			t.Errorf("%q leads to %q, want %q", in, got, want)
		}
	}
}

func TestSplitCommand(t *testing.T) {
	for in, want := range map[string][]string{
		"go test ./...":       {"go", "test", "./..."},
		`sh -c 'a "b" $c'`:    {"sh", "-c", `a "b" $c`},
		`a "b \" \\ \n" c\ d`: {"a", `b " \ \n`, "c d"},
		" a\n\tb ":            {"a", "b"},
		`'' ""`:               {"", ""},
		"":                    nil,
		`sh -c 'it'\''s'`:     {"sh", "-c", "it's"},
		`trailing\`:           {`trailing\`},
	} {
		got, err := splitCommand(in)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v", in, got, err)
		}
		if back, err := splitCommand(quoteCommand(got)); err != nil || !slices.Equal(back, got) {
			t.Errorf("%q comes back as %q, %v", got, back, err)
		}
	}
	if _, err := splitCommand(`a 'b`); err == nil {
		t.Error("an open quote is taken")
	}
}

func TestConfigIsStrict(t *testing.T) {
	const good = "store = \"/var/lib/b.db\"\n[runtimes.r]\nsocket = \"/run/r\"\n[workspaces.w]\nruntime = \"r\"\n[workspaces.w.repositories.a]\nsource = \"/src\"\n"
	if _, err := ParseConfig([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"unknown field":      good + "allow_remotes = true\n",
		"open to all":        good + "[listen]\naddress = \"0.0.0.0:80\"\n",
		"direct mount":       strings.Replace(good, "runtime = \"r\"", "runtime = \"r\"\nstrategies = [\"direct_legacy_mount\"]", 1),
		"unknown runtime":    strings.Replace(good, "runtime = \"r\"", "runtime = \"x\"", 1),
		"relative source":    strings.Replace(good, "/src", "src", 1),
		"relative store":     strings.Replace(good, "/var/lib", "var/lib", 1),
		"bad origin":         good + "[listen]\naddress = \"127.0.0.1:1\"\norigins = [\"https://x/y\"]\n",
		"half of a key pair": good + "[listen]\naddress = \"127.0.0.1:1\"\ntls_cert = \"/c\"\n",
	} {
		if _, err := ParseConfig([]byte(text)); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "runtime.db"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := Config{Store: filepath.Join(dir, "sub/b.db")}
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := c.CheckStore(); err == nil || policy.AsDiagnostic(err).Code != policy.CodeRuntimeRootOverlap {
		t.Errorf("a store below a Runtime root: %v", err)
	}
}

// TestNothingPrivateInFailures: whatever a Runtime says, known or not.
func TestNothingPrivateInFailures(t *testing.T) {
	b := newBench(t, nil)
	for _, err := range []error{
		policy.Errorf(policy.CodeSourceUnreadable, "x", "the source /srv/canary/hello cannot be read").With("path", "/srv/canary/hello").Item("x", "/srv/canary/hello/y"),
		policy.Errorf("made_up_later", "x", "in /run/canary/socket"), io.ErrUnexpectedEOF, fmt.Errorf("open /srv/canary/hello: no such file"),
	} {
		b.svc.Err = err
		for _, r := range apiRoutes() {
			target := strings.NewReplacer("{w}", "default", "{id}", "ws-0123456789abcdef").Replace(r.path)
			w := b.as("admin", r.method, target, `{"repository_id":"hello","allocation_id":"ws-0123456789abcdef","command":["x"]}`)
			if strings.Contains(w.Body.String(), "canary") {
				t.Errorf("%s: %s", r.operation, w.Body)
			}
		}
	}
}

// slow is a Runtime that makes nothing until it is left alone.
type slow struct{ *servicetest.Service }

func (slow) CreateWorkspace(ctx context.Context, _ runtime.CreateWorkspaceRequest) (runtime.Workspace, error) {
	<-ctx.Done()
	return runtime.Workspace{}, ctx.Err()
}

// gated is a Runtime that makes nothing before it is let.
type gated struct {
	*servicetest.Service
	asked, let chan struct{}
}

func (g gated) CreateWorkspace(ctx context.Context, req runtime.CreateWorkspaceRequest) (runtime.Workspace, error) {
	close(g.asked) // twice is a panic: a second creation
	<-g.let
	return g.Service.CreateWorkspace(ctx, req)
}

// TestAKeyOutlivesItsClient: who lost the connection and asks again gets what the first
// request made.
func TestAKeyOutlivesItsClient(t *testing.T) {
	b := newBench(t, nil)
	g := gated{b.svc, make(chan struct{}), make(chan struct{})}
	b.settings().runtimes["local"] = g
	ctx, gone := context.WithCancel(t.Context())
	post := func(ctx context.Context) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(ctx, "POST", "http://127.0.0.1:8420/api/w/default/execution-workspaces", strings.NewReader(`{"repository_id":"hello"}`))
		r.Header.Set("Authorization", "Bearer "+b.token["operator"])
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		b.ServeHTTP(w, r)
		return w
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		post(ctx)
	}()
	<-g.asked
	gone()
	wantProblem(t, post(t.Context()), CodeRequestPending)
	close(g.let)
	<-done
	if w := post(t.Context()); w.Code != 201 || w.Header().Get("Idempotency-Replayed") != "true" {
		t.Errorf("asked again: %d %s", w.Code, w.Body)
	}
}

// TestAnInterruptedCreationGoesOn under the same key.
func TestAnInterruptedCreationGoesOn(t *testing.T) {
	b := newBench(t, nil)
	b.settings().runtimes["local"] = slow{b.svc}
	w := b.as("operator", "POST", "/api/w/default/execution-workspaces", `{"repository_id":"hello"}`, "Prefer", "respond-async")
	if w.Code != 202 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	cfg := b.settings().cfg
	if err := b.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	svc := &servicetest.Service{}
	again, err := newBackend(t.Context(), cfg, slog.New(slog.DiscardHandler), func(string) runtime.Service { return svc })
	if err != nil {
		t.Fatal(err)
	}
	b.Backend, b.svc = again, svc
	var v Creation
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
		t.Fatal(err)
	}
	r, ok := again.creations.get("default", v.ID)
	if !ok {
		t.Fatal("the creation is forgotten")
	}
	c := &call{b: again, ctx: t.Context(), wsID: "default"}
	if v, err = c.await(r); err != nil || v.State != "done" || v.AllocationID == "" {
		t.Errorf("%+v, %v", v, err)
	}
	for _, call := range svc.Calls() {
		if req, ok := call.Arg.(runtime.CreateWorkspaceRequest); ok && req.IdempotencyKey != "backend:"+v.ID {
			t.Errorf("asked again under %q", req.IdempotencyKey)
		}
	}
}
