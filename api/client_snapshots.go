package api

import (
	"context"
	"net/url"
	"strings"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

func (c *Client) ExportSnapshot(ctx context.Context, req runtime.ExportSnapshotRequest) (runtime.StoredSnapshot, error) {
	return post[runtime.StoredSnapshot](ctx, c, "/v1/snapshots", "", req)
}

func (c *Client) ImportSnapshot(ctx context.Context, req runtime.ImportSnapshotRequest) (runtime.ResolveResult, error) {
	return post[runtime.ResolveResult](ctx, c, "/v1/snapshots/import", "", req)
}

func (c *Client) ListStoredSnapshots(ctx context.Context, store string) (runtime.StoredSnapshotList, error) {
	return get[runtime.StoredSnapshotList](ctx, c, "/v1/snapshots", url.Values{"store": {store}})
}

func (c *Client) RemoveStoredSnapshot(ctx context.Context, store string, digest policy.SnapshotDigest) error {
	if !policy.ValidDigest(string(digest)) {
		return badRequest("%q is not sha256: and 64 hexadecimal digits", policy.Printable(string(digest)))
	}
	return c.call(ctx, request{method: "DELETE", path: "/v1/snapshots/" + strings.TrimPrefix(string(digest), "sha256:"), query: url.Values{"store": {store}}}, nil)
}
