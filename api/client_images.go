package api

import (
	"context"
	"io"
	"net/url"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

const images = "/v1/images/"

// ImportImage sends the archive as it is read. The request's Progress is not
// called: the caller sees its own reader go on.
func (c *Client) ImportImage(ctx context.Context, req runtime.ImportImageRequest, archive io.Reader) (runtime.Image, error) {
	q := url.Values{}
	setText(q, "name", string(req.Name))
	setText(q, "select", req.Select)
	setText(q, "driver", string(req.Driver))
	var out runtime.Image
	err := c.call(ctx, request{method: "POST", path: "/v1/images", query: q, body: archive, bodyType: archiveType}, &out)
	return out, err
}

func (c *Client) ListImages(ctx context.Context) ([]runtime.Image, error) {
	list, err := get[imageList](ctx, c, "/v1/images", nil)
	return list.Items, err
}

func (c *Client) GetImage(ctx context.Context, name policy.ImageName) (runtime.Image, error) {
	path, err := item("image", images, name, "")
	if err != nil {
		return runtime.Image{}, err
	}
	return get[runtime.Image](ctx, c, path, nil)
}

func (c *Client) RemoveImage(ctx context.Context, name policy.ImageName) error {
	path, err := item("image", images, name, "")
	if err != nil {
		return err
	}
	return c.call(ctx, request{method: "DELETE", path: path}, nil)
}
