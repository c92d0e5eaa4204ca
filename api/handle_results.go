package api

import (
	"math"
	"net/http"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

func (c *call) resultRequest() (runtime.ResultRequest, error) {
	req := runtime.ResultRequest{RepositoryID: policy.RepositoryID(c.query.id("repository_id"))}
	return req, c.query.err
}

func (c *call) diffWorkspace() error {
	req, err := c.resultRequest()
	if err != nil {
		return err
	}
	rep, err := c.svc.DiffWorkspace(c.ctx, policy.AllocationID(c.id), req)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, rep)
}

func (c *call) statusWorkspace() error {
	req, err := c.resultRequest()
	if err != nil {
		return err
	}
	rep, err := c.svc.StatusWorkspace(c.ctx, policy.AllocationID(c.id), req)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, rep)
}

func (c *call) getWorkspaceCommits() error {
	req := runtime.CommitsRequest{RepositoryID: policy.RepositoryID(c.query.id("repository_id")), Limit: int(c.query.number("limit", maxPage))}
	if c.query.err != nil {
		return c.query.err
	}
	rep, err := c.svc.WorkspaceCommits(c.ctx, policy.AllocationID(c.id), req)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, rep)
}

// exportWorkspace streams a patch, a bundle or an archive as it is made. One that
// was cut off has a problem in its trailer.
func (c *call) exportWorkspace() error {
	req := runtime.ExportRequest{
		Format:       runtime.ExportFormat(c.query.text("format")),
		RepositoryID: policy.RepositoryID(c.query.id("repository_id")),
		MaxBytes:     c.query.number("max_bytes", math.MaxInt64),
	}
	if c.query.err != nil {
		return c.query.err
	}
	out := c.stream("application/octet-stream", false)
	if _, err := c.svc.ExportWorkspace(c.ctx, policy.AllocationID(c.id), req, out); err != nil {
		return err
	}
	out.end()
	return nil
}

func (c *call) collectWorkspace() error {
	var req runtime.CollectRequest
	if err := c.body(&req, false); err != nil {
		return err
	}
	rec, err := c.svc.CollectWorkspace(c.ctx, policy.AllocationID(c.id), req)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, rec)
}

// collectedList is the answer of listCollected.
type collectedList struct {
	Items []runtime.Collected `json:"items"`
}

func (c *call) listCollected() error {
	items, err := c.svc.ListCollected(c.ctx, policy.RepositoryID(c.id))
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, collectedList{Items: items})
}

func (c *call) exportCollected() error {
	out := c.stream("application/octet-stream", false)
	req := runtime.CollectedRequest{Name: c.query.text("name")}
	if _, err := c.svc.ExportCollected(c.ctx, policy.RepositoryID(c.id), req, out); err != nil {
		return err
	}
	out.end()
	return nil
}

func (c *call) dropCollected() error {
	var req runtime.CollectedRequest
	if err := c.body(&req, false); err != nil {
		return err
	}
	if err := c.svc.DropCollected(c.ctx, policy.RepositoryID(c.id), req); err != nil {
		return err
	}
	return c.done()
}
