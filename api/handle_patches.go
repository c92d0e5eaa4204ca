package api

import (
	"net/http"

	"yoi.dev/yoi-runtime/gitcache/patch"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// maxPatchBody holds the largest patch in base64.
const maxPatchBody = patch.MaxBytes/3*4 + 1<<10

// patchList is the answer of listPatches.
type patchList struct {
	Items []runtime.Patch `json:"items"`
}

func (c *call) listPatches() error {
	items, err := c.svc.ListPatches(c.ctx)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, patchList{Items: items})
}

func (c *call) addPatch() error {
	var req runtime.AddPatchRequest
	if err := c.body(&req, false); err != nil {
		return err
	}
	p, err := c.svc.AddPatch(c.ctx, req)
	if err != nil {
		return err
	}
	return c.reply(http.StatusCreated, p)
}

// removePatch takes the digits alone: an id has no colon.
func (c *call) removePatch() error {
	if err := c.svc.RemovePatch(c.ctx, policy.PatchDigest("sha256:"+c.id)); err != nil {
		return err
	}
	return c.done()
}
