package api

import (
	"net/http"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

func (c *call) exportSnapshot() error {
	var req runtime.ExportSnapshotRequest
	if err := c.body(&req, false); err != nil {
		return err
	}
	s, err := c.svc.ExportSnapshot(c.ctx, req)
	if err != nil {
		return err
	}
	return c.reply(http.StatusCreated, s)
}

func (c *call) importSnapshot() error {
	var req runtime.ImportSnapshotRequest
	if err := c.body(&req, false); err != nil {
		return err
	}
	p, err := c.svc.ImportSnapshot(c.ctx, req)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, p)
}

func (c *call) listStoredSnapshots() error {
	list, err := c.svc.ListStoredSnapshots(c.ctx, c.query.text("store"))
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, list)
}

// removeStoredSnapshot takes the digits alone: an id has no colon.
func (c *call) removeStoredSnapshot() error {
	if err := c.svc.RemoveStoredSnapshot(c.ctx, c.query.text("store"), policy.SnapshotDigest("sha256:"+c.id)); err != nil {
		return err
	}
	return c.done()
}
