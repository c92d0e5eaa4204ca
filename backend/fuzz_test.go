package backend

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/runtime"
)

// FuzzRequests sends bodies to every operation that takes one, through everything that
// stands before it: the answer is a document or a problem, never a failure of ours, and a
// Runtime is asked for what the configuration allows only.
func FuzzRequests(f *testing.F) {
	f.Add(uint8(0), "application/json", []byte(`{"repository_id":"hello","selector":"branch:main","scope":["src"],"branch":"fix/1"}`))
	f.Add(uint8(0), "application/json", []byte(`{"repository_id":"hello","network":"allowlist","network_rules":["modules.example.org:443"]}`))
	f.Add(uint8(1), "application/json", []byte(`{"allocation_id":"ws-0123456789abcdef","command":["sh","-c","x"],"relative_cwd":"src","env":{"A":"b"},"limits":{"memory":"2G","wall_clock":"1m"}}`))
	f.Add(uint8(2), "application/json", []byte(`{"discard":true,"stop":true}`))
	f.Add(uint8(3), "application/json; charset=utf-8", []byte(`{"grace":"5s"}`))
	f.Add(uint8(0), "text/plain", []byte(`{"repository_id":"hello"}`))
	f.Add(uint8(0), "application/json", []byte(`{"repository_id":"hello","repository_id":"x"}`))
	f.Add(uint8(0), "application/json", []byte("{\"repository_id\":\"\xff\\u0000\"}"))
	const base = "/api/w/default"
	paths := []string{base + "/execution-workspaces", base + "/workers", base + "/execution-workspaces/ws-0123456789abcdef/cleanup", base + "/workers/wk-0123456789abcdef/stop"}
	b := newBench(f, withAllowlist)
	f.Fuzz(func(t *testing.T, which uint8, media string, body []byte) {
		r := httptest.NewRequestWithContext(context.Background(), "POST", "http://127.0.0.1:8420"+paths[int(which)%len(paths)], strings.NewReader(string(body)))
		r.Header["Content-Type"] = []string{media}
		r.Header.Set("Authorization", "Bearer "+b.token["operator"])
		b.settings().requests = newLimiter(1e6, 1e6)
		w := httptest.NewRecorder()
		b.ServeHTTP(w, r)
		var v map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil || w.Code >= 500 && w.Code != http.StatusServiceUnavailable {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		for _, call := range b.svc.Drain() {
			if req, ok := call.Arg.(runtime.CreateWorkspaceRequest); ok {
				b.allowed(t, req)
			}
		}
	})
}

// allowed holds what a Runtime is asked for to the configuration.
func (b *bench) allowed(t *testing.T, req runtime.CreateWorkspaceRequest) {
	t.Helper()
	ws := b.settings().cfg.Workspaces["default"]
	n := req.Sandbox.Network
	for _, c := range []struct {
		got  string
		list []string
	}{{string(req.Strategy), ws.Strategies}, {string(req.DirtyState), ws.DirtyStates}, {string(req.Cleanup.Mode), ws.CleanupPolicies}, {string(n.Mode), ws.Networks}} {
		if !has(c.list, c.got) {
			t.Fatalf("%q is asked for, of %q", c.got, c.list)
		}
	}
	for _, rule := range n.Rules {
		if !has(ws.NetworkRules, rule) {
			t.Fatalf("the rule %q is asked for", rule)
		}
	}
	if len(n.Rules) > 0 != (n.Mode == "allowlist") || req.WorkspaceID != "default" || len(req.Repositories) != 1 {
		t.Fatalf("asked for %+v", req)
	}
}

// FuzzPages sends forms in a person's name, as a browser might and as none would.
func FuzzPages(f *testing.F) {
	for i, s := range []string{
		"repository_id=hello&selector=branch%3Amain&network=none", "repository_id=hello&network=allowlist&network_rules=*.example.com%3A443&network_rules=modules.example.org%3A443",
		"allocation_id=ws-0123456789abcdef&command=sh+-c+%27x%27&env=A%3Db&tasks=5", "discard=yes&stop=yes", "name=ada&password=wrong&next=%2F%2Fevil", "%zz", "a=1&a=2", "csrf=x",
	} {
		f.Add(uint8(i), s)
	}
	const w = "/w/default"
	paths := []string{w + "/new", w + "/launch", w + "/execution-workspaces/ws-0123456789abcdef/cleanup", w + "/workers/wk-0123456789abcdef/stop"}
	b := newBench(f, withAllowlist)
	b.person(f, "ada", "operator")
	cookie, csrf := b.login(f, "ada")
	f.Fuzz(func(t *testing.T, which uint8, form string) {
		b.settings().requests = newLimiter(1e6, 1e6)
		w := b.do("POST", paths[int(which)%len(paths)], form+"&csrf="+url.QueryEscape(csrf), "Cookie", cookie, "Content-Type", "application/x-www-form-urlencoded", "Accept", "text/html")
		page := w.Body.String()
		if w.Code != http.StatusSeeOther && !strings.Contains(page, "</html>") || w.Code >= 500 {
			t.Fatalf("%d %s", w.Code, page)
		}
		if to := w.Header().Get("Location"); to != "" && (!strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//")) {
			t.Fatalf("leads to %q", to)
		}
		for _, call := range b.svc.Drain() {
			if req, ok := call.Arg.(runtime.CreateWorkspaceRequest); ok {
				b.allowed(t, req)
			}
		}
	})
}

// FuzzConfig: what is taken is served without a panic, and taken again as it is.
func FuzzConfig(f *testing.F) {
	f.Add("store = \"/b.db\"\n[runtimes.r]\nsocket = \"/run/r\"\n[workspaces.w]\nruntime = \"r\"\nnetworks = [\"allowlist\"]\nnetwork_rules = [\"a.example:443\"]\nmax_memory = \"2G\"\n[workspaces.w.repositories.a]\nsource = \"/src\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseConfig([]byte(text))
		if err != nil {
			return
		}
		for id, w := range c.Workspaces {
			if _, err := w.bounds(); err != nil {
				t.Fatal(err)
			}
			for _, list := range [][]string{w.Strategies, w.DirtyStates, w.CleanupPolicies, w.Networks} {
				if len(list) == 0 {
					t.Fatalf("%q allows nothing of something", id)
				}
			}
		}
		if has(c.private(), "") {
			t.Fatal("everything is private")
		}
	})
}
