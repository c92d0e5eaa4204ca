package api

import "maps"

// The examples of what is taken out of a workspace and made of it.
func init() {
	ws := "/v1/execution-workspaces/ws-0123456789abcdef"
	maps.Copy(examples, map[string]example{
		"diffWorkspace":       {path: ws + "/diff?repository_id=hello"},
		"statusWorkspace":     {path: ws + "/status?repository_id=hello"},
		"getWorkspaceCommits": {path: ws + "/commits?repository_id=hello&limit=3"},
		"collectWorkspace":    {ws + "/collect", `{"repository_id":"hello","as":"work/1","revision":"HEAD","uncommitted":true,"force":true,"max_bytes":9}`},
		"forkWorkspace":       {ws + "/fork", `{"workspace_id":"default","cleanup_policy":{"mode":"keep_for","for":1},"idempotency_key":"k"}`},
		"listSnapshots":       {path: ws + "/snapshots"},
		"snapshotWorkspace":   {ws + "/snapshots", `{"label":"before the merge"}`},
		"removeSnapshot":      {ws + "/snapshots/remove", `{"id":"ws-1"}`},
		"rollbackWorkspace":   {ws + "/rollback", `{"id":"ws-1"}`},
		"listCollected":       {path: "/v1/repositories/hello/collected"},
		"exportCollected":     {path: "/v1/repositories/hello/collected/export?name=work/1"},
		"dropCollected":       {"/v1/repositories/hello/collected/drop", `{"name":"work/1"}`},
		"exportWorkspace":     {path: ws + "/export?repository_id=hello&format=patch&max_bytes=9"},
	})
}
