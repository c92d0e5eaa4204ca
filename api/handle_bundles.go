package api

import (
	"net/http"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// bundleList is the answer of listBundles.
type bundleList struct {
	Items []runtime.Bundle `json:"items"`
}

func (c *call) listBundles() error {
	items, err := c.svc.ListBundles(c.ctx)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, bundleList{Items: items})
}

// addBundle takes the archive itself as the body, which package bundle bounds.
func (c *call) addBundle() error {
	if err := c.wantPlain(archiveType); err != nil {
		return err
	}
	b, err := c.svc.AddBundle(c.ctx, arriving{c})
	if err != nil {
		// What is left of the body is not worth reading.
		c.w.Header().Set("Connection", "close")
		return err
	}
	return c.reply(http.StatusCreated, b)
}

// removeBundle takes the digits alone: an id has no colon.
func (c *call) removeBundle() error {
	if err := c.svc.RemoveBundle(c.ctx, policy.BundleDigest("sha256:"+c.id)); err != nil {
		return err
	}
	return c.done()
}
