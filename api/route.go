package api

import (
	"net/http"
	"slices"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

// route is one operation. The table below is the whole API: what is not in it
// is not served, and a test holds it against the OpenAPI document.
type route struct {
	method, path string
	// operation is the OpenAPI operationId.
	operation string
	// query names the parameters that the operation takes.
	query []string
	// keyed operations honour Idempotency-Key; others that change something do
	// the same when they are repeated, but for once ones, which refuse the key.
	keyed, once bool
	// waits marks operations that may last as long as a Worker does. They end
	// when the daemon shuts down; the others are let finish.
	waits bool
	// most bounds the body; 0 is Options.MaxBody.
	most   int64
	handle func(*call) error
}

func routes() []route {
	page := []string{"workspace_id", "repository_id", "status", "limit", "after"}
	return []route{
		{method: "GET", path: "/v1/info", operation: "getInfo", handle: (*call).getInfo},
		{method: "GET", path: "/v1/doctor", operation: "getDoctor", handle: (*call).getDoctor},
		{method: "GET", path: "/metrics", operation: "getMetrics", handle: (*call).getMetrics},
		{method: "GET", path: "/v1/status", operation: "getStatus", handle: (*call).getStatus},
		{method: "POST", path: "/v1/gc", operation: "collectGarbage", handle: (*call).collectGarbage},
		{method: "GET", path: "/v1/openapi.json", operation: "getOpenAPI", handle: (*call).getOpenAPI},

		{method: "GET", path: "/v1/repositories", operation: "listRepositories", handle: (*call).listRepositories},
		{method: "POST", path: "/v1/repositories", operation: "addRepository", handle: (*call).addRepository},
		{method: "GET", path: "/v1/repositories/{id}", operation: "getRepository", handle: (*call).getRepository},
		{method: "DELETE", path: "/v1/repositories/{id}", operation: "removeRepository", handle: (*call).removeRepository},
		{method: "GET", path: "/v1/repositories/{id}/refs", operation: "listRefs", query: []string{"part", "limit"}, handle: (*call).listRefs},
		{method: "POST", path: "/v1/repositories/{id}/fetch", operation: "fetchRepository", handle: (*call).fetchRepository},
		{method: "GET", path: "/v1/repositories/{id}/collected", operation: "listCollected", handle: (*call).listCollected},
		{method: "GET", path: "/v1/repositories/{id}/collected/export", operation: "exportCollected", query: []string{"name"}, handle: (*call).exportCollected},
		{method: "POST", path: "/v1/repositories/{id}/collected/drop", operation: "dropCollected", handle: (*call).dropCollected},
		{method: "POST", path: "/v1/resolve", operation: "resolve", handle: (*call).resolve},

		{method: "GET", path: "/v1/patches", operation: "listPatches", handle: (*call).listPatches},
		{method: "POST", path: "/v1/patches", operation: "addPatch", most: maxPatchBody, handle: (*call).addPatch},
		{method: "DELETE", path: "/v1/patches/{id}", operation: "removePatch", handle: (*call).removePatch},

		{method: "GET", path: "/v1/config-bundles", operation: "listBundles", handle: (*call).listBundles},
		{method: "POST", path: "/v1/config-bundles", operation: "addBundle", handle: (*call).addBundle},
		{method: "DELETE", path: "/v1/config-bundles/{id}", operation: "removeBundle", handle: (*call).removeBundle},

		{method: "GET", path: "/v1/images", operation: "listImages", handle: (*call).listImages},
		{method: "POST", path: "/v1/images", operation: "importImage", once: true, query: []string{"name", "select", "driver"}, handle: (*call).importImage},
		{method: "GET", path: "/v1/images/{id}", operation: "getImage", handle: (*call).getImage},
		{method: "DELETE", path: "/v1/images/{id}", operation: "removeImage", handle: (*call).removeImage},

		{method: "GET", path: "/v1/snapshots", operation: "listStoredSnapshots", query: []string{"store"}, handle: (*call).listStoredSnapshots},
		{method: "POST", path: "/v1/snapshots", operation: "exportSnapshot", handle: (*call).exportSnapshot},
		{method: "POST", path: "/v1/snapshots/import", operation: "importSnapshot", handle: (*call).importSnapshot},
		{method: "DELETE", path: "/v1/snapshots/{id}", operation: "removeStoredSnapshot", query: []string{"store"}, handle: (*call).removeStoredSnapshot},

		{method: "GET", path: "/v1/execution-workspaces", operation: "listWorkspaces", query: page, handle: (*call).listWorkspaces},
		{method: "POST", path: "/v1/execution-workspaces", operation: "createWorkspace", keyed: true, handle: (*call).createWorkspace},
		{method: "GET", path: "/v1/creations", operation: "getCreationProgress", query: []string{"key"}, handle: (*call).getCreationProgress},
		{method: "GET", path: "/v1/execution-workspaces/{id}", operation: "getWorkspace", handle: (*call).getWorkspace},
		{method: "GET", path: "/v1/execution-workspaces/{id}/evidence", operation: "getEvidence", handle: (*call).getEvidence},
		{method: "GET", path: "/v1/execution-workspaces/{id}/disk", operation: "getWorkspaceDisk", handle: (*call).getWorkspaceDisk},
		{method: "POST", path: "/v1/execution-workspaces/{id}/cleanup", operation: "removeWorkspace", handle: (*call).removeWorkspace},
		{method: "GET", path: "/v1/execution-workspaces/{id}/diff", operation: "diffWorkspace", query: []string{"repository_id"}, handle: (*call).diffWorkspace},
		{method: "GET", path: "/v1/execution-workspaces/{id}/status", operation: "statusWorkspace", query: []string{"repository_id"}, handle: (*call).statusWorkspace},
		{method: "GET", path: "/v1/execution-workspaces/{id}/directories", operation: "listDirectories",
			query: []string{"repository_id", "path"}, handle: (*call).listDirectories},
		{method: "GET", path: "/v1/execution-workspaces/{id}/commits", operation: "getWorkspaceCommits",
			query: []string{"repository_id", "limit"}, handle: (*call).getWorkspaceCommits},
		{method: "GET", path: "/v1/execution-workspaces/{id}/export", operation: "exportWorkspace",
			query: []string{"repository_id", "format", "max_bytes"}, handle: (*call).exportWorkspace},
		{method: "POST", path: "/v1/execution-workspaces/{id}/collect", operation: "collectWorkspace", handle: (*call).collectWorkspace},
		{method: "POST", path: "/v1/execution-workspaces/{id}/fork", operation: "forkWorkspace", keyed: true, handle: (*call).forkWorkspace},
		{method: "GET", path: "/v1/execution-workspaces/{id}/snapshots", operation: "listSnapshots", handle: (*call).listSnapshots},
		{method: "POST", path: "/v1/execution-workspaces/{id}/snapshots", operation: "snapshotWorkspace", once: true, handle: (*call).snapshotWorkspace},
		{method: "POST", path: "/v1/execution-workspaces/{id}/snapshots/remove", operation: "removeSnapshot", handle: (*call).removeSnapshot},
		{method: "POST", path: "/v1/execution-workspaces/{id}/rollback", operation: "rollbackWorkspace", once: true, handle: (*call).rollbackWorkspace},

		{method: "GET", path: "/v1/workers", operation: "listWorkers", query: append(page, "allocation_id"), handle: (*call).listWorkers},
		{method: "POST", path: "/v1/workers", operation: "spawnWorker", keyed: true, handle: (*call).spawnWorker},
		{method: "GET", path: "/v1/workers/{id}", operation: "getWorker", handle: (*call).getWorker},
		{method: "GET", path: "/v1/workers/{id}/logs", operation: "getWorkerLogs", waits: true,
			query: []string{"stream", "offset", "limit", "follow"}, handle: (*call).getWorkerLogs},
		{method: "GET", path: "/v1/workers/{id}/egress", operation: "getWorkerEgress", query: []string{"limit"}, handle: (*call).getWorkerEgress},
		{method: "POST", path: "/v1/workers/{id}/signal", operation: "signalWorker", once: true, handle: (*call).signalWorker},
		{method: "POST", path: "/v1/workers/{id}/stop", operation: "stopWorker", handle: (*call).stopWorker},
		{method: "POST", path: "/v1/workers/{id}/exec", operation: "execWorker", once: true, waits: true, handle: (*call).execWorker},
		{method: "GET", path: "/v1/workers/{id}/usage", operation: "getWorkerUsage", handle: (*call).getWorkerUsage},
		{method: "POST", path: "/v1/workers/{id}/attach", operation: "attachWorker", once: true, waits: true, handle: (*call).attachWorker},
		{method: "GET", path: "/v1/workers/{id}/processes", operation: "listWorkerProcesses", handle: (*call).listWorkerProcesses},
		{method: "POST", path: "/v1/workers/{id}/pause", operation: "pauseWorker", handle: (*call).pauseWorker},
		{method: "POST", path: "/v1/workers/{id}/resume", operation: "resumeWorker", handle: (*call).resumeWorker},
		{method: "GET", path: "/v1/workers/{id}/wait", operation: "waitWorker", waits: true, handle: (*call).waitWorker},

		{method: "GET", path: "/v1/events", operation: "streamEvents", waits: true,
			query: []string{"after", "owner", "allocation_id", "follow"}, handle: (*call).streamEvents},
		{method: "GET", path: "/v1/ledger/records", operation: "getLedgerRecords", query: []string{"owner", "held"}, handle: (*call).getLedgerRecords},
		{method: "GET", path: "/v1/ledger/verify", operation: "verifyLedger", handle: (*call).verifyLedger},
		{method: "POST", path: "/v1/ledger/replay", operation: "replayLedger", handle: (*call).replayLedger},
	}
}

// subject is what the log calls a request's {id}: what concerns a Worker or a workspace
// is found by its id.
func (rt *route) subject() string {
	switch {
	case strings.HasPrefix(rt.path, "/v1/workers/"):
		return "worker"
	case strings.HasPrefix(rt.path, "/v1/execution-workspaces/"):
		return "allocation"
	}
	return "id"
}

// match finds the route of a request and the value of its {id}. Only the exact
// path matches: net/http's ServeMux would answer an unclean one with a redirect.
func match(table []route, method, path string) (*route, string, error) {
	var allow []string
	for i := range table {
		id, ok := matchPath(table[i].path, path)
		if !ok {
			continue
		}
		if table[i].method == method {
			return &table[i], id, nil
		}
		allow = append(allow, table[i].method)
	}
	if allow == nil {
		return nil, "", policy.Errorf(policy.CodeNotFound, "api.route", "there is no such resource")
	}
	slices.Sort(allow)
	return nil, "", policy.Errorf(policy.CodeMethodNotAllowed, "api.route", "the resource does not have that method").
		With("allow", strings.Join(allow, ", "))
}

func matchPath(pattern, path string) (id string, ok bool) {
	before, after, hasID := strings.Cut(pattern, "{id}")
	if !hasID {
		return "", path == pattern
	}
	rest, ok := strings.CutPrefix(path, before)
	if !ok {
		return "", false
	}
	id, ok = strings.CutSuffix(rest, after)
	return id, ok && id != "" && !strings.Contains(id, "/")
}

// checkKey validates an Idempotency-Key and its use.
func (rt *route) checkKey(h http.Header) (string, error) {
	key, err := IdempotencyKey(h)
	if key != "" && rt.once {
		return "", badRequest("this operation acts each time it is asked: it takes no Idempotency-Key")
	}
	return key, err
}

// IdempotencyKey reads and checks the header, "" without it: for other servers that
// hold the same boundary.
func IdempotencyKey(h http.Header) (string, error) {
	keys := h.Values("Idempotency-Key")
	if len(keys) == 0 {
		return "", nil
	}
	key := keys[0]
	ok := len(keys) == 1 && len(key) > 0 && len(key) <= 128
	for i := 0; ok && i < len(key); i++ {
		ok = key[i] > ' ' && key[i] < 0x7f
	}
	if !ok {
		return "", badRequest("Idempotency-Key is not 1 to 128 visible ASCII characters")
	}
	return key, nil
}
