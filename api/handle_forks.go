package api

import (
	"net/http"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

func (c *call) forkWorkspace() error {
	var req runtime.ForkRequest
	if err := c.body(&req, true); err != nil {
		return err
	}
	if err := c.mergeKey(&req.IdempotencyKey); err != nil {
		return err
	}
	ws, err := c.svc.ForkWorkspace(c.ctx, policy.AllocationID(c.id), req)
	if err != nil {
		return err
	}
	c.w.Header().Set("Location", "/v1/execution-workspaces/"+string(ws.ID))
	return c.reply(http.StatusCreated, ws)
}

// snapshotList is the answer of listSnapshots.
type snapshotList struct {
	Items []runtime.Snapshot `json:"items"`
}

func (c *call) listSnapshots() error {
	items, err := c.svc.ListSnapshots(c.ctx, policy.AllocationID(c.id))
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, snapshotList{Items: items})
}

func (c *call) snapshotWorkspace() error {
	var req runtime.SnapshotRequest
	if err := c.body(&req, true); err != nil {
		return err
	}
	s, err := c.svc.SnapshotWorkspace(c.ctx, policy.AllocationID(c.id), req)
	if err != nil {
		return err
	}
	return c.reply(http.StatusCreated, s)
}

func (c *call) removeSnapshot() error {
	var req runtime.SnapshotID
	if err := c.body(&req, false); err != nil {
		return err
	}
	if err := c.svc.RemoveSnapshot(c.ctx, policy.AllocationID(c.id), req); err != nil {
		return err
	}
	return c.done()
}

func (c *call) rollbackWorkspace() error {
	var req runtime.SnapshotID
	if err := c.body(&req, false); err != nil {
		return err
	}
	s, err := c.svc.RollbackWorkspace(c.ctx, policy.AllocationID(c.id), req)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, s)
}
