package api

import (
	"net/http"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

func (c *call) listRefs() error {
	req := runtime.RefsRequest{Part: c.query.text("part"), Limit: int(c.query.number("limit", maxPage))}
	if c.query.err != nil {
		return c.query.err
	}
	list, err := c.svc.ListRefs(c.ctx, policy.RepositoryID(c.id), req)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, list)
}

func (c *call) listDirectories() error {
	req := runtime.DirectoriesRequest{RepositoryID: policy.RepositoryID(c.query.id("repository_id")), Path: c.query.text("path")}
	if c.query.err != nil {
		return c.query.err
	}
	list, err := c.svc.ListDirectories(c.ctx, policy.AllocationID(c.id), req)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, list)
}

func (c *call) getCreationProgress() error {
	key := c.query.text("key")
	if c.query.err != nil {
		return c.query.err
	}
	p, err := c.svc.CreationProgress(c.ctx, key)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, p)
}

func (c *call) getWorkerUsage() error {
	u, err := c.svc.WorkerUsage(c.ctx, policy.WorkerID(c.id))
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, u)
}
