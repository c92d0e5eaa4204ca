package api

import (
	"context"
	"net/url"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

func (c *Client) ListRefs(ctx context.Context, id policy.RepositoryID, req runtime.RefsRequest) (runtime.RefList, error) {
	path, err := item("repository", repositories, id, "/refs")
	if err != nil {
		return runtime.RefList{}, err
	}
	q := url.Values{}
	setText(q, "part", req.Part)
	setNumber(q, "limit", int64(req.Limit))
	return get[runtime.RefList](ctx, c, path, q)
}

func (c *Client) ListDirectories(ctx context.Context, id policy.AllocationID, req runtime.DirectoriesRequest) (runtime.DirectoryList, error) {
	path, err := item("allocation", workspaces, id, "/directories")
	if err != nil {
		return runtime.DirectoryList{}, err
	}
	q := url.Values{}
	setText(q, "repository_id", string(req.RepositoryID))
	setText(q, "path", req.Path)
	return get[runtime.DirectoryList](ctx, c, path, q)
}

func (c *Client) CreationProgress(ctx context.Context, key string) (runtime.CreationProgress, error) {
	q := url.Values{}
	setText(q, "key", key)
	return get[runtime.CreationProgress](ctx, c, "/v1/creations", q)
}

func (c *Client) WorkerUsage(ctx context.Context, id policy.WorkerID) (runtime.WorkerUsage, error) {
	path, err := item("worker", workers, id, "/usage")
	if err != nil {
		return runtime.WorkerUsage{}, err
	}
	return get[runtime.WorkerUsage](ctx, c, path, nil)
}
