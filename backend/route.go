package backend

import (
	"net/http"
	"slices"
	"strings"

	"yoi.dev/yoi-runtime/api"
	"yoi.dev/yoi-runtime/policy"
)

// route is one operation. The table is the whole surface: openapi.json, the tests
// and the check of roles all go by it.
type route struct {
	method, path string
	operation    string
	role         role // the least that is needed in the path's workspace
	ui           bool // answers with a page
	open         bool // for anybody: the login
	free         bool // not counted: files that pages need
	keyed        bool // takes an Idempotency-Key
	query        []string
	handle       func(*call) error
}

func (rt *route) takes(param string) bool { return slices.Contains(rt.query, param) }

const (
	base = "/api/w/{w}"
	ews  = base + "/execution-workspaces"
	wks  = base + "/workers"
)

func routes() []route {
	return append(apiRoutes(), uiRoutes()...)
}

func apiRoutes() []route {
	page := []string{"status", "repository_id", "limit", "after"}
	return []route{
		{method: "GET", path: "/api/openapi.json", operation: "getOpenAPI", open: true, handle: (*call).getOpenAPI},
		{method: "GET", path: "/api/w", operation: "listWorkspaces", handle: (*call).listMemberships},
		{method: "GET", path: base, operation: "getWorkspace", role: viewer, handle: (*call).getWorkspace},
		{method: "GET", path: base + "/repositories", operation: "listRepositories", role: viewer, handle: (*call).listRepositories},
		{method: "GET", path: base + "/repositories/{id}/refs", operation: "listRefs", role: viewer, query: []string{"prefix", "limit"}, handle: (*call).listRefs},

		{method: "GET", path: ews, operation: "listExecutionWorkspaces", role: viewer, query: page, handle: (*call).listExecutionWorkspaces},
		{method: "POST", path: ews, operation: "createExecutionWorkspace", role: operator, keyed: true, handle: (*call).createExecutionWorkspace},
		{method: "GET", path: ews + "/{id}", operation: "getExecutionWorkspace", role: viewer, handle: (*call).getExecutionWorkspace},
		{method: "GET", path: ews + "/{id}/evidence", operation: "getEvidence", role: viewer, handle: (*call).getEvidence},
		{method: "GET", path: ews + "/{id}/disk", operation: "getDisk", role: viewer, handle: (*call).getDisk},
		{method: "GET", path: ews + "/{id}/work", operation: "getWork", role: viewer, handle: (*call).getWork},
		{method: "GET", path: ews + "/{id}/diff", operation: "getDiff", role: viewer, handle: (*call).getDiff},
		{method: "GET", path: ews + "/{id}/directories", operation: "listDirectories", role: viewer, query: []string{"path"}, handle: (*call).listDirectories},
		{method: "GET", path: ews + "/{id}/events", operation: "streamEvents", role: viewer, query: []string{"follow"}, handle: (*call).streamEvents},
		{method: "POST", path: ews + "/{id}/cleanup", operation: "cleanUpExecutionWorkspace", role: operator, keyed: true, handle: (*call).cleanUp},

		{method: "GET", path: base + "/creations/{id}", operation: "getCreation", role: viewer, handle: (*call).getCreation},
		{method: "GET", path: base + "/creations/{id}/events", operation: "streamCreation", role: viewer, handle: (*call).streamCreation},

		{method: "GET", path: wks, operation: "listWorkers", role: viewer, query: append([]string{"allocation_id"}, page...), handle: (*call).listWorkers},
		{method: "POST", path: wks, operation: "spawnWorker", role: operator, keyed: true, handle: (*call).spawnWorker},
		{method: "GET", path: wks + "/{id}", operation: "getWorker", role: viewer, handle: (*call).getWorker},
		{method: "GET", path: wks + "/{id}/logs", operation: "getLogs", role: viewer, query: []string{"stream", "offset", "limit", "follow", "tail"}, handle: (*call).getLogs},
		{method: "GET", path: wks + "/{id}/usage", operation: "getUsage", role: viewer, handle: (*call).getUsage},
		{method: "GET", path: wks + "/{id}/egress", operation: "getEgress", role: viewer, handle: (*call).getEgress},
		{method: "POST", path: wks + "/{id}/stop", operation: "stopWorker", role: operator, keyed: true, handle: (*call).stopWorker},

		{method: "GET", path: base + "/audit", operation: "listAudit", role: admin, query: []string{"before", "limit"}, handle: (*call).listAudit},
	}
}

// params are what a path names.
type params struct{ workspace, id string }

// match finds the route of an escaped path. Only the exact path matches: a server
// that cleans paths sees another request than the proxy before it.
func match(table []route, method, path string) (*route, params, error) {
	var allow []string
	if method == http.MethodHead {
		method = http.MethodGet
	}
	for i := range table {
		p, ok := matchPath(table[i].path, path)
		if !ok {
			continue
		}
		if table[i].method == method {
			return &table[i], p, nil
		}
		allow = append(allow, table[i].method)
	}
	if allow == nil {
		return nil, params{}, refuse(policy.CodeNotFound, "there is no such resource")
	}
	slices.Sort(allow)
	return nil, params{}, refuse(policy.CodeMethodNotAllowed, "the resource does not have that method").
		With("allow", strings.Join(slices.Compact(allow), ", "))
}

func matchPath(pattern, path string) (p params, ok bool) {
	want, got := strings.Split(pattern, "/"), strings.Split(path, "/")
	if len(want) != len(got) {
		return p, false
	}
	for i, w := range want {
		switch {
		case w == "{w}" && got[i] != "":
			p.workspace = got[i]
		case w == "{id}" && got[i] != "":
			p.id = got[i]
		case w != got[i]:
			return p, false
		}
	}
	return p, true
}

// key validates an Idempotency-Key and its use.
func (rt *route) key(h http.Header) (string, error) {
	key, err := api.IdempotencyKey(h)
	if key != "" && !rt.keyed {
		return "", refuse(policy.CodeBadRequest, "this operation takes no Idempotency-Key")
	}
	return key, err
}
