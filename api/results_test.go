package api

import "maps"

// The examples of what is taken out of a workspace and made of it.
func init() {
	ws := "/v1/execution-workspaces/ws-0123456789abcdef"
	maps.Copy(examples, map[string]example{
		"diffWorkspace":       {path: ws + "/diff?repository_id=hello"},
		"statusWorkspace":     {path: ws + "/status?repository_id=hello"},
		"getWorkspaceCommits": {path: ws + "/commits?repository_id=hello&limit=3"},
		"exportWorkspace":     {path: ws + "/export?repository_id=hello&format=patch&max_bytes=9"},
	})
}
