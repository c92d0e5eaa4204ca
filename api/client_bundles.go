package api

import (
	"context"
	"io"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// AddBundle sends the archive as it is read.
func (c *Client) AddBundle(ctx context.Context, archive io.Reader) (runtime.Bundle, error) {
	var out runtime.Bundle
	err := c.call(ctx, request{method: "POST", path: "/v1/config-bundles", body: archive, bodyType: archiveType}, &out)
	return out, err
}

func (c *Client) ListBundles(ctx context.Context) ([]runtime.Bundle, error) {
	list, err := get[bundleList](ctx, c, "/v1/config-bundles", nil)
	return list.Items, err
}

func (c *Client) RemoveBundle(ctx context.Context, digest policy.BundleDigest) error {
	digits, err := digest.Hex()
	if err != nil {
		return err
	}
	return c.call(ctx, request{method: "DELETE", path: "/v1/config-bundles/" + digits}, nil)
}
