package api

import (
	"net/http"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

func (c *call) listWorkspaces() error {
	f, err := c.query.filter()
	if err != nil {
		return err
	}
	list, err := c.svc.ListWorkspaces(c.ctx, f)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, list)
}

func (c *call) createWorkspace() error {
	var req runtime.CreateWorkspaceRequest
	if err := c.body(&req, false); err != nil {
		return err
	}
	if err := c.mergeKey(&req.IdempotencyKey); err != nil {
		return err
	}
	ws, err := c.svc.CreateWorkspace(c.ctx, req)
	if err != nil {
		return err
	}
	c.w.Header().Set("Location", "/v1/execution-workspaces/"+string(ws.ID))
	return c.reply(http.StatusCreated, ws)
}

// mergeKey puts the Idempotency-Key header into the request's field.
func (c *call) mergeKey(field *string) error {
	if c.key != "" && *field != "" && *field != c.key {
		return badRequest("Idempotency-Key and idempotency_key differ")
	}
	if c.key != "" {
		*field = c.key
	}
	return nil
}

func (c *call) getWorkspace() error {
	ws, err := c.svc.GetWorkspace(c.ctx, policy.AllocationID(c.id))
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, ws)
}

func (c *call) getEvidence() error {
	ev, err := c.svc.WorkspaceEvidence(c.ctx, policy.AllocationID(c.id))
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, ev)
}

func (c *call) getWorkspaceDisk() error {
	u, err := c.svc.WorkspaceDisk(c.ctx, policy.AllocationID(c.id))
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, u)
}

func (c *call) removeWorkspace() error {
	var req runtime.RemoveWorkspaceRequest
	if err := c.body(&req, true); err != nil {
		return err
	}
	ws, err := c.svc.RemoveWorkspace(c.ctx, policy.AllocationID(c.id), req)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, ws)
}
